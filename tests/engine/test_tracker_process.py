"""A tracker in a process of its own: it is told of the end, heard while it runs, bounded, and its end is reported."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rollbook.engine import tracking
from rollbook.engine.progress import Progress
from rollbook.engine.tracking import CUT_LINE, TrackerProcess
from support.alive import open_fds

Start = Callable[[str], TrackerProcess]
NUMBERS = Progress(requested=1)
WAIT_FOR_END = "assert os.read(work, 9) == b'end\\n' and os.read(work, 9) == b''\n"


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> Start:
    """Start the process of a tracker that is called diary, with this code."""
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(tracking, "QUIET_WAIT_S", 0.3)
    monkeypatch.setattr(tracking, "TRACKER_END_S", 0.6)

    def make(code: str) -> TrackerProcess:
        head = "import os, sys, time\nname, run = sys.argv[1:3]\nwork, messages = map(int, sys.argv[3:])\n"

        def argv(module: str, *words: str) -> list[str]:
            assert module == "rollbook.trackers"
            return [sys.executable, "-c", head + code, *words]

        monkeypatch.setattr(tracking, "module_argv", argv)
        process = TrackerProcess("diary", tmp_path, said.append)
        process.start()
        return process

    return make


def update_until(process: TrackerProcess, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not done():
        assert time.monotonic() < deadline
        process.update(NUMBERS)
        time.sleep(0.01)


def test_whole_lines_of_the_process_are_reported_while_it_runs(start: Start, said: list[str], tmp_path: Path) -> None:
    code = (
        "os.write(messages, b'one\\ntw\\xff\\nhal')\n"
        + WAIT_FOR_END
        + "os.write(messages, b'f\\n' + run.encode() + b'\\n')"
    )
    opened = len(open_fds())
    process = start(code)
    update_until(process, lambda: said == ["one", "tw\ufffd"])
    process.end()
    process.wait()
    assert said == ["one", "tw\ufffd", "half", str(tmp_path)]
    assert len(open_fds()) <= opened + 1  # but for what the child itself keeps


def test_a_process_that_ends_too_early_is_reported_once_with_its_log(
    start: Start, said: list[str], tmp_path: Path
) -> None:
    process = start("print('what happened', flush=True)\nos._exit(7)")
    update_until(process, lambda: bool(said))
    process.update(NUMBERS)
    process.end()
    process.wait()
    log = tmp_path / "logs" / "tracker-diary.log"
    assert said == [f"diary: its process ended with exit code 7, the run continues without it; see {log}"]
    assert log.read_text() == "what happened\n"


def test_a_process_that_was_killed_is_reported_by_the_signal(start: Start, said: list[str]) -> None:
    process = start(WAIT_FOR_END + "os.kill(os.getpid(), 9)")
    process.end()
    process.wait()
    assert len(said) == 1
    assert said[0].startswith("diary: its process was killed by signal 9, the run continues without it; see ")


def test_a_process_that_reported_its_trouble_itself_is_not_reported_again(start: Start, said: list[str]) -> None:
    process = start("os.write(messages, b'no route\\n')\nos._exit(7)")
    update_until(process, lambda: bool(said))
    process.end()
    process.wait()
    assert said == ["no route"]


def test_a_process_that_does_not_end_is_waited_for_and_then_killed(start: Start, said: list[str]) -> None:
    process = start("time.sleep(3600)")
    began = time.monotonic()
    process.end()
    process.wait()
    assert 0.55 < time.monotonic() - began < 10
    assert said[0] == "waiting for diary, 0.6 s at most"
    assert said[1].startswith("diary did not end within 0.6 s of the run and was killed; see ")
    assert len(said) == 2


def test_a_process_that_ends_soon_is_not_spoken_of(start: Start, said: list[str]) -> None:
    process = start(WAIT_FOR_END + "time.sleep(0.05)")
    process.end()
    process.wait()
    assert said == []


def test_the_end_of_a_long_log_is_kept(
    start: Start, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "MAX_LOG_BYTES", 1000)
    monkeypatch.setattr(tracking, "LOG_TAIL_BYTES", 100)
    log = tmp_path / "logs" / "tracker-diary.log"
    code = "os.write(1, b'a' * 1000)\nos.write(messages, b'full\\n')\n" + WAIT_FOR_END + "os.write(1, b'b' * 60)"
    process = start(code)
    update_until(process, lambda: bool(said))
    process.update(NUMBERS)
    assert log.read_bytes() == b"a" * 1000
    process.end()
    process.wait()
    assert log.read_bytes() == CUT_LINE + b"a" * 40 + b"b" * 60


def test_a_log_is_shortened_while_the_process_runs(
    start: Start, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "MAX_LOG_BYTES", 1000)
    monkeypatch.setattr(tracking, "LOG_TAIL_BYTES", 100)
    log = tmp_path / "logs" / "tracker-diary.log"
    process = start("os.write(1, b'a' * 1001)\nos.write(messages, b'full\\n')\n" + WAIT_FOR_END)
    update_until(process, lambda: bool(said))
    process.update(NUMBERS)
    assert log.read_bytes() == CUT_LINE + b"a" * 100
    process.end()
    process.wait()


def test_a_process_that_cannot_be_started_is_reported_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(tracking, "module_argv", lambda *words: ["/no/such/program"])
    process = TrackerProcess("diary", tmp_path, said.append)
    process.start()
    process.update(NUMBERS)
    process.end()
    process.wait()
    assert len(said) == 1
    assert said[0].startswith("diary could not be started, the run goes on: ")


def test_the_end_of_a_process_is_looked_for_a_few_times_a_second(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    process = start("time.sleep(60)")
    sleeps: list[float] = []
    sleep = time.sleep

    def count(seconds: float) -> None:
        sleeps.append(seconds)
        sleep(seconds)

    monkeypatch.setattr("rollbook.engine.tracking.time.sleep", count)
    process.end()
    process.wait()
    assert set(sleeps) == {0.05}
    assert len(sleeps) <= 13  # within 0.6 s
