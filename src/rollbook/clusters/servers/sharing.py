"""Servers with jobs of their own: they serve until the run is over; workers find them in the run directory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from pathlib import Path

from rollbook.book.book import Book
from rollbook.book.claims import nothing_left
from rollbook.clusters import slurm
from rollbook.clusters.order import Order, Serve
from rollbook.clusters.servers.endpoints import Endpoint, shared_endpoints, withdraw
from rollbook.clusters.servers.fleet import guarded, serving
from rollbook.clusters.standing import live_workers
from rollbook.errors import ChildFailed, Stopped

LOOK_S = 3.0
ASK_EVERY = 10
"""At which of our looks Slurm is asked too, whose controller has others to answer."""


async def first_endpoints(run: Path, within_s: float) -> dict[str, Endpoint]:
    """The servers that are there, as soon as there is one."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while not (found := await asyncio.to_thread(living_endpoints, run)):
        if loop.time() > deadline:
            raise Stopped(f"no server was ready within {within_s:g} s: see {run / 'logs'}, then rollbook resume {run}")
        await asyncio.sleep(min(LOOK_S, within_s))
    return found


def living_endpoints(run: Path) -> dict[str, Endpoint]:
    """The servers whose jobs are there. What a job that was killed left behind is cleared away by whoever finds it."""
    found = shared_endpoints(run)
    try:
        gone = [nonce for nonce, endpoint in found.items() if endpoint.job and not _lives(endpoint.job)]
    except slurm.Refused:
        return found  # nobody can say: then we shall see
    for nonce in gone:
        withdraw(run, found.pop(nonce))
    return found


def _lives(job: str) -> bool:
    return any(task.live for task in slurm.queue([job]))


async def changed(run: Path, known: set[str]) -> None:
    """Until other servers are there than these."""
    while (now := set(await asyncio.to_thread(shared_endpoints, run))) == known or not now:  # noqa: ASYNC110 - files
        await asyncio.sleep(LOOK_S)


async def serve_all(run: Path, order: Order, serve: Serve, key: str, starts: int, say: Callable[[str], None]) -> None:
    """Serve until no worker needs it any more; a server that dies is started again within a bound."""
    start = 0
    while not await asyncio.to_thread(over, run):
        try:
            async with serving(run, order, serve, key, say) as fleet:
                await guarded(no_longer_needed(run, say), fleet)
                return
        except ChildFailed as error:
            start += 1
            say(f"{error} (start {start} of at most {starts})")
            if start == starts:
                raise


async def no_longer_needed(run: Path, say: Callable[[str], None]) -> None:
    """Until all is done, or no worker is left that could do it."""
    for look in count(1):
        asked = look % ASK_EVERY == 0
        if await asyncio.to_thread(over, run) or (asked and await asyncio.to_thread(deserted, run, say)):
            say("nobody needs this server any more")
            return
        await asyncio.sleep(LOOK_S)


def over(run: Path) -> bool:
    """Whether nothing is left to do."""
    book = Book(run)
    return nothing_left(book, book.rounds())


def deserted(run: Path, say: Callable[[str], None]) -> bool:
    """Whether no worker waits or runs."""
    try:
        return not live_workers(run)
    except slurm.Refused as error:
        say(f"{error}; serving on")
        return False
