"""The pool of a sandbox, with launchers that pretend: how many there are, which are kept, and what ends them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rollbook.errors import SandboxError, SandboxFull, SandboxUnsupported, UsageError
from rollbook.sandbox import Limits, Sandbox
from rollbook.sandbox import sandbox as module
from rollbook.sandbox.backends.zygote import ZygoteFactory
from rollbook.sandbox.sandbox import check_provider
from rollbook.sandbox.session import SessionPool


class Launcher:
    """A launcher without a zygote."""

    isolation = ("pretended",)

    def __init__(self) -> None:
        self.alive, self.closed = True, 0

    def run(self, code: str, stdin: bytes, files: Any, limits: Limits) -> tuple[Any, ...]:
        return code, stdin, dict(files), limits, self

    def close(self) -> None:
        self.alive = False
        self.closed += 1


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Launcher]:
    """Return the launchers that are made."""
    launchers: list[Launcher] = []

    def make(_: object) -> Launcher:
        launchers.append(Launcher())
        return launchers[-1]

    monkeypatch.setattr(ZygoteFactory, "new_launcher", make)
    return launchers


@pytest.fixture
def box(made: list[Launcher]) -> Iterator[Sandbox]:
    with Sandbox(Limits(seconds=1.0), size=3) as opened:
        yield opened


def together(box: Sandbox, count: int) -> set[int]:
    """Run so many pieces of work that wait for each other; return the launchers that they had."""
    barrier, seen = threading.Barrier(count), set[int]()

    def work(launcher: Any) -> None:
        barrier.wait(10)
        seen.add(id(launcher))

    threads = [threading.Thread(target=box.use_launcher, args=[work]) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not barrier.broken
    return seen


def test_as_many_runs_as_its_size_go_on_at_once_and_launchers_start_when_needed(
    box: Sandbox, made: list[Launcher]
) -> None:
    assert (len(made), box.isolation) == (1, ("pretended",))
    assert len(together(box, 3)) == 3
    assert len(made) == 3
    assert box._idle_launchers.qsize() == 3
    together(box, 3)
    assert len(made) == 3


def test_a_run_has_its_input_files_and_limits(box: Sandbox, made: list[Launcher]) -> None:
    own = Limits(seconds=2.0)
    assert box.run_sync("1")[:4] == ("1", b"", {}, box.limits)  # type: ignore[index]
    assert box.run_sync("1", stdin="ä", files={"a": b"x"}, limits=own)[:4] == ("1", "ä".encode(), {"a": b"x"}, own)  # type: ignore[index]


def test_a_launcher_that_died_is_replaced(box: Sandbox, made: list[Launcher]) -> None:
    made[0].alive = False  # the first place is its own; those of the others are empty yet
    assert box.use_launcher(lambda launcher: launcher) is made[1]
    assert made[0].closed == 1
    assert box._launchers == {made[1]}


@pytest.mark.parametrize(
    ("error", "kept"), [(SandboxError("broken"), False), (ValueError("odd"), False), (SandboxUnsupported("no"), True)]
)
def test_a_launcher_is_dropped_after_an_error_that_it_may_have_caused(
    made: list[Launcher], error: Exception, kept: bool
) -> None:
    def fail(_: object) -> None:
        raise error

    with Sandbox(size=1) as box:
        with pytest.raises(type(error)):
            box.use_launcher(fail)
        assert made[0].alive is kept
        assert (box.use_launcher(lambda launcher: launcher) is made[0]) is kept
        assert len(box._launchers) == 1


def test_runs_that_wait_have_a_bound(made: list[Launcher]) -> None:
    gate = threading.Event()
    with Sandbox(size=1, waiting=2) as box:
        futures = [box._submit(lambda: gate.wait(10)) for _ in range(3)]
        with pytest.raises(SandboxFull, match=r"2 runs wait already: await some first, or Sandbox\(waiting=...\)"):
            box._submit(lambda: None)
        gate.set()
        assert all(future.result(10) for future in futures)
        assert box._submit(lambda: 7).result(10) == 7
    for _ in range(5):  # none of these keeps a place
        with pytest.raises(SandboxError, match="the sandbox is not open: use it as a context"):
            box._submit(lambda: None)


def test_closing_ends_every_launcher_and_it_can_be_opened_again(made: list[Launcher]) -> None:
    box = Sandbox(size=2)
    for count in (1, 2):
        with box:
            assert len(made) == count
            assert box.run_sync("1")
        assert all(launcher.closed for launcher in made)
        assert (box._launchers, box.isolation) == (set(), ())


def test_a_sandbox_that_cannot_start_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise SandboxError("no sandbox here")

    monkeypatch.setattr(ZygoteFactory, "new_launcher", fail)
    box = Sandbox(size=1)
    with pytest.raises(SandboxError, match="no sandbox here"):
        box.__enter__()
    assert box._threads is None


def make_state(outcomes: list[Exception | str]) -> Callable[..., str]:
    def begin(launcher: Launcher, *_: object) -> str:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            launcher.alive = not outcome.args[0].startswith("died")
            raise outcome
        return outcome

    return begin


@pytest.mark.parametrize(
    ("outcomes", "result"),
    [
        (["state"], "state"),
        ([SandboxError("died"), "second"], "second"),  # another one, once
        ([SandboxError("died"), SandboxError("died again")], "died again"),
        ([SandboxError("refused")], "refused"),
    ],
)
def test_a_session_gets_another_launcher_if_its_own_died_just_now(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch, outcomes: list[Exception | str], result: str
) -> None:
    monkeypatch.setattr(module, "PersistentState", make_state(outcomes))
    try:
        found: object = box._begin_session(Limits(), False, {}, None)
    except SandboxError as error:
        found = str(error)
    assert (found, outcomes) == (result, [])


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"files": {"a": b""}, "folder": "/tmp"}, "files belong in the session's own folder"),
        ({"snapshot": True, "limits": Limits(processes=2)}, "limit processes=2: a session that takes snapshots has 1"),
    ],
)
def test_a_session_that_cannot_be_is_refused(box: Sandbox, given: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        box.session(**given)


def test_providers_are_named() -> None:
    for name in ("built-in", "bubblewrap", "http://host/token", "https://host/token"):
        assert check_provider(name) == name
    with pytest.raises(
        UsageError, match="provider 'docker': there are built-in, bubblewrap and http://HOST:PORT/TOKEN"
    ):
        check_provider("docker")


class Left:
    """A session that counts how often it was abandoned."""

    def __init__(self) -> None:
        self.abandoned = 0

    def abandon(self) -> None:
        self.abandoned += 1


def test_a_pool_of_sessions_has_a_bound_and_one_launcher_for_all() -> None:
    made: list[Launcher] = []

    def start() -> Launcher:
        made.append(Launcher())
        return made[-1]

    pool = SessionPool(start, 2)  # type: ignore[arg-type]
    sessions: list[Any] = [Left() for _ in range(3)]
    for session in sessions[:2]:
        pool.add(session)
    with pytest.raises(
        SandboxFull, match=r"2 sessions are open: close some, or allow more with Sandbox\(sessions=...\)"
    ):
        pool.add(sessions[2])
    pool.remove(sessions[0])
    pool.remove(sessions[0])
    pool.add(sessions[2])
    assert pool.get_launcher() is pool.get_launcher() is made[0]
    made[0].alive = False
    assert pool.get_launcher() is made[1]
    assert made[0].closed == 1
    pool.kill()
    assert made[1].closed == 1
    with pytest.raises(SandboxError, match="the sandbox is closed"):
        pool.get_launcher()
    pool.close()
    pool.close()
    assert [session.abandoned for session in sessions] == [0, 1, 1]


def test_a_launcher_that_starts_while_the_sandbox_is_closed_is_closed_too(
    made: list[Launcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Launcher()
    with Sandbox(size=1) as box:
        close = made[0].close

        def close_and_start() -> None:
            close()
            box._launchers.add(late)  # type: ignore[arg-type]

        monkeypatch.setattr(made[0], "close", close_and_start)
    assert late.closed == 1
    assert made[0].closed >= 1
