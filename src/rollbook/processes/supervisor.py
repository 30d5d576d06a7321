"""Supervises a command that is not ours: when its starter is gone, for whatever reason, everything it started ends.

    python -m rollbook.processes.supervisor FD NAMES COMMAND...

The command reads and writes the inherited socket FD, and sees only the environment variables NAMES. When no one holds
the other end of the socket any more, the command has a moment to end; then all that it started is killed.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from rollbook.processes.process_tree import (
    CHILD_TAG,
    PARENT_PID,
    become_subreaper,
    die_with_parent,
    kill_descendants,
    trim_log,
)

GRACE_S = 2.0
LOG_CHECK_S = 1.0
EXIT_CANNOT_START = 127


def run_supervised(socket: int, variables: Sequence[str], command: Sequence[str]) -> int:
    """Run the command until it ends or its starter is gone; return its exit code."""
    os.environ.pop(PARENT_PID, None)  # the end of the socket shows that it is gone, and then there is cleaning up to do
    become_subreaper()
    environ = {name: os.environ[name] for name in (*variables, CHILD_TAG) if name in os.environ}
    prepare = partial(die_with_parent, os.getpid())
    try:
        process = subprocess.Popen(
            command, stdin=socket, stdout=socket, env=environ, start_new_session=True, preexec_fn=prepare
        )
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror or error}", file=sys.stderr)  # noqa: T201 - the log
        return EXIT_CANNOT_START
    threading.Thread(target=kill_when_abandoned, args=(socket, process.pid), name="supervisor", daemon=True).start()
    code = process.wait()
    kill_descendants()
    return code if code >= 0 else 128 - code


def kill_when_abandoned(socket: int, pid: int) -> None:
    """Wait until no process holds the other end of the socket, give the command a moment, kill what is left."""
    hang_up = select.poll()
    hang_up.register(socket, 0)
    while not hang_up.poll(LOG_CHECK_S * 1000):
        trim_log()
    time.sleep(GRACE_S)
    kill_descendants()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(run_supervised(int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3:]))
