"""Starts `rollbook` commands as forks of one process that has imported it: real processes without the start-up.

    python fork_server.py DESCRIPTOR

On its descriptor, a stream socket, it takes one JSON object a line: {"words", "folder", "environ", "out", "err"}; it
says {"pid"} for each, and {"pid", "code"} when one has ended. It ends when the other side hangs up.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
from importlib import import_module
from typing import Any, NoReturn

PRELOADED = (
    "aiohttp",
    "uvloop",
    "rollbook.book.book",
    "rollbook.reports.report",
    "rollbook.engine.runs",
    "rollbook.engine.worker",
    "rollbook.environments.registry",
    "rollbook.models.chat",
    "rollbook.models.scripted",
)


class ForkServer:
    """The one that forks."""

    def __init__(self, line: socket.socket) -> None:
        self._line, self._read = line, line.makefile("rb")
        self._watched = selectors.DefaultSelector()
        self._watched.register(line, selectors.EVENT_READ)
        self.order: dict[str, Any] | None = None

    def serve(self) -> bool:
        """Until the other side has gone; true in a fork, which has an order to carry out."""
        while True:
            for key, _ in self._watched.select():
                if key.data is not None:
                    self._bury(key.fd, key.data)
                elif not (text := self._read.readline()):
                    return False
                elif self._fork(json.loads(text)):
                    return True

    def _fork(self, order: dict[str, Any]) -> bool:
        pid = os.fork()
        if not pid:
            self.order = order
            return True
        self._watched.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
        self._say(pid=pid)
        return False

    def _bury(self, handle: int, pid: int) -> None:
        self._watched.unregister(handle)
        os.close(handle)
        _, status = os.waitpid(pid, 0)
        self._say(pid=pid, code=os.waitstatus_to_exitcode(status))

    def _say(self, **words: int) -> None:
        self._line.sendall(json.dumps(words).encode() + b"\n")

    def leave(self) -> None:
        """A fork keeps nothing of this."""
        self._watched.close()
        self._read.close()
        self._line.close()


def become(order: dict[str, Any]) -> NoReturn:
    """Be the command: its session, folder, environment, streams and words."""
    os.setsid()
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environ"])
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for place, (path, how) in enumerate(((os.devnull, os.O_RDONLY), (order["out"], flags), (order["err"], flags))):
        handle = os.open(path, how, 0o644)
        os.dup2(handle, place)
        os.close(handle)
    sys.argv = ["rollbook", *order["words"]]
    sys.path[0] = order["folder"]
    from rollbook.cli.main import main

    main()
    raise AssertionError("a command ends by an exit")


def preload() -> None:
    """Whatever commands would import; no library that starts threads."""
    from rollbook.cli import COMMANDS

    for name in (*PRELOADED, *(entry.module for entry in COMMANDS.values())):
        import_module(name)


if __name__ == "__main__":
    preload()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    server = ForkServer(socket.socket(fileno=int(sys.argv[1])))
    if server.serve():
        server.leave()
        assert server.order
        become(server.order)
