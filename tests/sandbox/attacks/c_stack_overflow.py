# status: crash error memory
import ctypes
import sys

sys.setrecursionlimit(10**9)
callback = ctypes.CFUNCTYPE(ctypes.c_int)


@callback
def deeper():
    return deeper()


deeper()
