"""The loop that work runs on leaves the process as it found it."""

from __future__ import annotations

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rollbook.processes.event_loop import GC_THRESHOLD, run_blocking, run_event_loop


def test_garbage_is_sought_less_often_while_the_loop_runs_and_as_before_afterwards() -> None:
    before = gc.get_threshold()

    async def fail() -> None:
        assert gc.get_threshold()[0] == GC_THRESHOLD
        raise LookupError

    with pytest.raises(LookupError):
        run_event_loop(fail)
    assert gc.get_threshold() == before


def test_an_interrupt_that_comes_while_the_thread_starts_cancels_the_work_too(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    submit = ThreadPoolExecutor.submit

    async def work() -> None:
        try:
            await asyncio.sleep(60)
            ended.append("worked")
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    def interrupt(*given: Any) -> None:
        submit(*given)
        raise KeyboardInterrupt

    async def notebook() -> None:
        monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_blocking(work)

    asyncio.run(notebook())
    assert ended == ["cancelled"]
