"""Trackers by name and as objects: what they are told, and that nothing they do affects a run."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

import rollbook
from rollbook.book import Book
from rollbook.core import Message, Settings, Task, TokenCounts, derive_seed
from rollbook.engine import Progress, RunResult
from rollbook.engine.tracking import (
    CUT_LINE,
    MAX_LOG_BYTES,
    MAX_SAMPLE_CHARS,
    MAX_SAMPLES,
    SAMPLE_COLUMNS,
    TrackerHooks,
    TrackerProcess,
    _make_sample_row,
    describe_progress,
    describe_report,
    describe_settings,
    find_tracker,
    hide_secrets,
    make_observers,
    tracker_names,
)
from rollbook.errors import UsageError
from rollbook.trackers import TrackedResult, TrackedRun
from support.books import failed, make_book, scored
from support.commands import Served
from support.sums import SUMS, write_script, write_sums
from support.trackers import Logged, install_diary

POISON = SUMS.replace(
    "        return roll", "        if task.id == 'sum-3':\n            raise KeyError('x')\n        return roll"
)


@pytest.fixture
def logged(tmp_path: Path) -> Iterator[Logged]:
    started = Logged(tmp_path)
    yield started
    assert started.commands.nothing_left()
    started.commands.close()


@pytest.fixture
def rollbook_run(tmp_path: Path) -> Callable[..., RunResult]:
    """Run sums with scripted answers in this process."""

    def start(source: str = SUMS, **more: Any) -> RunResult:
        return rollbook.run(write_sums(tmp_path, source), write_script(tmp_path), out=tmp_path / "run", **more)

    return start


def test_a_named_tracker_gets_settings_numbers_tables_and_a_bounded_number_of_samples(
    logged: Logged, serve: Callable[..., Served], tmp_path: Path
) -> None:
    endpoint = serve()
    endpoint.switch("ok", cached=3)
    words = [write_sums(tmp_path), "-m", endpoint.url, "--no-probe", "-k", 4, "-o", "run"]
    price = ["--price", "in=2,out=10,cached=1", "--temperature", 0.5]
    done = logged.run("run", *words, *price, "--log", "diary", OPENAI_API_KEY="sk-very-secret")
    assert done.code == 0, done.stderr
    (opened,), (closed,), metrics = logged.read("open"), logged.read("close"), logged.read("metrics")
    assert opened["pid"] != done.pid
    assert (opened["name"], opened["settings"]["samples"], opened["settings"]["requested"]) == ("run", 4, 40)
    assert opened["settings"]["sampling"]["temperature"] == 0.5
    assert opened["settings"]["environments"]["Sums"]["spec"].endswith("sums_env.py:Sums")
    assert metrics[-1]["step"] == metrics[-1]["metrics"]["scored"] == 40
    assert {"mean_reward", "rollouts_per_s", "tokens/prompt", "tokens/completion", "cost"} <= set(
        metrics[-1]["metrics"]
    )
    assert metrics[-1]["metrics"]["tokens/cached"] == 3 * 40
    report = rollbook.load(tmp_path / "run").report
    assert closed["state"] == "finished"
    assert closed["metrics"]["final/mean_reward"] == report.overall.mean
    assert closed["metrics"]["final/pass_at_4"] == report.overall.pass_at[4]
    assert closed["metrics"]["final/cost"] == report.cost == metrics[-1]["metrics"]["cost"]
    assert [row[0] for row in closed["tasks"]["rows"]] == [f"sum-{i}" for i in range(10)]
    assert closed["tasks"]["columns"][:2] == ["task", "n"]
    assert len(closed["samples"]["rows"]) == MAX_SAMPLES
    assert "sk-very-secret" not in logged.diary.read_text()


def test_a_later_start_goes_on_with_the_same_run_of_the_tracker(logged: Logged, tmp_path: Path) -> None:
    assert (
        logged.run("run", write_sums(tmp_path), "-m", write_script(tmp_path), "-o", "run", "--log", "diary").code == 0
    )
    assert logged.run("extend", "run", "-k", 2, "--log", "diary").code == 0
    assert [line["id"] for line in logged.read("open")] == ["", "diary-1"]
    assert [line["metrics"]["final/scored"] for line in logged.read("close")] == [10, 20]


def test_a_worker_that_joins_a_run_can_log_it(logged: Logged, tmp_path: Path) -> None:
    assert logged.run("plan", write_sums(tmp_path), "-m", write_script(tmp_path), "-o", "run").code == 0
    assert logged.run("work", "run", "--log", "diary").code == 0
    assert [line["metrics"]["final/scored"] for line in logged.read("close")] == [10]


def test_what_cannot_be_used_is_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rollbook_run: Callable[..., object]
) -> None:
    monkeypatch.syspath_prepend(install_diary(tmp_path))
    monkeypatch.setenv("DIARY_NEEDS", "no_such_package")
    for log, message in (
        (["diry"], "--log diry: no such tracker; there are diary, mlflow, tensorboard, wandb"),
        (["diary"], "no_such_package is not installed: pip install 'rollbook[no_such_package]'"),
        (["diary", "diary"], "--log diary: given twice"),
        ([7], "int is neither the name of a tracker nor one"),
    ):
        with pytest.raises(UsageError) as caught:
            rollbook_run(log=log)
        assert message in str(caught.value)
    assert not (tmp_path / "run").exists()


class Recorder:
    """A tracker of the calling program."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.calls: list[str] = []
        self.metrics: list[Mapping[str, float]] = []
        self.results: list[TrackedResult] = []

    def open(self, run: TrackedRun) -> str:
        self.calls.append("open")
        if self.fault == "open":
            raise OSError("no space for a tracker")
        return "1"

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        self.calls.append("log")
        self.metrics.append(metrics)

    def close(self, result: TrackedResult) -> None:
        self.calls.append("close")
        self.results.append(result)


