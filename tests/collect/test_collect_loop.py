"""The loop that work runs on leaves the process as it found it."""

from __future__ import annotations

import gc

import pytest

from rollbook.collect.loop import GARBAGE, on_fast_loop


def test_garbage_is_sought_less_often_while_the_loop_runs_and_as_before_afterwards() -> None:
    before = gc.get_threshold()

    async def fail() -> None:
        assert gc.get_threshold()[0] == GARBAGE
        raise LookupError

    with pytest.raises(LookupError):
        on_fast_loop(fail)
    assert gc.get_threshold() == before
