# status: error
import fcntl
import os

while True:
    reading, writing = os.pipe()
    try:
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 1 << 20)
    except OSError:
        pass
    os.set_blocking(writing, False)
    try:
        os.write(writing, b"x" * (1 << 20))
    except BlockingIOError:
        pass
