import asyncio
import errno
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rollbook.errors import ChildFailed
from rollbook.processes.child import Child
from support.alive import alive, eventually, open_fds, read_pid


def python(code: str, *args: object) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code), *map(str, args)]


WRITE_PID = """
import os, sys
def note(path):
    with open(path + ".part", "w") as f: f.write(f"{os.getpid()}\\n")
    os.rename(path + ".part", path)
"""

DAEMON = (
    WRITE_PID
    + """
import time
if os.fork() == 0:
    os.setsid()
    if ORPHAN and os.fork():
        os._exit(0)
    note(sys.argv[1])
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""
)


def test_a_child_runs_and_its_return_code_is_awaited() -> None:
    assert asyncio.run(Child(python("raise SystemExit(7)")).wait(10)) == 7


def test_a_signal_shows_as_a_negative_return_code() -> None:
    assert asyncio.run(Child(python("import os; os.kill(os.getpid(), 9)")).wait(10)) == -signal.SIGKILL


def test_waiting_for_a_child_ends_at_the_deadline() -> None:
    async def main() -> None:
        child = Child(["sleep", "60"])
        with pytest.raises(TimeoutError):
            await child.wait(0.05)
        assert await child.kill_tree() == -signal.SIGKILL

    asyncio.run(main())


def test_a_command_that_does_not_exist_is_named_and_leaks_nothing() -> None:
    before = open_fds()
    with pytest.raises(ChildFailed, match="/no/such/command"):
        Child(["/no/such/command"])
    assert open_fds() == before


def test_a_finished_child_leaves_no_descriptor_and_no_zombie() -> None:
    before = open_fds()

    async def main() -> int:
        child = Child(python("pass"))
        await child.wait(10)
        return child.pid

    assert not Path(f"/proc/{asyncio.run(main())}").exists()
    assert open_fds() == before


def test_the_end_of_a_child_is_noticed_although_its_log_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async def main() -> Child:
        monkeypatch.setattr(os, "pread", fail)
        child = Child(python("print('lost', flush=True)"))
        assert await child.wait(30) == 0
        return child

    assert asyncio.run(main()).log_tail() == "its log cannot be read: Input/output error"


def test_the_log_holds_both_streams_and_its_tail_stays_readable(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "child.log"
    log.parent.mkdir()
    log.write_text("from an earlier child\n")

    async def main() -> Child:
        child = Child(python("import sys; print('a'); print('b', file=sys.stderr); print('c', flush=True)"), log=log)
        await child.wait(10)
        return child

    child = asyncio.run(main())
    assert sorted(child.log_tail().splitlines()) == ["a", "b", "c"]
    assert len(child.log_tail(2).splitlines()) == 2
    assert log.read_text().startswith("from an earlier child\n")


def test_its_last_words_are_the_last_line_that_says_something(tmp_path: Path) -> None:
    async def main() -> Child:
        child = Child(python("print('no GPU'); print('-' * 40); print()"), log=tmp_path / "child.log")
        await child.wait(10)
        return child

    assert asyncio.run(main()).last_log_line() == "no GPU"


def test_exit_is_told_although_a_grandchild_holds_every_descriptor(tmp_path: Path) -> None:
    code = (
        WRITE_PID
        + """
import time
if os.fork() == 0:
    note(sys.argv[1]); time.sleep(60)
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
os._exit(0)
"""
    )

    async def main() -> None:
        child = Child(python(code, tmp_path / "pid"))
        assert await child.wait(10) == 0
        # What it left in its group went with it.
        assert eventually(lambda: not alive(read_pid(tmp_path / "pid")))

    asyncio.run(main())


def test_kill_tree_reaches_a_descendant_in_another_session(tmp_path: Path) -> None:
    async def main() -> None:
        child = Child(python("ORPHAN = False\n" + DAEMON, tmp_path / "pid"))
        pid = await asyncio.to_thread(read_pid, tmp_path / "pid")
        assert os.getsid(pid) != child.pid
        await child.kill_tree()
        assert eventually(lambda: not alive(pid))

    asyncio.run(main())


def test_kill_tree_reaches_a_double_forked_daemon_of_a_child_that_keeps_orphans(tmp_path: Path) -> None:
    keep = "from rollbook.processes.process_tree import become_subreaper\nbecome_subreaper()\nORPHAN = True\n"

    async def main() -> None:
        child = Child(python(keep + DAEMON, tmp_path / "pid"))
        pid = await asyncio.to_thread(read_pid, tmp_path / "pid")
        await child.kill_tree()
        assert eventually(lambda: not alive(pid))

    asyncio.run(main())


def test_killing_a_child_that_is_gone_does_nothing() -> None:
    async def main() -> None:
        child = Child(python("pass"))
        await child.wait(10)
        child.kill_now()
        assert await child.kill_tree() == 0

    asyncio.run(main())


def test_terminate_lets_a_willing_child_end_and_kills_a_deaf_one(tmp_path: Path) -> None:
    deaf = WRITE_PID + "import signal, time; signal.signal(15, signal.SIG_IGN); note(sys.argv[1]); time.sleep(60)"

    async def main() -> None:
        assert await Child(["sleep", "60"]).terminate(10) == -signal.SIGTERM
        child = Child(python(deaf, tmp_path / "pid"))
        await asyncio.to_thread(read_pid, tmp_path / "pid")
        assert await child.terminate(0.2) == -signal.SIGKILL

    asyncio.run(main())


def test_a_child_dies_when_its_parent_is_killed_outright(tmp_path: Path) -> None:
    child = WRITE_PID + "import time\nfrom rollbook.processes.process_tree import die_with_parent\n"
    child += "die_with_parent(); note(sys.argv[1]); time.sleep(60)"
    parent = "import sys, time\nfrom rollbook.processes.child import Child\n"
    parent += f"Child([sys.executable, '-c', {child!r}, sys.argv[1]]); time.sleep(60)"
    with subprocess.Popen(python(parent, tmp_path / "pid")) as process:
        pid = read_pid(tmp_path / "pid")
        assert alive(pid)
        process.send_signal(signal.SIGKILL)
    assert eventually(lambda: not alive(pid))


def test_a_child_whose_parent_is_already_another_ends_at_once() -> None:
    code = "from rollbook.processes.process_tree import die_with_parent; die_with_parent(1); print('still here')"
    done = subprocess.run(python(code), capture_output=True, timeout=20)
    assert (done.returncode, done.stdout) == (1, b"")


def test_notify_after_the_end_calls_at_once_and_a_closed_loop_is_no_error() -> None:
    async def main() -> Child:
        child = Child(python("pass"))
        await child.wait(10)
        told = asyncio.Event()
        child.call_on_exit(asyncio.get_running_loop(), told.set)
        await asyncio.wait_for(told.wait(), 5)
        return child

    child = asyncio.run(main())
    closed = asyncio.new_event_loop()
    closed.close()
    child.call_on_exit(closed, lambda: None)
    assert child.returncode == 0
