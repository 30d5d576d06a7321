"""Sessions: what persists from turn to turn, what a turn may use, and that nothing of a session remains."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from rollbook.errors import UsageError
from rollbook.processes import find_members
from rollbook.sandbox import Limits, Result, Sandbox, SandboxError, Session
from support.alive import alive, eventually, open_fds
from support.codetool import run_on

LIMITS = Limits(seconds=1, memory_mb=128, files_mb=8)
SHORT, LONG = (msgspec.structs.replace(LIMITS, seconds=seconds) for seconds in (0.1, 40))
both_kinds = pytest.mark.parametrize("snapshot", [False, True], ids=["persistent", "snapshot"])


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    try:
        with Sandbox(LIMITS, size=2) as made:
            yield made
    except SandboxError as error:
        pytest.skip(f"no sandbox on this machine: {error}")


def count_guests(box: Sandbox) -> int:
    """Return how many processes the sessions' zygote has, without itself and its launcher."""
    return sum(alive(p.pid) for p in find_members(box._session_pool.get_launcher()._provider._child.pid)) - 2


@both_kinds
def test_variables_functions_classes_modules_and_files_stay(box: Sandbox, snapshot: bool) -> None:
    with box.session(snapshot=snapshot, files={"given.txt": b"given"}) as s:
        assert s.run_sync("x = 3").value is None
        assert s.run_sync("x + 1").value == "4"
        s.run_sync("import math\ndef f(): return x * 2\nclass A: n = 1\nopen('made.txt', 'w').write('made')")
        s.run_sync("x = 5\nA.n += 1")
        result = s.run_sync("print(f(), A().n, int(math.pi), open('given.txt').read(), open('made.txt').read())")
        assert (result.status, result.stdout, result.state) == ("ok", "10 2 3 given made\n", "kept")
        assert s.run_sync("import pickle, dataclasses\npickle.loads(pickle.dumps(A)) is A").value == "True"


@both_kinds
def test_the_readme_example(box: Sandbox, snapshot: bool) -> None:
    async def go() -> str | None:
        async with box.session(snapshot=snapshot) as s:
            await s.run("x = 3")
            return (await s.run("x + 1")).value

    assert asyncio.run(go()) == "4"


@both_kinds
def test_every_turn_has_its_own_output_error_and_clock(box: Sandbox, snapshot: bool) -> None:
    with box.session(snapshot=snapshot) as s:
        first = s.run_sync("import sys\nprint('one')\nprint('bad', file=sys.stderr)\nsum(range(2_000_000))")
        second = s.run_sync("print('two')\n1 / 0")
        third = s.run_sync("sys.exit(3)")
        assert (first.stdout, first.stderr) == ("one\n", "bad\n")
        assert second.error
        assert (second.status, second.stdout, second.error.type) == ("error", "two\n", "ZeroDivisionError")
        assert "line 2" in second.error.traceback
        assert (third.status, third.state, s.alive) == ("error", "kept", True)
        assert first.cpu_seconds > 0.01 > third.cpu_seconds
        assert first.peak_mb > 1
        assert first.isolation == box.isolation


@both_kinds
def test_output_is_cut_turn_by_turn(box: Sandbox, snapshot: bool) -> None:
    with box.session(snapshot=snapshot) as s:
        small = msgspec.structs.replace(LIMITS, output_kb=1)
        cut = s.run_sync("print('x' * 5000)", limits=small)
        assert (len(cut.stdout), cut.truncated) == (1024, True)
        value = s.run_sync("'y' * 5000", limits=small)
        assert (value.value, value.truncated) == ("'" + "y" * 1023, True)
        whole = s.run_sync("print('x' * 5000)\n'y' * 5000", limits=msgspec.structs.replace(LIMITS, output_kb=256))
        assert (len(whole.stdout), len(whole.value or ""), whole.truncated) == (5001, 5002, False)
        assert s.run_sync("chr(1) * 60_000 + chr(0x1F600) * 1000").status == "ok"


