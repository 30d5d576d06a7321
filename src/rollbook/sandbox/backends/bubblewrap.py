"""The bubblewrap provider: every guest is a fresh interpreter in a bwrap container, on machines that trust bwrap.

Slower than the built-in provider by Python's start, which no clock counts. It keeps no state between guests.
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

from rollbook.core import JSON, encode
from rollbook.sandbox.errors import SandboxError, SandboxUnsupported
from rollbook.sandbox.guest import make_memory_file
from rollbook.sandbox.inner import filesystem
from rollbook.sandbox.inner.channel import Channel
from rollbook.sandbox.isolation import PACKAGE_FOLDER, PYTHON_ENVIRONMENT, PYTHON_FLAGS, HostFolder
from rollbook.sandbox.limits import Limits

START_S = 20.0
SIGNAL_EXIT_BASE = 128
"""bwrap exits with this and the number of the signal that ended the program."""
MAX_ERROR_BYTES = 2000
LOADERS = ("/usr/lib64/ld-linux-x86-64.so.2", "/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")


class BubblewrapProvider:
    """Starts bwrap for every guest; a thread of its own waits for each."""

    def __init__(self, config: dict[str, JSON], python: str) -> None:
        program = shutil.which("bwrap")
        if program is None:
            raise SandboxError("bubblewrap is not installed: there is no bwrap on PATH")
        self._places: list[str] = [*config["places"], *find_loaders(), python, str(PACKAGE_FOLDER / "inner")]
        self._guest_config = {"places": self._places, "paths": config["paths"], "packages": config["packages"]}
        self._python, self._wrap = (
            python,
            [program, *make_bwrap_options(self._places, config["hidden"], config["shown"])],
        )
        self._living: set[int] = set()
        self._words = ""
        self.alive = True
        abi = filesystem.landlock_abi()
        landlock = [f"landlock-{abi}"] if abi else []
        self.isolation = ("bubblewrap", "pid", "mount", "network", "ipc", "user", "seccomp", *landlock)

    def open_account(self, role: str, limits: Limits) -> None:
        """Nobody counts but the kernel, each process for itself."""

    def mount(self, folder: HostFolder, uid: int) -> int:
        """Not to be had: bwrap would find the folder by its name alone."""
        raise SandboxUnsupported(f"folder {folder.path}: only the built-in sandbox mounts folders of the host")

    def launch(self, order: dict[str, JSON], handles: list[int]) -> None:
        """Start a guest; what becomes of it is told on its control line."""
        if order["role"] == "snapshot":
            raise SandboxError("sessions that take snapshots need the built-in sandbox")
        held = [os.dup(handle) for handle in handles]  # the caller closes its own as soon as this returns
        threading.Thread(target=self._run_guest, args=[order, held], daemon=True).start()

    def _run_guest(self, order: dict[str, JSON], handles: list[int]) -> None:
        control = Channel(handles.pop(), START_S)
        with suppress(OSError):  # nobody wants to know
            try:
                self._supervise(order, handles, control)
            except OSError as error:
                control.send({"failed": f"{error} {self._words}".strip()})
            finally:
                control.close()

    def _supervise(self, order: dict[str, JSON], handles: list[int], control: Channel) -> None:
        ours, theirs = socket.socketpair()
        with tempfile.TemporaryFile() as said:
            child = self._start({**order, **self._guest_config}, handles, theirs, said.fileno())
            theirs.close()
            self._living.add(child.pid)
            birth = Channel(ours.detach(), START_S)
            try:
                _, pidfds = birth.receive(1)
                control.send({"begun": True}, pidfds)
                os.close(pidfds[0])
            except (OSError, EOFError):
                child.kill()
                said.seek(0)
                self._words = said.read(MAX_ERROR_BYTES).decode(errors="replace")
                raise OSError("bwrap did not come up:") from None
            finally:
                birth.close()
                ended = self._wait_for_exit(child)
        control.send(ended)

    def _start(
        self, order: dict[str, JSON], handles: list[int], birth: socket.socket, said: int
    ) -> subprocess.Popen[bytes]:
        stdin, stdout, stderr, *rest, letter = handles
        memory = make_memory_file("order", encode(order))
        given = f"{memory}, {letter}, {birth.fileno()}, [0, 1, {stderr}, {', '.join(map(str, rest))}]"
        enter = f"from inner import standalone_guest; standalone_guest.main({given})"
        boot = f"import sys; sys.path.insert(0, {str(PACKAGE_FOLDER)!r}); {enter}"
        inside = [self._python, *PYTHON_FLAGS, "-c", boot]
        size = [
            "--size",
            str(int(order["limits"]["files_mb"]) << 20),
            "--tmpfs",
            filesystem.WORKING_FOLDER,
            "--remount-ro",
            "/",
        ]
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

    def _wait_for_exit(self, child: subprocess.Popen[bytes]) -> dict[str, JSON]:
        _, status, usage = os.wait4(child.pid, 0)
        self._living.discard(child.pid)
        code = os.waitstatus_to_exitcode(status)
        child.returncode = code
        return {
            "ended": SIGNAL_EXIT_BASE - code if code > SIGNAL_EXIT_BASE else code,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "peak_kb": usage.ru_maxrss,
        }

    def ping(self) -> bool:
        """There is nobody but us whose death could end a guest."""
        return self.alive

    def read_last_output(self) -> str:
        """What bwrap complained of last."""
        return self._words

    def close(self) -> None:
        """End every guest."""
        self.alive = False
        for pid in list(self._living):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def find_loaders() -> list[str]:
    """What the kernel needs to start a program at all, by the names that programs have for it."""
    return [path for path in LOADERS if os.path.exists(path) and not os.path.islink(os.path.dirname(path))]


def make_bwrap_options(places: list[str], hidden: list[str], shown: list[str]) -> list[str]:
    """The options that make the world of a guest: read-only views, four devices, nothing else."""
    words = ["--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    words += [
        "--hostname",
        "sandbox",
        *(word for name, value in PYTHON_ENVIRONMENT.items() for word in ("--setenv", name, value)),
    ]
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
    for device in filesystem.DEVICES:
        words += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    return [*words, "--proc", "/proc"]
