# status: ok error killed
import os

for pid in range(2, 40_000):
    try:
        os.kill(pid, 9)
        print("BREACH", pid)
    except OSError:
        pass
