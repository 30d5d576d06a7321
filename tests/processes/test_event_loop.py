"""The loop that work runs on leaves the process as it found it."""

from __future__ import annotations

import gc

import pytest

from rollbook.processes.event_loop import GC_THRESHOLD, run_event_loop


def test_garbage_is_sought_less_often_while_the_loop_runs_and_as_before_afterwards() -> None:
    before = gc.get_threshold()

    async def fail() -> None:
        assert gc.get_threshold()[0] == GC_THRESHOLD
        raise LookupError

    with pytest.raises(LookupError):
        run_event_loop(fail)
    assert gc.get_threshold() == before
