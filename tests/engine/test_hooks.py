"""Hooks of a run: told of every rollout, whoever plays it, and unable to do anything to the run."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rollbook import Run, Shortfall, extend, resume, run, run_async
from rollbook.core import Rollout
from rollbook.engine import Progress, hooks
from rollbook.errors import UsageError
from support.sums import SUMS, write_script, write_sums

POISON = SUMS.replace(
    "        return roll", "        if task.id == 'sum-3':\n            raise KeyError('x')\n        return roll"
)


class Told:
    """Hooks that keep what they are told."""

    def __init__(self) -> None:
        self.rollouts: list[Rollout] = []
        self.progress: list[Progress] = []
        self.runs: list[Run] = []

    @property
    def parameters(self) -> dict[str, Any]:
        return {
            "on_rollout": self.rollouts.append,
            "on_progress": self.progress.append,
            "on_end": self.runs.append,
        }

    @property
    def keys(self) -> set[tuple[str, int]]:
        keys = {rollout.key for rollout in self.rollouts}
        assert len(keys) == len(self.rollouts), "told twice"
        return keys


def do(folder: Path, told: Told, source: str = SUMS, **more: object) -> None:
    run(write_sums(folder, source), write_script(folder), out=folder / "run", **{**told.parameters, **more})


@pytest.mark.parametrize("workers", [1, 2])
def test_hooks_are_told_of_every_rollout_whoever_plays_it(tmp_path: Path, workers: int) -> None:
    told = Told()
    do(tmp_path, told, samples=4, workers=workers)
    assert told.keys == {(f"sum-{i}", sample) for i in range(10) for sample in range(4)}
    assert sum(rollout.reward for rollout in told.rollouts) == 32
    assert {rollout.messages[-1].role for rollout in told.rollouts} == {"assistant"}
    last = told.progress[-1]
    assert (last.requested, last.scored, last.failed, last.pending, last.mean_reward) == (40, 40, {}, 0, 0.8)
    assert [each.report.scored for each in told.runs] == [40]


def test_failures_are_told_as_they_are_recorded_and_the_end_of_a_shortfall_too(tmp_path: Path) -> None:
    told = Told()
    with pytest.raises(Shortfall):
        do(tmp_path, told, POISON, samples=2)
    failed = [rollout for rollout in told.rollouts if rollout.failure]
    assert {rollout.key for rollout in failed} == {("sum-3", 0), ("sum-3", 1)}
    assert {rollout.failure.kind for rollout in failed if rollout.failure} == {"verifier_error"}
    assert told.progress[-1].failed == {"verifier_error": 2}
    assert told.progress[-1].done == len(told.keys) == 20
    assert len(told.runs) == 1


def test_a_later_round_tells_only_of_its_own_rollouts_and_counts_all(tmp_path: Path) -> None:
    with pytest.raises(Shortfall):
        do(tmp_path, Told(), POISON, samples=2)
    told = Told()
    with pytest.raises(Shortfall):
        resume(tmp_path / "run", retry=["verifier_error"], **told.parameters)
    assert told.keys == {("sum-3", 0), ("sum-3", 1)}
    assert told.progress[-1].scored == 18
    # Counted once: the failures of the first round were tried again.
    assert told.progress[-1].failed == {"verifier_error": 2}


def test_extend_tells_of_the_new_samples(tmp_path: Path) -> None:
    do(tmp_path, Told())
    told = Told()
    extend(tmp_path / "run", 2, **told.parameters)
    assert told.keys == {(f"sum-{i}", 1) for i in range(10)}
    assert told.progress[-1].scored == 20


def test_hooks_work_with_run_async(tmp_path: Path) -> None:
    told: list[Rollout] = []

    async def go() -> None:
        await run_async(write_sums(tmp_path), write_script(tmp_path), out=tmp_path / "run", on_rollout=told.append)

    asyncio.run(go())
    assert len(told) == 10


def test_all_hooks_are_called_from_one_thread_that_is_not_the_callers(tmp_path: Path) -> None:
    threads = set()

    def note(_: object) -> None:
        threads.add(threading.get_ident())

    run(
        write_sums(tmp_path),
        write_script(tmp_path),
        out=tmp_path / "run",
        on_rollout=note,
        on_progress=note,
        on_end=note,
    )
    assert len(threads) == 1
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("error", [ValueError("no such column"), SystemExit(3)])
def test_a_hook_that_raises_is_reported_once_and_called_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    calls = []

    def fail(rollout: Rollout) -> None:
        calls.append(rollout)
        raise error

    with caplog.at_level(logging.WARNING, logger="rollbook"):
        result = run(write_sums(tmp_path), write_script(tmp_path), out=tmp_path / "run", on_rollout=fail)
    assert result.report.scored == len(calls) == 10
    assert [record.getMessage() for record in caplog.records] == [
        f"on_rollout failed, the run goes on: {type(error).__name__}: {error}"
    ]


def test_each_hook_that_raises_is_reported_by_its_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object) -> None:
        raise ValueError("no")

    with caplog.at_level(logging.WARNING, logger="rollbook"):
        do(tmp_path, Told(), **dict.fromkeys(("on_rollout", "on_progress", "on_end"), fail))
    assert sorted(record.getMessage() for record in caplog.records) == [
        f"{name} failed, the run goes on: ValueError: no" for name in ("on_end", "on_progress", "on_rollout")
    ]


def test_a_slow_hook_delays_nothing_and_what_it_was_not_told_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "CATCH_UP_S", 0.3)
    calls, ended = [], []

    def dawdle(rollout: Rollout) -> None:
        calls.append(rollout)
        time.sleep(0.2)

    result = run(
        write_sums(tmp_path),
        write_script(tmp_path),
        out=tmp_path / "run",
        samples=5,
        on_rollout=dawdle,
        on_end=ended.append,
    )
    assert result.report.scored == 50
    assert 0 < len(calls) < 50
    assert len(ended) == 1
    told = [record.getMessage() for record in caplog.records]
    assert told == [f"on_rollout was too slow: it was not told of {50 - len(calls)} rollouts"]


HANGING = """
import sys, time
import rollbook
from rollbook.engine import hooks

