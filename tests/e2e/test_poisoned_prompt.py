"""One prompt that the server always chokes on costs its own rollout and no other, even when it is asked alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from rollbook import Environment, Rollout, Shortfall, Task, run_async


class Ones(Environment):
    """Six trivial tasks; async, so that it may live in a test."""

    def tasks(self) -> Iterator[Task]:
        return (Task(id=f"t{i}", prompt=f"question {i}") for i in range(6))

    async def verify(self, task: Task, rollout: Rollout) -> bool:
        return rollout.text == "1"


async def models(request: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})


async def chat(request: web.Request) -> web.Response:
    if "question 2" in await request.text():
        return web.Response(status=500, text="this prompt breaks me")
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "1"}}
    return web.json_response({"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_poisoned_prompt_fails_alone(tmp_path: Path, concurrency: int) -> None:
    async def go() -> None:
        app = web.Application()
        app.add_routes([web.get("/v1/models", models), web.post("/v1/chat/completions", chat)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        try:
            await run_async(Ones(), url, out=tmp_path / "run", concurrency=concurrency)
        finally:
            await runner.cleanup()

    with pytest.raises(Shortfall) as caught:
        asyncio.run(asyncio.wait_for(go(), 100))
    assert (caught.value.scored, caught.value.failed) == (5, {"model_unavailable": 1})
