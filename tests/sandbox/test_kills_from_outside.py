"""A guest that something else on the machine kills is a failure of the sandbox: never a score, never a result."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from rollbook.errors import TestsBroken
from rollbook.processes import find_members
from rollbook.sandbox import Grader, Limits, Sandbox, SandboxError, Session
from rollbook.sandbox.cgroups import CGROUP_ENV, find_control_groups
from rollbook.sandbox.session_state import ForkArrival, SessionTurn, SnapshotState
from support.alive import alive, eventually
from support.restricted_host import LESSER_ROOT, PLACES, UNRESTRICTED, RestrictedHost, can_enter, start_restricted_host

LIMITS = Limits(seconds=5.0, wall_seconds=30.0, memory_mb=128)
SETUPS = (UNRESTRICTED, "bubblewrap", LESSER_ROOT, *PLACES)
GRADE = "from rollbook.sandbox import Grader, Limits\ngrader = Grader(box)\n"
QUICK, SLOW = "def square(x): return x * x", "import time\ndef square(x):\n    time.sleep(20)\n    return x * x\n"
EXAMINE = GRADE + "return grader.function_sync({!r}, 'assert square(3) == 9', 'square').reason"
NAP = "import time\ntime.sleep(20)"
GUESTS = {
    "inputs": GRADE + f"return grader.inputs_sync({NAP!r}, [('a', '')]).reason",
    "calls": GRADE + f"return grader.calls_sync({SLOW!r}, 'square', [([3], 9)]).reason",
    "run": f"return box.run_sync({NAP!r}).status",
    "session": f"with box.session() as s: return s.run_sync({NAP!r}).status",
}


@pytest.fixture(scope="module", params=SETUPS)
def host(request: pytest.FixtureRequest) -> Iterator[RestrictedHost]:
    place = UNRESTRICTED if request.param == "bubblewrap" else request.param
    if not can_enter(place):
        pytest.skip("only root can put itself there")
    if request.param == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed here")
    with pytest.MonkeyPatch.context() as environment:
        if request.param == "bubblewrap":
            environment.setenv("ROLLBOOK_SANDBOX", "bubblewrap")
        with start_restricted_host(place, LIMITS) as there:
            yield there


def list_guests(host: int) -> list[int]:
    """Return the guests of a host in the order of their start: they sleep, and have one more filter than the host."""
    return sorted(p.pid for p in find_members(host) if sleeps(p.pid) and count_filters(p.pid) > count_filters(host))


def sleeps(pid: int) -> bool:
    return "State:\tS" in read_status(pid)


def count_filters(pid: int) -> int:
    return int(dict(re.findall(r"(\w+):\t(.*)", read_status(pid))).get("Seccomp_filters", 0))


def read_status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:  # it has ended
        return ""


def ask_and_kill(host: RestrictedHost, body: str, guests: int, victim: int) -> str:
    """Return the answer to a body, one of whose guests is killed meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        answer: Future[dict[str, object]] = pool.submit(host.ask, body=body)
        found: list[int] = []

        def find() -> bool:
            found[:] = list_guests(host.pid)
            return len(found) == guests

        assert eventually(find, 15)
        os.kill(found[victim], signal.SIGKILL)
        return str(answer.result(60))


@pytest.mark.parametrize("victim", [0, 1], ids=["candidate", "examiner"])
def test_a_right_answer_whose_examination_is_killed_has_no_verdict(host: RestrictedHost, victim: int) -> None:
    assert "SandboxError" in ask_and_kill(host, EXAMINE.format(SLOW), 2, victim)
    assert host.do(EXAMINE.format(QUICK)) == "passed"


@pytest.mark.parametrize("body", GUESTS.values(), ids=GUESTS)
def test_a_guest_that_is_killed_has_no_result(host: RestrictedHost, body: str) -> None:
    assert "SandboxError" in ask_and_kill(host, body, 1, 0)
    assert host.do("return box.run_sync('6 * 7').value") == "42"


