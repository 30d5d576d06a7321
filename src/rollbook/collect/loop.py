"""The event loop that work runs on: the fast one, and an end that nobody can hold up."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rollbook.environments.guard import GRACE_S

T = TypeVar("T")
GARBAGE = 20_000


def here_or_there(work: Callable[[], Coroutine[None, None, T]]) -> T | Coroutine[None, None, T]:
    """Run to the end in a plain call; inside a running loop hand back what is to be awaited."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return on_fast_loop(work)
    return work()


def on_fast_loop(work: Callable[[], Coroutine[None, None, T]]) -> T:
    """Run a coroutine on uvloop where there is one."""
    try:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:
        factory = None
    with seldom_collected(), asyncio.Runner(loop_factory=factory) as runner:
        try:
            return runner.run(work())
        finally:
            leave_behind(runner.get_loop())


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Rollouts make many objects and few cycles: looking for cycles every 700 objects took a tenth of all time."""
    before = gc.get_threshold()
    gc.set_threshold(GARBAGE, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def leave_behind(loop: asyncio.AbstractEventLoop) -> None:
    """Environment code that refuses to be cancelled must not keep the program from ending."""
    deaf = {task for task in asyncio.all_tasks(loop) if task.get_name() == "environment code"}
    for task in deaf:
        task.cancel()
    if deaf:
        _, deaf = loop.run_until_complete(asyncio.wait(deaf, timeout=GRACE_S))
    for task in deaf:
        asyncio._unregister_task(task)
