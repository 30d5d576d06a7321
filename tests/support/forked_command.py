"""A command that was forked by the fork server, to be used like a `subprocess.Popen`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[2] / "src"


class Forked:
    """One command under way."""

    def __init__(self, words: list[str], folder: Path, environ: dict[str, str], out: Path, err: Path) -> None:
        self.args = words
        order = {"words": words, "folder": str(folder), "environ": environ, "out": str(out), "err": str(err)}
        self._home = home()
        self.pid = self._home.start(order)

    def poll(self) -> int | None:
        """How it ended; None while it runs."""
        return self._home.code(self.pid, 0)

    def wait(self, timeout: float) -> int:
        """Until it ends."""
        code = self._home.code(self.pid, timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def send_signal(self, number: int) -> None:
        """A signal for it alone, if it is still there."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9."""
        self.send_signal(signal.SIGKILL)


class Home:
    """The fork server of this process, seen from here. Several threads may use it."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair()
        words = [sys.executable, str(Path(__file__).with_name("fork_server.py")), str(theirs.fileno())]
        environ = {**os.environ, "PYTHONPATH": str(SOURCE)}
        self._popen = subprocess.Popen(words, env=environ, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        self._starting, self._changed = threading.Lock(), threading.Condition()
        self._pids: list[int] = []
        self._codes: dict[int, int] = {}
        self._gone = False
        threading.Thread(target=self._listen, daemon=True).start()

    def start(self, order: dict[str, Any]) -> int:
        """The number of the new process."""
        with self._starting, self._changed:
            self._line.sendall(json.dumps(order).encode() + b"\n")
            self._changed.wait_for(lambda: self._pids or self._gone, 120)
            assert self._pids, "no fork server"
            return self._pids.pop()

    def code(self, pid: int, within_s: float) -> int | None:
        """How a process ended; None if it has not."""
        with self._changed:
            self._changed.wait_for(lambda: pid in self._codes or self._gone, within_s)
            return self._codes.get(pid, -signal.SIGKILL if self._gone else None)

    def _listen(self) -> None:
        for text in self._line.makefile("rb"):
            said = json.loads(text)
            with self._changed:
                if "code" in said:
                    self._codes[said["pid"]] = said["code"]
                else:
                    self._pids.append(said["pid"])
                    self._codes.pop(said["pid"], None)  # it may have been another's before
                self._changed.notify_all()
        with self._changed:
            self._gone = True
            self._changed.notify_all()


@cache
def home() -> Home:
    """The one of this process, started when it is first wanted."""
    return Home()
