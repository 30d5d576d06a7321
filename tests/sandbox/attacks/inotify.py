# status: ok
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
for _ in range(10_000):
    if libc.inotify_init1(0) >= 0:
        print("BREACH")
        break
if libc.fanotify_init(0, 0) >= 0:
    print("BREACH")
