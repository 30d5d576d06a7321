# status: ok
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
for pid in (1, 2, 100, 1000):
    if libc.ptrace(16, pid, 0, 0) == 0:
        print("BREACH")
if libc.process_vm_readv(2, 0, 0, 0, 0, 0) >= 0:
    print("BREACH")
