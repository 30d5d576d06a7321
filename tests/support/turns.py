"""An endpoint that answers the first call of a conversation with the first turn, the second with the second, and so on.

A turn is {"answer": TEXT} or {"tool_calls": [...]}, as in a script of the scripted model.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def complete(turn: dict[str, Any], model: str) -> dict[str, Any]:
    """Return the chat completion of a turn."""
    calls = [{"type": "function", **each} for each in turn.get("tool_calls", [])]
    message = {"role": "assistant", "content": turn.get("answer"), **({"tool_calls": calls} if calls else {})}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {"id": "c", "object": "chat.completion", "model": model, "choices": [choice], "usage": usage}


@contextmanager
def serve_turns(turns: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Serve the turns while the context is open; yields the URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send({"object": "list", "data": [{"id": "turns", "object": "model"}]})

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            said = sum(message["role"] == "assistant" for message in request["messages"])
            self._send(complete(turns[min(said, len(turns) - 1)], request["model"]))

        def _send(self, value: dict[str, Any]) -> None:
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
