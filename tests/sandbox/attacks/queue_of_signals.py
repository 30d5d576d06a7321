# status: ok error timeout killed
import os
import signal

signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
for _ in range(100_000):
    try:
        os.kill(os.getpid(), signal.SIGRTMIN)
    except OSError:
        break
