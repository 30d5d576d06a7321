"""The other providers: bubblewrap on this machine, and a sandbox server over HTTP."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbook.errors import SandboxFull, TestsBroken, UsageError
from rollbook.sandbox import Limits, Sandbox, SandboxError
from rollbook.sandbox.backends.remote import _make_error
from rollbook.sandbox.grading import Grader
from rollbook.sandbox.outputs import Rule
from support.alive import eventually
from support.commands import Process

needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed here")


@pytest.fixture(scope="module")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    words = [sys.executable, "-m", "rollbook", "sandbox", "serve", "--concurrency", "2"]
    server = Process(words, tmp_path_factory.mktemp("served"), dict(os.environ))
    try:
        assert eventually(lambda: server.stdout.endswith("\n"), 30), server.stderr
        yield server.stdout.strip()
    finally:
        server.kill()


@pytest.fixture(scope="module", params=[pytest.param("bubblewrap", marks=needs_bwrap), "remote"])
def box(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    provider = request.getfixturevalue("server_url") if request.param == "remote" else request.param
    with Sandbox(Limits(seconds=2), size=2, provider=provider) as box:
        yield box


def test_a_run_is_the_same_whoever_puts_up_the_walls(box: Sandbox) -> None:
    result = box.run_sync("print(input() + open('a.txt').read()); 6 * 7", stdin="oh ", files={"a.txt": b"hi"})
    assert (result.status, result.stdout, result.value) == ("ok", "oh hi\n", "42")
    assert result.isolation[: len(box.isolation) - 1]
    assert {"pid", "mount", "network", "seccomp"} <= set(box.isolation)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("while True: pass", "timeout"),
        ("import time; time.sleep(60)", "timeout"),
        ("1 / 0", "error"),
        ("raise SystemExit(3)", "error"),
        ("x = bytearray(1 << 40)", "memory"),
        ("import ctypes; ctypes.string_at(0)", "crash"),
        ("import os; os.fork()", "error"),
        ("import socket; socket.socket()", "error"),
        ("open('/etc/passwd')", "error"),
        ("open('big', 'wb').write(bytes(64 << 20))", "error"),
        ("import os; assert not os.environ and os.listdir('.') == []", "ok"),
        ("import os\nfor n in os.listdir('/proc/1/'): open(f'/proc/1/{n}', 'rb').read()", "error"),
        ("import os; os._exit(0)", "ok"),
    ],
)
def test_what_code_does_is_called_what_it_is(box: Sandbox, code: str, status: str) -> None:
    limits = Limits(seconds=0.3, wall_seconds=1.0, files_mb=4)
    assert box.run_sync(code, limits=limits).status == status


def test_printing_without_end_is_cut(box: Sandbox) -> None:
    result = box.run_sync("print('x' * 1_000_000)")
    assert (result.status, result.truncated, len(result.stdout)) == ("ok", True, 64 << 10)


@needs_bwrap
def test_under_bubblewrap_sessions_and_grading_work_too() -> None:
    with Sandbox(Limits(seconds=2), size=1, provider="bubblewrap") as box:
        with box.session() as session:
            session.run_sync("x = 3")
            assert session.run_sync("x + 1").value == "4"
        with pytest.raises(SandboxError, match="need the built-in sandbox"), box.session(snapshot=True):
            pass
        grader = Grader(box)
        assert grader.function_sync("def f(x): return x * x", "assert f(3) == 9", "f").passed
        assert not grader.function_sync("import os; os._exit(0)", "assert f(3) == 9", "f").passed
        assert grader.inputs_sync("print(input())", [("a", "a")]).passed


@needs_bwrap
def test_under_bubblewrap_chosen_packages_can_be_imported() -> None:
    with Sandbox(Limits(memory_mb=512), size=1, provider="bubblewrap", packages=["numpy"]) as box:
        assert box.run_sync("import numpy\nint(numpy.arange(4).sum())").value == "6"
        assert box.run_sync("import msgspec").status == "error"


@needs_bwrap
def test_nothing_of_bubblewrap_is_left() -> None:
    with Sandbox(Limits(seconds=0.2), size=1, provider="bubblewrap") as box:
        box.run_sync("while True: pass")
        provider = next(iter(box._launchers))._provider
        assert eventually(lambda: not provider._running)  # type: ignore[attr-defined]
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            box.run_sync("1")
        assert eventually(lambda: len(os.listdir("/proc/self/fd")) <= before)


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_session_over_http_is_a_session(server_url: str, snapshot: bool) -> None:
    with Sandbox(Limits(seconds=0.5), provider=server_url) as box, box.session(snapshot, files={"a": b"1"}) as session:
        session.run_sync("x = 3")
        assert session.run_sync("x + int(open('a').read())").value == "4"
        lost = session.run_sync("while True: pass", limits=Limits(seconds=0.1))
        assert (lost.status, lost.state) == ("timeout", "rolled back" if snapshot else "lost")
        after = session.run_sync("'x' in globals()")
        assert (after.value, after.restarted) == (str(snapshot), not snapshot)


def test_no_room_over_there_is_told_as_that() -> None:
    answer = b'{"error": "256 sessions are open"}'
    assert isinstance(_make_error(429, answer, "x"), SandboxFull)
    assert not isinstance(_make_error(503, answer, "x"), SandboxFull)


def test_grading_over_http_comes_to_the_same_verdicts(server_url: str) -> None:
    with Sandbox(Limits(seconds=2), provider=server_url) as box:
        grader, tests = Grader(box), "assert square(3) == 9"
        passed = grader.function_sync("def square(x): return x * x", tests, "square")
        assert passed.passed
        assert passed.isolation[0] == "remote"
        assert grader.function_sync("import os; os._exit(0)", tests, "square").reason == "exit"
        with pytest.raises(TestsBroken, match="the tests do not run"):
            grader.function_sync("def square(x): return x * x", "1 / 0", "square")
        verdict = grader.inputs_sync("print(int(input()) * 2)", [("2", "4"), ("3", "7")], all_of_them=True)
        assert (verdict.passed, verdict.fraction) == (False, 0.5)
        assert grader.inputs_sync("print('A')", [("", "a")], rule=Rule(case=False)).passed
        cases = [([1, 2.5], 3.5), ([2**80, 1], 2**80 + 1), ([[], [None]], [None])]
        assert grader.calls_sync("def add(a, b): return a + b", "add", cases).passed
        assert grader.calls_sync("while True: pass", "add", cases, limits=Limits(seconds=0.2)).reason == "timeout"
        with pytest.raises(TestsBroken, match="no cases"):
            grader.calls_sync("1", "add", [])


def test_packages_that_are_not_served_are_no_fault_of_the_code(server_url: str) -> None:
    with pytest.raises(UsageError, match="has no package numpy: serve it with --package numpy"):
        Sandbox(provider=server_url, packages=["numpy"]).__enter__()


def test_the_environment_names_a_provider_where_nobody_else_does(
    server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLBOOK_SANDBOX", server_url)
    with Sandbox(size=1) as box:
        assert box.run_sync("6 * 7").isolation[0] == "remote"
    with Sandbox(size=1, provider="built-in") as box:
        assert "remote" not in box.isolation


def test_a_server_that_is_not_there_or_does_not_know_us_is_no_result(server_url: str) -> None:
    stranger = server_url.rpartition("/")[0] + "/wrong"
    with pytest.raises(SandboxError, match="HTTP 401"), Sandbox(provider=stranger):
        pass
    with pytest.raises(SandboxError, match="refused"), Sandbox(provider="http://127.0.0.1:1/x"):
        pass
    with Sandbox(provider=server_url) as box, pytest.raises(UsageError, match="at most 300 here"):
        box.run_sync("1", limits=Limits(seconds=1e6))


@pytest.mark.parametrize("name", ["docker", "", "http:/x"])
def test_an_unknown_provider_is_one_line(name: str) -> None:
    with pytest.raises(UsageError, match="there are built-in, bubblewrap and http://"):
        Sandbox(provider=name)


def test_the_command_line_takes_a_provider(server_url: str, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("6 * 7")
    words = [sys.executable, "-m", "rollbook", "sandbox", "run", "x.py", "--provider", server_url]
    done = Process(words, tmp_path, dict(os.environ)).wait(30)
    assert (done.code, done.stdout) == (0, "42\n")
    assert "remote" in done.stderr
