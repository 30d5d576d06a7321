"""Trackers that raise, exit, hang or are killed, and runs that are killed: neither does anything to the other."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.alive import eventually
from support.sums import write_script, write_sums
from support.trackers import Logged


@pytest.fixture
def logged(tmp_path: Path) -> Iterator[Logged]:
    started = Logged(tmp_path)
    yield started
    assert started.commands.nothing_left()
    started.commands.close()


@pytest.mark.parametrize(
    ("fault", "report"),
    [
        ("open raises", "diary failed, the run goes on: ConnectionError: no route to the tracker in open"),
        ("log raises", "diary failed, the run goes on: ConnectionError: no route to the tracker in log"),
        ("close raises", "diary failed, the run goes on: ConnectionError: no route to the tracker in close"),
        ("log exits", "diary: its process ended with exit code 7, the run continues without it; see "),
    ],
)
def test_a_tracker_that_fails_is_reported_once_and_the_run_is_complete(
    logged: Logged, tmp_path: Path, fault: str, report: str
) -> None:
    script = write_script(tmp_path, delay_s=0.3)
    done = logged.run("run", write_sums(tmp_path), "-m", script, "-c", 2, "-o", "run", "--log", "diary", fault=fault)
    assert (done.code, "10/10 scored" in done.stdout) == (0, True), done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("diary")]
    assert [line.startswith(report) for line in lines] == [True], done.stderr


def test_a_tracker_whose_process_is_killed_does_not_affect_the_run(logged: Logged, tmp_path: Path) -> None:
    script = write_script(tmp_path, delay_s=0.6)
    command = logged.start("run", write_sums(tmp_path), "-m", script, "-c", 2, "-o", "run", "--log", "diary")
    assert eventually(lambda: bool(logged.read("open")), 30)
    os.kill(logged.read("open")[0]["pid"], signal.SIGKILL)
    assert command.wait(60).code == 0
    (line,) = [line for line in command.stderr.splitlines() if line.startswith("diary")]
    assert line.startswith("diary: its process was killed by signal 9, the run continues without it; see ")


def test_a_tracker_ends_as_interrupted_when_the_run_is_killed(logged: Logged, tmp_path: Path) -> None:
    script = write_script(tmp_path, delay_s=5)
    command = logged.start("run", write_sums(tmp_path), "-m", script, "-c", 1, "-o", "run", "--log", "diary")
    assert eventually(lambda: bool(logged.read("open")), 30)
    command.kill()
    assert eventually(lambda: bool(logged.read("close")), 30)
    assert logged.read("close")[0]["state"] == "interrupted"


IMPATIENT = """
import sys
import rollbook
from rollbook.engine import tracking

tracking.TRACKER_END_S = 3.5
result = rollbook.run(sys.argv[1], sys.argv[2], out=sys.argv[3], log=["diary"])
print(result.report.scored)
"""


@pytest.mark.parametrize("where", ["open", "close"])
def test_a_tracker_that_hangs_is_killed_after_a_bounded_wait(logged: Logged, tmp_path: Path, where: str) -> None:
    words = [write_sums(tmp_path), write_script(tmp_path), "run"]
    done = logged.python("-c", IMPATIENT, *words, fault=f"{where} hangs")
    assert done.stdout == "10\n", done.stderr
    assert done.stderr.splitlines() == [
        "waiting for diary, 3.5 s at most",
        "diary did not end within 3.5 s of the run and was killed; see run/logs/tracker-diary.log",
    ]
