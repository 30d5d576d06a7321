"""Several workers on one book: they share the work, and one that was thought dead does no harm when it comes back."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from rollbook.book import Book, CountedLines, ScoredLineHeader, read_presences
from support.alive import eventually
from support.book_assertions import all_keys, assert_adds_up, assert_complete, scored_keys
from support.commands import Commands, Process, Served

pytestmark = pytest.mark.slow

ELSEWHERE = """
import socket, sys

socket.gethostname = lambda host=sys.argv[1]: host
from rollbook.book import leases
from rollbook.engine import book_worker

assert book_worker.HEARTBEAT_S > 1 and leases.STALE_S > 10
book_worker.HEARTBEAT_S = 0.2
leases.STALE_S = 2.0

from rollbook.cli.main import main

main(sys.argv[2:])
"""


def plan(rollbook: Commands, endpoint: Served, env: str, run: Path, *more: object) -> None:
    done = rollbook.run("plan", env, "-m", endpoint.url, "--model-name", "mock", "-o", run, *more)
    assert done.code == 0, done.stderr


def worker_on(host: str, rollbook: Commands, run: Path) -> Process:
    """A worker that believes itself on another machine; silence of two seconds counts as death to it."""
    script = rollbook.folder / "elsewhere.py"
    script.write_text(ELSEWHERE)
    return rollbook.python(script, host, "work", run, "-c", 4)


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_share_a_book_and_ask_nothing_twice(
    workers: int, rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint, run = serve("--delay-s", "0.1"), tmp_path / "run"
    plan(rollbook, endpoint, f"{sums}?tasks=60", run, "-k", 4, "--workers", workers)
    processes = [rollbook.start("work", run, "-c", 8) for _ in range(workers)]
    for worker in processes:
        assert worker.wait().code == 0, worker.stderr
    assert_complete(run)
    assert set(endpoint.seeds.values()) == {1}
    assert len(read_presences(run)) == workers
    assert len(list((run / "journals").glob("*.1.jsonl"))) == workers
    assert rollbook.run("report", run, "--json").json["dropped"] == 0


def test_when_one_of_four_is_killed_the_others_finish_its_share(
    rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint, run = serve("--delay-s", "0.1"), tmp_path / "run"
    plan(rollbook, endpoint, f"{sums}?tasks=60", run, "-k", 4, "--workers", 4)
    processes = [rollbook.start("work", run, "-c", 4) for _ in range(4)]
    assert eventually(lambda: len(list((run / "journals").glob("*.1.jsonl"))) == 4, 20)
    processes[0].kill()
    for worker in processes[1:]:
        assert worker.wait(30).code == 0, worker.stderr
    assert_complete(run)
    assert max(endpoint.seeds.values()) <= 2


@pytest.mark.parametrize("back", ["while its heir works", "after its heir has finished"])
def test_a_worker_stopped_past_its_lease_and_continued_doubles_nothing(
    back: str, rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint, run = serve("--delay-s", "0.5"), tmp_path / "run"
    plan(rollbook, endpoint, f"{sums}?tasks=12", run, "-k", 2)
    sleeper = worker_on("far", rollbook, run)
    assert eventually(lambda: endpoint.calls >= 6, 20), sleeper.stderr
    sleeper.signal(signal.SIGSTOP)
    calls = endpoint.calls
    heir = worker_on("near", rollbook, run)
    assert eventually(lambda: endpoint.calls >= calls + 20, 30), heir.stderr
    sealed = {}
    if back == "after its heir has finished":
        assert heir.wait(30).code == 0, heir.stderr
        sealed = who_counts(run)
    sleeper.signal(signal.SIGCONT)
    for worker in (sleeper, heir):
        assert worker.wait(30).code == 0, worker.stderr
    assert_complete(run)
    assert sealed in ({}, who_counts(run)), "a sealed chunk changed"
    doubled(rollbook, run)


def who_counts(run: Path) -> dict[tuple[str, int], Path]:
    """The journal that each key's score is taken from."""
    return {(line.task, line.sample): path for _, path, line in CountedLines(Book(run), ScoredLineHeader)}


def doubled(rollbook: Commands, run: Path) -> None:
    """What was written twice is counted and shown, and the sums still add up."""
    lines = sum(len(path.read_text().splitlines()) for path in (run / "journals").glob("*.1.jsonl"))
    report = rollbook.run("report", run, "--json").json
    assert report["dropped"] == lines - 24 > 0
    assert f"{report['dropped']} duplicates dropped" in rollbook.run("report", run).stdout
    status = rollbook.run("status", run, "--json").json
    for counts in (report, status, json.loads((run / "metrics.json").read_text())):
        assert_adds_up(counts, 24)
        assert counts["scored"] == 24
    assert 0 <= status["dropped"] <= report["dropped"]
    assert status["state"] == "finished"


def test_two_that_take_over_the_same_dead_worker_do_not_both_get_it(
    rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint, run = serve("--delay-s", "0.2"), tmp_path / "run"
    plan(rollbook, endpoint, f"{sums}?tasks=16", run, "-k", 2)
    dead = rollbook.start("work", run, "-c", 4)
    assert eventually(lambda: endpoint.calls >= 6, 20), dead.stderr
    dead.kill()
    before, durable = endpoint.calls, len(scored_keys(run))
    heirs = [rollbook.start("work", run, "-c", 4) for _ in range(3)]
    for heir in heirs:
        assert heir.wait(30).code == 0, heir.stderr
    assert_complete(run)
    assert endpoint.calls - before == len(all_keys(run)) - durable
