"""A crew of workers that only pretend: who waits, who is lost and replaced, who gives up."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from rollbook.book import Book
from rollbook.core import Round, Settings
from rollbook.engine import worker_pool
from rollbook.engine.progress import Progress
from rollbook.engine.request import Request, update_settings
from rollbook.engine.runs import plan_request, run_round, work
from rollbook.engine.worker_pool import REPLACEMENTS_PER_WORKER, ExitStatus, WorkerPool, killed_exit_status
from rollbook.errors import Shortfall, Stopped, UsageError
from support.alive import eventually
from support.sums import write_script, write_sums


class FakeWorker:
    """A worker that comes to the end it was told, or waits for ever."""

    def __init__(self, ending: ExitStatus | None, waiting: bool = False) -> None:
        self._ending, self.waiting = ending, waiting
        self.signals: list[int] = []
        self.killed = False

    def exit_status(self) -> ExitStatus | None:
        return self._ending

    def signal(self, number: signal.Signals) -> None:
        self.signals.append(number)

    def kill_now(self) -> None:
        self.killed = True


class Said:
    """A display that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.seen: list[Progress] = []

    def start(self, total: int, pending: int | None = None) -> None: ...

    def update(self, progress: Progress) -> None:
        self.seen.append(progress)

    def note(self, line: str) -> None:
        self.notes.append(line)

    def stop(self) -> None: ...


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Book:
    monkeypatch.setattr(worker_pool, "POLL_S", 0.0)
    request = Request(
        env=write_sums(tmp_path),
        model=[write_script(tmp_path)],
        out=str(tmp_path / "run"),
        settings=update_settings(Settings(), {"workers": 2}),
    )
    return Book(plan_request(request))


def worked(book: Book, ends: list[FakeWorker]) -> tuple[str, Said]:
    """What a crew says whose workers come from a list, one after the other."""
    said = Said()
    cause = asyncio.run(WorkerPool(book, book.rounds()[-1], said, lambda _: ends.pop(0)).run(handle_signals=False))
    return cause, said


def test_workers_that_are_lost_are_replaced_within_a_bound(book: Book) -> None:
    ends = [FakeWorker(ExitStatus(-9, "was lost", replaceable=True)) for _ in range(100)]
    cause, said = worked(book, ends)
    assert cause in ("worker 0 was lost", "worker 1 was lost")
    assert len(ends) == 100 - 2 - 2 * REPLACEMENTS_PER_WORKER
    assert said.notes.count("worker 0 was lost; its chunks are taken over") >= 1


