# status: ok
import os
import resource

for pid in {1, 2, 3, os.getppid()} - {0, os.getpid()}:
    try:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (1, 1))
        print("BREACH", pid)
    except OSError:
        pass
