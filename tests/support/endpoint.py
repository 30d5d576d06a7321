"""An endpoint that can misbehave: a real HTTP server of chat completions, whose mode can be switched while it runs.

In a test:        async with Endpoint(mode="500", times=2) as endpoint: ... endpoint.url
As a process:     python tests/support/endpoint.py --port 0 --mode ok      prints {"port": ..., "control": ...}
Switch and look:  POST /mode {"mode": "gone", "seconds": 20}, GET /counts, GET /seeds (how often each seed was asked),
                  GET /bodies (what was asked); the control port always listens

Modes: ok, slow (waits `delay_s`), hang, refuse (nobody listens), gone (refuse for `seconds`, then ok), 500, 503, 429
(with `retry_after`), 400, 401, 403, 404, no_model (404 that names the model), html, redirect, thinks (400: no room for
its thoughts), context, no_tools, no_schema, garbage, truncated, cut (the connection drops in the middle of the body),
empty (no choices), error_body (200 with an error), no_message, unfinished (finish_reason null), aborted,
null_content, reasoning, tool_call, bad_arguments, no_usage, echo_N (status N, quoting the key); and with
vllm=True null_logprob, nan_logprob, mismatch, no_ids, and for what goes on in ids no_tokenize, ill_tokenize,
ignores_ids. `times` limits a mode to so many calls. GET models follows refuse, gone, hang, 500, 503 and 401, unless
`models` says otherwise (ok, 404, html, or any of these).

Sums in the last message ("12 + 30") are answered rightly for a share `right` of the seeds, else wrongly; anything else
with "ok". Whoever offers a tool called `add` gets a call of it instead, and then what it returned. `vllm=True` reports
tokens as vLLM does: bytes are ids, 256 ends each message, so that turns continue. With `odd` an answer has one token
more than its text, so that they do not; ids that are sent in are then the prompt, and POST /tokenize renders one, if
`version` is one that does so (below 0.27 only as a text completion). With `seeded` the logprobs depend on the seed.
"""

import argparse
import asyncio
import json
import re
import zlib
from collections import Counter
from typing import Any

from aiohttp import web

END, ODD = 256, 257
_SUM = re.compile(r"(-?\d+)\s*\+\s*(-?\d+)")
_FOLLOWED = {"refuse", "hang", "500", "503", "401"}


