"""One zygote, seen from the host: starts it, and has it launch guests."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from rollbook.core.json import JSON
from rollbook.processes.child import Child
from rollbook.sandbox.errors import SandboxError
from rollbook.sandbox.guest import Guest
from rollbook.sandbox.inner.channel import Channel
from rollbook.sandbox.limits import Limits
from rollbook.sandbox.result import Result
from rollbook.sandbox.run import Run
from rollbook.sandbox.uids import Uids

HERE = Path(__file__).parent
START_S = 60.0


class Slot:
    """A zygote and its socket. Synchronous: whoever calls it has a thread to spare. Several threads may."""

    def __init__(self, config: dict[str, JSON], python: str, uids: Uids, log: Path | None = None) -> None:
        stage = tempfile.mkdtemp(prefix="rollbook-root-")
        ours, theirs = socket.socketpair()
        boot = (
            f"import sys; sys.path.insert(0, {str(HERE)!r}); from inner import server; server.main({theirs.fileno()})"
        )
        self._orders, self._lock, self._uids = Channel(ours.detach(), START_S), threading.Lock(), uids
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
        """Whether it can launch guests."""
        return self._child.returncode is None

    def launch(
        self,
        role: str,
        limits: Limits,
        *,
        code: str = "",
        stdin: bytes = b"",
        files: Mapping[str, bytes] | None = None,
        extra: Sequence[int] = (),
        request: Mapping[str, JSON] | None = None,
    ) -> Guest:
        """A new guest in a role of `inner/roles.py`, which finds what is in `request` there as well; copies of the
        `extra` descriptors are its 4, 5, ..."""
        try:
            guest, stream = Guest(limits, self.isolation), given(stdin)
        except OSError as error:
            raise SandboxError(f"no guest could be started: {error} (each holds 5 descriptors: ulimit -n)") from None
        order = {
            **(request or {}),
            "role": role,
            "code": code,
            "files": {name: data.hex() for name, data in (files or {}).items()},
            "limits": limits.wire(),
            "uid": self._uids.next(),
        }
        try:
            guest.hand_over(lambda handles: self._order(order, handles), stream, extra)
        except (OSError, EOFError, SandboxError) as error:
            guest.close()
            raise SandboxError(f"the sandbox broke: {error}; {self._child.log_tail(3)}") from None
        return guest

    def _order(self, order: dict[str, JSON], handles: list[int]) -> None:
        with self._lock:
            self._orders.send(order, handles)

    def run(self, code: str, stdin: bytes, files: Mapping[str, bytes], limits: Limits) -> Result:
        """One fresh run; SandboxError when the walls could not be put up or the zygote died."""
        guest = self.launch("run", limits, code=code, stdin=stdin, files=files)
        try:
            return Run(guest, limits).result()
        finally:
            guest.close()

    def close(self) -> None:
        """End the zygote with everything in it."""
        self._child.kill_now()
        self._orders.close()


def given(stdin: bytes) -> int:
    """A descriptor to read these bytes from."""
    if not stdin:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    handle = os.memfd_create("stdin")
    os.write(handle, stdin)
    os.lseek(handle, 0, os.SEEK_SET)
    return handle
