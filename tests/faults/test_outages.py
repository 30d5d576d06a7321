"""Outages in mid-run: progress names the cause, a signal ends the run at once, and refusals end it without waiting."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.alive import eventually
from support.book_assertions import assert_complete, scored_keys
from support.commands import Commands, Process, Served


@pytest.fixture
def commands(rollbook: Commands) -> Commands:
    return rollbook


def start(commands: Commands, endpoint: Served, sums: str, *more: object, **environ: str) -> Process:
    """Start a run of 400 rollouts, and wait until some are answered."""
    words = ("run", f"{sums}?tasks=100", "-k", 4, "-m", endpoint.url, "-c", 16, "-o", "run", *more)
    worker = commands.start(*words, **environ)
    assert eventually(lambda: endpoint.calls > 60, 30), worker.stderr
    return worker


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_signal_in_an_outage_ends_the_run_at_once_and_nothing_is_lost(
    number: signal.Signals,
    workers: int,
    commands: Commands,
    serve: Callable[..., Served],
    sums: str,
    tmp_path: Path,
) -> None:
    endpoint, run = serve("--delay-s", "0.2"), tmp_path / "run"
    worker = start(commands, endpoint, sums, "--workers", workers)
    endpoint.kill()
    time.sleep(3)
    assert worker.code is None, worker.stderr
    worker.signal(number)
    sent = time.monotonic()
    assert worker.wait(30).code == 75, worker.stderr
    assert time.monotonic() - sent < 10
    assert "rollbook resume" in worker.complaint
    kept = set(scored_keys(run))
    assert 0 < len(kept) < 400
    endpoint.start()
    assert commands.run("resume", "run").code == 0
    assert_complete(run)
    assert kept <= set(scored_keys(run))


def test_progress_shows_the_cause_of_an_outage_while_it_lasts(
    commands: Commands, serve: Callable[..., Served], sums: str
) -> None:
    endpoint = serve("--delay-s", "0.2")
    worker = start(commands, endpoint, sums)
    endpoint.kill()
    cause = f"no endpoint answers for 1 s: {endpoint.url}: connection refused"
    assert eventually(lambda: cause in worker.stderr, 20), worker.stderr
    endpoint.start()
    assert worker.wait(60).code == 0, worker.stderr
    assert "no endpoint answers" not in worker.stderr.splitlines()[-1]


def test_several_workers_show_the_cause_of_an_outage(
    commands: Commands, serve: Callable[..., Served], sums: str
) -> None:
    endpoint = serve("--delay-s", "0.2")
    worker = start(commands, endpoint, sums, "--workers", 2)
    endpoint.kill()
    assert eventually(lambda: f"{endpoint.url}: connection refused" in worker.stderr, 30), worker.stderr
    shown = commands.run("status", "run", "--json").json["outage"]
    assert "no endpoint answers for" in commands.run("status", "run").stdout
    assert "connection refused" in shown
    worker.signal(signal.SIGTERM)
    assert worker.wait(30).code == 75


def test_a_key_that_is_refused_in_mid_run_is_an_outage_that_names_its_variable(
    commands: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint, run = serve("--delay-s", "0.2"), tmp_path / "run"
    worker = start(commands, endpoint, sums, "--outage", 5, OPENAI_API_KEY="sk-1")
    endpoint.switch("401", models="ok")
    assert worker.wait(60).code == 75, worker.stderr
    assert "HTTP 401: bad key; the key in OPENAI_API_KEY was not accepted" in worker.complaint
    assert "no endpoint answers for" in worker.stderr
    assert "--concurrency" not in worker.stderr
    status = commands.run("status", "run", "--json").json
    assert status["failed"] == {}
    endpoint.switch("ok")
    assert commands.run("resume", "run").code == 0
    assert_complete(run)


@pytest.mark.parametrize("mode", ["401", "403", "404"])
@pytest.mark.parametrize("workers", [1, 2])
def test_an_endpoint_that_refuses_every_call_ends_the_run_without_waiting(
    mode: str, workers: int, commands: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint, run = serve(), tmp_path / "run"
    endpoint.switch(mode, models="ok")
    words = ("-m", endpoint.url, "--no-probe", "--workers", workers, "-o", "run")
    done = commands.run("run", f"{sums}?tasks=100", *words, within_s=60)
    assert done.code == 2, done.stderr
    assert f"the endpoint refuses every call: {endpoint.url}: HTTP {mode}" in done.complaint
    assert "rollbook resume" in done.complaint
    status = commands.run("status", "run", "--json").json
    assert (status["scored"], status["failed"], status["pending"]) == (0, {}, 100)
    endpoint.switch("ok")
    assert commands.run("resume", "run").code == 0
    assert_complete(run)


def test_a_403_for_some_prompts_fails_only_them(
    commands: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint = serve("--delay-s", "0.2")
    worker = start(commands, endpoint, sums)
    endpoint.switch("403", times=5, models="ok")
    assert worker.wait(60).code == 3, worker.stderr
    report = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert (report["scored"], report["failed"]) == (395, {"model_rejected": 5})
