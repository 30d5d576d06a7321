"""The zygote: a clean interpreter behind walls that forks one child a run and tells how each one ended.

Started by the host as `python -I -S`, with an empty environment, never forked from it. Speaks frames of JSON over one
socket; a run's descriptors come with its request.
"""

import array
import gc
import json
import os
import resource
import signal
import socket
import struct
import sys
from typing import Any

from . import guest, kernel, walls

LENGTH = struct.Struct("<I")
HANDLES = 5


def read_frame(channel: socket.socket, handles: int = 0) -> tuple[dict[str, Any] | None, list[int]]:
    """One frame with its descriptors; None at the end of the host."""
    room = socket.CMSG_SPACE(handles * 4) if handles else 0
    head, extra, _, _ = channel.recvmsg(LENGTH.size, room)
    if not head:
        return None, []
    while len(head) < LENGTH.size:
        head += channel.recv(LENGTH.size - len(head))
    found = array.array("i")
    for level, kind, data in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % 4])
    return json.loads(read_exactly(channel, LENGTH.unpack(head)[0])), list(found)


def read_exactly(channel: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        block = channel.recv(min(1 << 20, size - len(data)))
        if not block:
            raise EOFError
        data += block
    return bytes(data)


def send(channel: socket.socket, value: dict[str, Any], handles: list[int] | None = None) -> None:
    """One frame, perhaps with descriptors."""
    body = json.dumps(value).encode()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", handles))] if handles else []
    channel.sendmsg([LENGTH.pack(len(body))], rights)
    channel.sendall(body)


def enter(config: dict[str, Any]) -> None:
    """New namespaces around us; the first process of the pid namespace goes on as the zygote, its launcher waits."""
    flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWPID
    user, group = os.getuid(), os.getgid()
    kernel.unshare(flags | (kernel.CLONE_NEWUSER if config["mode"] == "user" else 0))
    if config["mode"] == "user":
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
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


class Zygote:
    """Forks runs, one at a time."""

    def __init__(self, channel: socket.socket, config: dict[str, Any], own_pids: int, base_bytes: int) -> None:
        self._channel, self._config, self._own_pids, self._base = channel, config, own_pids, base_bytes

    def serve(self) -> None:
        """Until the host is gone."""
        while True:
            request, handles = read_frame(self._channel, HANDLES)
            if request is None:
                return
            request["limits"]["base_bytes"] = self._base
            self._run(request, handles)

    def _run(self, request: dict[str, Any], handles: list[int]) -> None:
        kernel.unshare(kernel.CLONE_NEWPID)
        child = os.fork()
        if not child:
            self._be_guest(request, handles)
        kernel.setns(self._own_pids, kernel.CLONE_NEWPID)
        for handle in handles:
            os.close(handle)
        pidfd = os.pidfd_open(child)
        send(self._channel, {"begun": True}, [pidfd])
        os.close(pidfd)
        _, status, usage = os.wait4(child, 0)
        send(
            self._channel,
            {
                "code": os.waitstatus_to_exitcode(status),
                "cpu_s": usage.ru_utime + usage.ru_stime,
                "peak_kb": usage.ru_maxrss,
            },
        )

    def _be_guest(self, request: dict[str, Any], handles: list[int]) -> None:
        """Never returns. A failure before the start signal is the sandbox's, and is reported as such."""
        code = 97
        try:
            start = guest.confine(request, self._config, handles)
            os.write(start, b"\1")
            os.close(start)
            report = guest.run(request["code"], guest.fresh_space())
            guest.flush()
            os.write(guest.REPORT, json.dumps(report).encode())
            code = report.get("exit", 1 if "error" in report else 0) & 0xFF
        except BaseException as error:  # noqa: BLE001 - nothing may get past this point
            os.write(2, f"{type(error).__name__}: {error}\n".encode()[:500])
        finally:
            os._exit(code)


def main(handle: int) -> None:
    """Come up, say what walls there are, serve."""
    channel = socket.socket(fileno=handle)
    config, _ = read_frame(channel)
    assert config is not None
    os.environ.clear()
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    enter(config)
    own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    preload(config)
    base_bytes = used_bytes()
    walls.new_root(config["places"], config["hidden"], config["stage"])
    layers = ["pid", "mount", "network", "ipc", "seccomp", f"landlock-{walls.landlock_abi()}"]
    layers += ["user"] if config["mode"] == "user" else ["uid"]
    send(channel, {"ready": layers})
    Zygote(channel, config, own_pids, base_bytes).serve()
