"""One zygote, seen from the host: starts it, and hands it the orders for guests."""

from __future__ import annotations

import select
import shutil
import socket
import tempfile
import threading
from pathlib import Path

from rollbook.core.json import JSON
from rollbook.processes.child import Child
from rollbook.sandbox import owner
from rollbook.sandbox.errors import Refused, SandboxError
from rollbook.sandbox.folder import Folder
from rollbook.sandbox.groups import Groups
from rollbook.sandbox.inner.channel import Channel
from rollbook.sandbox.limits import Limits
from rollbook.sandbox.memory import Account, Memory
from rollbook.sandbox.places import ALONE, HERE, SEED
from rollbook.sandbox.terms import CGROUP

START_S = 60.0
ANSWER_S = 10.0


class Zygote:
    """The built-in provider: a process behind walls that forks a guest for every order."""

    def __init__(
        self, config: dict[str, JSON], python: str, groups: Groups | None = None, log: Path | None = None
    ) -> None:
        self._stage = tempfile.mkdtemp(prefix=owner.prefix())
        self._memory: Memory | None = None
        self._weak = config["tier"] != "namespaces"
        self._closed = False
        (orders, theirs), (mounts, launchers) = socket.socketpair(), socket.socketpair()
        given = (theirs.fileno(), launchers.fileno())
        boot = f"import sys; sys.path.insert(0, {str(HERE)!r}); from inner import server; server.main{given}"
        self._orders, self._mounts = Channel(orders.detach(), START_S), Channel(mounts.detach(), ANSWER_S)
        self._lock, self._mounting = threading.Lock(), threading.Lock()
        self._child = Child([python, *ALONE, "-c", boot], env=SEED, pass_fds=given, log=log)
        theirs.close()
        launchers.close()
        try:
            self._memory = memory = Memory(groups, self._child.pid)
            told = {"here": str(HERE), "stage": self._stage, "grouped": memory.grouped}
            self._orders.send({**config, **told})
            reply, _ = self._orders.receive()
        except (OSError, EOFError, SandboxError) as error:
            tail = self._child.last_words()
            self.close()
            raise SandboxError(f"the sandbox did not come up: {tail or error}") from None
        memory.settle()
        self.isolation = (*map(str, reply["ready"]), *([CGROUP] if memory.grouped else []))
        if not self._weak:
            shutil.rmtree(self._stage, ignore_errors=True)  # by now it has its root, and no name leads there

    @property
    def alive(self) -> bool:
        """Whether it takes orders. It says nothing on its line: what is to be heard there is that it is gone."""
        poll = select.poll()
        poll.register(self._orders, select.POLLIN)
        return not self._closed and not poll.poll(0)

    def account(self, role: str, limits: Limits) -> Account | None:
        """Where a new guest's memory is counted."""
        if role == "snapshot" and self._weak:
            raise Refused("sessions that take snapshots need namespaces")
        return self._memory.account(role, limits) if self._memory else None

    def mount(self, folder: Folder, uid: int) -> int:
        """A folder of the host as a guest of this user can mount it: the zygote's launcher sees to it."""
        if self._weak:
            raise Refused(f"folder {folder.path}: without namespaces nothing can be mounted")
        with self._mounting:
            self._mounts.send({"path": folder.path, "uid": uid}, [folder.handle])
            answer, handles = self._mounts.receive(1)
        if not handles:
            raise Refused(f"folder {folder.path}: it cannot be mounted: {answer['failed']}")
        return handles[0]

    def order(self, order: dict[str, JSON], handles: list[int]) -> None:
        """Have a guest launched; what becomes of it is told on its control line."""
        with self._lock:
            self._orders.send(order, handles)

    def answers(self) -> bool:
        """Whether it lives, by its own word: an order without a role is answered and nothing else."""
        ours, theirs = socket.socketpair()
        line = Channel(ours.detach(), ANSWER_S)
        try:
            with theirs:
                self.order({}, [theirs.fileno()])
            line.receive()
        except (OSError, EOFError):
            return False
        finally:
            line.close()
        return True

    def last_words(self) -> str:
        """What it complained of."""
        return self._child.log_tail(3)

    def close(self) -> None:
        """End it with everything in it."""
        self._closed = True
        self._child.kill_now()
        self._orders.close()
        self._mounts.close()
        shutil.rmtree(self._stage, ignore_errors=True)
        if self._memory:
            self._memory.close()