def test_a_persistent_session_that_lost_its_state_says_so_and_begins_afresh(box: Sandbox) -> None:
    with box.session(files={"a": b"first"}) as s:
        assert s.run_sync("x = 1\nopen('a', 'w').write('second')").restarted is False
        late = s.run_sync("print('so far', flush=True)\nwhile True: pass", limits=SHORT)
        assert (late.status, late.state, late.stdout, s.alive) == ("timeout", "lost", "so far\n", False)
        assert 0.1 <= late.cpu_seconds < 0.5
        fresh = s.run_sync("'x' in globals(), open('a').read()")
        assert (fresh.value, fresh.restarted, s.alive) == ("(False, 'first')", True, True)
        assert s.run_sync("1").restarted is False


FATAL = {
    "while True: pass": "timeout",
    "import os; os._exit(0)": "error",
    "import ctypes; ctypes.string_at(0)": "crash",
    "hog = bytearray(10**9)": "memory",
    "import time; time.sleep(60)": "timeout",
}


@pytest.mark.parametrize("code", FATAL)
def test_a_snapshot_rolls_back_to_before_the_turn(box: Sandbox, code: str) -> None:
    with box.session(snapshot=True) as s:
        s.run_sync("x = 1\nlog = []")
        for turn in range(2):
            quick = msgspec.structs.replace(SHORT, wall_seconds=0.5)
            result = s.run_sync(f"x = 99\nlog.append(1)\nopen('f{turn}', 'w').close()\n{code}", limits=quick)
            assert (result.status, result.state, s.alive) == (FATAL[code], "rolled back", True)
            after = s.run_sync("import os\n(x, log, sorted(os.listdir()))")
            assert after.value == f"(1, [], {[f'f{n}' for n in range(turn + 1)]})"
            assert after.restarted is False


def test_a_snapshot_keeps_at_most_two_processes_and_a_first(box: Sandbox) -> None:
    before = count_guests(box)
    with box.session(snapshot=True) as s:
        for _ in range(5):
            s.run_sync("x = 1")
            s.run_sync("import os; os._exit(1)")
        s.run_sync("x")
        assert eventually(lambda: count_guests(box) - before == 2, 5)
    assert eventually(lambda: count_guests(box) == before, 5)


def test_a_turn_has_limits_of_its_own_but_the_sessions_memory(box: Sandbox) -> None:
    with box.session() as s:
        assert s.run_sync("sum(range(10**8))", limits=SHORT).status == "timeout"
        with pytest.raises(UsageError, match="memory_mb=64 of a turn: the session has 128 for good"):
            s.run_sync("1", limits=Limits(memory_mb=64))
        assert s.run_sync("len(bytearray(100_000_000))").value == "100000000"
        assert s.run_sync("len(bytearray(10**9))").status == "memory"
        assert s.alive


def test_starting_up_never_counts(box: Sandbox) -> None:
    tiny = msgspec.structs.replace(LIMITS, seconds=0.05)
    with box.session(limits=tiny) as s, box.session(limits=tiny, snapshot=True) as t:
        assert [turn.run_sync("1 + 1").status for _ in range(10) for turn in (s, t)] == ["ok"] * 20


def test_many_idle_sessions_live_side_by_side_and_their_number_is_bounded() -> None:
    async def go() -> tuple[list[str | None], str | None]:
        async with Sandbox(LIMITS, size=2, sessions=80) as box:
            sessions = [box.session(snapshot=n % 8 == 0) for n in range(80)]
            await asyncio.gather(*(s.__aenter__() for s in sessions))
            await asyncio.gather(*(s.run(f"x = {n}") for n, s in enumerate(sessions)))
            with pytest.raises(SandboxError, match=r"80 sessions are open.*Sandbox\(sessions=\.\.\.\)"):
                await box.session().__aenter__()
            values = await asyncio.gather(*(s.run("x") for s in sessions))
            threads = "from concurrent.futures import ThreadPoolExecutor as P\nlist(P(9).map(abs, range(9)))[8]"
            own_threads = await sessions[-1].run(threads)
            assert (await box.run("'free'")).value == "'free'"
            await sessions[0].__aexit__()
            async with box.session() as again:
                assert (await again.run("1")).status == "ok"
            return [r.value for r in values], own_threads.value

    assert asyncio.run(go()) == ([str(n) for n in range(80)], "8")