class Endpoint:
    """A server with a mode."""

    def __init__(
        self,
        mode: str = "ok",
        *,
        port: int = 0,
        models: str = "",
        names: tuple[str, ...] = ("mock",),
        vllm: bool = False,
        right: float = 0.6,
        delay_s: float = 0.0,
        retry_after: str = "1",
        times: int | None = None,
        key: str = "",
        odd: bool = False,
        version: str = "0.32.0",
        seeded: bool = False,
    ) -> None:
        self.mode, self.models, self.times = mode, models, times
        self.names, self.vllm, self.right, self.key = names, vllm, right, key
        self.delay_s, self.retry_after = delay_s, retry_after
        self.odd, self.version, self.seeded = odd, version, seeded
        self.counts: Counter[str] = Counter()
        self.seeds: Counter[int] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.most_at_once = 0
        self.port, self.control = port, 0
        self.cached: int | None = None  # how many tokens of every prompt it says it had cached
        self._at_once = 0
        self._site: web.TCPSite | None = None
        self._release = asyncio.Event()
        self._return: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def __aenter__(self) -> "Endpoint":
        self._runner, self._control_runner = web.AppRunner(self._app()), web.AppRunner(self._app())
        await self._runner.setup()
        await self._control_runner.setup()
        control = web.TCPSite(self._control_runner, "127.0.0.1", 0)
        await control.start()
        self.control = _port(control)
        await self._listen()
        if self.mode == "refuse":
            await self._stop_listening()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._release.set()
        if self._return:
            self._return.cancel()
        await self._runner.cleanup()
        await self._control_runner.cleanup()

    async def switch(self, mode: str, *, seconds: float = 0.0, **settings: Any) -> None:
        """Another mode from now on; calls that hang are let go of (their connection drops)."""
        self.models, self.times = settings.pop("models", ""), settings.pop("times", None)
        for name, value in settings.items():
            assert hasattr(self, name), f"no setting {name}"
            setattr(self, name, value)
        self._release.set()
        self._release = asyncio.Event()
        self.mode = "refuse" if mode == "gone" else mode
        await (self._stop_listening() if self.mode == "refuse" else self._listen())
        if mode == "gone":
            self._return = asyncio.create_task(self._come_back(seconds))

    async def _come_back(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.mode = "ok"
        await self._listen()

    async def _listen(self) -> None:
        if self._site is None:
            self._site = web.TCPSite(self._runner, "127.0.0.1", self.port)
            await self._site.start()
            self.port = _port(self._site)

    async def _stop_listening(self) -> None:
        if self._site is not None:
            await self._site.stop()
            self._site = None

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_get("/version", self._show_version)
        app.router.add_post("/mode", self._set_mode)
        app.router.add_get("/counts", self._show_counts)
        app.router.add_get("/seeds", self._show_seeds)
        app.router.add_get("/bodies", self._show_bodies)
        return app

    async def _set_mode(self, request: web.Request) -> web.Response:
        settings = await request.json()
        await self.switch(settings.pop("mode"), **settings)
        return web.json_response({"mode": self.mode})

    async def _show_counts(self, request: web.Request) -> web.Response:
        return web.json_response({**self.counts, "most_at_once": self.most_at_once})

    async def _show_seeds(self, request: web.Request) -> web.Response:
        return web.json_response(self.seeds)

    async def _show_bodies(self, request: web.Request) -> web.Response:
        return web.json_response(self.bodies)

    async def _show_version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self.version})

    async def _tokenize(self, request: web.Request) -> web.Response:
        self.counts["tokenize"] += 1
        body = await request.json()
        if self.mode == "no_tokenize":
            return web.json_response({"detail": "Not Found"}, status=404)
        if self.mode == "ill_tokenize":
            return web.json_response({"error": {"message": "overloaded"}}, status=503)
        return web.json_response(
            {"tokens": prompt_ids(body["messages"]) if "messages" in body else [*body["prompt"].encode()]}
        )

    async def _complete(self, request: web.Request) -> web.Response:
        self.counts["text"] += 1
        body = await request.json()
        prompt = body["prompt"]
        messages = [{"role": "user", "content": bytes(i for i in prompt if i < END).decode(errors="ignore")}]
        whole = self._answer({**body, "messages": messages, "logprobs": True})
        choice = whole["choices"][0]
        numbers = [each["logprob"] for each in choice["logprobs"]["content"]]
        choice |= {"text": choice.pop("message")["content"], "prompt_token_ids": prompt}
        choice |= {"logprobs": {"token_logprobs": numbers}}
        whole["usage"]["prompt_tokens"] = len(prompt)
        return web.json_response(whole)

    async def _models(self, request: web.Request) -> web.StreamResponse:
        self.counts["models"] += 1
        mode = self.models or (self.mode if self.mode in _FOLLOWED else "ok")
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            mode = "401"
        if mode != "ok":
            return await self._misbehave(request, mode)
        owner = "vllm" if self.vllm else "rollbook"
        return web.json_response({"object": "list", "data": [{"id": n, "owned_by": owner} for n in self.names]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self.counts["chat"] += 1
        mode = self.mode
        if self.times is not None and mode != "ok":
            self.times -= 1
            if self.times <= 0:
                self.mode, self.times = "ok", None
        if mode == "refuse":
            return await self._misbehave(request, mode)
        self.counts[mode] += 1
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            return await self._reply(request, mode, await request.json())
        finally:
            self._at_once -= 1

    async def _reply(self, request: web.Request, mode: str, body: dict[str, Any]) -> web.StreamResponse:
        self.seeds[body.get("seed", -1)] += 1
        if len(self.bodies) < 10_000:
            self.bodies.append(body)
            self.headers.append(dict(request.headers))
        if self.delay_s and mode in ("ok", "slow"):
            await asyncio.sleep(self.delay_s)
        answer = self._answer(body)
        if mode in ("ok", "slow", "no_tokenize", "ill_tokenize", "ignores_ids"):
            return web.json_response(answer)
        if spoil := _SPOILT.get(mode):
            spoil(answer)
            return web.json_response(answer)
        text = json.dumps(answer)
        if mode == "truncated":
            return web.Response(text=text[: len(text) // 2], content_type="application/json")
        if mode == "cut":
            response = web.StreamResponse(headers={"Content-Length": str(len(text))})
            await response.prepare(request)
            await response.write(text[:20].encode())
            request.transport.abort()
            return response
        return await self._misbehave(request, mode)

    async def _misbehave(self, request: web.Request, mode: str) -> web.StreamResponse:
        if mode == "refuse":
            request.transport.abort()
            return web.Response()
        if mode == "hang":
            await self._release.wait()
            if request.transport:
                request.transport.abort()
            return web.Response()
        if mode == "html":
            page = "<!DOCTYPE html><html><head><title>Welcome</title></head><body>hello</body></html>"
            return web.Response(text=page, content_type="text/html")
        if mode == "redirect":
            return web.Response(status=308, headers={"Location": "http://127.0.0.1:9/v2"})
        if mode == "garbage":
            return web.Response(text="\x00not json at all")
        if mode == "error_body":
            return web.json_response({"error": {"message": "the engine is dead", "type": "server_error"}})
        if mode.startswith("echo_"):
            error = {"message": f"you sent {request.headers.get('Authorization')}"}
            return web.json_response({"error": error}, status=int(mode.removeprefix("echo_")))
        status, message, code = _REFUSALS[mode]
        headers = {"Retry-After": self.retry_after} if mode in ("429", "503") else {}
        error = {"message": message, "type": "BadRequestError", "code": code}
        return web.json_response({"error": error}, status=status, headers=headers)

    def _given(self, body: dict[str, Any]) -> list[int] | None:
        """The prompt as ids, where they are given and taken."""
        taken = tuple(map(int, self.version.split(".")[:2])) >= (0, 27) and self.mode != "ignores_ids"
        return (body.get("kv_transfer_params") or {}).get("prompt_token_ids") if taken else None

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        calls = calls_for(body)
        text = calls_text(calls) if calls else answer_to(body["messages"], body.get("seed") or 0, self.right)
        limit = body.get("max_tokens") or 10**9
        ids = [*([ODD] if self.odd else []), *text.encode(), END]
        finish = "stop" if len(ids) <= limit else "length"
        ids = ids[:limit]
        said = bytes(b for b in ids if b < END).decode(errors="ignore")
        prompt = self._given(body) or prompt_ids(body["messages"])
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": said},
            "finish_reason": finish,
            "logprobs": None,
        }
        if calls and finish == "stop":
            choice |= {"message": {"role": "assistant", "tool_calls": calls}, "finish_reason": "tool_calls"}
        answer: dict[str, Any] = {
            "id": "x",
            "object": "chat.completion",
            "model": body["model"],
            "choices": [choice],
            "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(ids)},
        }
        if self.cached is not None:
            answer["usage"]["prompt_tokens_details"] = {"cached_tokens": self.cached}
        if self.vllm and body.get("logprobs"):
            seed = body.get("seed") or 0
            numbers = [seeded_logprob(seed, at, i) if self.seeded else logprob_of(i) for at, i in enumerate(ids)]
            choice["logprobs"] = {"content": [{"token": "?", "logprob": number} for number in numbers]}
        if self.vllm and body.get("return_token_ids"):
            choice["token_ids"], answer["prompt_token_ids"] = ids, prompt
        return answer


def answer_to(messages: list[dict[str, Any]], seed: int, right: float = 0.6) -> str:
    """What the mock says: the same for the same conversation and seed."""
    if messages[-1].get("role") == "tool":
        return f"The answer is {messages[-1].get('content')}."
    found = _SUM.search(str(messages[-1].get("content")))
    if not found:
        return "ok"
    total = int(found[1]) + int(found[2])
    lucky = zlib.crc32(f"{seed}:{found[0]}".encode()) % 1000 < right * 1000
    return f"The answer is {total if lucky else total + 1 + seed % 7}."


def calls_for(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The call of `add` that a sum in the last user message asks for, where such a tool is offered."""
    last = body["messages"][-1]
    found = _SUM.search(str(last.get("content"))) if last["role"] == "user" else None
    if not found or "add" not in [tool["function"]["name"] for tool in body.get("tools") or ()]:
        return []
    arguments = json.dumps({"a": int(found[1]), "b": int(found[2])})
    return [{"id": "call_1", "type": "function", "function": {"name": "add", "arguments": arguments}}]


def calls_text(calls: list[dict[str, Any]]) -> str:
    """Calls as a template would write them."""
    return json.dumps([[call["function"]["name"], call["function"]["arguments"]] for call in calls])


def prompt_ids(messages: list[dict[str, Any]]) -> list[int]:
    """The ids of a conversation: bytes, each message ended by 256, then the opening of the answer."""
    ids: list[int] = []
    for message in messages:
        calls = calls_text(message["tool_calls"]) if message.get("tool_calls") else ""
        ids += [*f"<{message['role']}>{message.get('content') or ''}{calls}".encode(), END]
    return [*ids, *b"<assistant>"]


def logprob_of(token: int) -> float:
    """The mock's logprob of any token: always the same, never zero."""
    return -(token % 7 + 1) / 10


def seeded_logprob(seed: int, at: int, token: int) -> float:
    """The logprob of a token where it depends on the seed and the place too: no other rollout has the same ones."""
    return -(zlib.crc32(f"{seed}:{at}:{token}".encode()) % 9999 + 1) / 10_000


def _first(answer: dict[str, Any]) -> dict[str, Any]:
    return answer["choices"][0]


_SPOILT = {
    "empty": lambda a: a.update(choices=[]),
    "no_message": lambda a: _first(a).pop("message"),
    "unfinished": lambda a: _first(a).update(finish_reason=None),
    "aborted": lambda a: _first(a).update(finish_reason="abort"),
    "null_content": lambda a: _first(a)["message"].update(content=None),
    "reasoning": lambda a: _first(a)["message"].update(reasoning_content="hm"),
    "tool_call": lambda a: (
        _first(a)["message"].update(
            content=None, tool_calls=[{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]
        ),
        _first(a).update(finish_reason="tool_calls"),
    ),
    "bad_arguments": lambda a: _first(a)["message"]["tool_calls"][0]["function"].update(arguments='{"a": 1, "b"'),
    "null_logprob": lambda a: _first(a)["logprobs"]["content"][0].update(logprob=None),
    "nan_logprob": lambda a: _first(a)["logprobs"]["content"][0].update(logprob=float("nan")),
    "mismatch": lambda a: _first(a)["token_ids"].pop(),
    "no_ids": lambda a: (a.pop("prompt_token_ids"), _first(a).pop("token_ids")),
    "no_usage": lambda a: a.pop("usage"),
    "negative_usage": lambda a: a["usage"].update(prompt_tokens=-20),
    "huge_usage": lambda a: a["usage"].update(completion_tokens=1e30),
    "long_usage": lambda a: a["usage"].update(prompt_tokens=10**30),
}

_CONTEXT = "This model's maximum context length is 2048 tokens. However, your request has 3000 input tokens."
_REFUSALS = {
    "500": (500, "internal server error", None),
    "503": (503, "overloaded", None),
    "429": (429, "slow down", None),
    "400": (400, "temperature must be non-negative", None),
    "401": (401, "bad key", "invalid_api_key"),
    "403": (403, "no access", None),
    "404": (404, "not found", None),
    "no_model": (404, "The model `mock` does not exist", "model_not_found"),
    "thinks": (400, "Could not finish the message because max_tokens or model output limit was reached.", None),
    "context": (400, _CONTEXT, None),
    "no_tools": (400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set', None),
    "no_schema": (400, "response_format json_schema is not supported", None),
}


def _port(site: web.TCPSite) -> int:
    return site._server.sockets[0].getsockname()[1]


async def _serve(args: argparse.Namespace) -> None:
    names = tuple(args.names.split(","))
    settings = {"port": args.port, "vllm": args.vllm, "right": args.right, "delay_s": args.delay_s, "names": names}
    settings["seeded"] = args.seeded
    async with Endpoint(args.mode, **settings) as endpoint:
        print(json.dumps({"port": endpoint.port, "control": endpoint.control}), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--mode", default="ok")
    parser.add_argument("--vllm", action="store_true")
    parser.add_argument("--seeded", action="store_true")
    parser.add_argument("--right", type=float, default=0.6)
    parser.add_argument("--delay-s", type=float, default=0.0)
    parser.add_argument("--names", default="mock")
    try:
        asyncio.run(_serve(parser.parse_args()))
    except KeyboardInterrupt:
        pass
