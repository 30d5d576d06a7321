"""Attacks over several turns: on the next turn, on the channel, and on the process that holds the state."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from rollbook.processes import find_members
from rollbook.sandbox import Limits, Sandbox, SandboxError, Session
from rollbook.sandbox.inner import seccomp
from rollbook.sandbox.results import Result
from rollbook.sandbox.session_state import PersistentState, SnapshotState
from rollbook.sandbox.supervision import GuestProcess
from support.alive import alive, eventually

LIMITS = Limits(seconds=0.4, wall_seconds=2.0, memory_mb=128, files_mb=8)
FORGED = (
    "import json, os, struct\n"
    "def frame(value):\n"
    "    body = value if isinstance(value, bytes) else json.dumps(value).encode()\n"
    "    return struct.pack('<I', len(body)) + body\n"
    "def say(value):\n"
    "    for handle in range(3, 64):\n"
    "        try:\n"
    "            os.write(handle, value if isinstance(value, bytes) else frame(value))\n"
    "        except OSError:\n"
    "            pass\n"
)
both_kinds = pytest.mark.parametrize("snapshot", [False, True], ids=["persistent", "snapshot"])


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    try:
        with Sandbox(LIMITS, size=1) as made:
            yield made
    except SandboxError as error:
        pytest.skip(f"no sandbox on this machine: {error}")


def get_holder(session: Session) -> GuestProcess:
    """Return the process that holds the state."""
    state = session._state
    assert isinstance(state, (PersistentState, SnapshotState))
    return state._holder if isinstance(state, SnapshotState) else state._guest.process


def check_survives(session: Session, snapshot: bool, result: Result) -> None:
    """Check that a turn that died is undone, or has lost the state and reports it; and that the session continues."""
    assert result.state == ("rolled back" if snapshot else "lost"), result
    after = session.run_sync("'kept' in globals()")
    assert (after.status, after.value, after.restarted) == ("ok", str(snapshot), not snapshot)


ENDS: dict[str, tuple[str, str]] = {
    "a busy loop": ("timeout", "while True: pass"),
    "a sleep": ("timeout", "import time\ntime.sleep(60)"),
    "a loop that catches everything": (
        "timeout",
        "def f():\n  while True:\n    try:\n      while True: pass\n    except BaseException: pass\nf()",
    ),
    "a crash": ("crash", "import ctypes\nctypes.string_at(0)"),
    "an abort": ("crash", "import os\nos.abort()"),
    "an exit": ("error", "import os\nos._exit(0)"),
    "an exit with a code": ("error", "import os\nos._exit(7)"),
    "every descriptor closed": ("error", "import os\nos.closerange(0, 1000)"),
    "its own channel closed, then a loop": ("timeout", "import os\nos.close(3)\nwhile True: pass"),
    "garbage on every descriptor": ("killed", FORGED + "say(b'garbage, garbage, garbage')"),
    "a frame that is no JSON": ("killed", FORGED + "say(frame(b'{'))"),
    "a frame of another shape": ("killed", FORGED + "say({'value': '42'})"),
    "a reply to nothing": ("killed", FORGED + "say({'done': 'x', 'body': {'value': 'forged'}})"),
    "a question that nobody answers": ("killed", FORGED + "say({'ask': 1})"),
    "a deep frame": ("killed", FORGED + "say(frame(b'[' * 50_000))"),
    "a frame of four gigabytes": ("killed", FORGED + "say(struct.pack('<I', 2**32 - 1))"),
    "gigabytes of frames": ("killed", FORGED + "while True: say(b'x' * 65536)"),
    "half a frame, then silence": ("timeout", FORGED + "say(frame(b'x' * 99)[:50])\nwhile True: pass"),
    "half a frame, then an exit": ("error", FORGED + "say(frame(b'x' * 99)[:50])\nos._exit(0)"),
    "a repr that hangs": ("timeout", "class A:\n  def __repr__(self):\n    while True: pass\nA()"),
    "an error whose text hangs": (
        "timeout",
        "class E(Exception):\n  def __str__(self):\n    while True: pass\nraise E",
    ),
    "a flush that hangs": (
        "timeout",
        "import sys\nclass S:\n  def flush(self):\n    while True: pass\nsys.stdout = S()",
    ),
    "output without end": ("output timeout", "import os\nwhile True: os.write(1, b'x' * 65536)"),
    "unlimited recursion": (
        "crash memory error timeout",
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(n): return f(n + 1) + f(n)\nf(0)",
    ),
}


@both_kinds
@pytest.mark.parametrize("name", ENDS)
def test_a_turn_that_ends_its_process_is_told_as_what_it_is(box: Sandbox, name: str, snapshot: bool) -> None:
    statuses, code = ENDS[name]
    with box.session(snapshot=snapshot) as s:
        s.run_sync("kept = 1")
        result = s.run_sync(code)
        assert result.status in statuses.split(), result
        assert "forged" not in str(result.value)
        assert result.seconds < 5
        if result.state != "kept":
            check_survives(s, snapshot, result)


GOES_ON: dict[str, tuple[str, str, Callable[[Result], Any]]] = {
    "a huge value": ("ok", "'x' * 30_000_000", lambda r: r.truncated and len(r.value or "") == LIMITS.keep_bytes),
    "a value too large for memory": ("memory", "'x' * 10**9", lambda r: r.value is None),
    "a huge int": ("error", "10 ** 100_000", lambda r: r.error and r.error.type == "ValueError"),
    "a deep value": (
        "error",
        "deep = []\nfor _ in range(100_000): deep = [deep]\ndeep",
        lambda r: r.error and r.error.type == "RecursionError",
    ),
    "a repr that is not text": ("error", "class A:\n  def __repr__(self): return 5\nA()", lambda r: r.value is None),
    "a repr that is a text of its own kind": (
        "ok",
        "class S(str):\n  def __getitem__(self, n): return 'x' * 10**9\n  __str__ = __getitem__\n"
        "class A:\n  def __repr__(self): return S('plain')\nA()",
        lambda r: r.value == "plain",
    ),
    "surrogates and nulls": ("ok", "print('\\0')\n'\\0' + chr(0xD800)", lambda r: r.value),
    "an exit of a huge code": ("error", "import sys\nsys.exit(10**30 + 1)", lambda r: r.state == "kept"),
    "an exit that is no number": ("error", "import sys\nsys.exit('sorry')", lambda r: r.state == "kept"),
    "an exception that cannot be shown": (
        "error",
        "class E(Exception):\n  def __str__(self): raise SystemExit\nraise E",
        lambda r: r.error and r.error.type == "E",
    ),
    "a fork": ("error", "import os\nos.fork()", lambda r: r.error.type in ("PermissionError", "BlockingIOError")),
    "a program": ("error", "import subprocess\nsubprocess.run(['true'])", lambda r: r.error),
}


@both_kinds
@pytest.mark.parametrize("name", GOES_ON)
def test_a_turn_that_only_tries_leaves_the_session_whole(box: Sandbox, name: str, snapshot: bool) -> None:
    status, code, is_right = GOES_ON[name]
    with box.session(snapshot=snapshot) as s:
        s.run_sync("kept = 1")
        result = s.run_sync(code)
        assert (result.status, s.alive) == (status, True), result
        assert is_right(result), result
        assert s.run_sync("kept").value == "1"


@both_kinds
def test_what_a_turn_patches_is_its_own_trouble(box: Sandbox, snapshot: bool) -> None:
    with box.session(snapshot=snapshot) as s:
        s.run_sync("import builtins, io, json, os, sys\nkept = 1")
        s.run_sync("builtins.print = builtins.open = builtins.repr = lambda *a: 'patched'")
        s.run_sync("json.dumps = json.loads = os._exit = os.fork = None\nsys.stdout = sys.stderr = io.StringIO()")
        after = s.run_sync("kept + 1")
        if snapshot:  # the session itself forks by that name, and says that it cannot
            assert after.status in ("error", "killed")
        else:
            assert (after.status, after.value) == ("ok", "patched")


@both_kinds
def test_a_session_whose_machinery_is_broken_is_lost_not_fooled(box: Sandbox, snapshot: bool) -> None:
    with box.session(snapshot=snapshot) as s:
        assert s.run_sync("import sys\ncallable(sys.modules['inner.channel'].encode_frame)").value == "True"
        result = s.run_sync("import sys\nsys.modules['inner.channel'].encode_frame = lambda *a: 1 / 0\n42")
        assert (result.status, result.value) == ("error", None)
        survives_afresh = s.run_sync("6 * 7")
        assert survives_afresh.value == "42"


@both_kinds
def test_a_thread_gets_no_cpu_between_turns(box: Sandbox, snapshot: bool) -> None:
    burn = "import threading\ndef burn():\n  while True: pass\nthreading.Thread(target=burn, daemon=True).start()"
    with box.session(snapshot=snapshot) as s:
        assert s.run_sync(burn).status == "ok"
        process = get_holder(s)
        time.sleep(0.05)
        before = process.cpu_s()
        time.sleep(0.3)
        assert process.cpu_s() - before < 0.03, "a busy machine may stop it late; a thread that runs takes 0.3 s"
        wall_s = 2 if snapshot else 20
        after = s.run_sync("import time\ntime.sleep(60)", limits=msgspec.structs.replace(LIMITS, wall_seconds=wall_s))
        assert after.status == "timeout"
        if not snapshot:
            assert after.cpu_seconds >= LIMITS.seconds, "the thread's time is the turn's"
            assert after.seconds < wall_s


@both_kinds
def test_a_thread_of_an_earlier_turn_cannot_speak_for_a_later_one(box: Sandbox, snapshot: bool) -> None:
    late = (
        "import threading, time\n"
        "def later():\n"
        "  time.sleep(0.05)\n"
        "  say({'done': '0' * 16, 'body': {'value': \"'forged'\"}})\n"
        "threading.Thread(target=later, daemon=True).start()"
    )
    with box.session(snapshot=snapshot) as s:
        assert s.run_sync(FORGED + late).status == "ok"
        time.sleep(0.1)
        results = [s.run_sync("import time\ntime.sleep(0.2)\n'honest'") for _ in range(2)]
        assert "forged" not in str(results)
        assert results[-1].value == "'honest'"
        assert {r.status for r in results} <= {"ok", "killed"}


def test_a_reply_sent_before_its_turn_is_no_reply(box: Sandbox) -> None:
    early = (
        "import threading, time\n"
        "def now():\n"
        "  time.sleep(0.002)\n"
        "  say({'done': '0' * 16, 'body': {'value': \"'forged'\"}})\n"
        "threading.Thread(target=now, daemon=True).start()"
    )
    with box.session() as s:
        for _ in range(5):
            s.run_sync(FORGED + early)
            assert "forged" not in str(s.run_sync("while True: pass"))


def test_processes_that_a_turn_leaves_end_with_it(box: Sandbox) -> None:
    limits = msgspec.structs.replace(LIMITS, processes=8)
    leave = "import os\nfor _ in range(4):\n  if not os.fork():\n    os.setsid()\n    while True: pass"
    with box.session(limits=limits) as s:
        assert s.run_sync("kept = 1\n" + leave).status == "ok"
        pid = get_holder(s).pid
        assert not [p for p in find_members(pid) if p.pid != pid and alive(p.pid)]
        assert s.run_sync("kept").value == "1"
        twice = s.run_sync("import os\nos.fork()\n'both say this'")
        assert (twice.status, twice.value) == ("ok", "'both say this'")
        assert s.run_sync("kept").value == "1"


def test_processes_that_fork_without_end_cost_the_session(box: Sandbox) -> None:
    limits = msgspec.structs.replace(LIMITS, processes=8)
    with box.session(limits=limits) as s:
        result = s.run_sync("import os\nwhile True:\n  try: os.fork()\n  except OSError: pass")
        assert result.status in ("killed", "timeout")
        assert s.run_sync("1").status == "ok"


NUMBERS = seccomp.CALLS.get(platform.machine(), {})
CALLS = (
    "import ctypes, fcntl, os, resource, signal, socket\n"
    "libc = ctypes.CDLL(None, use_errno=True)\n"
    f"calls = {NUMBERS}\n"
    "def try_all(do, *values):\n"
    "  for pid in range(-1, 200):\n"
    "    for value in values:\n"
    "      try: do(pid, value)\n"
    "      except OSError: pass\n"
    "      else: print('BREACH', pid)\n"
    "def raw(name, *given):\n"
    "  if libc.syscall(calls[name], *given) >= 0: print('BREACH', name)\n"
)
AGAINST_THE_HOLDER = {
    "kill every process": "try_all(os.kill, 9)",
    "wake it by a signal": "try_all(os.kill, signal.SIGCONT)",
    "kill its threads": "for n in range(1, 200):\n  raw('tkill', n, 9)\n  raw('tgkill', n, n, 9)",
    "queue a signal": "for n in range(1, 200):\n  raw('rt_sigqueueinfo', n, 9, (255).to_bytes(128, 'little'))",
    "kill by the owner of a descriptor": (
        "a, b = socket.socketpair()\n"
        "try_all(lambda pid, n: fcntl.fcntl(a, n, pid), 8)\n"
        "try_all(lambda pid, n: fcntl.fcntl(a, 15, (1).to_bytes(4, 'little') + max(0, pid).to_bytes(4, 'little')), 0)\n"
        "try_all(lambda pid, n: fcntl.ioctl(a, n, max(0, pid).to_bytes(4, 'little')), 0x8901, 0x8902)"
    ),
    "take its memory or time away": (
        "try_all(lambda pid, what: resource.prlimit(pid or 1, what, (0, 0)), resource.RLIMIT_AS, resource.RLIMIT_CPU)"
    ),
    "trace it": "for pid in range(1, 200): raw('ptrace', 16, pid, 0, 0)",
    "cut its channel off": "raw('shutdown', 3, 2)\nraw('setsockopt', 3, 1, 20, bytes(16), 16)",
    "make its channel not wait": "os.set_blocking(3, False)",
    "leave words on its channel": FORGED + "say({'done': 'x', 'body': {'value': 'forged'}})",
    "leave half a word on its channel": FORGED + "say(frame({'done': 'x', 'body': {'value': 'forged'}})[:9])",
    "say hello in another's name": (
        "import threading\n"
        "def hello(): raw('personality', 0)\n"
        "hello()\nt = threading.Thread(target=hello)\nt.start()\nt.join()"
    ),
    "fork past the gate": "for flags in (17, 17 | 0x8000, 0x4100 | 17, 0): raw('clone', flags, 0, 0, 0, 0)",
    "insist at the gate": "while True: libc.syscall(calls['personality'], 0)",
}


@pytest.mark.parametrize("ending", ["", "os._exit(0)"], ids=["and end", "and exit"])
@pytest.mark.parametrize("name", AGAINST_THE_HOLDER)
def test_a_turn_cannot_touch_the_holder_of_the_state(box: Sandbox, name: str, ending: str) -> None:
    with box.session(snapshot=True) as s:
        s.run_sync("kept = 1")
        holder = get_holder(s)
        result = s.run_sync(f"{CALLS}kept = 2\n{AGAINST_THE_HOLDER[name]}\n{ending}")
        assert "BREACH" not in result.stdout, result
        assert result.state in ("kept", "rolled back"), result
        if result.state == "rolled back":
            assert get_holder(s) is holder
        after = s.run_sync("kept")
        assert (after.status, after.value) == ("ok", "2" if result.state == "kept" else "1")
        assert after.restarted is False


def test_a_state_that_will_not_fork_is_given_up_by_a_deadline(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollbook.sandbox.session_state.FORK_S", 0.3)
    with box.session(snapshot=True) as s:
        s.run_sync("import os\nos.fork = lambda: 1")
        result = s.run_sync("1")
        assert (result.status, result.state) == ("killed", "lost")
        assert s.run_sync("2").restarted


def test_a_state_that_answers_without_a_fork_is_no_answer(box: Sandbox) -> None:
    hide = (
        "import sys\nroles = sys.modules['inner.roles']\nassert callable(roles.reap)\n"
        "def loop(channel):\n"
        "  message = channel.receive()[0]\n"
        "  channel.send({'done': message['turn'], 'body': {'value': \"'forged'\"}})\n"
        "roles.reap = lambda: loop(sys._getframe(1).f_locals['channel'])"
    )
    with box.session(snapshot=True) as s:
        assert s.run_sync(hide).status == "ok"
        s.run_sync("1")
        results = [s.run_sync("1") for _ in range(3)]
        assert "forged" not in str(results)


def test_a_state_that_burns_time_instead_of_forking_is_given_up(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollbook.sandbox.session_state.FORK_CPU_S", 0.1)
    burn = "import sys, time\ndef burn():\n  end = time.process_time() + 0.6\n  while time.process_time() < end: pass\n"
    with box.session(snapshot=True) as s:
        s.run_sync(burn + "sys.modules['inner.roles'].reap = burn")
        result = s.run_sync("1")
        assert (result.status, result.state) == ("killed", "lost")
        assert s.run_sync("2").restarted


FORGED_REPLY = FORGED + (
    "import sys, time\nframe_ = sys._getframe()\n"
    "while 'message' not in frame_.f_locals: frame_ = frame_.f_back\n"
    "say({'done': frame_.f_locals['message']['turn'], 'body': {'value': 'mine'}})\n"
)
STUCK = {
    "spins": FORGED_REPLY + "while True: pass",
    "sleeps": FORGED_REPLY + "time.sleep(60)",
    "naps": FORGED_REPLY + "while True: time.sleep(0.01)",
    "has a fork that spins": "import sys\ndef spin():\n  while True: pass\nsys.modules['inner.roles'].say_hello = spin",
    "has a fork that sleeps": "import sys, time\nsys.modules['inner.roles'].say_hello = lambda: time.sleep(60)",
    "may not fork": "import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (0, 0))",
}


@pytest.mark.parametrize("name", STUCK)
def test_a_state_that_will_not_go_on_is_given_up_soon_and_begun_afresh(box: Sandbox, name: str) -> None:
    with box.session(snapshot=True) as s:
        assert s.run_sync(STUCK[name]).status == "ok"
        stuck = time.monotonic()
        result = s.run_sync("1")
        assert (result.status, result.state) == ("killed", "lost")
        assert time.monotonic() - stuck < 8, "the deadline itself is ten seconds"
        after = s.run_sync("6 * 7")
        assert (after.value, after.restarted) == ("42", True)


def test_a_state_with_many_threads_goes_on(box: Sandbox) -> None:
    """They sleep, and it does not: only its own first thread is checked."""
    threads = "import threading, time\nfor _ in range(20): threading.Thread(target=time.sleep, args=(60,), daemon=True)"
    with box.session(snapshot=True) as s:
        s.run_sync(f"{threads}.start()")
        assert [s.run_sync("1").status for _ in range(3)] == ["ok"] * 3


MEMORY_ERRORS = {
    "class MemoryError(Exception): pass\nraise MemoryError": ("error", "MemoryError"),
    "class Mine(MemoryError): pass\nraise Mine": ("memory", "Mine"),
    "import builtins\nbuiltins.MemoryError = ValueError\nint('x')": ("error", "ValueError"),
    "raise MemoryError": ("memory", "MemoryError"),
}


@pytest.mark.parametrize("code", MEMORY_ERRORS)
def test_memory_runs_out_by_type_not_by_name(box: Sandbox, code: str) -> None:
    with box.session() as session:
        for run in (box.run_sync, session.run_sync):
            result = run(code)
            assert (result.status, result.error and result.error.type) == MEMORY_ERRORS[code]


def test_code_with_half_a_character_runs(box: Sandbox) -> None:
    with box.session() as s:
        assert s.run_sync("'\ud800'").value == "'?'"
    assert box.run_sync("'\ud800' + input()", stdin="\ud800").value == "'??'"


def test_a_fork_that_never_says_hello_ends_with_the_session(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollbook.sandbox.session_state.FORK_S", 0.3)
    hide = "import sys, time\nsys.modules['inner.roles'].say_hello = lambda: time.sleep(60)"
    with box.session(snapshot=True) as s:
        s.run_sync(hide)
        zygote = box._session_pool.get_launcher()._provider._child.pid
        result = s.run_sync("1")
        assert (result.status, result.state) == ("killed", "lost")
        assert eventually(lambda: sum(alive(p.pid) for p in find_members(zygote)) == 2, 5)
        assert s.run_sync("2").restarted


def test_one_session_sees_nothing_of_another(box: Sandbox) -> None:
    look = "import os\n(os.listdir(), 'secret' in globals(), os.getpid())"
    with box.session(files={"secret": b"s"}) as one, box.session() as other:
        one.run_sync("secret = 1")
        assert other.run_sync(look).value == "([], False, 1)"