hooks.END_S = 1.0
result = rollbook.run(sys.argv[1], sys.argv[2], out=sys.argv[3], on_rollout=lambda rollout: time.sleep(3600))
print(result.report.scored)
"""


def test_a_hook_that_hangs_keeps_neither_the_run_nor_the_process_from_ending(tmp_path: Path) -> None:
    words = [write_sums(tmp_path), write_script(tmp_path), str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-c", HANGING, *words], capture_output=True, text=True, timeout=60)
    assert done.stdout == "10\n", done.stderr
    assert done.stderr.splitlines() == [
        "hooks did not return within 1 s of the end of the run",
        "on_rollout was too slow: it was not told of 9 rollouts",
    ]


def test_a_string_for_log_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"log=\['wandb'\]"):
        run(write_sums(tmp_path), write_script(tmp_path), out=tmp_path / "run", log="wandb")
    assert not (tmp_path / "run").exists()


async def wait_for_ever(_: object) -> None:
    raise AssertionError("not called")


class AsyncHook:
    async def __call__(self, _: object) -> None:
        raise AssertionError("not called")


@pytest.mark.parametrize(
    ("hook", "why"),
    [
        (3, "on_rollout=3: give a function"),
        (0, "give a function"),
        (wait_for_ever, "async def"),
        (AsyncHook(), "async def"),
    ],
)
def test_what_cannot_be_a_hook_is_refused_at_the_start(tmp_path: Path, hook: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        run(write_sums(tmp_path), write_script(tmp_path), out=tmp_path / "run", on_rollout=hook)
    assert not (tmp_path / "run").exists()


def test_a_hook_that_raises_an_interrupt_of_several_lines_is_one_line_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ends: list[Run] = []

    def interrupt(_: Rollout) -> None:
        raise KeyboardInterrupt("one\ntwo")

    with caplog.at_level(logging.WARNING, logger="rollbook"):
        run(
            write_sums(tmp_path), write_script(tmp_path), out=tmp_path / "run", on_rollout=interrupt, on_end=ends.append
        )
    assert [record.getMessage() for record in caplog.records] == [
        "on_rollout failed, the run goes on: KeyboardInterrupt: one two"
    ]
    assert len(ends) == 1


def test_hooks_that_do_not_return_are_left_behind_and_what_they_missed_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "END_S", 0.2)
    do(tmp_path, Told())
    said: list[str] = []
    entered, free = threading.Event(), threading.Event()

    def hang(_: object) -> None:
        entered.set()
        free.wait(30)

    for given, lines in (
        ({"on_rollout": hang}, ["hooks did not return within 0.2 s of the end of the run", "not told of 9 rollouts"]),
        ({"on_progress": hang}, ["hooks did not return within 0.2 s of the end of the run"]),
        ({"on_end": hang, "name": "mine"}, ["mine did not return within 0.2 s of the end of the run"]),
    ):
        said.clear()
        entered.clear()
        free.clear()
        thread = hooks.HookThread(tmp_path / "run", hooks.Hooks(**given), said.append)  # type: ignore[arg-type]
        thread.start()
        if "on_end" not in given:
            assert entered.wait(10)
        thread.end()
        thread.wait()
        free.set()
        thread._thread.join(10)
        assert not thread._thread.is_alive()
        assert len(said) == len(lines)
        assert all(line in found for line, found in zip(lines, said, strict=True))


def test_hooks_of_a_run_that_cannot_be_read_end_with_one_line(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "none").mkdir()
    thread = hooks.HookThread(tmp_path / "none", hooks.Hooks(on_end=print), said.append)
    thread.start()
    thread.end()
    thread.wait()
    (line,) = said
    assert line.startswith("hooks ended early, the run did not: UsageError: ")
    assert line.endswith("is not a run directory: it has no run.json")


def test_an_exception_is_described_on_one_line() -> None:
    assert hooks._describe(ValueError("a\n b")) == "ValueError: a b"
    assert hooks._describe(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_hooks_that_were_given_up_are_not_called_again(tmp_path: Path) -> None:
    said: list[str] = []
    told = Told()
    loop = hooks.HookLoop(tmp_path, hooks.Hooks(on_progress=told.progress.append), said.append)
    for given_up in (False, True):
        loop.given_up = given_up
        loop._call("on_progress", told.progress.append, "now")
        loop._call("on_end", None, "now")
    assert (told.progress, said) == (["now"], [])


def test_a_hook_that_hangs_does_not_keep_the_process_from_ending(tmp_path: Path) -> None:
    thread = hooks.HookThread(tmp_path, hooks.Hooks(on_end=print), print)
    assert (thread._thread.daemon, thread._thread.name) == (True, "rollbook hooks")


def test_an_observer_that_cannot_start_is_reported_and_left_out() -> None:
    calls: list[str] = []

    class Shown:
        def start(self, total: int, pending: int | None = None) -> None:
            calls.append(f"start {total} {pending}")

        def update(self, progress: Progress) -> None:
            calls.append("update")

        def note(self, line: str) -> None:
            calls.append(line)

        def stop(self) -> None:
            calls.append("stop")

    class Observer:
        def __init__(self, name: str, error: Exception | None = None) -> None:
            self.name, self.error = name, error

        def start(self) -> None:
            if self.error:
                raise self.error
            calls.append(f"{self.name} starts")

        def update(self, progress: Progress) -> None:
            calls.append(f"{self.name} updates")

        def end(self) -> None:
            calls.append(f"{self.name} ends")

        def wait(self) -> None:
            calls.append(f"{self.name} waits")

    observers = [Observer("a"), Observer("b", OSError("no\nthread")), Observer("c")]
    display = hooks.ObservedDisplay(Shown(), observers)
    display.start(7, 5)
    display.update(Progress(requested=7))
    display.stop()
    display.stop()
    assert calls == [
        *("start 7 5", "a starts"),
        "a hook or tracker could not be started, the run goes on: OSError: no thread",
        *("c starts", "update", "a updates", "c updates", "stop", "a ends", "c ends", "a waits", "c waits", "stop"),
    ]
