"""One zygote, seen from the host: starts it, and hands it the orders for guests."""

from __future__ import annotations

import shutil
import socket
import tempfile
import threading
from pathlib import Path

from rollbook.core.json import JSON
from rollbook.processes.child import Child
from rollbook.sandbox import owner
from rollbook.sandbox.errors import Refused, SandboxError
from rollbook.sandbox.groups import Groups
from rollbook.sandbox.inner.channel import Channel
from rollbook.sandbox.limits import Limits
from rollbook.sandbox.memory import Account, Memory
from rollbook.sandbox.places import HERE
from rollbook.sandbox.terms import CGROUP

START_S = 60.0


class Zygote:
    """The built-in provider: a process behind walls that forks a guest for every order."""

    def __init__(
        self, config: dict[str, JSON], python: str, groups: Groups | None = None, log: Path | None = None
    ) -> None:
        self._stage = tempfile.mkdtemp(prefix=owner.prefix())
        self._memory: Memory | None = None
        self._weak = config["tier"] != "namespaces"
        ours, theirs = socket.socketpair()
        boot = (
            f"import sys; sys.path.insert(0, {str(HERE)!r}); from inner import server; server.main({theirs.fileno()})"
        )
        self._orders, self._lock = Channel(ours.detach(), START_S), threading.Lock()
        self._child = Child([python, "-I", "-S", "-c", boot], env={}, pass_fds=(theirs.fileno(),), log=log)
        theirs.close()
        try:
            self._memory = memory = Memory(groups, self._child.pid)
            self._orders.send({**config, "here": str(HERE), "stage": self._stage})
            reply, _ = self._orders.receive()
        except (OSError, EOFError, SandboxError) as error:
            tail = self._child.log_tail(1)
            self.close()
            raise SandboxError(f"the sandbox did not come up: {tail or error}") from None
        memory.settle()
        self.isolation = (*map(str, reply["ready"]), *([CGROUP] if memory.grouped else []))
        if not self._weak:
            shutil.rmtree(self._stage, ignore_errors=True)  # by now it has its root, and no name leads there

    @property
    def alive(self) -> bool:
        """Whether it takes orders."""
        return self._child.returncode is None

    def account(self, role: str, limits: Limits) -> Account | None:
        """Where a new guest's memory is counted."""
        if role == "snapshot" and self._weak:
            raise Refused("sessions that take snapshots need namespaces")
        return self._memory.account(role, limits) if self._memory else None

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
        shutil.rmtree(self._stage, ignore_errors=True)
        if self._memory:
            self._memory.close()
