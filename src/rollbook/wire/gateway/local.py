"""A gateway for one program of a run: on loopback, under one name, for as long as its rollout is played."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from rollbook.core.rollout import Rollout
from rollbook.models.ask import Ask
from rollbook.wire.gateway.recorder import Recorder
from rollbook.wire.gateway.server import Gateway, new_name

HOST = "127.0.0.1"
MODEL = "rollbook"
"""What the model is called there; any other name does as well."""

SHUTDOWN_S = 1.0


class LocalDoor:
    """See `agents.program.Door`."""

    def __init__(self, url: str, recorder: Recorder) -> None:
        self.url, self._recorder = url, recorder
        self.broken: asyncio.Event = recorder.broken

    @property
    def calls(self) -> int:
        """How many calls were answered."""
        return self._recorder.calls

    def settle(self) -> None:
        """Raise what the calls came to, if it was not an answer to each."""
        self._recorder.settle()


class LocalGateway:
    """Serves each rollout on a port of its own: there is nothing that two of them share."""

    @asynccontextmanager
    async def open(self, rollout: Rollout, ask: Ask) -> AsyncIterator[LocalDoor]:
        """See `agents.program.Gateway`."""
        recorder, name = Recorder(rollout, ask), new_name()
        app = Gateway({name: recorder}.__getitem__, MODEL).app()
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S, handler_cancellation=True)
        await runner.setup()
        try:
            site = web.TCPSite(runner, HOST, 0)
            await site.start()
            yield LocalDoor(f"http://{HOST}:{runner.addresses[0][1]}/rollout/{name}", recorder)
        finally:
            recorder.close()
            await runner.cleanup()