TIMER = (
    "import ctypes, time\nlibc = ctypes.CDLL(None)\n"
    "event = (ctypes.c_int * 16)()\nevent[2] = 9\ntimer = ctypes.c_void_p()\n"
    "if libc.timer_create(1, event, ctypes.byref(timer)) == 0:\n"
    "    libc.timer_settime(timer, 0, (ctypes.c_long * 4)(0, 0, 0, 1), None)\n    time.sleep(1)\n"
)
NOTIFIED = (
    "import fcntl, os\nfd = os.open('/', os.O_RDONLY)\n"
    "fcntl.fcntl(fd, 10, 9)\nfcntl.fcntl(fd, 1026, 0x80000004 - (1 << 32))\nopen('a', 'w').close()\n"
)
SUICIDES = {
    "a signal": "import os\nos.kill(os.getpid(), 9)",
    "a signal to the group": "import os\nos.kill(0, 9)",
    "a signal to a thread": "import signal, threading\nsignal.pthread_kill(threading.get_ident(), 9)",
    "a timer": TIMER,
    "a descriptor": NOTIFIED,
    "a limit of CPU time": (
        "import ctypes, resource, time\n"
        "for change in (lambda: resource.setrlimit(resource.RLIMIT_CPU, (1, 1)),\n"
        "    lambda: resource.prlimit(0, resource.RLIMIT_CPU, (1, 1)),\n"
        "    lambda: ctypes.CDLL(None).syscall(160, 0, (ctypes.c_ulong * 2)(1, 1))):\n"
        "    change()\n"
        "while time.process_time() < 2.5: pass\n"
    ),
}


@pytest.mark.parametrize("name", SUICIDES)
def test_code_cannot_make_its_own_end_look_like_a_kill_from_outside(host: RestrictedHost, name: str) -> None:
    wrong = f"{SUICIDES[name]}\ndef square(x): return 0\n"
    assert host.do(EXAMINE.format(wrong)) in ("failed", "error")


def test_code_that_leaves_the_examination_but_lives_on_has_failed(host: RestrictedHost) -> None:
    wrong = "import os, time\ndef square(x):\n    os.close(4)\n    time.sleep(20)\n"
    assert host.do(EXAMINE.format(wrong)) == "killed"


def test_a_turn_whose_guest_is_killed_has_no_result() -> None:
    """The kernel ends the whole namespace with its first process: no process is left to tell how it ended."""
    with Sandbox(LIMITS, size=1) as box, ThreadPoolExecutor(1) as pool:
        for _ in range(5):  # who is gone first is a race
            with box.session(snapshot=True) as session:
                session.run_sync("x = 1")
                guest = session._state._guest  # type: ignore[union-attr]
                turn = pool.submit(session.run_sync, NAP)
                assert eventually(lambda guest=guest: len(find_members(guest.process.pid)) > 2)  # type: ignore[misc]
                os.kill(guest.process.pid, signal.SIGKILL)
                with pytest.raises(SandboxError, match="killed from outside"):
                    turn.result(20)


def kill_and_call(monkeypatch: pytest.MonkeyPatch, session: Session, cls: type, method: str) -> None:
    """Let a method first kill the process that holds the state of a session."""
    call, holder = getattr(cls, method), session._state._holder  # type: ignore[union-attr]

    def kill_first(self: object, *arguments: object) -> object:
        if not holder.has_ended():
            os.kill(holder.pid, signal.SIGKILL)
            assert holder.has_ended(10)
        return call(self, *arguments)

    monkeypatch.setattr(cls, method, kill_first)


@pytest.mark.parametrize(
    ("cls", "method"),
    [(SessionTurn, "send"), (ForkArrival, "check_gate"), (SnapshotState, "_roll_back")],
    ids=["before it is asked", "while it forks", "while its fork runs"],
)
def test_a_state_that_is_killed_during_a_turn_is_not_lost_through_its_code(cls: type, method: str) -> None:
    """The first process of the guest reaps it at once, unless it is kept from that."""
    with Sandbox(LIMITS, size=1) as box:
        for _ in range(5):
            with box.session(snapshot=True) as session, pytest.MonkeyPatch.context() as monkeypatch:
                session.run_sync("x = 1")
                kill_and_call(monkeypatch, session, cls, method)
                with pytest.raises(SandboxError, match="killed from outside"):
                    session.run_sync("import os\nos._exit(3)")
                monkeypatch.undo()
                assert session.run_sync("6 * 7").value == "42"


