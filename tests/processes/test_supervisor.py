"""A command that is not ours ends with whoever started it, whatever it and its children think of that."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rollbook.processes.child import module_argv
from support.alive import alive, eventually, read_pid

STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1] + ".daemon", "w").write(f"{os.getpid()}\\n")
        time.sleep(600)
    os._exit(0)
open(sys.argv[1], "w").write(f"{os.getpid()}\\n")
time.sleep(600)
"""


class Kept:
    """A keeper, and our end of its socket."""

    def __init__(self, command: Sequence[str], names: str = "PATH", **environ: str) -> None:
        self.ours, theirs = socket.socketpair()
        argv = module_argv("rollbook.processes.supervisor", str(theirs.fileno()), names, *command)
        environ = {**os.environ, **environ}
        self.popen = subprocess.Popen(argv, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, env=environ)
        theirs.close()

    def said(self) -> str:
        """Everything that comes out, to the end."""
        with self.ours, self.ours.makefile() as lines:
            return lines.read()


def python(program: str, *words: str) -> list[str]:
    return [sys.executable, "-c", program, *words]


def test_a_command_reads_and_writes_and_its_exit_code_is_told() -> None:
    kept = Kept(python("import sys; print(sys.stdin.readline().upper()); sys.exit(7)"))
    kept.ours.sendall(b"hello\n")
    assert kept.said() == "HELLO\n\n"
    assert kept.popen.wait(20) == 7


def test_it_sees_the_variables_that_were_named_and_no_other() -> None:
    program = "import os; print(sorted(n for n in os.environ if n in ('PATH', 'SHOWN', 'SECRET')))"
    kept = Kept(python(program), "PATH,SHOWN", SHOWN="1", SECRET="2")
    assert kept.said() == "['PATH', 'SHOWN']\n"
    kept.popen.wait(20)


def test_one_that_ends_at_the_end_of_its_input_may_do_so_in_peace() -> None:
    kept = Kept(python("import sys; sys.stdin.read(); print('bye')"))
    kept.ours.shutdown(socket.SHUT_WR)
    assert kept.said() == "bye\n"
    assert kept.popen.wait(20) == 0


def test_when_nobody_holds_its_input_it_is_killed_with_its_daemons(tmp_path: Path) -> None:
    kept = Kept(python(STUBBORN, str(tmp_path / "pid")))
    pids = [read_pid(tmp_path / "pid", 20), read_pid(tmp_path / "pid.daemon", 20)]
    assert all(map(alive, pids))
    kept.ours.close()
    assert kept.popen.wait(20) == 128 + signal.SIGKILL
    assert eventually(lambda: not any(map(alive, pids)))


def test_what_a_command_leaves_behind_is_killed(tmp_path: Path) -> None:
    leaves = STUBBORN.rpartition("time.sleep(600)")[0] + "while not os.path.exists(sys.argv[1] + '.daemon'): pass"
    kept = Kept(python(leaves, str(tmp_path / "pid")))
    daemon = read_pid(tmp_path / "pid.daemon", 20)
    assert kept.popen.wait(20) == 0
    assert eventually(lambda: not alive(daemon))
    kept.ours.close()


def test_it_dies_with_its_keeper(tmp_path: Path) -> None:
    kept = Kept(python(STUBBORN, str(tmp_path / "pid")))
    pid, daemon = read_pid(tmp_path / "pid", 20), read_pid(tmp_path / "pid.daemon", 20)
    kept.popen.kill()
    assert eventually(lambda: not alive(pid))
    os.kill(daemon, signal.SIGKILL)  # beyond a keeper that was itself killed
    kept.popen.wait(20)
    kept.ours.close()


def test_a_command_that_is_not_there_is_named() -> None:
    kept = Kept(["no-such-command"])
    _, words = kept.popen.communicate(timeout=20)
    assert (kept.popen.returncode, words) == (127, b"cannot start no-such-command: No such file or directory\n")
    kept.ours.close()
