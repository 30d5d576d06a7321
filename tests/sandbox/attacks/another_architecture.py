# status: crash ok
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
if libc.syscall(0x40000000 + 41, 2, 1, 0) >= 0:
    print("BREACH")
