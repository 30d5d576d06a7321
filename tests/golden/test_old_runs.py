"""Runs that an earlier version created can still be resumed, extended, verified again, compared, reported and viewed.

`make_runs.py` created the folders in `runs` with revision 32db08b (version 0.1.0); it names the commands. Each test
works on a copy and uses the command line only, so it says nothing about where the code is. The stored files must stay
as they are, byte for byte: do not rewrite the imports in `runs/own`, do not format what is in `runs`, and do not create
a run again because a test fails. Such a test has found a change that would break the runs of users.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rollbook.sandbox import Sandbox, SandboxError
from support.alive import eventually
from support.commands import Commands, Process

RUNS = Path(__file__).parent / "runs"
PORT = 19473
"""The address of its server is part of what the run `http` means, so it cannot be another port."""

ASK = ("-c", 8, "--call-timeout", 30)
"""The operational settings of every new round; some runs were created with too short a timeout."""


class Counts(NamedTuple):
    """What a report says of a run."""

    scored: int
    requested: int
    mean: float
    failed: dict[str, int] = {}  # noqa: RUF012 - never changed
    pending: int = 0


class Old(NamedTuple):
    """A stored run: as it is, after resume, after `extend -k 3` without resume, and after both."""

    stored: Counts
    resumed: Counts
    extended: Counts
    both: Counts
    words: tuple[str, ...]
    """What it was started with, apart from -m, -k and -o."""
    tasks: int = 3
    begun: int = 3
    """How many tasks have a score in the stored run."""
    played: int = 6
    """How many rollouts of the stored run were scored or failed."""
    sandbox: bool = False


CHAIN_SUM = "reasoning_gym:chain_sum?min_terms=2&max_terms=2&min_digits=1&max_digits=1"
OLD = {
    "gsm8k": Old(
        stored=Counts(5, 6, 4 / 5, {"model_timeout": 1}),
        resumed=Counts(6, 6, 5 / 6),
        extended=Counts(8, 9, 5 / 8, {"model_timeout": 1}),
        both=Counts(9, 9, 6 / 9),
        words=("gsm8k", "-n", "3"),
    ),
    "code": Old(
        stored=Counts(4, 4, 2.5 / 4),
        resumed=Counts(4, 4, 2.5 / 4),
        extended=Counts(6, 6, 3.5 / 6),
        both=Counts(6, 6, 3.5 / 6),
        words=("code?reward=fraction", "--data", "rows.jsonl"),
        tasks=2,
        begun=2,
        played=4,
        sandbox=True,
    ),
    "reasoning_gym": Old(
        stored=Counts(3, 6, 1.0, pending=3),
        resumed=Counts(6, 6, 5 / 6),
        extended=Counts(9, 9, 7 / 9),
        both=Counts(9, 9, 7 / 9),
        words=(CHAIN_SUM, "-n", "3"),
        begun=2,
        played=3,
    ),
    "humaneval": Old(
        stored=Counts(6, 6, 3 / 6),
        resumed=Counts(6, 6, 3 / 6),
        extended=Counts(9, 9, 4 / 9),
        both=Counts(9, 9, 4 / 9),
        words=("humaneval", "-n", "3"),
        sandbox=True,
    ),
    "http": Old(
        stored=Counts(3, 6, 2 / 3, {"environment_error": 3}),
        resumed=Counts(6, 6, 5 / 6),
        extended=Counts(6, 9, 4 / 6, {"environment_error": 3}),
        both=Counts(9, 9, 7 / 9),
        words=(f"http://127.0.0.1:{PORT}", "--data", "Words.jsonl"),
        begun=2,
    ),
    "blend": Old(
        stored=Counts(5, 6, 4 / 5, {"model_timeout": 1}),
        resumed=Counts(6, 6, 5 / 6),
        extended=Counts(11, 12, 7 / 11, {"model_timeout": 1}),
        both=Counts(12, 12, 8 / 12),
        words=("blend.yaml",),
        tasks=4,
        begun=4,
    ),
    "own": Old(
        stored=Counts(6, 6, 4 / 6),
        resumed=Counts(6, 6, 4 / 6),
        extended=Counts(9, 9, 6 / 9),
        both=Counts(9, 9, 6 / 9),
        words=("functions.py:Functions", "--data", "rows.jsonl"),
        sandbox=True,
    ),
}
every = pytest.mark.parametrize("name", OLD)


@pytest.fixture
def rollbook(name: str, tmp_path: Path) -> Iterator[Commands]:
    """The command line in a copy of a stored folder."""
    commands = Commands(Path(shutil.copytree(RUNS / name, tmp_path / name)))
    yield commands
    commands.close()


@pytest.fixture
def verifier(name: str, rollbook: Commands) -> Iterator[None]:
    """What the verifier of a run needs: a sandbox, or the server that the run was created with."""
    if OLD[name].sandbox and (why := no_sandbox()):
        pytest.skip(f"NO SANDBOX HERE: the old run {name} was not tested ({why})")
    if name != "http":
        yield
        return
    with alone_on_port():
        server = rollbook.start("serve", "words.py:Words", "--port", PORT)
        assert eventually(lambda: server.stdout.endswith("\n") or server.code is not None, 30)
        assert server.stdout == f"http://127.0.0.1:{PORT}\n", server.stderr
        yield
        server.kill()


@cache
def no_sandbox() -> str:
    """Why there is no sandbox on this machine; empty if there is one."""
    try:
        with Sandbox(size=1):
            return ""
    except SandboxError as error:
        return str(error)


@contextmanager
def alone_on_port() -> Iterator[None]:
    """Wait for other tests that use the port; skip if something else uses it."""
    with open(Path(tempfile.gettempdir()) / f"rollbook-test-port-{PORT}", "ab") as lock:
        until = time.monotonic() + 120
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                assert time.monotonic() < until, "another test holds the port for too long"
                time.sleep(0.1)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", PORT))
            except OSError as error:
                pytest.skip(f"PORT {PORT} IS IN USE HERE: the old run http was not tested ({error})")
        yield


def counts(report: dict[str, Any]) -> Counts:
    """The counts of a report in JSON, which must add up."""
    found = Counts(
        report["scored"], report["requested"], report["overall"]["mean"], report["failed"], report["pending"]
    )
    assert found.requested == found.scored + sum(found.failed.values()) + found.pending
    return found


def says(process: Process, expected: Counts) -> bool:
    """Whether a command ended as it must with these counts, and printed them."""
    assert process.code == (0 if expected.scored == expected.requested else 3), process.stderr
    assert "Traceback" not in process.stderr
    found = counts(process.json)
    assert found._replace(mean=0) == expected._replace(mean=0), process.stderr
    assert found.mean == pytest.approx(expected.mean)
    return True


@every
def test_an_old_run_is_reported(name: str, rollbook: Commands) -> None:
    assert says(rollbook.run("report", "run", "--json"), OLD[name].stored)
    status = rollbook.run("status", "run", "--json").json
    assert (status["requested"], status["pending"]) == (OLD[name].stored.requested, OLD[name].stored.pending)


@every
def test_an_old_run_is_exported_by_the_viewer(name: str, rollbook: Commands) -> None:
    done = rollbook.run("view", "run", "--out", "run.html")
    assert done.code == 0, done.stderr
    tasks, played = OLD[name].tasks, OLD[name].played
    assert f"{tasks} of {tasks} tasks in the table, {played} of {played} finished rollouts" in done.stdout
    page = (rollbook.folder / "run.html").read_text()
    ids = [json.loads(line)["id"] for line in (rollbook.folder / "run" / "tasks.jsonl").read_text().splitlines()]
    assert len(ids) == tasks
    assert all(task in page for task in ids)


@every
@pytest.mark.usefixtures("verifier")
def test_an_old_run_is_extended_without_resume(name: str, rollbook: Commands) -> None:
    assert says(rollbook.run("extend", "run", "-k", 3, *ASK, "--json"), OLD[name].extended)


@every
@pytest.mark.usefixtures("verifier")
def test_an_old_run_keeps_its_rewards_when_verified_again(name: str, rollbook: Commands) -> None:
    again = rollbook.run("reverify", "run", "--only", "scored", "-o", "again", "--json")
    assert says(again, OLD[name].stored)
    assert (again.json["verified"], again.json["changes"]) == (OLD[name].stored.scored, [])


@every
@pytest.mark.usefixtures("verifier")
def test_an_old_run_is_resumed_extended_verified_again_and_compared(name: str, rollbook: Commands) -> None:
    old = OLD[name]
    shutil.copytree(rollbook.folder / "run", rollbook.folder / "before")
    assert says(rollbook.run("resume", "run", *ASK, "--json"), old.resumed)
    assert says(rollbook.run("extend", "run", "-k", 3, *ASK, "--json"), old.both)
    again = rollbook.run("reverify", "run", "-o", "again", "--json")
    assert says(again, old.both)
    assert (again.json["verified"], again.json["changes"]) == (old.both.scored, [])
    (note,) = compared(rollbook, "before", "run", (old.stored, old.both), old.begun)
    assert "of the same run" in note
    notes = compared(rollbook, "run", "again", (old.both, old.both), old.tasks)
    assert notes
    assert all(note.endswith("by the same verifier") for note in notes)
    assert says(rollbook.run("report", "run", "--json"), old.both)
    page = rollbook.run("view", "run", "--out", "run.html")
    assert page.code == 0, page.stderr
    assert f"{old.both.scored} of {old.both.scored} finished rollouts" in page.stdout


@every
@pytest.mark.usefixtures("verifier")
def test_an_old_run_is_compared_with_a_new_one_of_the_same_environment(name: str, rollbook: Commands) -> None:
    old = OLD[name]
    new = rollbook.run("run", *old.words, "-m", "scripted:script.jsonl", "-k", 2, *ASK, "-o", "new", "--json")
    assert says(new, old.resumed)
    assert compared(rollbook, "run", "new", (old.stored, old.resumed), old.begun) == []


def compared(rollbook: Commands, a: str, b: str, expected: tuple[Counts, Counts], tasks: int) -> list[str]:
    """Compare two runs; the notes on how they differ, without the one on tasks that have no score."""
    done = rollbook.run("compare", a, b, "--json")
    assert done.code == 0, done.stderr
    for side, found in zip(expected, (done.json["a"], done.json["b"]), strict=True):
        assert (found["scored"], found["requested"]) == (side.scored, side.requested)
    assert done.json["comparison"]["tasks"] == tasks
    notes: list[str] = [note for note in done.json["notes"] if "without a score" not in note]
    return notes
