# status: timeout error memory killed
# processes: 8
import os

while True:
    try:
        os.fork()
    except OSError:
        pass
