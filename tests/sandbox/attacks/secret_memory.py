# status: ok
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
if libc.syscall(447, 0) >= 0 or libc.memfd_create(b"x", 0) >= 0:
    print("BREACH")
