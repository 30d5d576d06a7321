"""The zygote: a clean, isolated interpreter that forks guests and reports how each one ended.

The host starts it (`python -c "from inner import zygote; zygote.main(...)"`) with only the hash seed in its
environment, and never forks it from itself: a set has the same order in every sandbox, and the same code the same
verdict. Its messages are described in `channel.py`. Its isolation level is `namespaces`; or, where there are none, a
`user` for each guest, or only Landlock (`same-user`).
"""

import gc
import os
import resource
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import Any, NamedTuple

from . import filesystem, guest, kernel, seccomp
from .channel import LENGTH, Channel, encode_frame
from .exam import EXAM_ROLES
from .roles import ROLES

ALL_ROLES = ROLES | EXAM_ROLES
MAX_DESCRIPTORS = 16
BEGUN = encode_frame({"begun": True})
OLDEST_LANDLOCK = {"user": 1, "same-user": 6}
"""Between processes of one user, only version 6 and later isolate signals and abstract sockets."""
WARM_UP_RUNS = 20
THREADS_OF_OTHERS = 4096
"""The kernel counts threads by user: where guests share the host's user, its threads count too."""


def enter_namespaces(config: dict[str, Any], orders: Channel, mounts: Channel) -> None:
    """Enter new namespaces; the first process of the pid namespace becomes the zygote, its parent the launcher."""
    flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWPID
    user, group = os.getuid(), os.getgid()
    config["uncounted"] = user == 0 and config["mode"] == "user"
    kernel.unshare(flags | (kernel.CLONE_NEWUSER if config["mode"] == "user" else 0))
    if config["mode"] == "user":
        kernel.map_root(user, group, config["proc"])
    socket.sethostname("sandbox")
    # Mounts of the host are seen here, and ours are not seen there.
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_SLAVE)
    zygote = os.fork()
    if zygote:
        orders.close()  # so that the host notices at once when the zygote is gone
        filesystem.serve_mounts(mounts, zygote, config["mode"] == "root")
        os._exit(0)
    mounts.close()
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    kernel.unshare(kernel.CLONE_NEWNS)
    os.setsid()


def enter_without_namespaces(config: dict[str, Any], orders: Channel) -> None:
    """Continue as the zygote in a child; its parent reaps the processes that are left when it ends."""
    abi, minimum = filesystem.landlock_abi(), OLDEST_LANDLOCK[config["level"]]
    if abi < minimum:
        raise kernel.Unsupported(f"Landlock of version {minimum} is needed, and the kernel has {abi or 'none'}")
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    end_signals = {signal.SIGTERM, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, end_signals)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGTERM)
    launcher, zygote = os.getpid(), os.fork()
    if zygote:
        orders.close()
        signal.sigwait(end_signals)
        kill_and_reap_all(zygote)
        remove_folder(config["root_folder"])
        os._exit(0)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, end_signals)
    os.chmod(config["root_folder"], 0o711)
    config["empty"] = os.path.join(config["root_folder"], "empty")
    os.mkdir(config["empty"], 0o755)


def kill_and_reap_all(zygote: int) -> None:
    """Kill and reap the zygote and its guests: the kernel kills them with it and makes them our children."""
    with suppress(ProcessLookupError):
        os.kill(zygote, signal.SIGKILL)
    with suppress(ChildProcessError):
        while True:
            os.wait()


def remove_folder(folder: str) -> None:
    """Remove a folder and what is in it, as far as possible."""
    for path, folders, files in os.walk(folder, topdown=False):
        with suppress(OSError):
            for name in files:
                os.unlink(os.path.join(path, name))
            for name in folders:
                os.rmdir(os.path.join(path, name))
    with suppress(OSError):
        os.rmdir(folder)


def preload(config: dict[str, Any]) -> None:
    """Import what runs will need, so that it costs them nothing, and exempt it from garbage collection."""
    sys.path[:] = [p for p in sys.path if p != config["import_folder"]] + config["paths"]
    for name in config["packages"]:
        __import__(name)
    import encodings.idna  # noqa: F401 - otherwise imported late and in unexpected places

    guest.add_site_builtins()
    guest.write_at_once()
    warm_up()
    gc.collect()
    gc.freeze()


