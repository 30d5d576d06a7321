"""Retries: when an attempt may be made again, after what delay, and how many final failures stop a run."""

from __future__ import annotations

import random
from collections.abc import Mapping

from rollbook.book import KeyHistory
from rollbook.core import FAILURE_KINDS, attempts_allowed
from rollbook.errors import RolloutFailed, UsageError

FIRST_DELAY_S = 0.5
MAX_DELAY_S = 30.0


def record_failure(past: KeyHistory, kind: str, budgets: Mapping[str, int]) -> bool:
    """Count a failed attempt; True if it was the last one its kind may have in this round."""
    past.tries[kind] = past.tries.get(kind, 0) + 1
    return past.tries[kind] >= attempts_allowed(kind, budgets)


def retry_delay_s(error: RolloutFailed, past: KeyHistory, random_value: float | None = None) -> float:
    """How long to wait before the next attempt: doubled each time, jittered, at least what the server asked for."""
    return backoff_s(error, past.attempts, random_value)


def backoff_s(error: RolloutFailed, tries: int, random_value: float | None = None) -> float:
    """The same after so many tries of anything."""
    if not FAILURE_KINDS[error.kind].delayed:
        return 0.0
    ceiling = min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** (tries - 1))
    jittered = ceiling * (0.5 + 0.5 * (random.random() if random_value is None else random_value))
    return max(jittered, error.retry_after_s or 0.0)


def parse_max_failures(rule: str | None, requested: int) -> float:
    """How many final failures a run may have before it is stopped: a count or a percentage of what was requested.

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
