"""A guessing game and a shop that speak as servers of openenv 0.10 do, word for word, without that package."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from typing import Any

from aiohttp import WSMsgType, web

ACTION = {
    "additionalProperties": False,
    "description": "Guess once.",
    "properties": {
        "metadata": {"additionalProperties": True, "type": "object"},
        "number": {"title": "Number", "type": "integer"},
    },
    "required": ["number"],
    "title": "GuessAction",
    "type": "object",
}
CALL = {"properties": {"type": {"const": "call_tool"}, "tool_name": {"type": "string"}}, "type": "object"}
BUY = {
    "name": "buy",
    "description": "Buy something.",
    "input_schema": {
        "properties": {"what": {"type": "string"}, "count": {"default": 1, "type": "integer"}},
        "required": ["what"],
        "type": "object",
    },
}
MOST = 2


class Guess:
    schema = ACTION

    def reset(self, data: dict[str, Any]) -> dict[str, Any]:
        self.secret, self.left = random.Random(data.get("seed")).randrange(10), 3
        return said({"words": f"Guess my number, episode {data.get('seed')}."})

    def step(self, action: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(action.get("number"), int):
            raise TypeError("Input should be a valid integer")
        if action["number"] < 0:
            raise RuntimeError("the machine broke")
        self.left -= 1
        right = action["number"] == self.secret
        words = "Right." if right else "Higher." if action["number"] < self.secret else "Lower."
        done = right or not self.left
        return said({"words": words}, float(right) if done else None, done)


class Shop:
    schema = CALL

    def reset(self, data: dict[str, Any]) -> dict[str, Any]:
        self.bought: list[str] = []
        return said({}, 0.0)

    def step(self, action: dict[str, Any]) -> dict[str, Any]:
        if action["type"] == "list_tools":
            return said({"tools": [BUY]})
        self.bought += [action["arguments"]["what"]] * action["arguments"].get("count", 1)
        content = [{"type": "text", "text": f"{len(self.bought)} bought", "annotations": None, "meta": None}]
        result = {"content": content, "structured_content": None, "data": None, "is_error": False}
        return said({"tool_name": "buy", "result": result, "error": None}, 0.5, len(self.bought) >= 2)


def said(observation: dict[str, Any], reward: float | None = None, done: bool = False) -> dict[str, Any]:
    return {"observation": {"metadata": {}, **observation}, "reward": reward, "done": done}


class Stub:
    """`with Stub("guess") as server`: `server.url`, and how many sessions there were."""

    def __init__(self, name: str) -> None:
        self._make = {"guess": Guess, "shop": Shop}[name]
        self._loop = asyncio.new_event_loop()
        self.sessions = self.now = 0

    def __enter__(self) -> Stub:
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._runner, port = asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(10)
        self.url = f"http://127.0.0.1:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _serve(self) -> tuple[web.AppRunner, int]:
        app = web.Application()
        app.router.add_get("/metadata", self._metadata)
        app.router.add_get("/schema", self._schema)
        app.router.add_post("/reset", self._reset)
        app.router.add_get("/ws", self._session)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return runner, runner.addresses[0][1]

    async def _metadata(self, _: web.Request) -> web.Response:
        return web.json_response({"name": "x", "description": "A guessing game."})

    async def _schema(self, _: web.Request) -> web.Response:
        return web.json_response({"action": self._make.schema, "observation": {}, "state": {}})

    async def _reset(self, request: web.Request) -> web.Response:
        return web.json_response(self._make().reset(await request.json()))

    async def _session(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if self.now >= MOST:
            await socket.send_json({"type": "error", "data": {"message": "full", "code": "CAPACITY_REACHED"}})
            return socket
        self.sessions += 1
        self.now += 1
        environment = self._make()
        try:
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    await socket.send_json(answer(environment, json.loads(message.data)))
        finally:
            self.now -= 1
        return socket


def answer(environment: Guess | Shop, asked: dict[str, Any]) -> dict[str, Any]:
    try:
        done = environment.reset if asked["type"] == "reset" else environment.step
        return {"type": "observation", "data": done(asked["data"])}
    except TypeError as error:
        errors = [{"msg": str(error)}]
        return {"type": "error", "data": {"message": "Invalid message", "code": "VALIDATION_ERROR", "errors": errors}}
    except RuntimeError as error:
        return {"type": "error", "data": {"message": str(error), "code": "EXECUTION_ERROR"}}
