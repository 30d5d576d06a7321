# status: ok
import ctypes
import socket

SO_PASSPIDFD, SO_PEERPIDFD = 76, 77
libc = ctypes.CDLL(None, use_errno=True)
found, size, on = ctypes.c_int(-1), ctypes.c_uint(4), ctypes.c_int(1)
if libc.getsockopt(3, socket.SOL_SOCKET, SO_PEERPIDFD, ctypes.byref(found), ctypes.byref(size)) == 0:
    print("BREACH", found.value)
if libc.setsockopt(3, socket.SOL_SOCKET, SO_PASSPIDFD, ctypes.byref(on), 4) == 0:
    print("BREACH passes")
