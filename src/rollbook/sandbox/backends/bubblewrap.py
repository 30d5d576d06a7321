"""The bubblewrap provider: every guest is a fresh interpreter in a bwrap container, on machines that trust bwrap.

Slower than the built-in provider by the start of Python, which no clock counts. It keeps no state between guests.
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
from rollbook.errors import SandboxError, SandboxUnsupported
from rollbook.sandbox.guest import make_memory_file
from rollbook.sandbox.inner import filesystem
from rollbook.sandbox.inner.channel import Channel
from rollbook.sandbox.isolation import PACKAGE_FOLDER, PYTHON_ENVIRONMENT, PYTHON_FLAGS, HostFolder, make_boot_code
from rollbook.sandbox.limits import Limits

START_S = 20.0
SIGNAL_EXIT_BASE = 128
"""bwrap exits with this plus the number of the signal that ended the program."""
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
        self._python, self._bwrap_command = (
            python,
            [program, *make_bwrap_options(self._places, config["hidden"], config["shown"])],
        )
        self._running: set[int] = set()
        self._last_errors = ""
        self.alive = True
        abi = filesystem.landlock_abi()
        landlock = [f"landlock-{abi}"] if abi else []
        self.isolation = ("bubblewrap", "pid", "mount", "network", "ipc", "user", "seccomp", *landlock)

    def open_account(self, role: str, limits: Limits) -> None:
        """Return None: only the kernel counts memory here, for each process separately."""

    def mount(self, folder: HostFolder, uid: int) -> int:
        """Raise SandboxUnsupported: bwrap can find the folder only by its name."""
        raise SandboxUnsupported(f"folder {folder.path}: only the built-in sandbox mounts folders of the host")

    def launch(self, order: dict[str, JSON], handles: list[int]) -> None:
        """Start a guest; its end is reported on its control channel."""
        if order["role"] == "snapshot":
            raise SandboxError("sessions that take snapshots need the built-in sandbox")
        copies = [os.dup(handle) for handle in handles]  # the caller closes its own as soon as this returns
        threading.Thread(target=self._run_guest, args=[order, copies], daemon=True).start()

    def _run_guest(self, order: dict[str, JSON], handles: list[int]) -> None:
        control = Channel(handles.pop(), START_S)
        with suppress(OSError):  # the other end of the control channel is closed
            try:
                self._supervise(order, handles, control)
            except OSError as error:
                control.send({"failed": f"{error} {self._last_errors}".strip()})
            finally:
                control.close()

    def _supervise(self, order: dict[str, JSON], handles: list[int], control: Channel) -> None:
        ours, theirs = socket.socketpair()
        with tempfile.TemporaryFile() as errors:
            child = self._start({**order, **self._guest_config}, handles, theirs, errors.fileno())
            theirs.close()
            self._running.add(child.pid)
            announcements = Channel(ours.detach(), START_S)
            try:
                _, pidfds = announcements.receive(1)
                control.send({"begun": True}, pidfds)
                os.close(pidfds[0])
            except (OSError, EOFError):
                os.kill(child.pid, signal.SIGKILL)  # Popen.kill may reap it, and then its end could not be read below
                errors.seek(0)
                self._last_errors = errors.read(MAX_ERROR_BYTES).decode(errors="replace")
                raise OSError("bwrap did not start:") from None
            finally:
                announcements.close()
                end = self._wait_for_exit(child)
        control.send(end)

    def _start(
        self, order: dict[str, JSON], handles: list[int], announcements: socket.socket, errors_fd: int
    ) -> subprocess.Popen[bytes]:
        stdin, stdout, stderr, *rest, payload = handles
        order_fd = make_memory_file("order", encode(order))
        arguments = f"{order_fd}, {payload}, {announcements.fileno()}, [0, 1, {stderr}, {', '.join(map(str, rest))}]"
        guest_command = [self._python, *PYTHON_FLAGS, "-c", make_boot_code("standalone_guest", arguments)]
        folder_options = [
            "--size",
            str(int(order["limits"]["files_mb"]) << 20),
            "--tmpfs",
            filesystem.WORKING_FOLDER,
            "--remount-ro",
            "/",
        ]
        try:
            return subprocess.Popen(
                [*self._bwrap_command, *folder_options, "--", *guest_command],
                stdin=stdin,
                stdout=stdout,
                stderr=errors_fd,  # errors of bwrap itself are not the program's
                pass_fds=(stderr, *rest, payload, order_fd, announcements.fileno()),
                env={},
                start_new_session=True,
            )
        finally:
            for handle in (*handles, order_fd):
                os.close(handle)

    def _wait_for_exit(self, child: subprocess.Popen[bytes]) -> dict[str, JSON]:
        _, status, usage = os.wait4(child.pid, 0)
        self._running.discard(child.pid)
        code = os.waitstatus_to_exitcode(status)
        child.returncode = code
        return {
            "ended": SIGNAL_EXIT_BASE - code if code > SIGNAL_EXIT_BASE else code,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "peak_kb": usage.ru_maxrss,
        }

    def ping(self) -> bool:
        """Return whether it is open: no other process exists whose death could end a guest."""
        return self.alive

    def read_last_output(self) -> str:
        """Return the last error output of bwrap."""
        return self._last_errors

    def close(self) -> None:
        """Kill every guest."""
        self.alive = False
        for pid in list(self._running):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def find_loaders() -> list[str]:
    """Return the dynamic loaders, which the kernel needs to start a program, under the names that programs use."""
    return [path for path in LOADERS if os.path.exists(path) and not os.path.islink(os.path.dirname(path))]


def make_bwrap_options(places: list[str], hidden: list[str], shown: list[str]) -> list[str]:
    """Return the options that define what a guest sees: read-only views, four devices, nothing else."""
    options = [
        "--unshare-all",
        "--unshare-user",
        "--die-with-parent",
        "--new-session",
        "--clearenv",
        "--cap-drop",
        "ALL",
    ]
    options += [
        "--hostname",
        "sandbox",
        *(option for name, value in PYTHON_ENVIRONMENT.items() for option in ("--setenv", name, value)),
    ]
    for place in places:
        if os.path.islink(place):
            options += ["--symlink", os.readlink(place), place]
        else:
            options += ["--ro-bind", place, place]
    for place in hidden:
        if os.path.isdir(place) and any(place.startswith(f"{p}/") for p in places):
            options += ["--tmpfs", place]
            options += [
                option for path in shown if path.startswith(f"{place}/") for option in ("--ro-bind", path, path)
            ]
            options += ["--remount-ro", place]
    for device in filesystem.DEVICES:
        options += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    return [*options, "--proc", "/proc"]
