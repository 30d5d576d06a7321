# status: memory ok error timeout
# processes: 8
import os
import time

for _ in range(7):
    if os.fork() == 0:
        try:
            held = bytearray(b"x") * (100 << 20)
            time.sleep(0.2)
        finally:
            os._exit(0)
for _ in range(7):
    os.wait()
