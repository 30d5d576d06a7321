# status: ok
import socket

try:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for name in ("/run/systemd/journal/dev-log", "/dev/log", "\0breach"):
        one.sendto(b"x", name)
        print("BREACH")
    print("BREACH")
except OSError:
    pass
