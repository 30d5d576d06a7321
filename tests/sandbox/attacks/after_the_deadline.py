# status: timeout
import atexit


class Late:
    def __del__(self):
        while True:
            pass


late = Late()
atexit.register(lambda: Late())
while True:
    pass
