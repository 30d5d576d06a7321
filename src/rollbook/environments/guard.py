"""Environment code on the loop, behind a guard: a deadline that it cannot refuse, exceptions that become failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from rollbook.core.json import JSON
from rollbook.environments.broken import kind_of
from rollbook.errors import InvalidReward, RolloutFailed

GRACE_S = 1.0


async def guarded(work: Awaitable[JSON], seconds: float, where: str, broken: str, late: str) -> JSON:
    """Await environment code with a deadline that it cannot refuse: what will not be cancelled is left behind."""
    task = asyncio.create_task(contained(work, where, broken), name="environment code")
    task.add_done_callback(lambda t: t.cancelled() or t.exception())
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if done:
            return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE_S)
    raise RolloutFailed(late, where, f"{where} took longer than {seconds:g} s")


async def contained(work: Awaitable[JSON], where: str, broken: str) -> JSON:
    """Environment code whose exceptions, whatever they are, become failures of its kind."""
    try:
        return await work
    except (InvalidReward, RolloutFailed) as error:
        words = error.message if isinstance(error, RolloutFailed) else str(error)
        raise RolloutFailed(kind_of(error, broken), where, words) from None
    except asyncio.CancelledError:
        if cancelled_from_outside():
            raise
        raise RolloutFailed(broken, where, f"{where} awaited something that was cancelled") from None
    except (Exception, SystemExit) as error:
        raise RolloutFailed(kind_of(error, broken), where, f"{type(error).__name__}: {error}") from error


def cancelled_from_outside() -> bool:
    """Whether it is us who are being cancelled, as against something that was merely awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
