"""The forked child: it sets up its isolation, reports that it has started, and runs its code."""

import ast
import atexit
import builtins
import fcntl
import io
import json
import os
import resource
import signal
import sys
import traceback
import types
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from typing import Any

from . import filesystem, kernel, seccomp
from .channel import Channel, encode_frame
from .plain_data import LARGE

NAMESPACES = "namespaces"
SETUP_FAILED = 97
MAX_FILES = 4096
MAX_SIGNALS = 256
CHANNEL = 3
STARTED = {"started": True}
STARTED_FRAME = encode_frame(STARTED)
MAX_OPEN_FILES = 64
HIGH_DESCRIPTOR = MAX_OPEN_FILES - 4
"""From here on descriptors of ours are out of the way of a program's own."""
NO_CORE = 1
"""Too small for any core file, and the one size that also keeps the kernel from starting a core handler."""
BOUNDLESS = 1 << 46
COMMON_LIMITS = {
    resource.RLIMIT_AS: BOUNDLESS,
    resource.RLIMIT_DATA: BOUNDLESS,
    resource.RLIMIT_CPU: BOUNDLESS,
    resource.RLIMIT_CORE: NO_CORE,
    resource.RLIMIT_MEMLOCK: 0,
    resource.RLIMIT_MSGQUEUE: 0,
    resource.RLIMIT_SIGPENDING: MAX_SIGNALS,
}
"""Limits of all guests and their zygote; limits of a single guest are lower, or not enforced by the kernel."""
MAIN_ATTRIBUTES: dict[str, Any] = {"__builtins__": builtins, "__cached__": None}
BOM = "\ufeff"
"""Some editors begin a file with it; Python skips it there."""
MAX_MESSAGE_CHARS, MAX_TRACEBACK_CHARS = 2000, 4000
_decode = json.JSONDecoder().decode
OUT_OF_MEMORY = MemoryError
"""The real class: a program may give its name to another one."""


def confine(request: dict[str, Any], config: dict[str, Any], handles: list[int], stays: bool, forks: bool) -> Channel:
    """Set up all limits and isolation, from the outside in; then tell the host to start its clock.

    The zygote has done what can be done once for all guests: the rules, the filters, and a ban on new privileges.
    """
    limits, has_namespaces = request["limits"], config["level"] == NAMESPACES
    if request.get("core") is not None:
        with suppress(OSError):  # that core may be gone: it only affects speed
            os.sched_setaffinity(0, [request["core"]])
    if limits["processes"] > 1 or config["grouped"]:
        join_control_groups(request["procs_files"], config["proc"])
    if has_namespaces:
        enter_namespaces(config, stays)
        if request["tree"] is not None:
            filesystem.mount_host_folder(request["tree"])
        else:
            filesystem.mount_private_folder(limits["files_mb"], MAX_FILES)
            write_files(request["files"], filesystem.WORKING_FOLDER)
    else:
        write_files(request["files"], request["folder"])
        os.chdir(request["folder"])
    if request["rules"] is not None:
        filesystem.restrict_self(request["rules"])
    arrange_descriptors(handles)
    if forks:
        fork_first_process()
    set_rlimits(limits, stays, config["hard"])
    drop_privileges(config["mode"], request["uid"])
    # An ordinary user can read how a fork ended only if it is dumpable (there is no core file nevertheless).
    kernel.prctl(kernel.PR_SET_DUMPABLE, int(forks and config["mode"] == "user"))
    if not has_namespaces:
        if request["role"] == "inputs":  # nothing can be written here, and the filter denies such files
            request["stdin_file"] = fcntl.fcntl(os.memfd_create("stdin"), fcntl.F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR)
        ignore_end_signals()
        die_with_zygote(config["zygote"])
    filter = (
        seccomp.cached_filter(limits["processes"] == 1, forks, request["tree"] is not None) if has_namespaces else None
    )
    return start_behind_filter(filter or seccomp.make_own_filter(True, os.getpid()), forks)


def start_behind_filter(filter: kernel.SeccompFilter, forks: bool) -> Channel:
    """Install the filter, the last step, and report the start. The host answers the filter's questions: its descriptor
    is sent with the report."""
    gate = filter.install(forks)
    channel = Channel(CHANNEL)
    if gate:
        channel.send(STARTED, gate)
        os.close(gate[0])
    else:
        os.write(CHANNEL, STARTED_FRAME)
    return channel


def join_control_groups(procs_files: list[int], proc: int) -> None:
    """Join this guest's own control groups, if there are any; and be the first to be killed when memory runs out."""
    for file in procs_files:
        os.write(file, b"0")
    os.write(os.open("self/oom_score_adj", os.O_WRONLY, dir_fd=proc), b"1000")  # all descriptors are closed later


def ignore_end_signals() -> None:
    """Ignore what a scheduler sends to all processes of a job, as the first process of a pid namespace does: code that
    ends by such a signal would look as if it had crashed."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


def die_with_zygote(zygote: int) -> None:
    """Have the kernel kill us when the zygote dies, since no pid namespace does; the filter forbids to change that."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != zygote:
        os._exit(1)


