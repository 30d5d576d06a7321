"""The model of a role as a real endpoint in a thread: it answers by a function, and can be out of order."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PROBE = "Hello"


class RoleServer:
    """`with RoleServer(answer) as server`: `server.url` goes behind --role NAME=, `server.asked` has the requests.

    `answer` gets the messages. `status` is what it answers with while it is not 200. `delay_s` is how long it takes.
    A conversation with the word `refuses` always gets a 503.
    """

    def __init__(
        self,
        answer: Callable[[list[dict[str, Any]]], str] = lambda messages: "Yes.",
        *,
        name: str = "actor-1",
        delay_s: float = 0.0,
        port: int = 0,
    ) -> None:
        self.answer, self.name, self.delay_s, self.status, self._port = answer, name, delay_s, 200, port
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.gone, self.refuses = False, ""
        self.usage: dict[str, float] | None = None  # what it reports instead of the tokens of an answer

    def __enter__(self) -> RoleServer:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                self.say(200, {"data": [{"id": outer.name}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.keys.append(self.headers.get("Authorization"))
                if body["messages"][-1]["content"] == PROBE and outer.status < 500:
                    self.say(200, completion("Hello."))
                    return
                outer.asked.append(body)
                time.sleep(outer.delay_s)
                refused = outer.refuses and outer.refuses in str(body["messages"])
                if refused or outer.status != 200:
                    self.say(503 if refused else outer.status, {"error": {"message": "out of order"}})
                    return
                answer = completion(outer.answer(body["messages"]))
                self.say(200, {**answer, **({"usage": outer.usage} if outer.usage else {})})

            def say(self, status: int, value: object) -> None:
                raw = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                if outer.gone:
                    self.send_header("Connection", "close")
                    self.close_connection = True
                self.end_headers()
                self.wfile.write(raw)

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Accept no more connections, and answer no more calls on those that are open."""
        self.gone = True
        self._server.shutdown()
        self._server.server_close()

    def __exit__(self, *_: object) -> None:
        if not self.gone:
            self.close()
        self._thread.join(10)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"


def completion(text: str) -> dict[str, Any]:
    """A chat completion of ten prompt tokens and as many tokens as words."""
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 10, "completion_tokens": len(text.split())}
    return {"choices": [{"index": 0, "finish_reason": "stop", "message": message}], "usage": usage}