def test_turns_of_one_session_run_in_order_whoever_asks(box: Sandbox) -> None:
    async def go(s: Session) -> list[str | None]:
        return [r.value for r in await asyncio.gather(*(s.run(f"log.append({n}) or len(log)") for n in range(30)))]

    with box.session() as s:
        s.run_sync("log = []")
        assert asyncio.run(go(s)) == [str(n) for n in range(1, 31)]
        threads = [threading.Thread(target=s.run_sync, args=("log.append(0)",)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert s.run_sync("len(log)").value == "38"


@both_kinds
def test_a_cancelled_turn_is_stopped_and_leaves_the_session_usable(
    box: Sandbox, snapshot: bool, tmp_path: Path
) -> None:
    async def go() -> Result:
        async with box.session(snapshot=snapshot, folder=tmp_path, limits=LONG) as s:
            await s.run("x = 1")
            task = asyncio.create_task(s.run("open('begun', 'w').close()\nx = 2\nwhile True: pass"))
            assert await asyncio.to_thread(eventually, (tmp_path / "begun").exists, 20)
            task.cancel()
            return await asyncio.wait_for(s.run("x if 'x' in globals() else 'a fresh state'"), 20)

    after = asyncio.run(go())
    assert (after.value, after.restarted) == (("1", False) if snapshot else ("'a fresh state'", True))


def test_a_session_cancelled_while_it_opens_gives_its_place_back() -> None:
    async def go() -> str | None:
        async with Sandbox(LIMITS, size=1, sessions=1) as box:
            opening = asyncio.create_task(box.session().__aenter__())
            await asyncio.sleep(0.01)
            opening.cancel()
            await asyncio.to_thread(eventually, lambda: not box._session_pool._sessions, 5)
            async with box.session() as s:
                return (await s.run("1")).value

    assert asyncio.run(go()) == "1"


@both_kinds
def test_nothing_is_left_of_sessions_that_are_closed(box: Sandbox, snapshot: bool) -> None:
    with box.session(snapshot=snapshot) as s:
        s.run_sync("1")
    processes, fds = count_guests(box), len(open_fds())
    for _ in range(10):
        with box.session(snapshot=snapshot) as s:
            s.run_sync("x = 1")
            s.run_sync("import os; os._exit(0)")
            s.run_sync("1")
    assert eventually(lambda: count_guests(box) == processes, 5)
    assert len(open_fds()) <= fds


def test_closing_the_sandbox_ends_its_sessions_and_tells_who_waits(tmp_path: Path) -> None:
    fds = len(open_fds())
    box = Sandbox(Limits(seconds=30), size=1).__enter__()
    s = box.session().__enter__()
    zygote = box._session_pool.get_launcher()._provider._child.pid
    family = [p.pid for p in find_members(zygote)]
    outcome: list[BaseException] = []

    def wait() -> None:
        for code in ("while True: pass", "1"):
            try:
                s.run_sync(code)
            except Exception as error:
                outcome.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.3)
    box.close()
    waiter.join(10)
    assert [type(error) for error in outcome] == [SandboxError, SandboxError]
    assert eventually(lambda: not any(alive(pid) for pid in family), 5)
    assert eventually(lambda: len(open_fds()) <= fds, 5)
    with pytest.raises(SandboxError, match="not open"):
        box.session()


def list_zygote_pids(box: Sandbox) -> list[int]:
    """Return the pids of the launcher of the sessions' zygote, and of the zygote."""
    launcher = box._session_pool.get_launcher()._provider._child.pid
    return [launcher, *(p.pid for p in find_members(launcher) if p.parent == launcher)]


@both_kinds
@pytest.mark.parametrize("who", [0, 1], ids=["launcher", "zygote"])
def test_a_dead_zygote_loses_the_state_but_not_the_session(box: Sandbox, who: int, snapshot: bool) -> None:
    with Sandbox(LIMITS, size=1) as other, other.session(snapshot=snapshot) as s:
        s.run_sync("x = 1")
        os.kill(list_zygote_pids(other)[who], signal.SIGKILL)
        with pytest.raises(SandboxError, match="the sandbox broke"):
            run_on(s)
        fresh = s.run_sync("'x' in globals()")
        assert (fresh.value, fresh.restarted) == ("False", True)


@both_kinds
@pytest.mark.parametrize("who", [0, 1], ids=["launcher", "zygote"])
def test_a_zygote_killed_in_the_middle_of_a_turn_is_no_result(who: int, snapshot: bool) -> None:
    patient = msgspec.structs.replace(LIMITS, seconds=60)
    with Sandbox(patient, size=1) as box, box.session(snapshot=snapshot) as s:
        for code in ("while True: pass", "import time\ntime.sleep(60)"):
            s.run_sync("x = 1")
            killer = threading.Timer(0.1, os.kill, (list_zygote_pids(box)[who], signal.SIGKILL))
            killer.start()
            with pytest.raises(SandboxError, match="the sandbox broke"):
                s.run_sync(code)
            fresh = s.run_sync("'x' in globals()")
            assert (fresh.value, fresh.restarted) == ("False", True)


def test_a_zygote_that_died_while_idle_costs_no_run() -> None:
    with Sandbox(LIMITS, size=1) as box:
        launcher = next(iter(box._launchers))
        zygote = [p.pid for p in find_members(launcher._provider._child.pid)][-1]
        os.kill(zygote, signal.SIGKILL)
        assert eventually(lambda: not alive(zygote))
        assert not launcher.alive
        assert box.run_sync("6 * 7").value == "42"


def test_no_turn_can_kill_itself_and_look_as_if_others_had(box: Sandbox) -> None:
    """Not by a timer either: a snapshot's filter denies all signals."""
    suicide = (
        "import ctypes\nevent = (ctypes.c_int * 16)()\nevent[2] = 9\n"
        "ctypes.CDLL(None).timer_create(1, event, ctypes.byref(ctypes.c_void_p()))"
    )
    with box.session(snapshot=True) as s:
        s.run_sync("x = 1")
        result = s.run_sync(suicide)
        assert (result.status, result.state, result.value) == ("ok", "kept", "-1")
        assert s.run_sync("x").value == "1"


def test_nothing_of_a_session_survives_the_kill_of_the_host(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys\nfrom rollbook.sandbox import Sandbox, Limits\n"
        "with Sandbox(Limits(seconds=60), size=1) as box:\n"
        "    with box.session() as a, box.session(snapshot=True) as b:\n"
        "        a.run_sync('x = 1'), b.run_sync('x = 1')\n"
        "        pid = box._session_pool.get_launcher()._provider._child.pid\n"
        f"        pathlib.Path({str(tmp_path / 'pid')!r}).write_text(f'{{pid}}\\n')\n"
        "        b.run_sync('while True: pass')\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    host = subprocess.Popen([sys.executable, "-c", code], env=environment)
    try:
        assert eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "", 30)
        zygote = int((tmp_path / "pid").read_text())
        assert eventually(lambda: len(find_members(zygote)) >= 6, 20), (
            "launcher, zygote, a session, and three of the other"
        )
        family = [process.pid for process in find_members(zygote)]
        os.kill(host.pid, signal.SIGKILL)
        assert eventually(lambda: not any(alive(pid) for pid in family), 10)
        assert os.listdir(tmp_path) == ["pid"]
    finally:
        host.kill()
        host.wait(timeout=10)


def test_a_session_must_be_open_and_snapshots_have_one_process(box: Sandbox) -> None:
    with pytest.raises(SandboxError, match="not open"):
        box.session().run_sync("1")
    with pytest.raises(UsageError, match="processes=4: a session that takes snapshots has 1"):
        box.session(snapshot=True, limits=Limits(processes=4))
    with pytest.raises(UsageError, match="stays in the folder"):
        box.session(files={"/etc/x": b""})
