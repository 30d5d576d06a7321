"""One body, two ways to call it: awaited, and blocking. Its signature is written once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
WAIT_S = 3600.0


class Worker(Protocol):
    """Who has threads to do things in."""

    def _submit(self, work: Callable[[], Any]) -> Future[Any]: ...


W = TypeVar("W", bound=Worker)


def awaited(body: Callable[Concatenate[W, P], T]) -> Callable[Concatenate[W, P], Coroutine[Any, Any, T]]:
    """The body, done in one of its owner's threads while the loop goes on."""

    @wraps(body)
    async def call(self: W, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = await asyncio.wrap_future(self._submit(partial(body, self, *args, **kwargs)))
        return result

    return call


def blocking(body: Callable[Concatenate[W, P], T]) -> Callable[Concatenate[W, P], T]:
    """The body, done in one of its owner's threads while this one waits."""

    @wraps(body)
    def call(self: W, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self._submit(partial(body, self, *args, **kwargs)).result(WAIT_S)
        return result

    return call


async def to_its_end(work: Callable[[], T]) -> T:
    """Done in a thread, and cancelled only when it is done: what opens or closes must not be left halfway."""
    done = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled: asyncio.CancelledError | None = None
    while not done.done():
        try:
            await asyncio.wait([done])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled:
        done.exception()  # nobody else will ask for it
        raise cancelled
    return done.result()
