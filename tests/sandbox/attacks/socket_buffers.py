# status: error
import socket

for _ in range(31):
    for end in socket.socketpair():
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 26)
