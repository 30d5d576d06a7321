"""A judge as a real endpoint in a thread: honest, in favour of an order, talking nonsense, or out of order."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ANSWERS = re.compile(r"<answer_1>\n(.*?)\n</answer_1>\n\n<answer_2>\n(.*?)\n</answer_2>", re.DOTALL)


class JudgeServer:
    """`with JudgeServer("honest") as judge`: `judge.url` goes behind --judge, `judge.asked` is what it was asked."""

    def __init__(
        self,
        mode: str = "honest",
        same: set[frozenset[str]] | None = None,
        name: str = "judge-1",
        context: int | None = None,
    ) -> None:
        self.mode, self.same, self.name, self.context = mode, same or set(), name, context
        self.asked: list[tuple[str, str]] = []
        self.keys: list[str | None] = []
        self.gone = False

    def __enter__(self) -> JudgeServer:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                self.say(200, {"data": [{"id": outer.name}]})

            def do_POST(self) -> None:
                if outer.gone:  # a connection may be open still
                    self.close_connection = True
                    return
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.keys.append(self.headers.get("Authorization"))
                limit = body.get("max_tokens") or body["max_completion_tokens"]
                status, text = outer.fitting(body["messages"][-1]["content"], limit)
                choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
                self.say(status, {"choices": [choice]} if status == 200 else {"error": {"message": text}})

            def say(self, status: int, value: object) -> None:
                raw = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.gone = True
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def fitting(self, prompt: str, max_tokens: int) -> tuple[int, str]:
        """Its answer, if the question (four characters a token) and the answer's tokens fit its context."""
        asked = len(prompt) // 4 + max_tokens
        if self.context and asked > self.context:
            said = (
                f"This model's maximum context length is {self.context} tokens. However, you requested {asked} tokens."
            )
            return 400, said
        if not ANSWERS.search(prompt):
            return 200, "Hello."  # whoever looks whether it is there
        return self.answer(prompt)

    def answer(self, prompt: str) -> tuple[int, str]:
        """What it says to a question about two answers."""
        found = ANSWERS.search(prompt)
        assert found
        self.asked.append((found[1], found[2]))
        if self.mode == "broken":
            return 400, "out of order"
        if self.mode == "nonsense":
            return 200, "Both are lovely. Verdict: yes and no"
        if self.mode == "order":
            return 200, f"Verdict: {'same' if found[1] < found[2] else 'different'}"
        same = frozenset(found.groups()) in self.same
        return 200, f"I compare.\n\nVerdict: {'same' if same else 'different'}"
