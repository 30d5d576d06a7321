"""Serving an application until somebody says that it is enough."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from aiohttp import web

from rollbook.collect.loop import on_fast_loop
from rollbook.errors import UsageError

SHUTDOWN_S = 2.0


def serve_forever(app: web.Application, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `ready` is told the address once requests are taken."""
    on_fast_loop(lambda: serve(app, host, port, ready))


async def serve(
    app: web.Application, host: str, port: int, ready: Callable[[str], None], *, cancelling: bool = False
) -> None:
    """The same on the loop that runs; with `cancelling`, whoever hangs up ends the work on what was asked."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S, handler_cancellation=cancelling)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            raise UsageError(f"--host {host} --port {port}: {error.strerror}; --port 0 takes a free one") from None
        told = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, told.set)
        ready(f"http://{f'[{host}]' if ':' in host else host}:{runner.addresses[0][1]}")
        await told.wait()
    finally:
        await runner.cleanup()
