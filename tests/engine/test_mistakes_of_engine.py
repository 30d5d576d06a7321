"""A mistake in our own code is raised as it is: never taken for a wrong option, a damaged file or a failed rollout."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollbook import run
from rollbook.book import KeyHistory
from rollbook.core import Limits, Rollout, Sampling, Settings, Task
from rollbook.engine import (
    blends,
    book_worker,
    model_runs,
    planning,
    progress,
    request,
    retries,
    reverification,
    rollout_runner,
    runs,
    scoring,
    tracking,
    worker,
)
from rollbook.engine.collector import PausableModel
from rollbook.engine.hooks import Hooks
from rollbook.errors import RolloutFailed, UsageError
from support.books import make_book
from support.bugs import Bug, Buggy, break_name, raise_bug, raise_bug_later
from support.sums import write_script, write_sums

TASK = Task("a", "Hi")
BLEND = "environments:\n  - env: gsm8k\nroles:\n  judge:\n    name: m\n"


def write_blend(folder: Path) -> Path:
    (folder / "blend.yaml").write_text(BLEND)
    return folder / "blend.yaml"


def resolve_an_entry(folder: Path) -> object:
    (folder / "blend.yaml").write_text("environments:\n  - env: gsm8k\n")
    return blends.load_run_environments(request.Request(env=str(folder / "blend.yaml"), out=""))


def store_models(folder: Path) -> Path:
    (folder / "models.json").write_text('{"schema": 1, "models": []}')
    return folder


def pin(folder: Path) -> object:
    environment: Any = SimpleNamespace(entry=1, make_error=lambda error: UsageError(str(error)))
    return planning.pin_environment(environment, Buggy(), Buggy(), folder)  # type: ignore[arg-type]


def observe(folder: Path) -> object:
    return runs.observe_work(folder, Buggy(), Hooks(), ["wandb"], progress=False)  # type: ignore[arg-type]


class Rule(str):
    """A rule that cannot be read."""

    def removesuffix(self, suffix: str, /) -> str:
        raise_bug()


def start_a_tracker(folder: Path) -> None:
    tracker = tracking.TrackerProcess("wandb", folder, print)
    tracker.start()


SYNC: list[tuple[Any, str, Callable[[Path], object]]] = [
    (blends, "read_roles", lambda folder: blends.read_blend(write_blend(folder))),
    (blends, "resolve", resolve_an_entry),
    (model_runs, "write_atomically", lambda folder: model_runs.write_models(folder, [])),
    (model_runs, "msgspec", lambda folder: model_runs.read_models(store_models(folder))),
    (planning, "make_terms", pin),
    (planning, "version", lambda folder: planning.package_versions()),
    (progress, "read_exact_status", lambda folder: progress.count_pending(make_started_book(folder))),
    (request.msgspec, "convert", lambda folder: request.check_struct("limits", Limits(), Limits)),
    (request.msgspec, "convert", lambda folder: request.update_settings(Settings(), {})),
    (retries, "FAILURE_KINDS", lambda folder: retries.parse_max_failures(Rule("5"), 10)),
    (runs, "make_observers", observe),
    (scoring, "encode", lambda folder: scoring.roundtrip_task(TASK, "e")),
    (tracking, "decode", lambda folder: tracking._read_tracker_id(store_models(folder) / "models.json")),
    (tracking, "Child", start_a_tracker),
]


def make_started_book(folder: Path) -> Any:
    book = make_book(folder / "run", tasks=1)
    (book.path / "journals" / "one").mkdir()
    return book


@pytest.mark.parametrize(
    ("owner", "name", "use"), SYNC, ids=[f"{number}-{name}" for number, (_, name, _) in enumerate(SYNC)]
)
def test_a_mistake_of_ours_is_no_mistake_of_the_user(
    owner: Any, name: str, use: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    break_name(monkeypatch, owner, name)
    with pytest.raises(Bug):
        use(tmp_path)


def test_a_folder_that_cannot_be_made_for_an_unknown_reason_is_not_returned(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(request.Path, "mkdir", raise_bug)
    with pytest.raises(Bug):
        request.claim_run_folder("gsm8k")


async def pause_a_model() -> None:
    model: Any = PausableModel(SimpleNamespace(spec=None))  # type: ignore[arg-type]
    model._idle = SimpleNamespace(wait=raise_bug_later)
    await model.pause(1.0)


async def verify_again() -> None:
    environments: Any = {"": SimpleNamespace(repeat_outcome=raise_bug_later)}
    await reverification.Reverifier(Buggy(), Path(), environments, "all")._verify(make_rollout())  # type: ignore[arg-type]


def make_rollout() -> Rollout:
    return Rollout(task=TASK, sample=0, seed=1, round=1, attempt=1, messages=[], turns=[])


def make_caller(model: object) -> Any:
    limits, clock = Limits(), rollout_runner.AttemptClock()
    return rollout_runner.ModelCaller(model, Sampling(), limits, make_rollout(), "a#0", clock, budgets={})  # type: ignore[arg-type]


def make_runner(patch: pytest.MonkeyPatch, **methods: object) -> Any:
    runner = object.__new__(rollout_runner.RolloutRunner)
    runner._run_seed, runner._terms = 1, {"": SimpleNamespace(limits=Limits())}
    for name, method in methods.items():
        setattr(runner, name, method)
    return runner


JOB: Any = SimpleNamespace(task=TASK, sample=0, name="a#0", past=SimpleNamespace(attempts=0))


async def work_on_a_job() -> None:
    limiter: Any = SimpleNamespace(limit=1)
    runner: Any = SimpleNamespace(run_attempt=raise_bug_later)
    made = worker.Worker(Buggy(), runner, limiter, 1)  # type: ignore[arg-type]
    made._draining.set()
    await made._run_job(worker.RolloutJob(TASK, 0, KeyHistory()))


async def mark_a_job() -> None:
    source: Any = object.__new__(book_worker.BookJobSource)
    source._slots, source._in_flight = {}, SimpleNamespace(add=raise_bug)
    source._start_job(SimpleNamespace(row=0, sample=0))


async def write_in_a_thread() -> None:
    source: Any = object.__new__(book_worker.BookJobSource)
    source._book = SimpleNamespace(path=Path("run"))
    await source._in_thread(raise_bug)


async def send_heartbeats(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(book_worker, "next_heartbeat_s", lambda *_: 0.0)
    source: Any = object.__new__(book_worker.BookJobSource)
    source._heartbeat_lock, source._changed = asyncio.Lock(), asyncio.Event()
    source._renew_leases = raise_bug_later
    await source._send_heartbeats()


async def put_media_in(patch: pytest.MonkeyPatch) -> None:
    break_name(patch, rollout_runner, "put_media_in")
    await make_caller(Buggy())._put_media_in([])


async def wait_for_an_event() -> None:
    await retries.wait_for_event(SimpleNamespace(wait=raise_bug_later), 1.0)  # type: ignore[arg-type]


ASYNC: dict[str, Callable[[pytest.MonkeyPatch], Awaitable[object]]] = {
    "a pause": lambda patch: pause_a_model(),
    "a verification": lambda patch: verify_again(),
    "a call": lambda patch: make_caller(SimpleNamespace(complete=raise_bug_later))(TASK.messages),
    "an attempt": lambda patch: make_runner(patch, _converse_and_verify=raise_bug_later).run_attempt(JOB, 1),
    "a conversation": lambda patch: make_runner(patch)._converse(
        SimpleNamespace(open_session=raise_bug_later), make_rollout(), JOB, rollout_runner.AttemptClock(), False
    ),
    "a claim": lambda patch: mark_a_job(),
    "a file of the run": lambda patch: write_in_a_thread(),
    "a heartbeat": send_heartbeats,
    "a job": lambda patch: work_on_a_job(),
    "an image": lambda patch: put_media_in(patch),
    "an event": lambda patch: wait_for_an_event(),
}


@pytest.mark.parametrize("what", ASYNC)
def test_a_mistake_of_ours_ends_no_rollout_and_no_wait(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Bug):
        asyncio.run(asyncio.wait_for(ASYNC[what](monkeypatch), 10))  # type: ignore[arg-type]


def test_a_mistake_of_ours_ends_the_work_on_all_models() -> None:
    begun: list[str] = []

    def work(run: model_runs.ModelRun) -> None:
        begun.append(run.name)
        raise_bug()

    every = [model_runs.ModelRun(name, Buggy()) for name in ("a", "b")]  # type: ignore[arg-type]
    with pytest.raises(Bug):
        model_runs.work_through(every, work)
    assert begun == ["a"]


def test_a_run_that_a_mistake_of_ours_ends_keeps_its_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runs, "_work_and_report", raise_bug_later)
    with pytest.raises(Bug):
        run(write_sums(tmp_path), write_script(tmp_path), out=tmp_path / "a")
    assert (tmp_path / "a" / "run.json").exists()


def test_a_mistake_of_ours_does_not_send_the_user_to_a_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run(write_sums(tmp_path), write_script(tmp_path), out=tmp_path / "a")
    monkeypatch.setattr(reverification, "_verify_all", raise_bug_later)
    with pytest.raises(Bug):
        asyncio.run(reverification.reverify(tmp_path / "a", tmp_path / "b", [], "all", progress.SilentDisplay()))


@pytest.mark.parametrize("error", [Bug, SystemExit])
def test_what_an_agent_raises_is_its_failure(monkeypatch: pytest.MonkeyPatch, error: type[BaseException]) -> None:
    async def play(*_: object) -> None:
        raise error("no")

    rollout, runner = make_rollout(), make_runner(monkeypatch, _agents={"": SimpleNamespace(play=play)})
    for name in ("_model", "_budgets", "_restart", "_continues", "_draining", "_media"):
        setattr(runner, name, None)
    runner._terms = {"": SimpleNamespace(limits=Limits(), sampling=Sampling())}
    with pytest.raises(RolloutFailed, match=f"{error.__name__}: no") as caught:
        asyncio.run(runner._run_agent(None, rollout, JOB, rollout_runner.AttemptClock()))
    assert (caught.value.kind, rollout.ended, rollout.turns) == ("agent_error", "", [])


@pytest.mark.parametrize("error", [Bug, SystemExit])
def test_what_an_environment_or_a_tracker_raises_is_the_users_to_know(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def fail() -> None:
        raise error("no")

    loaded: Any = SimpleNamespace(path=None, cls=Bug, instance=SimpleNamespace(tasks=fail))
    with pytest.raises(UsageError, match=f"{error.__name__}: no"):
        list(planning.iterate_tasks(loaded))
    monkeypatch.setattr(tracking, "_known_targets", lambda: {"mine": SimpleNamespace(load=fail)})
    with pytest.raises(UsageError, match=f"{error.__name__}: no"):
        tracking.find_tracker("mine")
