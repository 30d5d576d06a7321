"""One zygote, seen from the host: starts it, and hands it the orders for guests."""

from __future__ import annotations

import shutil
import socket
import tempfile
import threading
from pathlib import Path

from rollbook.core.json import JSON
from rollbook.processes.child import Child
from rollbook.sandbox.errors import SandboxError
from rollbook.sandbox.inner.channel import Channel

HERE = Path(__file__).parent
START_S = 60.0


class Zygote:
    """The built-in provider: a process behind walls that forks a guest for every order."""

    def __init__(self, config: dict[str, JSON], python: str, log: Path | None = None) -> None:
        stage = tempfile.mkdtemp(prefix="rollbook-root-")
        ours, theirs = socket.socketpair()
        boot = (
            f"import sys; sys.path.insert(0, {str(HERE)!r}); from inner import server; server.main({theirs.fileno()})"
        )
        self._orders, self._lock = Channel(ours.detach(), START_S), threading.Lock()
        self._child = Child([python, "-I", "-S", "-c", boot], env={}, pass_fds=(theirs.fileno(),), log=log)
        theirs.close()
        try:
            self._orders.send({**config, "here": str(HERE), "stage": stage})
            reply, _ = self._orders.receive()
        except (OSError, EOFError) as error:
            tail = self._child.log_tail(3)
            self.close()
            raise SandboxError(f"the sandbox did not come up: {tail or error}") from None
        finally:
            shutil.rmtree(stage, ignore_errors=True)  # by now the zygote has its root, and no name leads there
        self.isolation = tuple(str(layer) for layer in reply["ready"])

    @property
    def alive(self) -> bool:
        """Whether it takes orders."""
        return self._child.returncode is None

    def order(self, order: dict[str, JSON], handles: list[int]) -> None:
        """Have a guest launched; what becomes of it is told on its control line."""
        with self._lock:
            self._orders.send(order, handles)

    def last_words(self) -> str:
        """What it complained of."""
        return self._child.log_tail(3)

    def close(self) -> None:
        """End it with everything in it."""
        self._child.kill_now()
        self._orders.close()
