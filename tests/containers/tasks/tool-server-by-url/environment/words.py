"""An MCP server on a port, with what a minimal Python has: one tool, which knows a word for every colour."""

import re
import socket
import time

SCHEMA = '{"type":"object","properties":{"colour":{"type":"string"}},"required":["colour"]}'
TOOL = '{"name":"word_of","description":"Return the word of a colour.","inputSchema":' + SCHEMA + "}"


def answer(text):
    """Return the result or error of a request."""
    if '"method":"initialize"' in text:
        version = re.search(r'"protocolVersion":"([^"]*)"', text)[1]
        info = '"capabilities":{"tools":{}},"serverInfo":{"name":"words","version":"1"}'
        return f'"result":{{"protocolVersion":"{version}",{info}}}'
    if '"method":"tools/list"' in text:
        return f'"result":{{"tools":[{TOOL}]}}'
    if '"method":"tools/call"' in text:
        colour = re.search(r'"colour":"([^"]*)"', text)[1]
        return f'"result":{{"content":[{{"type":"text","text":"{colour}-by-url"}}]}}'
    return '"error":{"code":-32601,"message":"no such method"}'


def read_request(connection):
    """Return the first line and the body of a request."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (more := connection.recv(65536)):
            return "", ""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: *(\d+)", head.lower())
    while length and len(body) < int(length[1]):
        body += connection.recv(65536)
    return head.decode().partition("\r\n")[0], body.decode()


def respond(connection):
    """Answer one request."""
    line, body = read_request(connection)
    request_id = re.search(r'"id":("[^"]*"|\d+)', body)
    if not line.startswith("POST /mcp "):
        status, text = "405 Method Not Allowed", ""
    elif not request_id:
        status, text = "202 Accepted", ""
    else:
        status, text = "200 OK", f'{{"jsonrpc":"2.0","id":{request_id[1]},{answer(body)}}}'
    head = "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    connection.sendall((head % (status, len(text)) + text).encode())


time.sleep(1)  # a server takes its time to start
server = socket.create_server(("127.0.0.1", 8000))
while True:
    accepted, _ = server.accept()
    with accepted:
        respond(accepted)
