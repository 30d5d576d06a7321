# status: ok
import ctypes
import platform

libc = ctypes.CDLL(None, use_errno=True)
context = ctypes.c_ulong()
if libc.syscall(206 if platform.machine() == "x86_64" else 0, 1000, ctypes.byref(context)) >= 0:
    print("BREACH: of these there is a number for the whole machine")
