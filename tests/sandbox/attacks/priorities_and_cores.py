# status: ok
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
for pid in (0, 1, os.getppid()):
    for act in (
        lambda: os.sched_setaffinity(pid, {0}),
        lambda: os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(1)),
        lambda: os.setpriority(os.PRIO_PROCESS, pid, 19),
        lambda: os.setpriority(os.PRIO_USER, os.getuid(), 19),
        lambda: os.nice(-20),
    ):
        try:
            act()
            print("BREACH", pid)
        except OSError:
            pass
if libc.mlockall(3) == 0:
    print("BREACH lock")
