"""`-c auto` against an endpoint with a real limit: it is found from below, and refusals cost nobody a score."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

from aiohttp import web

from rollbook import Collector, Environment, Rollout, Task

CAPACITY = 24


class Ones(Environment):
    """A thousand trivial tasks; async, so that it may live in a test."""

    def tasks(self) -> Iterator[Task]:
        return (Task(id=f"t{i}", prompt=f"What is {i} + 1?") for i in range(1000))

    async def verify(self, task: Task, rollout: Rollout) -> bool:
        return rollout.text == "1"


class Limited:
    """Answers in 20 ms, and with 429 whenever more than CAPACITY calls are under way."""

    def __init__(self) -> None:
        self.active = self.most = self.refused = self.answered = 0

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    async def chat(self, request: web.Request) -> web.Response:
        await request.read()
        self.active += 1
        self.most = max(self.most, self.active)
        try:
            if self.active > CAPACITY:
                self.refused += 1
                return web.Response(status=429, text=json.dumps({"error": {"message": "busy"}}))
            await asyncio.sleep(0.02)
        finally:
            self.active -= 1
        self.answered += 1
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "1"}}
        return web.json_response({"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})


async def collect(server: Limited) -> int:
    app = web.Application()
    app.add_routes([web.get("/v1/models", server.models), web.post("/v1/chat/completions", server.chat)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with Collector(Ones(), f"http://127.0.0.1:{port}/v1", concurrency="auto") as collector:
            return len([group async for group in collector.groups()])
    finally:
        await runner.cleanup()


def test_auto_finds_a_limit_and_everything_is_scored() -> None:
    server = Limited()
    assert asyncio.run(asyncio.wait_for(collect(server), 60)) == 1000
    assert server.answered == 1000
    assert CAPACITY / 2 <= server.most <= 4 * CAPACITY
    assert server.refused < 500  # at most what the largest limit tried at once is refused, once or twice
