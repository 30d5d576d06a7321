"""The zygote: a clean interpreter behind walls that forks guests and reports how each one ended.

Started by the host (`python -c "from inner import zygote; zygote.main(...)"`) with nothing in its environment but the
seed of all hashes, never forked from it: a set has the same order in every sandbox, and the same code the same verdict.
What it is told and what it answers is described in `channel.py`. Its tier says what isolation is made of: `namespaces`;
or, where there are none, a `user` for each guest, or nothing but Landlock (`same-user`).
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
SETUP_FAILED = 97
OLDEST_LANDLOCK = {"user": 1, "same-user": 6}
"""Among processes of one user, only from version 6 on does it keep signals and abstract sockets apart."""
WARM_UP_RUNS = 20
THREADS_OF_OTHERS = 4096
"""The kernel counts threads by user: where guests have the host's, its own must find room."""


def enter_namespaces(config: dict[str, Any], orders: Channel, mounts: Channel) -> None:
    """New namespaces around us; the first process of the pid namespace goes on as the zygote, its launcher stays."""
    flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWPID
    user, group = os.getuid(), os.getgid()
    config["uncounted"] = user == 0 and config["mode"] == "user"
    kernel.unshare(flags | (kernel.CLONE_NEWUSER if config["mode"] == "user" else 0))
    if config["mode"] == "user":
        kernel.map_root(user, group, config["proc"])
    socket.sethostname("sandbox")
    kernel.mount(
        None, "/", None, kernel.MS_REC | kernel.MS_SLAVE
    )  # what the host mounts is seen, and nothing goes back
    launched = os.fork()
    if launched:
        orders.close()  # so that the host hears at once when the zygote is gone
        filesystem.serve_mounts(mounts, launched, config["mode"] == "root")
        os._exit(0)
    mounts.close()
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    kernel.unshare(kernel.CLONE_NEWNS)
    os.setsid()


def enter_without_namespaces(config: dict[str, Any], orders: Channel) -> None:
    """Without namespaces: the zygote goes on in a child, and whoever is left of it when it ends comes to us."""
    abi, least = filesystem.landlock_abi(), OLDEST_LANDLOCK[config["tier"]]
    if abi < least:
        raise kernel.Unsupported(f"Landlock of version {least} is needed, and the kernel has {abi or 'none'}")
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    ends = {signal.SIGTERM, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGTERM)
    launcher, launched = os.getpid(), os.fork()
    if launched:
        orders.close()
        signal.sigwait(ends)
        kill_and_reap_all(launched)
        remove_folder(config["stage"])
        os._exit(0)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ends)
    os.chmod(config["stage"], 0o711)
    config["empty"] = os.path.join(config["stage"], "empty")
    os.mkdir(config["empty"], 0o755)


def kill_and_reap_all(zygote: int) -> None:
    """The zygote and, since the kernel ends its guests with it and they come to us, those too."""
    with suppress(ProcessLookupError):
        os.kill(zygote, signal.SIGKILL)
    with suppress(ChildProcessError):
        while True:
            os.wait()


def remove_folder(folder: str) -> None:
    """Remove a folder and what is in it, as far as that goes."""
    for path, folders, files in os.walk(folder, topdown=False):
        with suppress(OSError):
            for name in files:
                os.unlink(os.path.join(path, name))
            for name in folders:
                os.rmdir(os.path.join(path, name))
    with suppress(OSError):
        os.rmdir(folder)


def preload(config: dict[str, Any]) -> None:
    """Import what runs will want, so that it costs them nothing, and keep it out of the collector's way."""
    sys.path[:] = [p for p in sys.path if p != config["here"]] + config["paths"]
    for name in config["packages"]:
        __import__(name)
    import encodings.idna  # noqa: F401 - found late and oddly otherwise

    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # what was printed survives a kill
    warm_up()
    gc.collect()
    gc.freeze()


def warm_up() -> None:
    """Run something as guests do: the interpreter then knows its way, and a fork does not have to write that down."""
    stdout = os.dup(1)
    nowhere = os.open("/dev/null", os.O_WRONLY)
    os.dup2(nowhere, 1)
    letter = os.memfd_create("letter")
    os.write(letter, b'{"code": "", "files": {}}')
    for _ in range(WARM_UP_RUNS):
        guest.read_payload(letter)
        encode_frame(guest.run_code("print(1 + 1)\n1 + 1", guest.make_globals(), 1 << 10))
        encode_frame(guest.run_code("1 / 0", guest.make_globals(), 1 << 10))
    os.dup2(stdout, 1)
    for handle in (stdout, nowhere, letter):
        os.close(handle)


