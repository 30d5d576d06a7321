# status: timeout
import ctypes

ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
while True:
    pass
