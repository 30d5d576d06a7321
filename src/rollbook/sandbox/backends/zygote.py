"""The built-in provider: a zygote, a clean isolated process that forks a guest for every order.

The strongest isolation that this machine supports is found by trying, and proven before any user's code runs.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from rollbook.core import JSON
from rollbook.errors import SandboxError, SandboxUnsupported
from rollbook.processes import Child
from rollbook.sandbox import cgroups
from rollbook.sandbox.cgroups import ControlGroups, MemoryAccount, ZygoteMemory
from rollbook.sandbox.inner.channel import Channel
from rollbook.sandbox.isolation import (
    CGROUP_LAYER,
    PACKAGE_FOLDER,
    PYTHON_ENVIRONMENT,
    PYTHON_FLAGS,
    WEAKER_ENV,
    HostFolder,
    IsolationRequirements,
    base_python,
    make_boot_code,
    make_configuration,
)
from rollbook.sandbox.launcher import GuestLauncher, UserIds, prove_isolation
from rollbook.sandbox.limits import Limits

START_S = 60.0
PING_S = 10.0


class ZygoteProvider:
    """An isolated process that forks a guest for every order."""

    def __init__(
        self, config: dict[str, JSON], python: str, groups: ControlGroups | None = None, log: Path | None = None
    ) -> None:
        self._root_folder = tempfile.mkdtemp(prefix=cgroups.owner_prefix())
        self._memory: ZygoteMemory | None = None
        self._weak = config["level"] != "namespaces"
        self._closed = False
        (orders, zygote_orders), (mounts, launcher_mounts) = socket.socketpair(), socket.socketpair()
        boot = make_boot_code("zygote", f"{zygote_orders.fileno()}, {launcher_mounts.fileno()}")
        self._orders, self._mounts = Channel(orders.detach(), START_S), Channel(mounts.detach(), PING_S)
        self._lock, self._mounting = threading.Lock(), threading.Lock()
        self._child = Child(
            [python, *PYTHON_FLAGS, "-c", boot],
            env=PYTHON_ENVIRONMENT,
            pass_fds=(zygote_orders.fileno(), launcher_mounts.fileno()),
            log=log,
        )
        zygote_orders.close()
        launcher_mounts.close()
        try:
            self._memory = memory = ZygoteMemory(groups, self._child.pid)
            settings = {
                "import_folder": str(PACKAGE_FOLDER),
                "root_folder": self._root_folder,
                "grouped": memory.grouped,
            }
            self._orders.send({**config, **settings})
            answer, _ = self._orders.receive()
        except (OSError, EOFError, SandboxError) as error:
            tail = self._child.last_log_line()
            self.close()
            raise SandboxError(f"the sandbox did not start: {tail or error}") from None
        memory.set_baseline()
        self.isolation = (*map(str, answer["ready"]), *([CGROUP_LAYER] if memory.grouped else []))
        if not self._weak:
            shutil.rmtree(self._root_folder, ignore_errors=True)  # it has its own root by now, which has no path here

    @property
    def alive(self) -> bool:
        """Whether it accepts orders. It sends nothing on the channel of orders: that is readable only after its end."""
        poll = select.poll()
        poll.register(self._orders, select.POLLIN)
        return not self._closed and not poll.poll(0)

    def open_account(self, role: str, limits: Limits) -> MemoryAccount | None:
        """Open the account that counts a new guest's memory."""
        if role == "snapshot" and self._weak:
            raise SandboxUnsupported("sessions that take snapshots need namespaces")
        return self._memory.open_account(role, limits) if self._memory else None

    def mount(self, folder: HostFolder, uid: int) -> int:
        """Return a descriptor, made by the zygote's launcher, by which a guest of this user can mount a folder."""
        if self._weak:
            raise SandboxUnsupported(f"folder {folder.path}: without namespaces nothing can be mounted")
        with self._mounting:
            self._mounts.send({"path": folder.path, "uid": uid}, [folder.fd])
            answer, handles = self._mounts.receive(1)
        if not handles:
            raise SandboxUnsupported(f"folder {folder.path}: it cannot be mounted: {answer['failed']}")
        return handles[0]

    def launch(self, order: dict[str, JSON], handles: list[int]) -> None:
        """Launch a guest; its end is reported on its control channel."""
        with self._lock:
            self._orders.send(order, handles)

    def ping(self) -> bool:
        """Return whether it answers: an order without a role only gets an answer."""
        ours, theirs = socket.socketpair()
        channel = Channel(ours.detach(), PING_S)
        try:
            with theirs:
                self.launch({}, [theirs.fileno()])
            channel.receive()
        except (OSError, EOFError):
            return False
        finally:
            channel.close()
        return True

    def read_last_output(self) -> str:
        """Return the end of its error output."""
        return self._child.log_tail(3)

    def close(self) -> None:
        """End it with all its guests."""
        self._closed = True
        self._child.kill_now()
        self._orders.close()
        self._mounts.close()
        shutil.rmtree(self._root_folder, ignore_errors=True)
        if self._memory:
            self._memory.close()


