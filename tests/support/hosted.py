"""Hosted endpoints as threads, written from their public references: which parameters, paths and headers they take.

`with NewerOpenAI() as server: ... server.url, server.requests`. Each checks a request as the service does, and refuses
with the service's own body; what passes is answered: sums rightly, anything else with "ok".
"""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

_SUM = re.compile(r"(-?\d+)\s*\+\s*(-?\d+)")
Reply = tuple[int, Any]


@dataclass(frozen=True)
class Recorded:
    """One request as it came; header names are in lower case."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: dict[str, Any] = field(default_factory=dict)


class HostedServer:
    """Records every request, and answers with what `reply` returns."""

    prefix = "/v1"

    def __init__(self) -> None:
        self.requests: list[Recorded] = []
        self.retry_after: str | None = None

    def __enter__(self) -> HostedServer:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                self.answer({})

            def do_POST(self) -> None:
                self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def answer(self, body: dict[str, Any]) -> None:
                url = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(url.query).items()}
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Recorded(self.command, url.path, query, headers, body)
                outer.requests.append(request)
                status, value = outer.reply(request)
                raw = value.encode() if isinstance(value, str) else json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/html" if isinstance(value, str) else "application/json")
                if outer.retry_after is not None and status != 200:
                    self.send_header("Retry-After", outer.retry_after)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        """The base URL of its API."""
        return self.origin + self.prefix

    @property
    def calls(self) -> list[Recorded]:
        """The completions that were asked for."""
        return [request for request in self.requests if request.method == "POST"]

    def reply(self, request: Recorded) -> Reply:
        """Return the status and body of an answer; text is an HTML page."""
        raise NotImplementedError


def solve(messages: list[dict[str, Any]]) -> str:
    """The answer to the last message."""
    found = _SUM.search(json.dumps(messages[-1]["content"]))
    return f"The answer is {int(found[1]) + int(found[2])}." if found else "ok"


def chat_completion(body: dict[str, Any]) -> Reply:
    """A chat completion with every field that OpenAI's reference requires."""
    prompt = len(json.dumps(body["messages"])) // 4
    text = solve(body["messages"])
    return 200, {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_750_000_000,
        "model": body["model"],
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": None, "annotations": []},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": len(text) // 4,
            "total_tokens": prompt + len(text) // 4,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        },
    }


def openai_error(status: int, message: str, param: str | None = None, code: str | None = None) -> Reply:
    """An error of OpenAI."""
    return status, {
        "error": {"message": message, "type": "invalid_request_error", "param": param, "code": code},
    }


def unsupported_parameter(name: str, instead: str = "") -> Reply:
    """What OpenAI says of a parameter that a model does not take."""
    hint = f" Use '{instead}' instead." if instead else ""
    said = f"Unsupported parameter: '{name}' is not supported with this model.{hint}"
    return openai_error(400, said, name, "unsupported_parameter")


class NewerOpenAI(HostedServer):
    """A model of OpenAI's newer kind: max_completion_tokens only, temperature 1 only; `refuses` names further ones."""

    def __init__(self, *refuses: str, name: str = "newer-1", key: str = "") -> None:
        super().__init__()
        self.refuses, self.name, self.key = refuses, name, key

    def reply(self, request: Recorded) -> Reply:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return openai_error(401, "Incorrect API key provided.", code="invalid_api_key")
        if request.path == f"{self.prefix}/models":
            row = {"id": self.name, "object": "model", "created": 1_750_000_000, "owned_by": "system"}
            return 200, {"object": "list", "data": [row]}
        if request.path != f"{self.prefix}/chat/completions":
            return openai_error(404, f"Invalid URL (POST {request.path})")
        body = request.body
        if "max_tokens" in body:
            return unsupported_parameter("max_tokens", "max_completion_tokens")
        for name in self.refuses:
            if name in body:
                return unsupported_parameter(name)
        if body.get("temperature", 1) != 1:
            said = f"Unsupported value: 'temperature' does not support {body['temperature']} with this model."
            return openai_error(
                400, f"{said} Only the default (1) value is supported.", "temperature", "unsupported_value"
            )
        return chat_completion(body)


