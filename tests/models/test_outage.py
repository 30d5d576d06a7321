"""The clock of an outage, and the messages about one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from rollbook.models import outage as module
from rollbook.models.outage import Outage, describe_current_outage, describe_outage, describe_refusal, describe_waiting


@pytest.fixture
def go_to(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return what sets the time of the loop."""
    loop = SimpleNamespace(now=100.0, time=lambda: loop.now)
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(**{**vars(asyncio), "get_running_loop": lambda: loop}))
    return lambda now: setattr(loop, "now", now)


def test_the_clock_runs_from_the_first_failure_to_the_next_answer(go_to: Callable[[float], None]) -> None:
    outage = Outage(30)
    assert (outage.seconds, outage.left_s()) == (0.0, 30.0)
    outage.begin()
    go_to(112.0)
    outage.begin()
    assert (outage.seconds, outage.left_s()) == (12.0, 18.0)
    go_to(135.0)
    assert (outage.seconds, outage.left_s()) == (35.0, -5.0)
    outage.end()
    assert (outage.seconds, outage.left_s()) == (0.0, 30.0)


@pytest.mark.parametrize(
    ("allowed_s", "ended", "seconds"),
    [(30, 130.0, 40.0), (30, 129.9, 0.0), (5, 135.0, 40.0), (5, 134.9, 0.0)],
)
def test_time_without_calls_is_no_outage(
    go_to: Callable[[float], None], allowed_s: float, ended: float, seconds: float
) -> None:
    outage = Outage(allowed_s)
    go_to(140.0)
    outage.skip_idle_time(0.0)  # no clock runs
    assert outage.seconds == 0.0
    go_to(100.0)
    outage.begin()
    go_to(140.0)
    outage.skip_idle_time(ended)
    assert outage.seconds == seconds


def test_messages_name_the_reasons_and_what_to_do() -> None:
    assert describe_waiting("why", 90.0) == "waiting for the model, 90 s at most: why"
    assert describe_outage("why", 1.5) == (
        "no model answered for 1.5 s (why); check the server, then try again; continue a run with `rollbook resume`"
    )
    assert describe_outage("why", 0, "wait") == "no model answered (why); check the server, then wait"
    assert describe_refusal("why") == "the endpoint refuses every call: why; then continue with `rollbook resume`"
    assert describe_current_outage("why", 12.6) == "no endpoint answers for 13 s: why"
