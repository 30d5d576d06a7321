# status: ok
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
for pid in [*range(1, 200), os.getppid()]:
    handle = libc.syscall(434, pid, 0)
    if handle >= 0 or libc.syscall(438, handle, 0, 0) >= 0:
        print("BREACH", pid)