class OlderServer(HostedServer):
    """A server that knows max_tokens only, and says as pydantic does that it knows nothing else."""

    def reply(self, request: Recorded) -> Reply:
        if request.path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": "older", "object": "model"}]}
        if "max_completion_tokens" in request.body:
            location = ["body", "max_completion_tokens"]
            return 422, {
                "detail": [{"type": "extra_forbidden", "loc": location, "msg": "Extra inputs are not permitted"}]
            }
        return chat_completion(request.body)


class SeedlessGemini(HostedServer):
    """Gemini's compatible endpoint, which knows no seed; its errors are lists, its names have a prefix."""

    prefix = "/v1beta/openai"

    def reply(self, request: Recorded) -> Reply:
        if request.method == "GET":
            return 200, {"object": "list", "data": [{"id": "models/gemini-9", "object": "model"}]}
        if "seed" in request.body:
            said = 'Invalid JSON payload received. Unknown name "seed": Cannot find field.'
            return 400, [{"error": {"code": 400, "message": said, "status": "INVALID_ARGUMENT"}}]
        return chat_completion(request.body)


class Azure(HostedServer):
    """Azure OpenAI with one deployment: by its own path and an api-version, or by the newer /openai/v1."""

    prefix = "/openai/v1"

    def __init__(self, deployment: str = "my-deployment", key: str = "azure-secret-1") -> None:
        super().__init__()
        self.deployment, self.key = deployment, key

    @property
    def deployment_url(self) -> str:
        """The URL of the deployment, with its query."""
        return f"{self.origin}/openai/deployments/{self.deployment}?api-version=2024-10-21"

    def reply(self, request: Recorded) -> Reply:
        if request.headers.get("api-key") != self.key:
            said = "Access denied due to invalid subscription key or wrong API endpoint."
            return 401, {"error": {"code": "401", "message": said}}
        if request.path == "/openai/v1/models":  # lists the models of the resource, not the deployments
            return 200, {"object": "list", "data": [{"id": "gpt-5-mini-2025-08-07", "object": "model"}]}
        by_deployment = request.path == f"/openai/deployments/{self.deployment}/chat/completions"
        if not (by_deployment and request.query.get("api-version")) and request.path != "/openai/v1/chat/completions":
            return 404, {"error": {"code": "404", "message": "Resource not found"}}
        if "max_tokens" in request.body:
            return unsupported_parameter("max_tokens", "max_completion_tokens")
        if not by_deployment and request.body["model"] != self.deployment:
            said = "The API deployment for this resource does not exist."
            return 404, {"error": {"code": "DeploymentNotFound", "message": said}}
        return chat_completion(request.body)


ANTHROPIC_FIELDS = {
    *("model", "messages", "max_tokens", "system", "temperature", "top_p", "top_k", "stop_sequences", "stream"),
    *("tools", "tool_choice", "thinking", "metadata", "service_tier", "cache_control", "output_config"),
}


