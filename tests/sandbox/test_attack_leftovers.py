"""A thousand attacks, eight at a time: they leave nothing behind, and the host's memory does not grow."""

from __future__ import annotations

import pytest

from rollbook.sandbox import Sandbox, SandboxError
from support.alive import eventually
from support.soak import count_resources, soak

RUNS, AT_ONCE = 1000, 8
COSTLY = 0.1
"""Only a few of those that run to their limit, to save time."""
GROWTH = 0.05


def test_a_thousand_attacks_leave_nothing_behind() -> None:
    try:
        with Sandbox(size=1):
            pass
    except SandboxError as error:
        pytest.skip(f"no sandbox on this machine: {error}")
    nothing = count_resources()
    outcome = soak(RUNS, AT_ONCE, COSTLY)
    assert sum(outcome.statuses.values()) == RUNS
    assert {"ok", "error", "memory", "crash"} <= set(outcome.statuses)
    assert outcome.after.within(outcome.before), outcome
    assert outcome.growth < GROWTH
    assert eventually(lambda: count_resources().within(nothing), 20), (count_resources(), nothing)