def raise_file_limit() -> None:
    """Two descriptors for every guest may be more than the usual limit allows."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def prepare(config: dict[str, Any]) -> None:
    """Done once here, so that no guest has to: what it inherits, and what is in its memory already."""
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
    config["others"] = THREADS_OF_OTHERS if config["tier"] == "same-user" else 0


def make_rules(config: dict[str, Any], folder: str | None) -> int:
    """Landlock's rules for a guest: with a root of one's own, for all there is in it; else for a box to read."""
    if folder is None:
        return filesystem.make_ruleset(config["places"] + ["/dev"], [filesystem.HOME_FOLDER, "/dev/null"])
    devices = [f"/dev/{device}" for device in filesystem.DEVICES]
    return filesystem.make_ruleset([*filesystem.list_visible_paths(config), *devices, folder], ["/dev/null"])


class RunningGuest(NamedTuple):
    """A guest under way, the line on which its end will be told, and the folder that ends with it."""

    pid: int
    control: Channel
    folder: str | None


class Zygote:
    """Forks guests and buries them."""

    def __init__(self, orders: Channel, config: dict[str, Any], own_pids: int | None, base: dict[str, int]) -> None:
        self._orders, self._config, self._own_pids, self._base = orders, config, own_pids, base
        self._running: dict[int, RunningGuest] = {}
        self._boxes = 0
        self._poll = select.poll()

    def serve(self) -> None:
        """Until the host is gone."""
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
        request["limits"] |= {**self._base, "threads_of_others": self._config["others"]}
        control, letter = Channel(handles.pop()), handles.pop()
        given = len(handles) - request["procs_files"] - request["mount"]
        request["procs_files"] = handles[given : given + request["procs_files"]]
        request["tree"] = handles[-1] if request["mount"] else None
        try:
            self._launch(request, handles[:given], letter, control)
        except OSError as error:
            with suppress(OSError):
                control.send({"failed": str(error)})
        finally:
            for handle in (*handles, letter):
                os.close(handle)

    def _launch(self, request: dict[str, Any], handles: list[int], letter: int, control: Channel) -> None:
        box = self._make_folder(request)
        child = self._fork()
        if not child:
            self._run_guest(request, handles, letter)
        pidfd = os.pidfd_open(child)
        self._running[pidfd] = RunningGuest(child, control, box)
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
        """Without mounts, the folder of a run is made out here, and is there to be read."""
        request["box"] = self._config.get("empty")
        if self._own_pids is not None or not request["filled"]:
            return None
        self._boxes += 1
        request["box"] = box = os.path.join(self._config["stage"], str(self._boxes))
        os.mkdir(box, 0o755)
        return box

    def _reap(self, pidfd: int) -> None:
        self._poll.unregister(pidfd)
        os.close(pidfd)
        pid, control, box = self._running.pop(pidfd)
        _, status, usage = os.wait4(pid, 0)
        if box:
            remove_folder(box)
        with suppress(OSError):  # nobody wants to know
            control.send_frame(encode_end(os.waitstatus_to_exitcode(status), usage))
        control.close()

    def _run_guest(self, request: dict[str, Any], handles: list[int], letter: int) -> None:
        """Never returns. A failure before it says that it starts is the sandbox's, and is told on its stderr."""
        code = SETUP_FAILED
        try:
            role = ALL_ROLES[request["role"]]
            request |= guest.read_payload(letter)
            own_box = self._own_pids is None and request["filled"]
            request["rules"] = make_rules(self._config, request["box"]) if own_box else self._config["rules"]
            channel = guest.confine(request, self._config, handles, role.stays, role.forks)
            code = role.main(request, channel)
        except BaseException as error:  # noqa: BLE001 - nothing may get past this point
            os.write(2, f"{type(error).__name__}: {error}\n".encode()[:500])
        finally:
            os._exit(code)


def say_alive(control: Channel) -> None:
    """Somebody wants to know whether it was we who died."""
    with suppress(OSError):
        control.send({"alive": True})
    control.close()


def encode_end(code: int, usage: resource.struct_rusage) -> bytes:
    """The last frame about a guest: put together by hand, as everything that is done for every guest is kept short."""
    told = b'{"ended": %d, "cpu_s": %.6f, "peak_kb": %d}'
    body = told % (code, usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
    return LENGTH.pack(len(body)) + body


def list_layers(config: dict[str, Any]) -> list[str]:
    """Which walls there are, and which there are not."""
    abi = filesystem.landlock_abi()
    found = ["seccomp", f"landlock-{abi}" if abi else "no landlock"]
    if config["tier"] == guest.NAMESPACES:
        uncounted = ["no process limit"] if config["uncounted"] else []  # the kernel never counts those of root
        return ["pid", "mount", "network", "ipc", *found, "user" if config["mode"] == "user" else "uid", *uncounted]
    return [*found, "uid" if config["tier"] == "user" else "same user", "no namespaces", "read-only folder"]


def main(orders_handle: int, mounts_handle: int) -> None:
    """Come up, say what walls there are, serve."""
    orders, mounts = Channel(orders_handle), Channel(mounts_handle)
    config, _ = orders.receive()
    os.environ.clear()
    raise_file_limit()
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    config["proc"] = os.open("/proc", os.O_DIRECTORY | os.O_CLOEXEC)
    own_pids = None
    if config["tier"] == guest.NAMESPACES:
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
