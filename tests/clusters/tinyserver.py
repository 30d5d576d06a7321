"""A model server as small as one can be: python tinyserver.py --host H --port P --name NAME.

It adds, and its answer depends on the question alone. `--loading S`: not ready before; `--slow S`: each answer takes so
long; `--mute`: never answers; `--sick-on NODE`: does not start there. `--rank R --nodes N --join HOST:PORT`: one of N
processes, the first of which serves once the others have joined it; none outlives another.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SUM = re.compile(r"(\d+) \+ (\d+)")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    args: argparse.Namespace
    started = time.monotonic()

    def do_GET(self) -> None:
        if time.monotonic() - self.started < self.args.loading:
            self._say(503, {"error": "loading"})
        elif self.path == "/health":
            self._say(200, {})
        elif self.path == "/v1/models":
            self._say(200, {"data": [{"id": self.args.name}]})
        else:
            self._say(404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["model"] != self.args.name or self.args.mute:
            self._say(404, {"error": "no such model"})
            return
        time.sleep(self.args.slow)
        found = SUM.search(body["messages"][-1]["content"])
        text = str(int(found[1]) + int(found[2])) if found else "hello"
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        self._say(200, {"choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": 1}})

    def _say(self, status: int, body: object) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Quiet(ThreadingHTTPServer):
    """A client that hangs up is no news: its traceback would be the last line of the log."""

    request_queue_size = 256

    def handle_error(self, request: object, client_address: object) -> None:
        pass


def joined(rank: int, nodes: int, host: str, port: int) -> None:
    """Until all are there; from then on the end of one is the end of this process."""
    if rank == 0:
        with socket.create_server(("", port), backlog=nodes) as meeting:
            lines = [meeting.accept()[0] for _ in range(nodes - 1)]
    else:
        lines = [reached(host, port)]
        lines[0].sendall(f"{rank} on {os.environ['SLURMD_NODENAME']}\n".encode())
    for line in lines:
        threading.Thread(target=mourned, args=[line], daemon=True).start()


def reached(host: str, port: int) -> socket.socket:
    while True:
        try:
            return socket.create_connection((host, port))
        except ConnectionRefusedError:
            time.sleep(0.05)


def mourned(line: socket.socket) -> None:
    while said := line.recv(100):
        print(f"joined by {said.decode().strip()}", flush=True)
    print("one is gone", flush=True)
    os._exit(1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--slow", type=float, default=0.0)
    parser.add_argument("--loading", type=float, default=0.0)
    parser.add_argument("--mute", action="store_true")
    parser.add_argument("--sick-on", default="")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--join", default="")
    args = parser.parse_args()
    if args.sick_on and os.environ.get("SLURMD_NODENAME") == args.sick_on:
        sys.exit("no working GPU here")
    if args.nodes > 1:
        host, _, port = args.join.rpartition(":")
        joined(args.rank, args.nodes, host, int(port))
    if args.rank:
        threading.Event().wait()
    Handler.args = args
    print(f"devices {os.environ.get('CUDA_VISIBLE_DEVICES', 'none')}", flush=True)
    Quiet((args.host, args.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
