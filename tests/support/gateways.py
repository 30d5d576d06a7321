"""A gateway in this process, in front of any model: rollouts are opened and read as its users do."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec
from aiohttp import web

from rollbook.core import Settings
from rollbook.gateway import GatewayOptions, Record, RolloutDefaults
from rollbook.gateway.standalone import StandaloneGateway, open_upstream

KEY = "the-key"


class Place(msgspec.Struct):
    """Where one rollout is asked in."""

    rollout: str
    openai_base_url: str
    anthropic_base_url: str


class Gate:
    """`async with Gate(endpoint.url) as gate: place = await gate.open()`."""

    def __init__(
        self, *upstream: str, defaults: RolloutDefaults | None = None, out: Path | None = None, **settings: Any
    ) -> None:
        self._asked = GatewayOptions(
            upstream=list(upstream), defaults=defaults or RolloutDefaults(), settings=Settings(**settings)
        )
        self._out = out
        self.said: list[str] = []

    async def __aenter__(self) -> Self:
        self._model = open_upstream(self._asked, self.said.append)
        made = StandaloneGateway(await self._model.__aenter__(), self._asked.defaults, KEY, self._out, self.said.append)
        self._made = made
        self._runner = web.AppRunner(made.make_app(), shutdown_timeout=1.0, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self.http = aiohttp.ClientSession()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.http.close()
        await self._runner.cleanup()
        await self._model.__aexit__(None, None, None)

    async def manage(self, method: str, path: str = "", key: str = KEY, **fields: Any) -> tuple[int, Any]:
        """The status and the body of a request with the gateway's key."""
        headers = {"Authorization": f"Bearer {key}"}
        async with self.http.request(method, f"{self.url}/rollout{path}", headers=headers, **fields) as answer:
            return answer.status, await answer.json()

    async def open(self, **fields: Any) -> Place:
        """A new rollout."""
        status, body = await self.manage("POST", json=fields)
        assert status == 200, body
        return msgspec.convert(body, Place)

    def under_way(self, place: Place) -> int:
        """Calls of a rollout that nobody has answered yet."""
        return self._made._rollouts.get(place.rollout).recorder._in_progress

    def age(self, *places: Place) -> None:
        """Let them be open for longer than any deadline."""
        for place in places:
            self._made._rollouts._table._entries[place.rollout].last_used -= 1e6

    async def record(self, place: Place, method: str = "GET") -> Record:
        """What it holds; with DELETE it is ended, too."""
        status, body = await self.manage(method, f"/{place.rollout}")
        assert status == 200, body
        return msgspec.convert(body, Record)

    async def post(self, place: Place, path: str, **fields: Any) -> tuple[int, Any]:
        """The status and the body of what an agent asks."""
        async with self.http.post(f"{place.openai_base_url}/{path}", **fields) as answer:
            return answer.status, await answer.json()

    async def chat(self, place: Place, *messages: str | dict[str, Any], **fields: Any) -> tuple[int, Any]:
        """The same for a conversation; text is a user's message."""
        said = [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages]
        return await self.post(place, "chat/completions", json={"model": "any", "messages": said, **fields})
