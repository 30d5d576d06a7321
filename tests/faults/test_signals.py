"""SIGINT and SIGTERM drain, a second one stops at once, and nobody is left behind, not even by kill -9."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from rollbook.models import has_weights
from support.alive import eventually
from support.book_assertions import all_keys, assert_adds_up, assert_complete, scored_keys, seeds_of
from support.commands import Commands, Process, Served

LANES = 8
SLEEPY = """
import time
from rollbook import Environment, Task

class Sleepy(Environment):
    def tasks(self):
        for i in range(40):
            yield Task(id=f"t{i}", prompt=f"What is {i} + {i}?")

    def verify(self, task, rollout):
        time.sleep(3600)
"""
SLOW_TO_COME = """
import time
time.sleep(60)
from rollbook import Environment

class Late(Environment):
    pass
"""


def start(rollbook: Commands, endpoint: Served, env: str, run: Path, *more: object) -> Process:
    """A run with rollouts in flight and some durable."""
    worker = rollbook.start("run", env, "-m", endpoint.url, "-c", LANES, "-o", run, *more)
    assert eventually(lambda: endpoint.calls >= 3 * LANES, 20), worker.stderr
    return worker


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_drains_and_the_run_resumes(
    number: signal.Signals, rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint, run = serve("--delay-s", "0.3"), tmp_path / "run"
    worker = start(rollbook, endpoint, f"{sums}?tasks=100", run)
    worker.signal(number)
    assert worker.wait(20).code == 75, worker.stderr
    assert f"rollbook resume {run}" in worker.complaint
    asked, kept = endpoint.seeds, set(scored_keys(run))
    assert seeds_of(kept) == set(asked), "what was in flight was not carried to its end"
    status = rollbook.run("status", run, "--json").json
    assert_adds_up(status, 100)
    assert (status["scored"], status["in_flight"], status["workers"]) == (len(kept), 0, [])
    assert rollbook.nothing_left()
    endpoint.switch("ok", delay_s=0.0)
    assert rollbook.run("resume", run).code == 0
    assert_complete(run)
    assert set(endpoint.seeds.values()) == {1}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_stops_at_once(
    number: signal.Signals, rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint, run = serve("--delay-s", "0.02"), tmp_path / "run"
    worker = start(rollbook, endpoint, f"{sums}?tasks=400", run)
    endpoint.switch("hang")
    time.sleep(0.5)
    worker.signal(number)
    time.sleep(1)
    assert worker.code is None, "it did not wait for what is in flight"
    worker.signal(number)
    again = time.monotonic()
    assert worker.wait(20).code == 75, worker.stderr
    assert time.monotonic() - again < 5
    assert worker.complaint
    kept = set(scored_keys(run))
    assert 0 < len(kept) < len(all_keys(run))
    assert rollbook.nothing_left()
    endpoint.switch("ok")
    assert rollbook.run("resume", run).code == 0
    assert_complete(run)


@pytest.mark.law
def test_a_verifier_that_hangs_does_not_hold_up_a_second_signal(
    rollbook: Commands, serve: Callable[..., Served], tmp_path: Path
) -> None:
    endpoint, run = serve(), tmp_path / "run"
    (tmp_path / "sleepy.py").write_text(SLEEPY)
    worker = rollbook.start("run", tmp_path / "sleepy.py", "-m", endpoint.url, "-c", LANES, "-o", run)
    assert eventually(lambda: endpoint.calls >= LANES, 20), worker.stderr
    worker.signal(signal.SIGTERM)
    time.sleep(0.5)
    worker.signal(signal.SIGTERM)
    assert worker.wait(10).code == 75, worker.stderr
    assert rollbook.nothing_left()


def test_an_interrupted_worker_of_two_does_not_fail_a_run_that_the_other_finishes(
    rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint, run = serve("--delay-s", "0.3"), tmp_path / "run"
    boss = start(rollbook, endpoint, f"{sums}?tasks=100", run, "--workers", 2)
    first = next((run / "workers").glob("[!.]*.json"))
    os.kill(json.loads(first.read_text())["pid"], signal.SIGINT)
    assert boss.wait(60).code == 0, boss.stderr
    assert json.loads(first.read_text())["state"] == "left"
    assert "a worker ended early (interrupted with" in boss.stderr
    assert_complete(run)
    assert rollbook.nothing_left()


def test_a_signal_when_everything_is_in_flight_is_exit_0(
    rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint, run = serve("--delay-s", "2"), tmp_path / "run"
    worker = rollbook.start("run", f"{sums}?tasks=8", "-m", endpoint.url, "-c", LANES, "-o", run)
    assert eventually(lambda: endpoint.calls >= LANES, 20), worker.stderr
    worker.signal(signal.SIGINT)
    assert worker.wait(30).code == 0, worker.stderr
    assert "draining" in worker.stderr
    assert_complete(run)


def test_several_workers_drain_too(rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path) -> None:
    endpoint, run = serve("--delay-s", "0.3"), tmp_path / "run"
    boss = start(rollbook, endpoint, f"{sums}?tasks=200", run, "--workers", 2)
    boss.signal(signal.SIGTERM)
    assert boss.wait(30).code == 75, boss.stderr
    assert f"rollbook resume {run}" in boss.complaint
    assert seeds_of(set(scored_keys(run))) == set(endpoint.seeds)
    assert rollbook.nothing_left()
    endpoint.switch("ok", delay_s=0.0)
    assert rollbook.run("resume", run).code == 0
    assert_complete(run)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_work_has_begun_is_exit_75_and_one_line(
    number: signal.Signals, rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint, run = serve("--mode", "refuse"), tmp_path / "run"
    worker = rollbook.start("run", sums, "-m", endpoint.url, "--wait", 60, "-o", run)
    time.sleep(1.5)
    assert worker.code is None, worker.stderr
    worker.signal(number)
    assert worker.wait(10).code == 75, worker.stderr
    assert worker.complaint
    assert not run.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_environment_is_imported_is_exit_75_and_one_line(
    number: signal.Signals, rollbook: Commands, serve: Callable[..., Served], tmp_path: Path
) -> None:
    (tmp_path / "late.py").write_text(SLOW_TO_COME)
    worker = rollbook.start("run", tmp_path / "late.py", "-m", serve().url, "-o", tmp_path / "run")
    time.sleep(1.5)
    assert worker.code is None, worker.stderr
    worker.signal(number)
    assert worker.wait(10).code == 75, worker.stderr
    assert worker.complaint
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_kill_9_leaves_no_environment_process_behind(
    workers: int, rollbook: Commands, serve: Callable[..., Served], tmp_path: Path
) -> None:
    endpoint, run = serve(), tmp_path / "run"
    (tmp_path / "sleepy.py").write_text(SLEEPY)
    words = ("-m", endpoint.url, "-k", 4, "--workers", workers, "-o", run)
    boss = rollbook.start("run", tmp_path / "sleepy.py", *words)

    def hosts() -> list[str]:
        return [
            command for command in rollbook.left().values() if "rollbook.environments.environment_process" in command
        ]

    assert eventually(lambda: len(hosts()) >= 2 * workers, 20), boss.stderr
    boss.kill()
    assert rollbook.nothing_left(5), rollbook.left()


@pytest.mark.model
def test_kill_9_takes_the_embedded_model_with_it(rollbook: Commands, sums: str, tmp_path: Path) -> None:
    if find_spec("xllamacpp") is None or not has_weights():
        pytest.skip("NOT TESTED: the embedded model is not here (pip install 'rollbook[local]'; rollbook local pull)")
    worker = rollbook.start("run", sums, "-o", tmp_path / "run", "--max-tokens", 256, "--offline")

    def server() -> list[int]:
        return [pid for pid, command in rollbook.left().items() if "rollbook.models.embedded_server" in command]

    assert eventually(lambda: bool(server()) or worker.code is not None, 60), rollbook.left()
    assert server(), worker.stderr
    assert eventually((tmp_path / "run" / "run.json").exists, 60), worker.stderr
    assert os.getsid(server()[0]) != os.getsid(worker.pid)
    worker.kill()
    assert rollbook.nothing_left(5), rollbook.left()
