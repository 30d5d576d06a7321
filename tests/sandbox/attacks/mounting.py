# status: ok
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"x", b"/box", b"tmpfs", 0, None) == 0 or libc.umount2(b"/box", 2) == 0:
    print("BREACH")
