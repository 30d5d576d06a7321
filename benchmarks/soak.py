"""Thousands of attacks at once, as figures: what is left of them, and how the host has grown."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from engine import Figure

AT_ONCE = 8
COSTLY = 0.3


def soak(runs: int) -> Iterator[Figure]:
    """All attacks mixed, nearly a third of them lasting to their limit."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from support.soak import soak as soaked

    done = soaked(runs, AT_ONCE, COSTLY)
    detail = ", ".join(f"{count} {status}" for status, count in done.statuses.most_common())
    yield Figure(
        f"attacks run, {AT_ONCE} at a time", sum(done.statuses.values()), "", runs, at_least=True, detail=detail
    )
    for name in done.after._fields:
        more = getattr(done.after, name) - getattr(done.before, name)
        yield Figure(f"{name} left", more, "", 0.0, detail=f"{getattr(done.after, name)} held")
    yield Figure("growth of the host's memory", 100 * done.growth, "%", 5.0)
