"""One worker at one book: everything it needs is opened, it works until nothing is left, everything is closed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

from rollbook.agents.choice import outside
from rollbook.book.book import Book
from rollbook.collect.account import Account
from rollbook.collect.concurrency import concurrency
from rollbook.collect.player import Player
from rollbook.collect.progress import Display
from rollbook.collect.shift import Shift
from rollbook.collect.worker import Worker
from rollbook.core.manifest import EnvironmentSpec, Limits, Manifest, Round, Settings
from rollbook.environments.court import Court
from rollbook.environments.environment import Environment
from rollbook.environments.snapshot import load
from rollbook.environments.stage import Stage
from rollbook.errors import Stopped
from rollbook.models.model import Model

MOST_HOSTS = 8


@asynccontextmanager
async def stages(
    environments: Mapping[str, EnvironmentSpec],
    limits: Limits,
    *,
    run: Path | None,
    hosts: int | None,
    instances: Mapping[str, Environment] | None = None,
    court: Court | None = None,
    playing: bool = True,
) -> AsyncIterator[dict[str, Stage]]:
    """The environments of a run, open for as long as the context is; `limits` are for those without their own.

    Where nothing is `playing`, and only stored rollouts are verified, no server is needed.
    """
    most = hosts or min(MOST_HOSTS, os.cpu_count() or 1)
    opened: dict[str, Stage] = {}
    try:
        for name, spec in environments.items():
            held = (instances or {}).get(name)
            make = partial(load, spec, run) if held is None else partial(lambda e: e, held)
            log = run / "logs" / f"environment-{os.getpid()}.log" if run else None
            own = spec.terms.limits if spec.terms else limits
            stage = Stage(spec, own, environment=make, run=run, hosts=most, log=log, court=court, playing=playing)
            opened[name] = stage
            await stage.open()
        yield opened
    finally:
        closing = [stage.close() for stage in opened.values()]
        for error in filter(None, await asyncio.gather(*closing, return_exceptions=True)):
            raise error  # now that no other is cut short by it


def player(manifest: Manifest, model: Model, on: Mapping[str, Stage], settings: Settings) -> Player:
    """What plays the rollouts of a run."""
    return Player(
        model,
        on,
        outside(manifest.agent, {settings.api_key_env, settings.judge_key_env}),
        manifest.sampling,
        manifest.limits,
        manifest.seed,
        tool_format=manifest.tool_format,
        budgets=settings.attempts,
        continue_tokens=manifest.continue_tokens,
    )


async def work_on(
    book: Book,
    round_: Round,
    model: Model,
    display: Display,
    *,
    court: Court | None = None,
    signals: bool = False,
    enough: asyncio.Event | None = None,
) -> Account:
    """Fill a book until nothing is left for this round, or it is `enough`; a stop by signal is `Stopped`."""
    settings, manifest = round_.settings, book.manifest
    limiter = concurrency(settings.concurrency, display.note)
    account = Account(book, settings)
    shift = Shift(book, round_, listener=account.take, inherited=account.inherit)
    open_stages = stages(manifest.environments, manifest.limits, run=book.path, hosts=settings.hosts, court=court)
    async with open_stages as on:
        worker = Worker(shift, player(manifest, model, on, settings), limiter, round_.number, settings.attempts)
        display.start(account.requested)

        def glance() -> None:
            display.update(account.progress(worker))
            if account.verdict:
                worker.stop()

        with stopping(worker, display, signals) as stops, drained(worker, enough):
            await shift.join()
            try:
                await worker.run(glance)
            finally:
                await shift.leave()
                display.update(account.progress(worker))
    if shift.trouble:
        raise shift.trouble
    if stops and not account.verdict:
        raise Stopped(
            f"interrupted with {account.requested - account.scored} rollouts to go: rollbook resume {book.path}"
        )
    return account


@contextmanager
def drained(worker: Worker, enough: asyncio.Event | None) -> Iterator[None]:
    """Have a worker take nothing new from an event on."""
    if enough is None:
        yield
        return
    waiting = asyncio.create_task(enough.wait(), name="enough")
    waiting.add_done_callback(lambda task: None if task.cancelled() else worker.drain())
    try:
        yield
    finally:
        waiting.cancel()


@contextmanager
def stopping(worker: Worker, display: Display, signals: bool) -> Iterator[list[int]]:
    """The first signal drains, a second stops; gives the list of signals that came."""
    came: list[int] = []
    if not signals:
        yield came
        return

    def on_signal(number: int) -> None:
        came.append(number)
        if len(came) == 1:
            display.note(f"draining: {worker.pulse.in_flight} in flight; once more stops at once")
            worker.drain()
        else:
            worker.stop()

    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield came
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)  # what is closed afterwards may take a while, and can be interrupted too
