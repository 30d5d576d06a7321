# status: ok
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
for number in range(463, 1000):
    if libc.syscall(number, 0, 0, 0, 0, 0, 0) >= 0:
        print("BREACH", number)