def test_a_worker_that_is_interrupted_while_python_starts_is_replaceable(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python then ends with exit code 1 and a traceback, as it does for a bug."""
    early = "import sys; print('Traceback (most recent call last):\\nKeyboardInterrupt', file=sys.stderr); sys.exit(1)"
    monkeypatch.setattr(worker_pool, "module_argv", lambda *_: [sys.executable, "-c", early])
    worker = worker_pool.WorkerProcess(book, book.rounds()[-1], 0)
    assert eventually(lambda: worker.exit_status() is not None, 30)
    status = worker.exit_status()
    assert status
    assert (status.code, status.replaceable) == (-signal.SIGINT, True)


def test_a_worker_that_gives_up_is_not_replaced(book: Book) -> None:
    ends = [FakeWorker(ExitStatus(2, "rollbook: no such thing")), FakeWorker(ExitStatus(0, "")), FakeWorker(None)]
    with pytest.raises(UsageError, match=r"^no such thing$"):
        worked(book, ends)
    assert len(ends) == 1
    with pytest.raises(Stopped, match="the endpoint is gone"):
        worked(book, [FakeWorker(ExitStatus(75, "the endpoint is gone")), FakeWorker(ExitStatus(0, ""))])
    with pytest.raises(RuntimeError, match="worker 0 exited with 1"):
        worked(book, [FakeWorker(ExitStatus(1, "")), FakeWorker(ExitStatus(0, ""))])


def test_the_files_decide_whether_a_worker_that_gave_up_matters(book: Book) -> None:
    work(book.path, {}, Said())
    for status in (ExitStatus(75, "interrupted"), ExitStatus(2, "rollbook: no such thing")):
        cause, said = worked(book, [FakeWorker(status), FakeWorker(ExitStatus(0, ""))])
        assert not cause
        assert said.notes == [f"a worker ended early ({status.message.split(': ')[-1]}); nothing is left to do"]


def test_those_that_wait_go_home_once_nobody_needs_them(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = FakeWorker(None, waiting=True)
    read, looks = worker_pool.read_status, iter(range(100))

    def done_at_last(path: Path) -> object:
        status = read(path)
        return msgspec.structs.replace(status, pending=0) if next(looks) > worker_pool.WAITING_NOTE_POLLS else status

    monkeypatch.setattr(worker_pool, "read_status", done_at_last)
    cause, said = worked(book, [FakeWorker(ExitStatus(0, "")), waiting])
    assert (cause, waiting.killed) == ("", True)
    assert said.notes == ["1 of 1 workers wait for room"]


def test_the_pace_of_all_workers_together_is_shown(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    read, times, looks = worker_pool.read_status, iter(range(1, 1000)), iter(range(100))
    monkeypatch.setattr(worker_pool, "monotonic", lambda: float(next(times)))
    waits = FakeWorker(None)

    def scored_two_more(path: Path) -> object:
        look = next(looks)
        if look == 5:
            waits._ending = ExitStatus(0, "")
        return msgspec.structs.replace(read(path), scored=2 * look)

    monkeypatch.setattr(worker_pool, "read_status", scored_two_more)
    _, said = worked(book, [waits, FakeWorker(ExitStatus(0, ""))])
    assert [progress.rate for progress in said.seen] == [0.0, *[2.0] * 6]
    assert [progress.seconds for progress in said.seen] == [float(n) for n in range(1, 8)]


def test_who_is_to_stop_at_once_gets_two_signals_that_cannot_be_taken_for_one(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel keeps one of equal signals that wait: the worker would drain, and finish what is in flight."""
    works, read = FakeWorker(None), worker_pool.read_status
    round_ = book.rounds()[-1]
    strict = msgspec.structs.replace(round_, settings=update_settings(round_.settings, {"fail_fast": True}))

    def failing(path: Path) -> object:
        works._ending = ExitStatus(75, "") if works.signals else None
        return msgspec.structs.replace(read(path), failed={"verifier_error": 1})

    monkeypatch.setattr(worker_pool, "read_status", failing)
    ends = [works, FakeWorker(ExitStatus(0, ""))]
    verdict = asyncio.run(WorkerPool(book, strict, Said(), lambda _: ends.pop(0)).run(handle_signals=False))
    assert verdict == "stopped by --fail-fast with 1 failed"
    assert works.signals == [signal.SIGTERM, signal.SIGINT]


def test_signals_are_heard_as_before_once_the_crew_has_gone(book: Book) -> None:
    def heard(number: int, frame: object) -> None: ...

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, heard) for number in numbers}
    try:
        ends = [FakeWorker(ExitStatus(0, "")) for _ in range(2)]
        asyncio.run(WorkerPool(book, book.rounds()[-1], Said(), lambda _: ends.pop(0)).run(handle_signals=True))
        assert [signal.getsignal(number) for number in numbers] == [heard, heard]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_signal_is_forwarded_to_every_worker_and_what_is_left_is_told(book: Book) -> None:
    said, workers = Said(), [FakeWorker(None), FakeWorker(None)]
    held = list(workers)
    pool = WorkerPool(book, book.rounds()[-1], said, lambda _: held.pop(0))

    async def go() -> str:
        running = asyncio.create_task(pool.run(handle_signals=False))
        while held:
            await asyncio.sleep(0)
        pool._on_signal(signal.SIGINT)
        pool._on_signal(signal.SIGINT)
        for worker in workers:
            worker._ending = ExitStatus(Stopped.exit_code, "")
        return await running

    with pytest.raises(Stopped) as caught:
        asyncio.run(go())
    assert str(caught.value) == f"interrupted: rollbook resume {book.path}"
    assert [worker.signals for worker in workers] == [[signal.SIGTERM, signal.SIGTERM]] * 2
    assert said.notes == ["draining 2 workers; once more stops at once"] * 2
    assert not any(worker.killed for worker in workers)


