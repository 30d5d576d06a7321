"""Bubblewrap as a provider: every guest is a fresh interpreter in a container of its own, on machines that trust bwrap.

Slower than the built-in one by Python's start, which no clock counts. It keeps no state between guests.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from rollbook.core.json import JSON, encode
from rollbook.sandbox.errors import Refused, SandboxError
from rollbook.sandbox.folder import Folder
from rollbook.sandbox.inner import walls
from rollbook.sandbox.inner.channel import Channel
from rollbook.sandbox.letter import holding
from rollbook.sandbox.limits import Limits
from rollbook.sandbox.places import ALONE, SEED

HERE = Path(__file__).parent
BIRTH_S = 20.0
SIGNALLED = 128
"""bwrap exits with this and the number of the signal that ended the program."""
LAST_WORDS = 2000
LOADERS = ("/usr/lib64/ld-linux-x86-64.so.2", "/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")


class Bubblewrap:
    """Starts bwrap for every guest; a thread of its own waits for each."""

    def __init__(self, config: dict[str, JSON], python: str) -> None:
        program = shutil.which("bwrap")
        if program is None:
            raise SandboxError("bubblewrap is not installed: there is no bwrap on PATH")
        self._places: list[str] = [*config["places"], *loaders(), python, str(HERE / "inner")]
        self._told = {"places": self._places, "paths": config["paths"], "packages": config["packages"]}
        self._python, self._wrap = python, [program, *walls_of(self._places, config["hidden"], config["shown"])]
        self._living: set[int] = set()
        self._words = ""
        self.alive = True
        abi = walls.landlock_abi()
        landlock = [f"landlock-{abi}"] if abi else []
        self.isolation = ("bubblewrap", "pid", "mount", "network", "ipc", "user", "seccomp", *landlock)

    def account(self, role: str, limits: Limits) -> None:
        """Nobody counts but the kernel, each process for itself."""

    def mount(self, folder: Folder, uid: int) -> int:
        """Not to be had: bwrap would find the folder by its name alone."""
        raise Refused(f"folder {folder.path}: only the built-in sandbox mounts folders of the host")

    def order(self, order: dict[str, JSON], handles: list[int]) -> None:
        """Start a guest; what becomes of it is told on its control line."""
        if order["role"] == "snapshot":
            raise SandboxError("sessions that take snapshots need the built-in sandbox")
        held = [os.dup(handle) for handle in handles]  # the caller closes its own as soon as this returns
        threading.Thread(target=self._mind, args=[order, held], daemon=True).start()

    def _mind(self, order: dict[str, JSON], handles: list[int]) -> None:
        control = Channel(handles.pop(), BIRTH_S)
        with suppress(OSError):  # nobody wants to know
            try:
                self._watch(order, handles, control)
            except OSError as error:
                control.send({"failed": f"{error} {self._words}".strip()})
            finally:
                control.close()

    def _watch(self, order: dict[str, JSON], handles: list[int], control: Channel) -> None:
        ours, theirs = socket.socketpair()
        with tempfile.TemporaryFile() as said:
            child = self._start({**order, **self._told}, handles, theirs, said.fileno())
            theirs.close()
            self._living.add(child.pid)
            birth = Channel(ours.detach(), BIRTH_S)
            try:
                _, pidfds = birth.receive(1)
                control.send({"begun": True}, pidfds)
                os.close(pidfds[0])
            except (OSError, EOFError):
                child.kill()
                said.seek(0)
                self._words = said.read(LAST_WORDS).decode(errors="replace")
                raise OSError("bwrap did not come up:") from None
            finally:
                birth.close()
                ended = self._end(child)
        control.send(ended)

    def _start(
        self, order: dict[str, JSON], handles: list[int], birth: socket.socket, said: int
    ) -> subprocess.Popen[bytes]:
        stdin, stdout, stderr, *rest, letter = handles
        memory = holding("order", encode(order))
        given = f"{memory}, {letter}, {birth.fileno()}, [0, 1, {stderr}, {', '.join(map(str, rest))}]"
        boot = f"import sys; sys.path.insert(0, {str(HERE)!r}); from inner import alone; alone.main({given})"
        inside = [self._python, *ALONE, "-c", boot]
        size = ["--size", str(int(order["limits"]["files_mb"]) << 20), "--tmpfs", walls.BOX, "--remount-ro", "/"]
        try:
            return subprocess.Popen(
                [*self._wrap, *size, "--", *inside],
                stdin=stdin,
                stdout=stdout,
                stderr=said,  # what bwrap itself complains of is not the program's
                pass_fds=(stderr, *rest, letter, memory, birth.fileno()),
                env={},
                start_new_session=True,
            )
        finally:
            for handle in (*handles, memory):
                os.close(handle)

    def _end(self, child: subprocess.Popen[bytes]) -> dict[str, JSON]:
        _, status, usage = os.wait4(child.pid, 0)
        self._living.discard(child.pid)
        code = os.waitstatus_to_exitcode(status)
        child.returncode = code
        return {
            "ended": SIGNALLED - code if code > SIGNALLED else code,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "peak_kb": usage.ru_maxrss,
        }

    def answers(self) -> bool:
        """There is nobody but us whose death could end a guest."""
        return self.alive

    def last_words(self) -> str:
        """What bwrap complained of last."""
        return self._words

    def close(self) -> None:
        """End every guest."""
        self.alive = False
        for pid in list(self._living):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def loaders() -> list[str]:
    """What the kernel needs to start a program at all, by the names that programs have for it."""
    return [path for path in LOADERS if os.path.exists(path) and not os.path.islink(os.path.dirname(path))]


def walls_of(places: list[str], hidden: list[str], shown: list[str]) -> list[str]:
    """The options that make the world of a guest: read-only views, four devices, nothing else."""
    words = ["--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    words += ["--hostname", "sandbox", *(word for name, value in SEED.items() for word in ("--setenv", name, value))]
    for place in places:
        if os.path.islink(place):
            words += ["--symlink", os.readlink(place), place]
        else:
            words += ["--ro-bind", place, place]
    for place in hidden:
        if os.path.isdir(place) and any(place.startswith(f"{p}/") for p in places):
            words += ["--tmpfs", place]
            words += [word for path in shown if path.startswith(f"{place}/") for word in ("--ro-bind", path, path)]
            words += ["--remount-ro", place]
    for device in walls.DEVICES:
        words += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    return [*words, "--proc", "/proc"]
