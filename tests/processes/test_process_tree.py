"""Processes that are found by what is in their environment."""

from __future__ import annotations

import signal
import subprocess
import sys

from rollbook.processes import kill_by_variable


def start(**env: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", "print(1, flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=env,
        start_new_session=True,
    )
    assert process.stdout
    process.stdout.readline()
    return process


def test_only_processes_with_exactly_this_variable_are_killed(tmp_path: object) -> None:
    value = str(tmp_path)
    mine, others = start(TMPDIR=value), [start(TMPDIR=f"{value}/x"), start(NO_TMPDIR=value), start()]
    kill_by_variable("TMPDIR", value)
    assert mine.wait(timeout=10) == -signal.SIGKILL
    assert [other.poll() for other in others] == [None] * 3
    for other in others:
        other.communicate(b"\n", timeout=10)
