"""The zygote: a clean interpreter behind walls that forks guests and tells how each one ended.

Started by the host as `python -I -S`, with an empty environment, never forked from it. What it is told and what it
says is described in `channel.py`.
"""

import gc
import os
import resource
import select
import signal
import sys
from contextlib import suppress
from typing import Any, NamedTuple

from . import filters, guest, kernel, walls
from .channel import Channel
from .exam import EXAM_ROLES
from .roles import ROLES

HANDLES_MOST = 16
SETUP_FAILED = 97


def enter(config: dict[str, Any]) -> None:
    """New namespaces around us; the first process of the pid namespace goes on as the zygote, its launcher waits."""
    flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWPID
    user, group = os.getuid(), os.getgid()
    kernel.unshare(flags | (kernel.CLONE_NEWUSER if config["mode"] == "user" else 0))
    if config["mode"] == "user":
        kernel.map_root(user, group, config["proc"])
    launched = os.fork()
    if launched:
        os.waitpid(launched, 0)
        os._exit(0)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()


def preload(config: dict[str, Any]) -> None:
    """Import what runs will want, so that it costs them nothing, and keep it out of the collector's way."""
    sys.path[:] = [p for p in sys.path if p != config["here"]] + config["paths"]
    for name in config["packages"]:
        __import__(name)
    import encodings.idna  # noqa: F401 - found late and oddly otherwise

    gc.collect()
    gc.freeze()


def used_bytes() -> int:
    """The address space of this interpreter, which a run's limit comes on top of."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def many_files() -> None:
    """Two descriptors for every guest may be more than the usual limit allows."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def prepare() -> None:
    """Done once here, so that no guest has to: what it inherits, and what is in its memory already."""
    kernel.drop_bounding_set()
    for alone, forks in ((True, False), (False, False), (True, True)):
        filters.program(alone, forks)


class Living(NamedTuple):
    """A guest under way, and the line on which its end will be told."""

    pid: int
    control: Channel


class Zygote:
    """Forks guests and buries them."""

    def __init__(self, orders: Channel, config: dict[str, Any], own_pids: int, base_bytes: int) -> None:
        self._orders, self._config, self._own_pids, self._base = orders, config, own_pids, base_bytes
        self._living: dict[int, Living] = {}
        self._poll = select.poll()

    def serve(self) -> None:
        """Until the host is gone."""
        self._poll.register(self._orders, select.POLLIN)
        while True:
            for handle, _ in self._poll.poll():
                if handle in self._living:
                    self._bury(handle)
                else:
                    self._obey()

    def _obey(self) -> None:
        request, handles = self._orders.receive(HANDLES_MOST)
        request["limits"]["base_bytes"] = self._base
        control = Channel(handles.pop())
        try:
            self._launch(request, handles, control)
        except OSError as error:
            with suppress(OSError):
                control.send({"failed": str(error)})
        finally:
            for handle in handles:
                os.close(handle)

    def _launch(self, request: dict[str, Any], handles: list[int], control: Channel) -> None:
        kernel.unshare(kernel.CLONE_NEWPID)
        try:
            child = os.fork()
            if not child:
                self._be_guest(request, handles)
        finally:
            kernel.setns(self._own_pids, kernel.CLONE_NEWPID)
        pidfd = os.pidfd_open(child)
        self._living[pidfd] = Living(child, control)
        self._poll.register(pidfd, select.POLLIN)
        control.send({"begun": True}, [pidfd])

    def _bury(self, pidfd: int) -> None:
        self._poll.unregister(pidfd)
        os.close(pidfd)
        pid, control = self._living.pop(pidfd)
        _, status, usage = os.wait4(pid, 0)
        with suppress(OSError):  # nobody wants to know
            control.send(
                {
                    "ended": os.waitstatus_to_exitcode(status),
                    "cpu_s": usage.ru_utime + usage.ru_stime,
                    "peak_kb": usage.ru_maxrss,
                }
            )
        control.close()

    def _be_guest(self, request: dict[str, Any], handles: list[int]) -> None:
        """Never returns. A failure before it says that it starts is the sandbox's, and is told on its stderr."""
        code = SETUP_FAILED
        try:
            role = (ROLES | EXAM_ROLES)[request["role"]]
            channel = guest.confine(request, self._config, handles, role.stays, role.forks)
            code = role.play(request, channel)
        except BaseException as error:  # noqa: BLE001 - nothing may get past this point
            os.write(2, f"{type(error).__name__}: {error}\n".encode()[:500])
        finally:
            os._exit(code)


def main(handle: int) -> None:
    """Come up, say what walls there are, serve."""
    orders = Channel(handle)
    config, _ = orders.receive()
    os.environ.clear()
    many_files()
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    config["proc"] = os.open("/proc", os.O_DIRECTORY | os.O_CLOEXEC)
    enter(config)
    own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    preload(config)
    base_bytes = used_bytes()
    walls.new_root(config["places"], config["hidden"], config["stage"])
    prepare()
    layers = ["pid", "mount", "network", "ipc", "seccomp", f"landlock-{walls.landlock_abi()}"]
    layers += ["user"] if config["mode"] == "user" else ["uid"]
    orders.send({"ready": layers})
    with suppress(EOFError):  # the host is gone
        Zygote(orders, config, own_pids, base_bytes).serve()