def warm_up() -> None:
    """Run code as guests do: the interpreter fills its caches once here, instead of in copied pages of every fork."""
    stdout = os.dup(1)
    null = os.open("/dev/null", os.O_WRONLY)
    os.dup2(null, 1)
    payload = os.memfd_create("payload")
    os.write(payload, b'{"code": "", "files": {}}')
    for _ in range(WARM_UP_RUNS):
        guest.read_payload(payload)
        encode_frame(guest.run_code("print(1 + 1)\n1 + 1", guest.make_globals(), 1 << 10))
        encode_frame(guest.run_code("1 / 0", guest.make_globals(), 1 << 10))
    os.dup2(stdout, 1)
    for handle in (stdout, null, payload):
        os.close(handle)


def raise_file_limit() -> None:
    """Raise the limit of open files: there are two for every guest."""
    maximum = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))


def prepare(config: dict[str, Any]) -> None:
    """Do once what no guest then has to do: settings that it inherits, and data that is in its memory already."""
    kernel.drop_bounding_set()
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if config["mode"] == "root":
        os.setgroups([])
    for alone, forks in ((True, False), (False, False), (True, True)):
        seccomp.cached_filter(alone, forks, False)
    seccomp.make_program(True, apart=False)
    config["rules"] = make_rules(config, config.get("empty")) if filesystem.landlock_abi() else None
    config["zygote"], config["hard"] = os.getpid(), guest.read_hard_limits()
    guest.lower_limits(guest.COMMON_LIMITS, config["hard"])
    config["threads_of_others"] = THREADS_OF_OTHERS if config["level"] == "same-user" else 0


def make_rules(config: dict[str, Any], folder: str | None) -> int:
    """Return Landlock's rules for a guest: with its own root, for everything in it; else with one readable folder."""
    if folder is None:
        return filesystem.make_ruleset(config["places"] + ["/dev"], [filesystem.HOME_FOLDER, "/dev/null"])
    devices = [f"/dev/{device}" for device in filesystem.DEVICES]
    return filesystem.make_ruleset([*filesystem.list_visible_paths(config), *devices, folder], ["/dev/null"])


class RunningGuest(NamedTuple):
    """A guest, the channel on which its end is reported, and the folder that is removed with it."""

    pid: int
    control: Channel
    folder: str | None


