"""The sandbox: what a run receives, what it may use, and that nothing of it remains."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rollbook.errors import UsageError
from rollbook.processes import find_members
from rollbook.sandbox import Grader, Limits, ProgramError, Result, Sandbox, SandboxError, guest
from rollbook.sandbox.launcher import GuestLauncher
from rollbook.sandbox.supervision import read_cpu_s
from support.alive import alive, eventually, open_fds


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    try:
        with Sandbox(Limits(seconds=2, memory_mb=128), size=2) as made:
            yield made
    except SandboxError as error:
        pytest.skip(f"no sandbox on this machine: {error}")


def test_where_namespaces_can_be_had_a_sandbox_opens() -> None:
    """The other tests skip when none opens, so they would not notice a sandbox that lacks one of its files."""
    words = ["unshare", "--user", "--map-root-user", "--mount", "--net", "--pid", "--fork", "true"]
    if shutil.which("unshare") is None or subprocess.run(words, capture_output=True, timeout=30).returncode:
        pytest.skip("NO NAMESPACES HERE: a sandbox may be impossible, so nothing was proven about why one is missing")
    with Sandbox(Limits(seconds=2, memory_mb=128), size=1) as made:
        assert made.run_sync("6 * 7").value == "42"


def test_output_value_and_error_come_back(box: Sandbox) -> None:
    result = box.run_sync("print('out')\nimport sys\nprint('err', file=sys.stderr)\n6 * 7")
    assert (result.status, result.stdout, result.stderr, result.value) == ("ok", "out\n", "err\n", "42")
    broken = box.run_sync("def f():\n    raise ValueError('no')\nf()")
    assert broken.error
    assert (broken.status, broken.error.type, broken.error.message) == ("error", "ValueError", "no")
    assert "line 2, in f" in broken.error.traceback
    assert box.run_sync("1 +").error.type == "SyntaxError"  # type: ignore[union-attr]


def test_code_that_reports_twice_is_killed_and_told_why(box: Sandbox) -> None:
    result = box.run_sync(
        "import json, os, struct, time\n"
        "body = json.dumps({'value': 'forged'}).encode()\n"
        "for _ in range(2):\n    os.write(3, struct.pack('<I', len(body)) + body)\n"
        "time.sleep(20)"
    )
    message = "the code wrote on the sandbox's channel: a second report"
    assert (result.status, result.value, result.error) == ("killed", None, ProgramError("Killed", message))


def test_a_bug_of_ours_in_reading_a_report_is_no_result_of_the_code(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(frame: bytes) -> None:
        raise KeyError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(guest, "decode_guest_report", fail)
        with pytest.raises(KeyError, match="a bug"):
            box.run_sync("1")
    assert box.run_sync("6 * 7").value == "42"


def test_stdin_and_files_are_given(box: Sandbox) -> None:
    code = "import sys\nprint(sys.stdin.read(), open('d/a.txt', 'rb').read())"
    assert box.run_sync(code, stdin="in", files={"d/a.txt": b"\x00x"}).stdout == "in b'\\x00x'\n"
    with pytest.raises(UsageError, match="stays in the folder"):
        box.run_sync("1", files={"../a": b""})
    assert box.run_sync("1").status == "ok"


def test_every_run_is_fresh(box: Sandbox) -> None:
    box.run_sync("open('left', 'w').write('x')\nimport builtins\nbuiltins.print = None\nx = 1")
    result = box.run_sync("import os\nprint(os.listdir('.'), 'x' in globals())")
    assert result.stdout == "[] False\n"


def test_start_up_never_counts(box: Sandbox) -> None:
    tiny = Limits(seconds=0.05, memory_mb=128)
    assert [box.run_sync("1 + 1", limits=tiny).status for _ in range(20)] == ["ok"] * 20


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_text_without_a_newline_survives_a_timeout_too(box: Sandbox, stream: str) -> None:
    code = f"import sys\nprint('so', end=' ', file=sys.{stream})\nsys.{stream}.write('far')\nwhile True: pass"
    limits = Limits(seconds=0.2)
    with box.session(limits=limits) as session:
        for result in (box.run_sync(code, limits=limits), session.run_sync(code)):
            assert (result.status, getattr(result, stream)) == ("timeout", "so far")


def test_an_array_whose_writing_a_signal_interrupts_is_written_whole(box: Sandbox) -> None:
    code = "import array, sys\nfrom signal import *\nsignal(SIGALRM, lambda *_: None)\n"
    code += "setitimer(ITIMER_REAL, 2e-4, 2e-4)\nnumbers = array.array('i', b'abcd' * 100_000)\n"
    code += "for _ in range(10): sys.stdout.buffer.write(numbers)\n"
    result = box.run_sync(code, limits=Limits(seconds=10, output_kb=8192))
    assert (result.status, len(result.stdout)) == ("ok", 4_000_000)


def test_what_a_signal_interrupts_is_printed_whole(box: Sandbox) -> None:
    code = "from signal import *\nsignal(SIGALRM, lambda *_: None)\nsetitimer(ITIMER_REAL, 1e-4, 1e-4)\n"
    result = box.run_sync(code + "print('x' * 30_000_000)", limits=Limits(output_kb=40_000, memory_mb=512))
    assert (result.status, len(result.stdout)) == ("ok", 30_000_001)


def test_what_was_printed_before_a_timeout_survives(box: Sandbox) -> None:
    limits = Limits(seconds=0.2, wall_seconds=30.0)  # on a busy machine the wall clock would end it first
    result = box.run_sync("print('so far', flush=True)\nwhile True: pass", limits=limits)
    assert (result.status, result.stdout) == ("timeout", "so far\n")
    assert 0.2 <= result.cpu_seconds < 1.0


def test_output_is_cut_at_its_cap_and_says_so(box: Sandbox) -> None:
    result = box.run_sync("print('x' * 1_000_000)", limits=Limits(output_kb=1))
    assert (result.status, len(result.stdout), result.truncated) == ("ok", 1024, True)


def test_a_caught_memory_error_is_not_a_failure(box: Sandbox) -> None:
    result = box.run_sync("try:\n    bytearray(10**10)\nexcept MemoryError:\n    print('small then')")
    assert (result.status, result.stdout) == ("ok", "small then\n")


def test_the_limit_is_on_what_the_code_uses(box: Sandbox) -> None:
    assert box.run_sync("len(bytearray(100_000_000))").value == "100000000"
    assert box.run_sync("len(bytearray(200_000_000))").status == "memory"


def test_many_at_once(box: Sandbox) -> None:
    async def go() -> list[str]:
        return [r.stdout for r in await asyncio.gather(*(box.run(f"print({i})") for i in range(50)))]

    assert asyncio.run(go()) == [f"{i}\n" for i in range(50)]


def test_the_result_says_which_walls_there_were(box: Sandbox) -> None:
    assert {"pid", "mount", "network", "ipc", "seccomp"} <= set(box.run_sync("1").isolation)


def test_preloaded_packages_cost_nothing() -> None:
    with Sandbox(Limits(memory_mb=512), size=1, packages=["numpy"]) as box:
        result = box.run_sync("import numpy\nint(numpy.arange(4).sum())")
    assert (result.status, result.value) == ("ok", "6")
    assert result.cpu_seconds < 0.05


@pytest.mark.parametrize("bad", [{"seconds": 0}, {"seconds": float("inf")}, {"memory_mb": -1}, {"wall_seconds": 0}])
def test_limits_must_make_sense(bad: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="positive, finite"):
        Limits(**bad)  # type: ignore[arg-type]


def test_nothing_survives_the_kill_of_the_host(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\nfrom rollbook.sandbox import Sandbox, Limits\n"
        "with Sandbox(Limits(seconds=60), size=1) as box:\n"
        "    pid = next(iter(box._launchers))._provider._child.pid\n"
        f"    pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(pid))\n"
        "    box.run_sync('while True: pass')\n"
    )
    host = subprocess.Popen([sys.executable, "-c", code])
    try:
        assert eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "", 30)
        zygote = int((tmp_path / "pid").read_text())
        family = [zygote, *descendants(zygote)]
        os.kill(host.pid, signal.SIGKILL)
        assert eventually(lambda: not any(alive(pid) for pid in family), 10)
    finally:
        host.kill()
        host.wait(timeout=10)


def descendants(root: int) -> list[int]:
    assert eventually(lambda: len(find_members(root)) >= 3, 20), "launcher, zygote and guest should be up"
    return [process.pid for process in find_members(root)]


def test_beyond_the_room_for_waiting_a_run_is_refused_at_once() -> None:
    async def go(box: Sandbox) -> list[str]:
        results = await asyncio.gather(*(box.run("1 + 1") for _ in range(20)), return_exceptions=True)
        return [result.value or "" if isinstance(result, Result) else str(result) for result in results]

    with Sandbox(size=1, waiting=3) as box:
        answers = asyncio.run(go(box))
        assert answers[:4] == ["2"] * 4
        assert set(answers[4:]) <= {"2", "3 runs wait already: await some first, or Sandbox(waiting=...)"}
        assert "2" not in answers[10:]
        assert asyncio.run(go(box))[:4] == ["2"] * 4
        assert box.run_sync("1 + 1").value == "2"


def test_limits_that_the_host_itself_has_are_never_raised() -> None:
    code = (
        "import resource\nfrom rollbook.sandbox import Sandbox\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "with Sandbox(size=1) as box: print(box.run_sync('1 + 1').value)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "2\n", done.stderr


def test_slots_that_come_up_at_the_same_time_do_not_get_in_each_others_way() -> None:
    with Sandbox(size=8) as box, ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda n: box.run_sync(f"{n}").value, range(40))) == [str(n) for n in range(40)]
        assert len(box._launchers) <= 8


def test_a_sandbox_can_be_opened_again() -> None:
    box = Sandbox(size=2)
    for _ in range(2):
        with box:
            assert box.run_sync("1 + 1").value == "2"


@pytest.mark.parametrize("times", [1, 3])
def test_a_sandbox_cancelled_while_it_opens_leaves_nothing(times: int) -> None:
    async def go() -> Sandbox:
        box = Sandbox(size=1)
        opening = asyncio.create_task(box.__aenter__())
        for _ in range(times):
            await asyncio.sleep(0.02)
            opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        return box

    below = {process.pid for process in find_members(os.getpid())}
    fds = len(open_fds())
    box = asyncio.run(go())
    assert (box._threads, box._launchers) == (None, set())
    assert eventually(lambda: {process.pid for process in find_members(os.getpid())} <= below)
    assert eventually(lambda: len(open_fds()) <= fds)
    with box:
        assert box.run_sync("1 + 1").value == "2"


def test_one_that_cannot_open_says_so_when_it_is_not_cancelled() -> None:
    async def go(cancel: bool) -> None:
        opening = asyncio.create_task(Sandbox(size=1, packages=["no_such_package"]).__aenter__())
        await asyncio.sleep(0)
        if cancel:
            opening.cancel()
        await opening

    with pytest.raises(SandboxError, match="no_such_package"):
        asyncio.run(go(False))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(go(True))


def test_a_launcher_that_cannot_come_up_leaves_its_place_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with Sandbox(size=1) as box:
        box._idle_launchers.get()
        box._idle_launchers.put(None)
        with monkeypatch.context() as patch:
            patch.setattr(Sandbox, "_new_launcher", lambda self: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                box.run_sync("1")
        assert box.run_sync("1").value == "1"


@pytest.mark.parametrize(
    ("code", "status", "exit_code"),
    [
        ("1", "ok", 0),
        ("exit()", "ok", 0),
        ("quit(3)", "error", 3),
        ("exit(10**30)", "error", 255),
        ("exit(-1)", "error", 255),
        ("exit(False)", "ok", 0),
        ("import os; os._exit(4)", "error", 4),
        ("1/0", "error", 1),
    ],
)
def test_a_result_has_the_code_with_which_it_ended(code: str, status: str, exit_code: int) -> None:
    with Sandbox(size=1) as box:
        result = box.run_sync(code)
    assert (result.status, result.exit) == (status, exit_code)


def test_what_was_printed_survives_a_timeout_and_a_crash() -> None:
    with Sandbox(Limits(seconds=0.1), size=1) as box, box.session() as session:
        for end, status in (("while True: pass", "timeout"), ("import ctypes; ctypes.string_at(0)", "crash")):
            for run in (box.run_sync, session.run_sync):
                result = run(f"print('one')\nprint('two')\n{end}")
                assert (result.status, result.stdout) == (status, "one\ntwo\n")


def test_a_program_waits_for_its_threads_and_does_what_it_left_to_the_exit() -> None:
    code = "import atexit, threading, time\natexit.register(print, 'bye')\n"
    code += "threading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()\nprint('hi')"
    with Sandbox(size=1) as box:
        result = box.run_sync(code)
    assert (result.status, result.stdout) == ("ok", "hi\nlate\nbye\n")


def test_a_program_is_a_file_as_far_as_it_can_tell(box: Sandbox) -> None:
    code = "\ufefffrom pathlib import Path\n(Path(__file__).parent / 'a.txt').read_text()"
    assert box.run_sync(code, files={"a.txt": b"hello"}).value == "'hello'"


def test_a_pool_of_threads_that_was_left_open_ends_with_the_program(box: Sandbox) -> None:
    code = "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor()\npool.submit(print, 5)\nNone"
    result = box.run_sync(code)
    assert (result.status, result.stdout) == ("ok", "5\n")


def test_words_to_exit_with_are_said(box: Sandbox) -> None:
    left = box.run_sync("import sys; sys.exit('bye')")
    assert (left.status, left.exit, left.stderr) == ("error", 1, "bye\n")


def test_the_name_of_the_host_is_not_told(box: Sandbox) -> None:
    assert box.run_sync("import os; os.uname().nodename").value == "'sandbox'"


class IsolatedLauncher:
    """A launcher that only has an isolation."""

    isolation = ("walls",)


def test_the_walls_can_be_asked_for_while_threads_replace_zygotes() -> None:
    """A server reports them in its event loop, while runs replace dead zygotes."""
    box, over, before = Sandbox(), threading.Event(), sys.getswitchinterval()
    box._launchers.add(IsolatedLauncher())  # type: ignore[arg-type]

    def replace() -> None:
        while not over.is_set():
            launcher = IsolatedLauncher()
            box._launchers.add(launcher)  # type: ignore[arg-type]
            box._launchers.discard(launcher)  # type: ignore[arg-type]

    thread = threading.Thread(target=replace)
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        assert {box.isolation for _ in range(50_000)} == {("walls",)}
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(before)


FORKS = (
    "import os, time\n"
    "def fork():\n    if os.fork() == 0:\n        time.sleep({nap})\n        os._exit(0)\n"
    "for _ in range({children}): fork()\n"
    "for _ in range({children}): os.wait()\n"
)


def test_no_more_processes_live_at_a_time_than_allowed(box: Sandbox) -> None:
    limits = Limits(seconds=5, processes=3, wall_seconds=30)
    assert box.run_sync(FORKS.format(children=2, nap=0.3), limits=limits).status == "ok"
    one_by_one = "import os\nfor _ in range(20):\n    if os.fork() == 0: os._exit(0)\n    os.wait()"
    assert box.run_sync(one_by_one, limits=limits).status == "ok"
    with box.session(limits=limits) as session:
        for run in (lambda code: box.run_sync(code, limits=limits), session.run_sync):
            result = run(FORKS.format(children=3, nap=20))
            assert (result.status, result.error and result.error.message) == (
                "killed",
                "killed: more than 3 processes at a time",
            )
    threads = "import threading, time\nfor _ in range(40): threading.Thread(target=time.sleep, args=(0.3,)).start()"
    assert box.run_sync(threads, limits=limits).status == "ok"


CANCELLED: dict[str, Callable[[Sandbox], Coroutine[Any, Any, object]]] = {
    "run": lambda box: box.run("while True: pass"),
    "function": lambda box: Grader(box).function("def f():\n    while True: pass", "f()", "f"),
    "inputs": lambda box: Grader(box).inputs("while True: pass", [("", "")] * 3, all_of_them=True),
    "calls": lambda box: Grader(box).calls("def f():\n    while True: pass", "f", [([], 1)] * 3, all_of_them=True),
}


@pytest.mark.parametrize("name", CANCELLED)
def test_a_run_that_is_cancelled_is_killed(name: str) -> None:
    async def cancel_while_busy(box: Sandbox) -> None:
        running = asyncio.create_task(CANCELLED[name](box))
        busy = lambda: any(read_cpu_s(pid) > 0.1 for pid in find_guests())  # noqa: E731
        assert await asyncio.to_thread(eventually, busy, 20)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await asyncio.to_thread(eventually, lambda: not find_guests(), 20)

    def find_guests() -> list[int]:
        pids = [launcher._provider._child.pid for launcher in list_launchers(box)]  # type: ignore[attr-defined]
        members = [process for pid in pids for process in find_members(pid)]
        zygotes = {process.pid for process in members if process.parent in pids} | {*pids}
        return [process.pid for process in members if process.pid not in zygotes and alive(process.pid)]

    def list_launchers(box: Sandbox) -> list[GuestLauncher]:
        shared = box._session_pool._launcher
        return [*box._launchers, *([shared] if shared else [])]

    with Sandbox(Limits(seconds=40, wall_seconds=40), size=1) as box:
        before = list_launchers(box)
        asyncio.run(cancel_while_busy(box))
        assert box.run_sync("6 * 7").value == "42"
        assert set(before) <= set(list_launchers(box)), "the zygote is kept"