class Anthropic(HostedServer):
    """Anthropic's Messages API in both of its versions; the newer one has no parameters of sampling.

    `mode` is ok, tool (calls the first tool), cut, refusal, window, pause, thinking, or an error.
    """

    def __init__(self, mode: str = "ok", key: str = "anthropic-secret-1", one_sampler: bool = True) -> None:
        super().__init__()
        self.mode, self.key, self.one_sampler = mode, key, one_sampler
        self.context = 200_000

    @staticmethod
    def error(status: int, kind: str, message: str) -> Reply:
        return status, {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}

    def reply(self, request: Recorded) -> Reply:
        headers = request.headers
        if headers.get("x-api-key", headers.get("authorization", "").removeprefix("Bearer ")) != self.key:
            return self.error(401, "authentication_error", "invalid x-api-key")
        version = headers.get("anthropic-version")
        if version not in ("2023-06-01", "2026-10-21"):
            return self.error(400, "invalid_request_error", "anthropic-version: header is required")
        for name in ("temperature", "top_p", "top_k"):
            if version == "2026-10-21" and name in request.body:
                return self.error(400, "invalid_request_error", f"{name}: Extra inputs are not permitted")
        if request.path == "/v1/models":
            row = {"type": "model", "id": "claude-9-20260101", "display_name": "Claude 9", "created_at": "2026-01-01"}
            return 200, {"data": [row], "has_more": False, "first_id": row["id"], "last_id": row["id"]}
        if request.path != "/v1/messages":
            return self.error(404, "not_found_error", "Not Found")
        return self._check(request.body) or self._refuse() or (200, self._answer(request.body))

    def _check(self, body: dict[str, Any]) -> Reply | None:
        invalid = "invalid_request_error"
        for name in body:
            if name not in ANTHROPIC_FIELDS:
                return self.error(400, invalid, f"{name}: Extra inputs are not permitted")
        if "max_tokens" not in body:
            return self.error(400, invalid, "max_tokens: Field required")
        if self.one_sampler and "temperature" in body and "top_p" in body:
            said = "`temperature` and `top_p` cannot both be specified for this model. Please use only one."
            return self.error(400, invalid, said)
        return self._check_messages(body["messages"])

    def _check_messages(self, messages: list[dict[str, Any]]) -> Reply | None:
        invalid = "invalid_request_error"
        called: set[str] = set()
        for number, message in enumerate(messages):
            if message["role"] not in ("user", "assistant"):
                return self.error(400, invalid, f"messages: Unexpected role {message['role']!r}")
            blocks = message["content"]
            blocks = [{"type": "text", "text": blocks}] if isinstance(blocks, str) else blocks
            if not blocks or any(block["type"] == "text" and not block["text"] for block in blocks):
                return self.error(400, invalid, "messages: text content blocks must be non-empty")
            results = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
            if results != called:
                return self.error(400, invalid, f"messages.{number}: `tool_use` ids need `tool_result` blocks after")
            called = {block["id"] for block in blocks if block["type"] == "tool_use"}
        return None

    def _refuse(self) -> Reply | None:
        if self.mode == "overloaded":
            return self.error(529, "overloaded_error", "Overloaded")
        if self.mode == "rate_limit":
            return self.error(429, "rate_limit_error", "This request would exceed your organization's rate limit")
        if self.mode == "context":
            said = f"prompt is too long: {self.context + 7} tokens > {self.context} maximum"
            return self.error(400, "invalid_request_error", said)
        if self.mode == "invalid":
            return self.error(400, "invalid_request_error", "messages.0.content.0: could not process image")
        return None

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        last = body["messages"][-1]["content"]
        text = {"type": "text", "text": solve(body["messages"]), "citations": None}
        content, reason = [text], "end_turn"
        if self.mode == "thinking":
            content = [{"type": "thinking", "thinking": "I add.", "signature": "sig-1"}, text]
        if self.mode == "tool" and not any(isinstance(b, dict) and b["type"] == "tool_result" for b in last):
            use = {"type": "tool_use", "id": "toolu_1", "name": body["tools"][0]["name"], "input": {"a": 12, "b": 30}}
            thought = [{"type": "thinking", "thinking": "A tool.", "signature": "sig-2"}] if "thinking" in body else []
            content, reason = [*thought, use], "tool_use"
        if self.mode in ("cut", "refusal", "window", "pause"):
            reason = {"cut": "max_tokens", "window": "model_context_window_exceeded", "pause": "pause_turn"}.get(
                self.mode, "refusal"
            )
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": content,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": {
                "input_tokens": 20,
                "output_tokens": 9,
                "cache_creation_input_tokens": 5,
                "cache_read_input_tokens": 75,
            },
        }