def test_a_tracker_may_be_an_object_of_the_calling_program(rollbook_run: Callable[..., RunResult]) -> None:
    recorder = Recorder()
    rollbook_run(log=[recorder])
    assert (recorder.calls[0], recorder.calls[-1]) == ("open", "close")
    assert recorder.metrics[-1]["scored"] == recorder.results[0].metrics["final/scored"] == 10


def test_failures_are_counted_by_kind_and_are_among_the_samples(rollbook_run: Callable[..., RunResult]) -> None:
    recorder = Recorder()
    rollbook_run(POISON, log=[recorder], allow_shortfall=True)
    (result,) = recorder.results
    assert recorder.metrics[-1]["failed/verifier_error"] == 1
    assert (result.state, result.metrics["final/failed"]) == ("shortfall", 1)
    outcomes = {row[0]: row[3] for row in result.samples.rows}
    assert (outcomes["sum-3"], outcomes["sum-0"]) == ("verifier_error", "scored")


def test_one_that_cannot_be_opened_is_reported_once_and_asked_nothing_more(
    rollbook_run: Callable[..., RunResult], caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder("open")
    with caplog.at_level(logging.WARNING, logger="rollbook"):
        result = rollbook_run(log=[recorder])
    assert (result.report.scored, recorder.calls) == (10, ["open"])
    assert [record.getMessage() for record in caplog.records] == [
        "Recorder failed, the run goes on: OSError: no space for a tracker"
    ]


class Numbered(Recorder):
    """A tracker whose id is its own, and which says with which id it was opened."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.found = "never opened"

    def open(self, run: TrackedRun) -> str:
        self.found = run.tracker_id
        return f"id-{self.number}"


def test_two_trackers_of_one_class_have_ids_of_their_own(rollbook_run: Callable[..., RunResult]) -> None:
    first = [Numbered(1), Numbered(2)]
    result = rollbook_run(log=first)
    assert [each.found for each in first] == ["", ""]
    later = [Numbered(1), Numbered(2)]
    rollbook.extend(result, 2, log=later)
    assert [each.found for each in later] == ["id-1", "id-2"]


def test_the_last_numbers_are_logged_however_soon_they_follow(
    rollbook_run: Callable[..., RunResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollbook.engine.tracking.FINEST_STEP", 1e9)  # no second regular line
    monkeypatch.setattr("rollbook.engine.hooks.POLL_S", 0.02)
    recorder = Recorder()
    rollbook_run(log=[recorder], samples=20, concurrency=1)
    assert recorder.metrics[0]["scored"] < 200
    assert (recorder.metrics[-1]["scored"], recorder.metrics[-1]["pending"]) == (200, 0)


PARTS = SUMS.replace(
    "        return roll",
    "        if task.id == 'sum-3':\n            raise KeyError('x')\n        return Score(0.5, parts={'form': 0.25})\n"
    "        return roll",
)


def test_the_report_has_parts_tokens_failures_and_every_number_of_k(rollbook_run: Callable[..., RunResult]) -> None:
    recorder = Recorder()
    report = rollbook_run(PARTS, log=[recorder], samples=2, allow_shortfall=True).report
    final, overall = recorder.results[0].metrics, report.overall
    assert (final["final/parts/form"], final["final/failed/verifier_error"], final["final/pending"]) == (0.25, 2, 0)
    assert final["final/pass_hat_2"] == overall.pass_hat[2]
    assert final["final/best_at_2"] == overall.best_at[2]
    assert final["final/completion_tokens"] == overall.completion_tokens
    assert final["final/prompt_tokens"] == overall.prompt_tokens


class AsyncRecorder(Recorder):
    async def close(self, result: TrackedResult) -> None:  # type: ignore[override]
        raise AssertionError("not called")


def test_a_tracker_of_coroutine_functions_is_refused(rollbook_run: Callable[..., RunResult], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"log: AsyncRecorder.close: give a plain function"):
        rollbook_run(log=[AsyncRecorder()])
    assert not (tmp_path / "run").exists()


def test_what_a_tracker_prints_is_bounded(logged: Logged, tmp_path: Path) -> None:
    words = [write_sums(tmp_path), "-m", write_script(tmp_path), "-o", "run", "--log", "diary"]
    assert logged.run("run", *words, fault="open floods").code == 0
    log = tmp_path / "run" / "logs" / "tracker-diary.log"
    assert log.stat().st_size < MAX_LOG_BYTES
    assert log.read_bytes().startswith(CUT_LINE)
    assert logged.read("close")[0]["state"] == "finished"


def test_secrets_are_hidden_wherever_they_stand() -> None:
    given = {
        "args": {"url": "https://me:pw@host/v1", "n": 3},
        "words": ["agent", "--key=abc"],
        "text": "say sesame now",
    }
    assert hide_secrets(given, ["sesame"]) == {
        "args": {"url": "https://host/v1", "n": 3},
        "words": ["agent", "--key=..."],
        "text": "say ... now",
    }


@pytest.mark.parametrize(("key", "spec"), [("sums.py:", "...Sums"), ("sums.py", "sums.py:Sums"), ("", "sums.py:Sums")])
def test_the_value_of_a_key_is_hidden_in_settings_unless_it_is_too_short_for_one(
    key: str, spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUMS_KEY", f" {key}\n")
    book = make_book(tmp_path / "run")
    book.open_round(Settings(api_key_env="SUMS_KEY"))
    assert describe_settings(book)["environments"]["Sums"]["spec"] == spec


def test_a_tracker_is_found_by_the_name_that_a_package_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(install_diary(tmp_path)))
    monkeypatch.delitem(sys.modules, "diary", raising=False)
    assert "diary" in tracker_names()
    assert find_tracker("diary").__name__ == "Diary"  # type: ignore[attr-defined]
    (observer,) = make_observers(["diary"], tmp_path, lambda _: None)
    assert isinstance(observer, TrackerProcess)
    with pytest.raises(UsageError, match=r"--log dairy: no such tracker; there are .*diary, mlflow, tensorb"):
        make_observers(["dairy"], tmp_path, lambda _: None)
    with pytest.raises(UsageError, match="--log diary: given twice"):
        make_observers(["diary", "diary"], tmp_path, lambda _: None)
    with pytest.raises(UsageError, match=r"log='diary': give a list, as in log=\['diary'\]"):
        make_observers("diary", tmp_path, lambda _: None)
    monkeypatch.setattr(find_tracker("diary"), "package", "no_such_package")
    with pytest.raises(UsageError, match=r"--log diary: no_such_package is not installed: pip install 'rollbook\[no_"):
        find_tracker("diary")


def test_a_tracker_that_cannot_be_imported_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = install_diary(tmp_path)
    (site / "diary-1.0.dist-info" / "entry_points.txt").write_text("[rollbook.trackers]\nother = diary:Nobody\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "diary", raising=False)
    with pytest.raises(UsageError, match="--log other: cannot be imported: AttributeError: "):
        find_tracker("other")


def test_trackers_of_one_class_are_numbered_and_what_is_none_is_refused(tmp_path: Path) -> None:
    observers = make_observers([Recorder(), Recorder(), Recorder()], tmp_path, lambda _: None)
    names = [observer._hooks.name for observer in observers]  # type: ignore[attr-defined]
    assert names == ["Recorder", "Recorder-2", "Recorder-3"]
    with pytest.raises(UsageError, match="log: object is neither the name of a tracker nor one: it has no open"):
        make_observers([object()], tmp_path, lambda _: None)  # type: ignore[list-item]


def test_the_rollouts_that_are_shown_are_cut_and_have_their_outcome(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    long = scored(book, 1, 0, 0.5)
    long.messages = [*long.messages[:-1], Message("assistant", "x" * (MAX_SAMPLE_CHARS + 1))]
    row = dict(zip(SAMPLE_COLUMNS, _make_sample_row(long), strict=True))
    assert (row["task"], row["sample"], row["environment"], row["outcome"]) == ("t1", 0, "Sums", "scored")
    assert (row["reward"], row["prompt"], row["turns"]) == (0.5, "What is 1 + 1?", 1)
    assert (len(str(row["answer"])), row["completion_tokens"], row["seconds"]) == (MAX_SAMPLE_CHARS, 2, 0.5)
    long.task = Task("t1", messages=[])
    row = dict(zip(SAMPLE_COLUMNS, _make_sample_row(long), strict=True))
    assert row["prompt"] == ""
    lost = dict(zip(SAMPLE_COLUMNS, _make_sample_row(failed(book, 1, 1)), strict=True))
    assert (lost["outcome"], lost["reward"]) == ("model_timeout", None)


def make_hooks(folder: Path, recorder: Recorder) -> Any:
    make_book(folder / "run", tasks=40, samples=1)
    Book(folder / "run").open_round(Settings())
    return TrackerHooks("mine", recorder, folder / "run")


def test_numbers_are_logged_once_a_second_and_less_often_as_a_run_gets_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, now = Recorder(), [100.0]
    tracker = make_hooks(tmp_path, recorder)
    monkeypatch.setattr("rollbook.engine.tracking.time.monotonic", lambda: now[0])
    for at, scored_so_far, seconds in (
        (100.0, 1, 10.0),
        (100.9, 2, 10.0),
        (101.0, 3, 5000.0),
        (105.9, 4, 5000.0),
        (106.0, 5, 5000.0),
        (111.0, 5, 5000.0),
    ):
        now[0] = at
        tracker.hooks.on_progress(Progress(requested=40, scored=scored_so_far, seconds=seconds))
    assert [metrics["scored"] for metrics in recorder.metrics] == [1, 3, 5]  # the same numbers are not logged again
    assert recorder.calls == ["open", "log", "log", "log"]
    assert (tmp_path / "run" / "trackers" / "mine.json").read_bytes() == b'{"id":"1"}'


def test_progress_is_numbers_by_name_and_what_is_unknown_is_left_out() -> None:
    assert describe_progress(Progress(requested=4, scored=1, pending=3, rate=0.5)) == {
        "scored": 1.0,
        "failed": 0.0,
        "pending": 3.0,
        "rollouts_per_s": 0.5,
    }
    tokens = TokenCounts(7, 2, 3)
    failures = {"model_timeout": 2, "verifier_error": 1}
    everything = Progress(
        requested=4, failed=failures, mean_reward=0.25, cost=1.5, tokens=tokens, tokens_per_s=9.0, scored=1
    )
    assert describe_progress(everything) == {
        "scored": 1.0,
        "failed": 3.0,
        "pending": 0.0,
        "mean_reward": 0.25,
        "rollouts_per_s": 0.0,
        "cost": 1.5,
        "tokens_per_s": 9.0,
        "failed/model_timeout": 2.0,
        "failed/verifier_error": 1.0,
        "tokens/prompt": 7.0,
        "tokens/cached": 2.0,
        "tokens/completion": 3.0,
    }


def test_the_same_rollouts_are_shown_at_every_start(tmp_path: Path) -> None:
    shown = []
    for name in ("one", "two"):
        recorder = Recorder()
        tracker = make_hooks(tmp_path / name, recorder)
        book = Book(tmp_path / name / "run")
        rows = range(40) if name == "one" else reversed(range(40))
        for row in rows:
            tracker.hooks.on_rollout(scored(book, row, 0))
        tracker.hooks.on_end(rollbook.load(book.path))
        shown.append([row[0] for row in recorder.results[0].samples.rows])
        assert recorder.results[0].state == "interrupted"
    assert shown[0] == shown[1] == sorted(shown[0])
    assert len(shown[0]) == MAX_SAMPLES
    lowest = sorted((derive_seed(0, f"t{row}", 0), f"t{row}") for row in range(40))[:MAX_SAMPLES]
    assert set(shown[0]) == {name for _, name in lowest}


def test_the_numbers_of_each_environment_are_named_where_there_are_several(
    rollbook_run: Callable[..., RunResult],
) -> None:
    report = rollbook_run(samples=2).report
    alone = describe_report(report)
    assert {name.count("/") for name in alone} == {1}  # no environment and no failure
    (metrics,) = report.environments.values()
    blend = describe_report(msgspec.structs.replace(report, environments={"A": metrics, "B": metrics}))
    assert {name: value for name, value in blend.items() if name in alone} == alone
    assert (blend["final/A/scored"], blend["final/B/mean_reward"]) == (20.0, alone["final/mean_reward"])
    assert "final/A/cost" not in blend
