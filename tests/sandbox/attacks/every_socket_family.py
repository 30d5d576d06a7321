# status: ok
import socket

for family in range(46):
    for kind in (1, 2, 3, 5):
        try:
            socket.socket(family, kind)
            print("BREACH", family, kind)
        except OSError:
            pass
