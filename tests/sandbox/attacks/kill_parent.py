# status: ok error killed
import os
import signal

for pid in (os.getppid(), 0, -1, 1, 2, 3):
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
