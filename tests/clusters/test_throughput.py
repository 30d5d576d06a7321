from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from rollbook.clusters.job_status import measure_throughput
from support.books import edit_record
from support.commands import Commands


@pytest.fixture
def run(commands: Commands, sums: list[str]) -> Path:
    """A run of ten rollouts that is over."""
    commands.run("run", *sums, "-o", "run")
    return commands.folder / "run"


def backdate(run: Path, seconds: float) -> None:
    """Let the present round have begun so long ago."""
    edit_record(run / "rounds" / "0001.json", started=time.time() - seconds)


def test_the_pace_is_that_of_the_last_minutes(run: Path) -> None:
    backdate(run, 3600)
    now = measure_throughput(run, 30)
    assert now.rate == pytest.approx(10 / 600, rel=0.05)
    assert now.eta_s == pytest.approx(1800, rel=0.05)


def test_chunks_that_were_sealed_long_ago_do_not_count(run: Path) -> None:
    backdate(run, 7200)
    for path in (run / "done").glob("*.json"):
        os.utime(path, (time.time() - 3600,) * 2)
    assert (measure_throughput(run, 30).rate, measure_throughput(run, 30).eta_s) == (0.0, None)