NAMESPACE_LEVELS = [{"level": "namespaces", "mode": "root"}, {"level": "namespaces", "mode": "user"}]
WEAKER_LEVELS = [{"level": "user", "mode": "root"}, {"level": "same-user", "mode": "user"}]


class ZygoteFactory:
    """Starts zygotes: the first start finds the strongest isolation level available, later ones use the same.

    namespaces: of users, processes, mounts, network and IPC, with Landlock and seccomp. Weaker, and only if allowed:
    user, where root can give each guest a user of its own; same-user, where only Landlock separates guests of an
    ordinary user.
    """

    def __init__(self, packages: list[str], user_ids: UserIds, requirements: IsolationRequirements) -> None:
        self._packages, self._user_ids, self._requirements = packages, user_ids, requirements
        self._lock = threading.Lock()
        self._chosen: dict[str, JSON] | None = None
        self._groups: cgroups.ControlGroups | None = None

    def new_launcher(self) -> GuestLauncher:
        """Start a zygote and return its launcher."""
        if sys.platform != "linux":
            raise SandboxError(f"the sandbox is Linux only, and this is {sys.platform}")
        with self._lock:
            if self._chosen is None:
                cgroups.remove_stale_folders(Path(tempfile.gettempdir()))
                self._groups = cgroups.find_control_groups()
                return self._choose(make_configuration(self._packages))
        return self._start_zygote(self._chosen)

    def _choose(self, config: dict[str, JSON]) -> GuestLauncher:
        reasons: list[str] = []
        for level in self._list_levels():
            try:
                launcher = prove_isolation(self._start_zygote({**config, **level}), self._requirements)
            except SandboxError as error:
                reasons.append(f"{level['level']}: {error}")
                continue
            self._chosen = {**config, **level}
            return launcher
        raise SandboxError(self._explain_refusal(reasons))

    def _list_levels(self) -> Iterator[dict[str, str]]:
        is_root = os.geteuid() == 0
        for level in NAMESPACE_LEVELS + (WEAKER_LEVELS if self._requirements.allow_weaker else []):
            if level["mode"] == "root" and not is_root:
                continue
            if level["level"] == "same-user" and is_root:
                continue  # the code would be root, with Landlock as its only restriction
            yield level

    def _explain_refusal(self, reasons: list[str]) -> str:
        if self._requirements.allow_weaker and os.geteuid() == 0:
            # Most often other users cannot reach the interpreter, in a home folder for instance.
            python = f"is {base_python()} readable for every user?"
            return f"no sandbox here ({'; '.join(reasons)}; same-user: root does not run code as root; {python})"
        ways = (
            f"; allow weaker isolation with allow_weaker=True, --allow-weaker of `rollbook sandbox`, or {WEAKER_ENV}=1"
        )
        return f"no sandbox here ({'; '.join(reasons)}){'' if self._requirements.allow_weaker else ways}"

    def _start_zygote(self, config: dict[str, JSON]) -> GuestLauncher:
        return GuestLauncher(ZygoteProvider(config, base_python(), self._groups), self._user_ids, self._requirements)