class Zygote:
    """Forks guests and reaps them."""

    def __init__(self, orders: Channel, config: dict[str, Any], own_pids: int | None, base: dict[str, int]) -> None:
        self._orders, self._config, self._own_pids, self._base = orders, config, own_pids, base
        self._running: dict[int, RunningGuest] = {}
        self._folder_count = 0
        self._poll = select.poll()

    def serve(self) -> None:
        """Handle orders until the host is gone."""
        self._poll.register(self._orders, select.POLLIN)
        while True:
            for handle, _ in self._poll.poll():
                if handle in self._running:
                    self._reap(handle)
                else:
                    self._handle_order()

    def _handle_order(self) -> None:
        request, handles = self._orders.receive(MAX_DESCRIPTORS)
        if not request:
            return say_alive(Channel(handles.pop()))
        request["limits"] |= {**self._base, "threads_of_others": self._config["threads_of_others"]}
        control, payload = Channel(handles.pop()), handles.pop()
        role_count = len(handles) - request["procs_files"] - request["mount"]
        request["procs_files"] = handles[role_count : role_count + request["procs_files"]]
        request["tree"] = handles[-1] if request["mount"] else None
        try:
            self._launch(request, handles[:role_count], payload, control)
        except OSError as error:
            with suppress(OSError):
                control.send({"failed": str(error)})
        finally:
            for handle in (*handles, payload):
                os.close(handle)

    def _launch(self, request: dict[str, Any], handles: list[int], payload: int, control: Channel) -> None:
        folder = self._make_folder(request)
        child = self._fork()
        if not child:
            self._run_guest(request, handles, payload)
        pidfd = os.pidfd_open(child)
        self._running[pidfd] = RunningGuest(child, control, folder)
        self._poll.register(pidfd, select.POLLIN)
        control.send_frame(BEGUN, [pidfd])

    def _fork(self) -> int:
        if self._own_pids is None:
            return os.fork()
        kernel.unshare(kernel.CLONE_NEWPID)
        child = -1
        try:
            child = os.fork()
        finally:
            if child:
                kernel.setns(self._own_pids, kernel.CLONE_NEWPID)
        return child

    def _make_folder(self, request: dict[str, Any]) -> str | None:
        """Make the folder of a run where nothing can be mounted: outside the guest, and readable by it."""
        request["folder"] = self._config.get("empty")
        if self._own_pids is not None or not request["has_files"]:
            return None
        self._folder_count += 1
        request["folder"] = folder = os.path.join(self._config["root_folder"], str(self._folder_count))
        os.mkdir(folder, 0o755)
        return folder

    def _reap(self, pidfd: int) -> None:
        self._poll.unregister(pidfd)
        os.close(pidfd)
        pid, control, folder = self._running.pop(pidfd)
        _, status, usage = os.wait4(pid, 0)
        if folder:
            remove_folder(folder)
        with suppress(OSError):  # the host has closed its end
            control.send_frame(encode_end(os.waitstatus_to_exitcode(status), usage))
        control.close()

    def _run_guest(self, request: dict[str, Any], handles: list[int], payload: int) -> None:
        """Never returns. A failure before the guest reports its start is the sandbox's, and goes to its stderr."""
        code = guest.SETUP_FAILED
        try:
            role = ALL_ROLES[request["role"]]
            request |= guest.read_payload(payload)
            has_folder = self._own_pids is None and request["has_files"]
            request["rules"] = make_rules(self._config, request["folder"]) if has_folder else self._config["rules"]
            channel = guest.confine(request, self._config, handles, role.stays, role.forks)
            code = role.main(request, channel)
        except BaseException as error:  # noqa: BLE001 - nothing may get past this point
            os.write(2, f"{type(error).__name__}: {error}\n".encode()[:500])
        finally:
            os._exit(code)


def say_alive(control: Channel) -> None:
    """Answer a ping: the host checks whether the zygote has died."""
    with suppress(OSError):
        control.send({"alive": True})
    control.close()


def encode_end(code: int, usage: resource.struct_rusage) -> bytes:
    """Return the last frame about a guest, formatted by hand: what is done for every guest is kept short."""
    template = b'{"ended": %d, "cpu_s": %.6f, "peak_kb": %d}'
    body = template % (code, usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
    return LENGTH.pack(len(body)) + body


def list_layers(config: dict[str, Any]) -> list[str]:
    """Return which layers of isolation there are, and which are missing."""
    abi = filesystem.landlock_abi()
    layers = ["seccomp", f"landlock-{abi}" if abi else "no landlock"]
    if config["level"] == guest.NAMESPACES:
        uncounted = ["no process limit"] if config["uncounted"] else []  # the kernel never counts those of root
        return ["pid", "mount", "network", "ipc", *layers, "user" if config["mode"] == "user" else "uid", *uncounted]
    return [*layers, "uid" if config["level"] == "user" else "same user", "no namespaces", "read-only folder"]


def main(orders_handle: int, mounts_handle: int) -> None:
    """Set up isolation, report its layers, serve."""
    orders, mounts = Channel(orders_handle), Channel(mounts_handle)
    config, _ = orders.receive()
    os.environ.clear()
    raise_file_limit()
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    config["proc"] = os.open("/proc", os.O_DIRECTORY | os.O_CLOEXEC)
    own_pids = None
    if config["level"] == guest.NAMESPACES:
        enter_namespaces(config, orders, mounts)
        own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    else:
        mounts.close()
        enter_without_namespaces(config, orders)
    preload(config)
    base = guest.measure_memory()
    if own_pids is not None:
        filesystem.make_root(config)
    prepare(config)
    orders.send({"ready": list_layers(config)})
    with suppress(EOFError):  # the host is gone
        Zygote(orders, config, own_pids, base).serve()
