"""A loop on a thread of its own: work is started or awaited, and ends when the loop is closed."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rollbook.trainers.task_runner import BackgroundLoop


def test_work_runs_elsewhere_and_its_result_or_its_error_comes_back() -> None:
    background = BackgroundLoop("elsewhere")

    async def where() -> str:
        return threading.current_thread().name

    async def fails() -> None:
        raise KeyError("x")

    assert background.run(where()) == "elsewhere"
    with pytest.raises(KeyError):
        background.run(fails())
    background.close()


def test_closing_ends_what_is_under_way_and_the_thread() -> None:
    background, ended = BackgroundLoop("closing"), threading.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    background.start(forever())
    background.close()
    assert ended.is_set()
    assert "closing" not in [thread.name for thread in threading.enumerate()]
