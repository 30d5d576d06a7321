# status: error killed
# processes: 16
import os

while True:
    if os.fork() == 0:
        os._exit(0)