def enter_namespaces(config: dict[str, Any], stays: bool) -> None:
    """Enter a mount namespace; a guest that stays and cannot have its own uid also gets a user namespace.

    The kernel counts processes by user and user namespace: without it, sessions would use up each other's limit. The
    IPC namespace is the zygote's: the filter denies its use to all guests.
    """
    own_user = stays and config["mode"] == "user"
    kernel.unshare(kernel.CLONE_NEWNS | (kernel.CLONE_NEWUSER if own_user else 0))
    if own_user:
        kernel.map_root(0, 0, config["proc"])
        kernel.drop_bounding_set()  # a new user namespace begins with a full one


def fork_first_process() -> None:
    """Continue in a child. The parent is the pid namespace's first process: it has no descriptors and reaps orphans.

    It cannot be killed from inside, and everything ends with it; so the process that holds the state can change.
    """
    if not os.fork():
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # with a handler this one signal would be delivered
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    kernel.close_from(0)
    try:
        while True:
            os.wait()
    except ChildProcessError:
        os._exit(0)


def drop_privileges(mode: str, uid: int) -> None:
    """Drop all capabilities (the zygote made it impossible to regain any) and, for root, become a user without
    files."""
    if mode == "root":
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)  # this drops every capability
    else:
        kernel.drop_capabilities()


def read_payload(payload: int) -> dict[str, Any]:
    """Read what is for this guest alone; the zygote did not read it: every later guest has a copy of its memory."""
    request: dict[str, Any] = _decode(os.pread(payload, os.fstat(payload).st_size, 0).decode())
    return request


def write_files(files: dict[str, str], folder: str) -> None:
    """Write the files of a run to its folder; the host has checked that their names do not lead out."""
    for name, content in files.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), mode=0o777, exist_ok=True)
        with open(path, "wb") as file:
            file.write(bytes.fromhex(content))
        os.chmod(path, 0o666)


def arrange_descriptors(handles: list[int]) -> None:
    """Give stdin, stdout, stderr, the channel and further descriptors the first numbers, and close all others."""
    if min(handles) < len(handles):
        first_free = max([*handles, len(handles)]) + 1
        handles = [fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, first_free) for handle in handles]
    for number, handle in enumerate(handles):
        os.dup2(handle, number, number < CHANNEL)
    kernel.close_from(len(handles))


