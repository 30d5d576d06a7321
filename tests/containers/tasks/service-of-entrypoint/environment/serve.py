import socket
import time

time.sleep(1)
server = socket.create_server(("127.0.0.1", 8090))
while True:
    client, _ = server.accept()
    client.sendall(b"reply of the service")
    client.close()
