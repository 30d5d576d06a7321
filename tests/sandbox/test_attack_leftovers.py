"""A thousand attacks, eight at a time: nothing of them is left, and the host has not grown."""

from __future__ import annotations

import pytest

from rollbook.sandbox import Sandbox, SandboxError
from support.alive import eventually
from support.soak import held, soak

RUNS, AT_ONCE = 1000, 8
COSTLY = 0.1
"""Few of those that last to their limit, so that it does not take long."""
GROWTH = 0.05


def test_a_thousand_attacks_leave_nothing_behind() -> None:
    try:
        with Sandbox(size=1):
            pass
    except SandboxError as error:
        pytest.skip(f"no sandbox on this machine: {error}")
    nothing = held()
    soaked = soak(RUNS, AT_ONCE, COSTLY)
    assert sum(soaked.statuses.values()) == RUNS
    assert {"ok", "error", "memory", "crash"} <= set(soaked.statuses)
    assert soaked.after.within(soaked.before), soaked
    assert soaked.growth < GROWTH
    assert eventually(lambda: held().within(nothing), 20), (held(), nothing)
