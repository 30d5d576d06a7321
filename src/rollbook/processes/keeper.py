"""The keeper of a command that is not ours: when whoever started it hangs up, however that came, all of it ends.

    python -m rollbook.processes.keeper FD NAMES COMMAND...

The command reads and writes the inherited socket FD, and sees the environment variables NAMES alone. When nobody holds
the other end any more it may end by itself; then it is killed with everything it started.
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

from rollbook.processes.life import PARENT, die_with_parent, keep_orphans, trim_log
from rollbook.processes.tree import MARK, kill_descendants

GRACE_S = 2.0
LOOK_S = 10.0
CANNOT_START = 127


def keep(socket: int, names: Sequence[str], command: Sequence[str]) -> int:
    """Run the command until it ends, or is left alone; gives its exit code."""
    os.environ.pop(PARENT, None)  # the socket tells us of its end, for then there is something left to do
    keep_orphans()
    environ = {name: os.environ[name] for name in (*names, MARK) if name in os.environ}
    mortal = partial(die_with_parent, os.getpid())
    try:
        started = subprocess.Popen(
            command, stdin=socket, stdout=socket, env=environ, start_new_session=True, preexec_fn=mortal
        )
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror or error}", file=sys.stderr)  # noqa: T201 - the log
        return CANNOT_START
    threading.Thread(target=end_when_left, args=(socket, started.pid), name="keeper", daemon=True).start()
    code = started.wait()
    kill_descendants()
    return code if code >= 0 else 128 - code


def end_when_left(socket: int, pid: int) -> None:
    """Wait until nobody holds the other end of the socket, give the command a moment, kill what is left."""
    hang_up = select.poll()
    hang_up.register(socket, 0)
    while not hang_up.poll(LOOK_S * 1000):
        trim_log()
    time.sleep(GRACE_S)
    kill_descendants()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(keep(int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3:]))
