# status: ok
import ctypes
import socket

libc = ctypes.CDLL(None, use_errno=True)
for family in (16, 17, 38, 40, 44):  # netlink, packet, alg, vsock, xdp
    for kind in (1, 2, 3, 5):
        for protocol in (0, 15, 768):
            if libc.socket(family, kind, protocol) >= 0:
                print("BREACH", family)
for family in (2, 10, 16, 40):
    if libc.socketpair(family, 1, 0, (ctypes.c_int * 2)()) >= 0:
        print("BREACH pair", family)
one, other = socket.socketpair()
for call in (lambda: one.bind("\0breach"), lambda: one.listen(), lambda: one.connect("\0breach")):
    try:
        call()
        print("BREACH")
    except OSError:
        pass
