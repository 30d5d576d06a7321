"""A very cheap OpenAI-compatible endpoint: raw bytes over uvloop, so that what is measured is the client.

It answers each question `What is A + B?` with its sum (after four calls of a tool, where tools are offered), or all
with what `--says`, after a fixed latency. Of HTTP it knows nothing but Content-Length and keep-alive. Run as a program
it prints its URL on the first line of standard output.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
from typing import cast

import uvloop

QUESTION = re.compile(rb"What is (\d+) \+ (\d+)")
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
MODELS = b'{"object":"list","data":[{"id":"mock","object":"model"}]}'
COMPLETION = (
    b'{"id":"c","object":"chat.completion","created":0,"model":"mock","choices":[{"index":0,"message":{"role":'
    b'"assistant","content":%b},"finish_reason":"stop",'
    b'"logprobs":null}],"usage":{"prompt_tokens":24,"completion_tokens":16,"total_tokens":40}}'
)
TOOL_CALL = (
    b'{"id":"c","object":"chat.completion","created":0,"model":"mock","choices":[{"index":0,"message":{"role":'
    b'"assistant","content":null,"tool_calls":[{"id":"call_%d","type":"function","function":{"name":"add",'
    b'"arguments":"{\\"a\\": %b, \\"b\\": %b}"}}]},"finish_reason":"tool_calls",'
    b'"logprobs":null}],"usage":{"prompt_tokens":24,"completion_tokens":16,"total_tokens":40}}'
)
TOOL_RESULT = re.compile(rb'"role": ?"tool"')
TOOL_CALLS = 4
"""How often the tool is called before the answer, where a request offers tools."""
SUM = b'"Adding the two numbers gives the total. The answer is #### %d"'


def response(body: bytes) -> bytes:
    """A 200 with a JSON body."""
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def answer(request: bytes, says: bytes = b"") -> bytes:
    """What the endpoint says to one request: a JSON string of its own, or a sum."""
    if request.startswith(b"GET"):
        return response(MODELS)
    if says:
        return response(COMPLETION % says)
    found = QUESTION.search(request)
    if found and b'"tools"' in request and (called := len(TOOL_RESULT.findall(request))) < TOOL_CALLS:
        return response(TOOL_CALL % (called, found[1], found[2]))
    return response(COMPLETION % (SUM % (int(found[1]) + int(found[2]) if found else 0)))


class Connection(asyncio.Protocol):
    """One keep-alive connection; requests on it come one after another."""

    def __init__(self, latency_s: float, says: bytes = b"") -> None:
        self.latency_s, self.says = latency_s, says
        self.received = b""
        self.loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop has its own classes

    def data_received(self, data: bytes) -> None:
        self.received += data
        while (request := self.next_request()) is not None:
            reply = answer(request, self.says)
            if self.latency_s and request.startswith(b"POST"):
                self.loop.call_later(self.latency_s, self.write, reply)
            else:
                self.write(reply)

    def next_request(self) -> bytes | None:
        """The bytes of the next whole request, taken out of what was received."""
        head = self.received.find(b"\r\n\r\n")
        if head < 0:
            return None
        length = LENGTH.search(self.received, 0, head)
        end = head + 4 + (int(length[1]) if length else 0)
        if len(self.received) < end:
            return None
        request, self.received = self.received[:end], self.received[end:]
        return request

    def write(self, reply: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(reply)


async def serve(latency_s: float, says: bytes) -> None:
    """Listen on a free port until terminated."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(latency_s, says), "127.0.0.1", 0, backlog=4096)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await stop.wait()
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency-ms", type=float, default=20.0)
    parser.add_argument("--says", default="", help="the same to everyone")
    given = parser.parse_args()
    uvloop.run(serve(given.latency_ms / 1000, json.dumps(given.says).encode() if given.says else b""))


if __name__ == "__main__":
    main()
