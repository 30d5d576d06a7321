"""When an attempt may be made again, and after how long."""

from __future__ import annotations

import random
from collections.abc import Mapping

from rollbook.book.ledger import Past
from rollbook.core.failure import attempts_allowed
from rollbook.errors import RolloutFailed, UsageError

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
AT_ONCE = ("verifier_timeout", "worker_lost")


def note_try(past: Past, kind: str, budgets: Mapping[str, int]) -> bool:
    """Count a failed attempt; True if it was the last one its kind may have in this round."""
    past.tries[kind] = past.tries.get(kind, 0) + 1
    return past.tries[kind] >= attempts_allowed(kind, budgets)


def delay_s(error: RolloutFailed, past: Past, roll: float | None = None) -> float:
    """How long to wait before the next attempt: doubled each time, jittered, at least what the server asked for."""
    return backoff_s(error, past.attempts, roll)


def backoff_s(error: RolloutFailed, tries: int, roll: float | None = None) -> float:
    """The same after so many tries of anything."""
    if error.kind in AT_ONCE:
        return 0.0
    ceiling = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** (tries - 1))
    jittered = ceiling * (0.5 + 0.5 * (random.random() if roll is None else roll))
    return max(jittered, error.retry_after_s or 0.0)


def failures_allowed(rule: str | None, requested: int) -> float:
    """How many final failures a run may have before it is stopped: a count or a percentage of what was requested.

    >>> failures_allowed("1%", 200), failures_allowed("5", 200), failures_allowed(None, 200)
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
