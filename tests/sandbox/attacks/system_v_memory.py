# status: ok
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
for key in range(1, 50):
    if libc.shmget(key, 4096, 0o1777) >= 0 or libc.semget(key, 1, 0o1777) >= 0 or libc.msgget(key, 0o1777) >= 0:
        print("BREACH", key)
for number in range(100):
    if libc.shmctl(number, 0, 0) >= 0 or libc.msgctl(number, 0, 0) >= 0:
        print("BREACH", number)
