"""An endpoint that misbehaves: law 2, a failure is never a score; and one that is away costs no rollout."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from support.alive import eventually
from support.book_assertions import assert_adds_up, assert_complete, scored_keys, seeds_of
from support.commands import Commands, Process, Served

pytestmark = pytest.mark.slow


def failures(run: Path) -> list[dict]:
    """Every failed attempt on record."""
    lines = [p.read_text().splitlines() for p in sorted((run / "journals").glob("*.failures.jsonl"))]
    return [json.loads(line) for some in lines for line in some]


def assert_no_reward(run: Path) -> None:
    """Law 2: what failed has no score, no answer and no tokens."""
    for line in failures(run):
        assert line["status"] == "failed"
        assert not {"reward", "score", "answer"} & set(line)
        assert line["failure"]["message"]


def start(rollbook: Commands, endpoint: Served, env: str, run: Path, *more: object) -> Process:
    """Start a run that does not ask the endpoint beforehand: what happens later is meant."""
    return rollbook.start("run", f"{env}?tasks=6", "-m", endpoint.url, "-o", run, "--no-probe", *more)


NO_ANSWERS = {
    "garbage": "not a chat completion",
    "truncated": "not a chat completion",
    "empty": "without choices",
    "error_body": "HTTP 200 with an error: the engine is dead",
    "no_message": "without a message",
    "unfinished": "not finished",
}


def test_an_answer_that_is_none_is_a_bad_completion(
    rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoints = {mode: serve("--mode", mode) for mode in NO_ANSWERS}
    runs = {mode: start(rollbook, endpoints[mode], sums, tmp_path / mode) for mode in NO_ANSWERS}
    for mode, process in runs.items():
        run = tmp_path / mode
        assert process.wait().code == 3, process.stderr
        assert NO_ANSWERS[mode] in process.complaint
        assert "6 failed: bad_completion" in process.complaint
        kept = json.loads((run / "metrics.json").read_text())
        assert_adds_up(kept, 6)
        assert kept["failed"] == {"bad_completion": 6}
        assert Counter(line["failure"]["kind"] for line in failures(run)) == {"bad_completion": 24}
        assert_no_reward(run)
    endpoints["garbage"].switch("ok")
    assert rollbook.run("resume", tmp_path / "garbage").code == 0
    assert_complete(tmp_path / "garbage")


@pytest.mark.parametrize(("mode", "kind"), [("400", "model_rejected"), ("hang", "model_timeout")])
def test_a_refused_prompt_and_a_hanging_call_fail_for_their_own_reasons(
    mode: str, kind: str, rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint, run = serve(), tmp_path / "run"
    endpoint.switch(mode, models="ok")
    done = start(rollbook, endpoint, sums, run, "--call-timeout", 0.5).wait()
    assert done.code == 3, done.stderr
    assert f"6 failed: {kind}" in done.complaint
    assert_no_reward(run)
    assert_adds_up(rollbook.run("report", run, "--json").json, 6)


@pytest.mark.parametrize("mode", ["400", "500", "garbage", "cut", "hang"])
def test_a_failure_among_many_is_tried_again_or_named_and_the_rest_is_scored(
    mode: str, rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint, run = serve("--delay-s", "0.02"), tmp_path / "run"
    endpoint.switch(mode, models="ok", times=2)
    words = ("-m", endpoint.url, "-c", 4, "--call-timeout", 1, "--no-probe", "-o", run)
    done = rollbook.run("run", f"{sums}?tasks=40", *words)
    lost = 2 if mode == "400" else 0
    assert done.code == (3 if lost else 0), done.stderr
    assert len(scored_keys(run)) == 40 - lost
    assert len(failures(run)) == 2
    assert_no_reward(run)


NEVER_THERE = {"refuse": "connection refused", "500": "HTTP 500", "hang": "no answer"}


def test_an_endpoint_that_is_never_there_is_one_line_and_exit_75(
    rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoints = {mode: serve("--mode", mode) for mode in NEVER_THERE}
    patience = ("--outage", 3, "--connect-timeout", 1)
    runs = {mode: start(rollbook, endpoints[mode], sums, tmp_path / mode, *patience) for mode in NEVER_THERE}
    for mode, process in runs.items():
        assert process.wait(20).code == 75, process.stderr
        assert NEVER_THERE[mode] in process.complaint
        assert endpoints[mode].url in process.complaint
        assert not (tmp_path / mode).exists()


def test_retry_after_is_honoured(rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path) -> None:
    endpoint, run = serve(), tmp_path / "run"
    endpoint.switch("429", times=2, retry_after="2")
    done = rollbook.run("run", f"{sums}?tasks=2", "-m", endpoint.url, "-o", run, "--no-probe")
    assert done.code == 0, done.stderr
    assert done.seconds > 2
    assert [line["failure"]["kind"] for line in failures(run)] == ["model_unavailable"] * 2
    assert_complete(run)


def test_an_endpoint_that_only_refuses_stops_the_run_and_burns_no_task(
    rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoints = {mode: serve() for mode in ("500", "429", "503")}
    for mode, endpoint in endpoints.items():
        endpoint.switch(mode, models="ok", retry_after="0")
    runs = {m: start(rollbook, e, sums, tmp_path / m, "-k", 8, "--outage", 3) for m, e in endpoints.items()}
    for mode, process in runs.items():
        assert process.wait(30).code == 75, process.stderr
        assert f"HTTP {mode}" in process.complaint
        status = rollbook.run("status", tmp_path / mode, "--json").json
        assert_adds_up(status, 48)
        assert (status["scored"], status["failed"], status["state"]) == (0, {}, "interrupted")
        assert_no_reward(tmp_path / mode)
    endpoints["429"].switch("ok")
    assert rollbook.run("resume", tmp_path / "429").code == 0
    assert_complete(tmp_path / "429")


@pytest.mark.parametrize("away_s", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_an_endpoint_gone_for_a_while_costs_nothing(
    away_s: float, rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint, run = serve("--delay-s", "0.05"), tmp_path / "run"
    worker = rollbook.start("run", f"{sums}?tasks=100", "-m", endpoint.url, "-k", 2, "-c", 8, "-o", run)
    assert eventually(lambda: endpoint.calls > 40, 20), worker.stderr
    endpoint.kill()
    time.sleep(away_s)
    assert worker.code is None, worker.stderr
    endpoint.start()
    assert worker.wait(30).code == 0, worker.stderr
    assert_complete(run)
    assert not [line for line in failures(run) if line["final"]]


def test_an_endpoint_that_dies_mid_run_stops_it_and_resume_completes(
    rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint, run = serve("--delay-s", "0.05"), tmp_path / "run"
    worker = rollbook.start("run", f"{sums}?tasks=100", "-m", endpoint.url, "-k", 2, "-c", 8, "--outage", 3, "-o", run)
    assert eventually(lambda: endpoint.calls > 40, 20), worker.stderr
    endpoint.kill()
    gone = time.monotonic()
    assert worker.wait(20).code == 75, worker.stderr
    assert time.monotonic() - gone < 10
    assert "connection refused" in worker.complaint
    assert "rollbook resume" in worker.complaint
    kept = set(scored_keys(run))
    status = rollbook.run("status", run, "--json").json
    assert_adds_up(status, 200)
    assert (status["failed"], status["scored"]) == ({}, len(kept)), "the remaining tasks were burnt as failures"
    endpoint.start()
    again = rollbook.run("resume", run)
    assert again.code == 0, again.stderr
    assert_complete(run)
    assert not seeds_of(kept) & set(endpoint.seeds)


def test_one_sick_replica_of_two_costs_nothing(
    rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    well, sick, run = serve("--delay-s", "0.05"), serve("--delay-s", "0.05"), tmp_path / "run"
    words = ("-m", well.url, "-m", sick.url, "-k", 2, "-c", 8, "-o", run)
    worker = rollbook.start("run", f"{sums}?tasks=100", *words)
    assert eventually(lambda: sick.calls > 20, 20), worker.stderr
    sick.kill()
    assert worker.wait(30).code == 0, worker.stderr
    assert_complete(run)