def test_workers_are_killed_if_the_pool_itself_fails(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = [FakeWorker(None), FakeWorker(None)]
    held = list(workers)

    def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(WorkerPool, "_check_costs", fail)
    with pytest.raises(RuntimeError, match="a defect"):
        worked(book, held)
    assert all(worker.killed for worker in workers)


def test_workers_that_are_started_elsewhere_work_on_the_last_round(book: Book) -> None:
    book.open_round(update_settings(Settings(), {"workers": 3}))
    rounds: list[int] = []

    def make_factory(_: Book, round_: Round) -> Callable[[int], FakeWorker]:
        rounds.append(round_.number)
        return lambda number: FakeWorker(ExitStatus(0, ""))

    with pytest.raises(Shortfall):
        run_round(book, Said(), make_factory)
    assert rounds == [2]


def test_the_numbers_shown_are_those_of_the_files_and_of_the_workers_that_run(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    book.open_round(update_settings(Settings(), {"workers": 3}))
    read, workers = worker_pool.read_status, [FakeWorker(None), FakeWorker(None), FakeWorker(None, waiting=True)]
    known = {"scored": 3, "failed": {"verifier_error": 1}, "pending": 6, "in_flight": 2}
    known |= {"outage": "nobody answers", "prompt_tokens": 8, "cached_tokens": 4}

    def end_after_one_look(path: Path) -> object:
        for worker in workers:
            worker._ending = ExitStatus(0, "")
        return msgspec.structs.replace(read(path), **known)

    monkeypatch.setattr(worker_pool, "read_status", end_after_one_look)
    _, said = worked(book, list(workers))
    shown = msgspec.structs.asdict(said.seen[0])
    assert {name: shown[name] for name in known} == known
    assert (shown["requested"], shown["concurrency"], shown["rate"], shown["cost"]) == (10, 2, 0.0, None)
    assert said.seen[-1].concurrency == 0


def test_workers_drain_once_all_of_them_together_cost_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "POLL_S", 0.0)
    tokens = {"prompt_ids": [1, 2], "ids": [3, 4], "logprobs": [-0.5, -0.25]}
    costly = Book(
        plan_request(
            Request(
                env=write_sums(tmp_path),
                model=[write_script(tmp_path, **tokens)],
                out=str(tmp_path / "costly"),
                limit=2,
            )
        )
    )
    work(costly.path, {}, Said())
    costly.open_round(update_settings(Settings(), {"workers": 2, "price": "in=1000000,out=1000000", "max_cost": 5.0}))

    class Drains(FakeWorker):
        def signal(self, number: signal.Signals) -> None:
            super().signal(number)
            self._ending = ExitStatus(0, "")

    workers = [Drains(None), Drains(None)]
    reason, said = worked(costly, list(workers))
    assert reason == "stopped by --max-cost 5 at a cost of 8.00: resume with a higher one"
    assert [worker.signals for worker in workers] == [[signal.SIGTERM]] * 2
    assert said.seen[-1].cost == 8.0


def test_that_workers_wait_is_reported_after_some_polls_in_a_row(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    read, looks, works = worker_pool.read_status, iter(range(1, 100)), FakeWorker(None, waiting=True)

    def change(path: Path) -> object:
        look = next(looks)
        works.waiting = look != worker_pool.WAITING_NOTE_POLLS  # it gets its resources once, and loses them
        if look == 2 * worker_pool.WAITING_NOTE_POLLS - 1:
            works._ending = ExitStatus(0, "")
        return read(path)

    monkeypatch.setattr(worker_pool, "read_status", change)
    _, said = worked(book, [works, FakeWorker(ExitStatus(0, ""))])
    assert said.notes == []


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (-9, "was killed by SIGKILL (most often: out of memory), lower --concurrency or --workers"),
        (-15, "was killed by SIGTERM, lower --concurrency or --workers"),
    ],
)
def test_a_worker_that_a_signal_ended_may_be_replaced(code: int, message: str) -> None:
    assert killed_exit_status(code) == ExitStatus(code, message, replaceable=True)


@pytest.mark.parametrize(
    ("code", "words", "expected"),
    [
        ("sys.exit(3)", "said", ExitStatus(3, "said")),
        ("sys.exit(0)", "KeyboardInterrupt", ExitStatus(0, "KeyboardInterrupt")),
        ("os.kill(os.getpid(), 9)", "said", killed_exit_status(-9)),
    ],
)
def test_the_end_of_a_worker_process_is_its_exit_code_and_its_last_line(
    book: Book, monkeypatch: pytest.MonkeyPatch, code: str, words: str, expected: ExitStatus
) -> None:
    script = f"import os, sys; print('{words}', file=sys.stderr, flush=True); {code}"
    monkeypatch.setattr(worker_pool, "module_argv", lambda *_: [sys.executable, "-c", script])
    worker = worker_pool.WorkerProcess(book, book.rounds()[-1], 7)
    assert eventually(lambda: worker.exit_status() is not None, 30)
    assert worker.exit_status() == expected
    assert (book.path / "logs" / "worker-1-7.log").read_text() == f"{words}\n"
