"""A client that behaves like Gym's simple agent, and a server of ours for it to talk to."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

Say = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
"""A model: what it says to the items so far."""


@asynccontextmanager
async def listening(app: web.Application) -> AsyncIterator[str]:
    """The application on a free port of loopback; its address."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class SimpleAgent:
    """Seeds, calls tools, verifies. Its cookies are those of the last answer and no others, as Gym's agent has them."""

    def __init__(self, url: str, say: Say, max_steps: int = 8) -> None:
        self._url, self._say, self._max_steps = url, say, max_steps
        self.cookies: dict[str, str] = {}

    async def post(self, path: str, body: Any) -> tuple[int, str]:
        """One request; what it answers, whatever the status."""
        async with (
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http,
            http.post(f"{self._url}{path}", json=body, cookies=self.cookies) as response,
        ):
            self.cookies = {name: morsel.value for name, morsel in response.cookies.items()}
            return response.status, await response.text()

    async def run(self, row: dict[str, Any]) -> tuple[int, Any]:
        """One rollout; the status of its verification and what that says."""
        status, text = await self.post("/seed_session", row)
        if status != 200:
            return status, json.loads(text)
        output: list[dict[str, Any]] = []
        for _ in range(self._max_steps):
            said = self._say(output)
            output += said
            calls = [item for item in said if item["type"] == "function_call"]
            for call in calls:
                _, text = await self.post(f"/{call['name']}", json.loads(call["arguments"]))
                output.append({"type": "function_call_output", "call_id": call["call_id"], "output": text})
            if not calls:
                break
        status, text = await self.post("/verify", {**row, "response": response(output)})
        return status, json.loads(text)


def response(output: list[dict[str, Any]]) -> dict[str, Any]:
    """A response with this output."""
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    return {"id": "resp_1", "object": "response", "model": "m", "output": output, "usage": usage}


def text(words: str) -> dict[str, Any]:
    """A message of the model."""
    content = [{"type": "output_text", "text": words, "annotations": [], "logprobs": None}]
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": content}


def call(name: str, at: int = 1, /, **arguments: Any) -> dict[str, Any]:
    """A call of a tool."""
    given = json.dumps(arguments)
    return {
        "type": "function_call",
        "call_id": f"call_{at}",
        "id": f"fc_{at}",
        "name": name,
        "arguments": given,
    }


def replies(*turns: list[dict[str, Any]]) -> Say:
    """A model that says these things, turn by turn."""
    left = iter(turns)
    return lambda _: next(left)
