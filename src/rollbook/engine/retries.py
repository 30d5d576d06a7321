"""Retries: the loop over the attempts of a rollout, its delays, and how many final failures stop a run."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from rollbook.book import KeyHistory
from rollbook.core import FAILURE_KINDS, Rollout, attempts_allowed
from rollbook.errors import RolloutFailed, UsageError

FIRST_DELAY_S = 0.5
MAX_DELAY_S = 30.0

AttemptResult: TypeAlias = tuple[Rollout, RolloutFailed | None]


async def run_until_final(
    run_attempt: Callable[[], Awaitable[AttemptResult]],
    past: KeyHistory,
    budgets: Mapping[str, int],
    *,
    record: Callable[[Rollout, RolloutFailed | None, bool], Awaitable[None]] | None = None,
    draining: asyncio.Event | None = None,
) -> Rollout:
    """Make attempts until one is scored or its kind of failure has none left; return the last rollout.

    `record` is called with every attempt, its error and whether it was the last. Once `draining` is set no delay is
    waited for, and an attempt that fails is not followed by another.
    """
    draining = draining or asyncio.Event()
    while True:
        rollout, error = await run_attempt()
        final = error is None or record_failure(past, error.kind, budgets)
        if record:
            await record(rollout, error, final)
        if error is None or final or draining.is_set():
            return rollout
        await wait_for_event(draining, retry_delay_s(error, past))


async def wait_for_event(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait until an event is set, for some seconds at most; return whether it was."""
    try:
        async with asyncio.timeout(timeout_s):
            return await event.wait()
    except TimeoutError:
        return False


def record_failure(past: KeyHistory, kind: str, budgets: Mapping[str, int]) -> bool:
    """Count a failed attempt; return whether it was the last one that its kind has in this round."""
    past.tries[kind] = past.tries.get(kind, 0) + 1
    return past.tries[kind] >= attempts_allowed(kind, budgets)


def retry_delay_s(error: RolloutFailed, past: KeyHistory, random_value: float | None = None) -> float:
    """Return the delay before the next attempt: doubled each time, jittered, at least what the server asked for."""
    if not FAILURE_KINDS[error.kind].delayed:
        return 0.0
    ceiling = min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** (past.attempts - 1))
    jittered = ceiling * (0.5 + 0.5 * (random.random() if random_value is None else random_value))
    return max(jittered, error.retry_after_s or 0.0)


def parse_max_failures(rule: str | None, requested: int) -> float:
    """Return how many final failures stop a run: a count, or a percentage of what was requested.

    >>> parse_max_failures("1%", 200), parse_max_failures("5", 200), parse_max_failures(None, 200)
    (2.0, 5.0, inf)
    """
    if rule is None:
        return float("inf")
    try:
        allowed = float(rule.removesuffix("%")) * (requested / 100 if rule.endswith("%") else 1)
    except ValueError:
        allowed = -1.0
    if not 0 <= allowed < float("inf"):
        raise UsageError(f"--max-failures {rule}: give a count such as 20 or a share such as 1%")
    return allowed