def read_hard_limits() -> dict[int, int]:
    """Return the hard limits that we inherited, which cannot be raised here."""
    kinds = {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
    return {what: limit for what in kinds if (limit := resource.getrlimit(what)[1]) != resource.RLIM_INFINITY}


def set_rlimits(limits: dict[str, Any], stays: bool, hard: dict[int, int]) -> None:
    """Set the kernel's limits for this guest."""
    memory_kind, size = find_memory_bound(limits)
    bounds = {
        memory_kind: size,
        resource.RLIMIT_FSIZE: limits["files_mb"] << 20,
        resource.RLIMIT_NOFILE: MAX_OPEN_FILES,
        resource.RLIMIT_NPROC: limits["threads"] + limits.get("threads_of_others", 0),
    }
    if not stays:
        bounds[resource.RLIMIT_CPU] = int(limits["seconds"]) + 2
    lower_limits(bounds, hard)


def lower_limits(bounds: dict[int, int], hard: dict[int, int]) -> None:
    """Set soft and hard limits alike, so that none can be raised."""
    for what, value in bounds.items():
        limit = min(value, hard[what]) if what in hard else value
        resource.setrlimit(what, (limit, limit))


def measure_memory() -> dict[str, int]:
    """Return the address space and the private memory of this interpreter; a run's limit is added to them."""
    with open("/proc/self/statm") as file:
        fields = [int(pages) * resource.getpagesize() for pages in file.read().split()]
    return {"base_bytes": fields[0], "base_data": fields[5]}


def find_memory_bound(limits: dict[str, Any]) -> tuple[int, int]:
    """Return which limit applies: on the address space or, where a group counts what is used, on private memory."""
    extra_bytes, spare_mb = limits["memory_mb"] << 20, limits["spare_mb"]
    if spare_mb is None:
        return resource.RLIMIT_AS, limits["base_bytes"] + extra_bytes
    return resource.RLIMIT_DATA, limits["base_data"] + extra_bytes + (spare_mb << 20)


def run_code(code: str, module_globals: dict[str, Any], keep: int) -> dict[str, Any]:
    """Run code whose last expression has a value, and return a report."""
    return make_report(lambda: evaluate_last(code, module_globals, keep))


def make_report(work: Callable[[], str | None]) -> dict[str, Any]:
    """Call something that runs untrusted code; an exception becomes a report, never a crash of the guest."""
    try:
        return {"value": work()}
    except SystemExit as exit:
        return {"exit": find_exit_code(exit.code)}
    except BaseException as error:  # noqa: BLE001 - whatever a program raises is its result
        return {"error": describe_error(error), "memory": issubclass(type(error), OUT_OF_MEMORY)}
    finally:
        flush_streams()


def find_exit_code(value: object) -> int:
    """Return the exit code for a value passed to exit, as Python does: a text is printed and means 1."""
    if value is None:
        return 0
    if issubclass(type(value), int):
        code = int.__index__(value)  # type: ignore[arg-type]
        return (code if -LARGE <= code < LARGE else -1) & 0xFF
    with suppress(BaseException):  # its __str__ may do anything
        print(value, file=sys.stderr)  # noqa: T201 - the program's own message
    return 1


def run_program(work: Callable[[], str | None]) -> dict[str, Any]:
    """Run a whole program, and end it as Python does: wait for its threads, then run its exit functions."""
    report = make_report(work)
    make_report(finish_threads)
    return report


def finish_threads() -> None:
    """Wait for threads that are not daemons, then call the registered exit functions."""
    if threading := sys.modules.get("threading"):
        for end in reversed(getattr(threading, "_threading_atexits", ())):  # pools end their threads
            end()
        this = threading.current_thread()
        while others := [thread for thread in threading.enumerate() if thread is not this and not thread.daemon]:
            others[0].join()
    atexit._run_exitfuncs()


def evaluate_last(code: str, module_globals: dict[str, Any], keep: int) -> str | None:
    """Return the repr of the last expression, cut one character beyond what is kept, which shows that it was longer."""
    tree = ast.parse(code.removeprefix(BOM), "<code>")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<code>", "exec"), module_globals)
    if not isinstance(last, ast.Expr):
        return None
    value = eval(compile(ast.Expression(last.value), "<code>", "eval"), module_globals)
    return None if value is None else cut_text(repr(value), keep + 1)


def cut_text(text: str, length: int) -> str:
    """Return the beginning of a text, even of one whose class overrides indexing."""
    return str.__getitem__(text, slice(length))


def describe_error(error: BaseException) -> dict[str, Any]:
    """Return an exception as plain data, its traceback from the program's own lines on."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename != "<code>":
        trace = trace.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, trace))
        message = cut_text(str(error), MAX_MESSAGE_CHARS)
    except BaseException:  # noqa: BLE001 - its __str__ may do anything
        text = message = "the exception cannot be shown"
    return {
        "type": type.__dict__["__name__"].__get__(type(error)),
        "message": message,
        "traceback": text[-MAX_TRACEBACK_CHARS:],
    }


def make_globals(name: str = "__main__", folder: str = filesystem.WORKING_FOLDER) -> dict[str, Any]:
    """Return the globals of a program, also those of its `__main__` module, as Python makes them for a file; another
    `name` changes `__name__`."""
    main, file = types.ModuleType(name), f"{name.strip('_')}.py"
    path = f"{folder}/{file}"
    main.__dict__.update(MAIN_ATTRIBUTES, __file__=path, __loader__=SourceFileLoader(name, path))
    if sys.version_info < (3, 14):  # later ones make it when it is read
        main.__annotations__ = {}
    sys.argv, sys.orig_argv = [file], [sys.executable, file]
    sys.modules["__main__"] = sys.modules[name] = main
    return main.__dict__


def add_site_builtins() -> None:
    """Add what programs expect and -S leaves out: `exit`, `quit`, `help` and others."""
    import site  # only the zygote needs it

    for add in (site.setquit, site.setcopyright, site.sethelper):
        add()


class WholeWriter(io.FileIO):
    """Writes all of it to a descriptor, also where a signal interrupts that."""

    def write(self, data: Any) -> int:
        """Return the number of bytes."""
        size = super().write(data)
        if size < (view := memoryview(data)).nbytes:
            view = view.cast("B")  # an array counts its items
            while size < view.nbytes:
                size += super().write(view[size:])
        return size


def open_stream(fd: int, name: str, mode: str, errors: str, *, through: bool = False) -> io.TextIOWrapper:
    """Open a standard stream as Python does at its start, with all attributes: programs build their own from them.

    `through`: every text is written at once, as with `python -u`.
    """
    raw = (WholeWriter if through else io.FileIO)(fd, mode, closefd=False)
    raw.name = f"<{name}>"
    buffer = raw if through else io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
    stream = io.TextIOWrapper(buffer, "utf-8", errors, "\n", line_buffering=fd == 2, write_through=through)
    stream.mode = mode  # type: ignore[misc]
    return stream


def write_at_once() -> None:
    """Open stdout and stderr so that what was printed survives a kill, even without a newline."""
    sys.stdout = sys.__stdout__ = open_stream(1, "stdout", "w", "surrogateescape", through=True)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = open_stream(2, "stderr", "w", "backslashreplace", through=True)  # type: ignore[misc]


def flush_streams() -> None:
    """Write out what was printed, even if the program replaced or broke its streams."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            stream.flush()  # type: ignore[union-attr]
        except BaseException:  # noqa: BLE001 - it may have put anything there
            continue
