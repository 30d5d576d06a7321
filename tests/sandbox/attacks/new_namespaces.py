# status: ok
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
for flag in (0x10000000, 0x20000000, 0x00020000, 0x40000000):
    if libc.unshare(flag) == 0:
        print("BREACH", flag)