def test_a_state_that_ends_itself_when_it_should_fork_is_lost_through_its_code() -> None:
    with Sandbox(LIMITS, size=1) as box, box.session(snapshot=True) as session:
        session.run_sync("import os\nos.fork = lambda: os._exit(137)")
        lost = session.run_sync("x = 1")
        assert (lost.status, lost.state) == ("killed", "lost")


def test_what_was_killed_between_two_turns_has_no_result() -> None:
    with Sandbox(LIMITS, size=1) as box:
        for snapshot in (False, True):
            with box.session(snapshot=snapshot) as session:
                session.run_sync("x = 1")
                state = session._state
                pid = state._holder.pid if snapshot else state._guest.process.pid  # type: ignore[union-attr]
                os.kill(pid, signal.SIGKILL)
                assert eventually(lambda pid=pid: not alive(pid))  # type: ignore[misc]
                with pytest.raises(SandboxError, match="killed from outside"):
                    session.run_sync("x")
                assert session.run_sync("6 * 7").value == "42"


def test_memory_that_others_used_up_is_not_the_code_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group further up reaches its limit, as the machine may, or the job of a scheduler."""
    groups = find_control_groups()
    if groups is None or groups._version != 1:
        pytest.skip("needs control groups of version 1, which can be nested freely")
    above = groups.make()
    monkeypatch.setenv(CGROUP_ENV, str(above._path))
    try:
        with Sandbox(Limits(memory_mb=600, seconds=10), size=1) as box:
            above.set_limit(above.used_bytes() + (100 << 20))
            with pytest.raises(SandboxError, match="memory of this machine or job"):
                box.run_sync("held = bytearray(b'x') * (300 << 20)")
            above.set_limit(1 << 30)
        with Sandbox(Limits(memory_mb=30), size=1) as box:
            assert box.run_sync("held = bytearray(b'x') * (80 << 20)").status == "memory"
    finally:
        above.remove()


def test_tests_that_end_without_a_verdict_score_nobody() -> None:
    with Sandbox(LIMITS, size=1) as box:
        grader = Grader(box)
        with pytest.raises(TestsBroken, match="left their process with exit code 3"):
            grader.function_sync(QUICK, "import os\nassert square(3) == 9\nos._exit(3)", "square")
        with pytest.raises(SandboxError, match="ended with crash"):
            grader.function_sync(QUICK, "import ctypes\nassert square(3) == 9\nctypes.string_at(0)", "square")


def test_code_that_fills_the_memory_of_the_tests_has_failed() -> None:
    """Whatever is left for the report of the tests, and whatever the tests catch."""
    flood = "def make(n): return ['x' * 50 + str(i) for i in range(n)]"
    careful = "held = []\nwhile True:\n    try:\n        held.append(make(2_000))\n    except ValueError: pass"
    with Sandbox(Limits(seconds=10, memory_mb=64), size=1) as box:
        for tests in ("held = []\nwhile True: held.append(make(20_000))", careful):
            assert Grader(box).function_sync(flood, tests, "make").reason == "memory"


def test_code_that_ends_its_first_thread_is_not_killed_from_outside_when_the_tests_are_over() -> None:
    code = """
def square(x):
    import ctypes, threading, time
    threading.Thread(target=time.sleep, args=[20]).start()
    ctypes.CDLL(None).pthread_exit(0)
"""
    tests = """
import threading
found = []
asking = threading.Thread(target=lambda: found.append(square(3)), daemon=True)
asking.start()
asking.join(0.3)
assert found == [9]
"""
    with Sandbox(LIMITS, size=1) as box:
        assert Grader(box).function_sync(code, tests, "square").reason == "failed"
