"""The forked child: shuts every door behind itself, reports that it starts, and runs the code it was given."""

import ast
import atexit
import builtins
import fcntl
import json
import os
import resource
import signal
import sys
import traceback
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from . import filesystem, kernel, seccomp
from .channel import Channel, encode_frame
from .plain_data import LARGE

NAMESPACES = "namespaces"
MAX_FILES = 4096
MAX_SIGNALS = 256
CHANNEL = 3
STARTED = {"started": True}
STARTED_FRAME = encode_frame(STARTED)
MAX_OPEN_FILES = 64
NO_CORE = 1
"""Too small for any core, and the one size that also keeps the kernel from starting a program to take it."""
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
"""Limits that all guests have, and their zygote too; what bounds a guest lies below them, or is not the kernel's."""
BOM = "\ufeff"
"""What some editors begin a file with; Python skips it there."""
MAX_MESSAGE_CHARS, MAX_TRACEBACK_CHARS = 2000, 4000
_decode = json.JSONDecoder().decode
OUT_OF_MEMORY = MemoryError
"""The real one: a program may call its own classes so."""


def confine(request: dict[str, Any], config: dict[str, Any], handles: list[int], stays: bool, forks: bool) -> Channel:
    """All limits and walls, from the outside in; then the host is told to start its clock.

    The zygote has made for all what can be made once: the rules, the filters, and that no privileges can be gained.
    """
    limits, apart = request["limits"], config["tier"] == NAMESPACES
    if request.get("core") is not None:
        with suppress(OSError):  # that core may be gone: it matters to nobody but the clock
            os.sched_setaffinity(0, [request["core"]])
    if limits["processes"] > 1 or config["grouped"]:
        join_control_groups(request["procs_files"], config["proc"])
    if apart:
        enter_namespaces(config, stays)
        if request["tree"] is not None:
            filesystem.mount_host_folder(request["tree"])
        else:
            filesystem.mount_private_folder(limits["files_mb"], MAX_FILES)
            write_files(request["files"], filesystem.WORKING_FOLDER)
    else:
        write_files(request["files"], request["box"])
        os.chdir(request["box"])
    if request["rules"] is not None:
        filesystem.restrict_self(request["rules"])
    arrange_descriptors(handles)
    if forks:
        fork_first_process()
    set_rlimits(limits, stays, config["hard"])
    drop_privileges(config["mode"], request["uid"])
    # How a fork ended, an ordinary user may only ask of the kernel if it is dumpable (it has no core all the same).
    kernel.prctl(kernel.PR_SET_DUMPABLE, int(forks and config["mode"] == "user"))
    if not apart:
        die_with_zygote(config["zygote"])
    filter = seccomp.cached_filter(limits["processes"] == 1, forks, request["tree"] is not None) if apart else None
    return start_behind_filter(filter or seccomp.make_own_filter(True, os.getpid()), forks)


def start_behind_filter(filter: kernel.SeccompFilter, forks: bool) -> Channel:
    """The last door; what a filter asks is answered by the host, who gets the line for it with the word."""
    gate = filter.install(forks)
    channel = Channel(CHANNEL)
    if gate:
        channel.send(STARTED, gate)
        os.close(gate[0])
    else:
        os.write(CHANNEL, STARTED_FRAME)
    return channel


def join_control_groups(procs_files: list[int], proc: int) -> None:
    """Join control groups of one's own, if there are any; and where memory runs out, be the one to go."""
    for file in procs_files:
        os.write(file, b"0")
    os.write(os.open("self/oom_score_adj", os.O_WRONLY, dir_fd=proc), b"1000")  # all descriptors are closed later


def die_with_zygote(zygote: int) -> None:
    """No pid namespace ends us with the zygote, so the kernel has to; the filter sees to it that it stays so."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != zygote:
        os._exit(1)


def enter_namespaces(config: dict[str, Any], stays: bool) -> None:
    """Mounts of one's own; who stays, and cannot have a uid of its own, gets a user namespace of its own.

    The kernel counts processes by user and user namespace: without it, sessions would use up each other's. The IPC
    namespace is the zygote's: the filter lets nobody use it.
    """
    own_user = stays and config["mode"] == "user"
    kernel.unshare(kernel.CLONE_NEWNS | (kernel.CLONE_NEWUSER if own_user else 0))
    if own_user:
        kernel.map_root(0, 0, config["proc"])
        kernel.drop_bounding_set()  # a new user namespace begins with a full one


def fork_first_process() -> None:
    """Go on in a child. What stays behind is the first of the pid namespace: it holds nothing and reaps orphans.

    It cannot be killed from inside, and with it everything ends; the process that holds the state may so change.
    """
    if not os.fork():
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a handler would let this one signal through
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    kernel.close_from(0)
    try:
        while True:
            os.wait()
    except ChildProcessError:
        os._exit(0)


def drop_privileges(mode: str, uid: int) -> None:
    """No capability (the zygote saw to it that none comes back) and, for root, a user that owns nothing."""
    if mode == "root":
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)  # which takes every capability with it
    else:
        kernel.drop_capabilities()


def read_payload(payload: int) -> dict[str, Any]:
    """What is for this guest alone: it came past the zygote unread, whose memory every later guest has a copy of."""
    told: dict[str, Any] = _decode(os.pread(payload, os.fstat(payload).st_size, 0).decode())
    return told


def write_files(files: dict[str, str], box: str) -> None:
    """The files of a run, in its box; the host has seen to it that their names do not lead out."""
    for name, content in files.items():
        path = os.path.join(box, name)
        os.makedirs(os.path.dirname(path), mode=0o777, exist_ok=True)
        with open(path, "wb") as file:
            file.write(bytes.fromhex(content))
        os.chmod(path, 0o666)


def arrange_descriptors(handles: list[int]) -> None:
    """stdin, stdout, stderr, the channel and what else was given get the first descriptors; all others are closed."""
    if min(handles) < len(handles):
        above = max([*handles, len(handles)]) + 1
        handles = [fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, above) for handle in handles]
    for place, handle in enumerate(handles):
        os.dup2(handle, place, place < CHANNEL)
    kernel.close_from(len(handles))


def read_hard_limits() -> dict[int, int]:
    """What whoever started us allows, which nobody here can raise."""
    kinds = {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
    return {what: limit for what in kinds if (limit := resource.getrlimit(what)[1]) != resource.RLIM_INFINITY}


def set_rlimits(limits: dict[str, Any], stays: bool, hard: dict[int, int]) -> None:
    """The kernel's own limits."""
    kind, size = find_memory_bound(limits)
    bounds = {
        kind: size,
        resource.RLIMIT_FSIZE: limits["files_mb"] << 20,
        resource.RLIMIT_NOFILE: MAX_OPEN_FILES,
        resource.RLIMIT_NPROC: limits["threads"] + limits.get("threads_of_others", 0),
    }
    if not stays:
        bounds[resource.RLIMIT_CPU] = int(limits["seconds"]) + 2
    lower_limits(bounds, hard)


def lower_limits(bounds: dict[int, int], hard: dict[int, int]) -> None:
    """Soft and hard alike, so that none can be raised."""
    for what, value in bounds.items():
        least = min(value, hard[what]) if what in hard else value
        resource.setrlimit(what, (least, least))


def measure_memory() -> dict[str, int]:
    """The address space and the private memory of this interpreter, which a run's limit comes on top of."""
    with open("/proc/self/statm") as file:
        fields = [int(pages) * resource.getpagesize() for pages in file.read().split()]
    return {"base_bytes": fields[0], "base_data": fields[5]}


def find_memory_bound(limits: dict[str, Any]) -> tuple[int, int]:
    """On the address space; where a group counts what is used, on private memory, and the rest is reserved freely."""
    allowed, spare_mb = limits["memory_mb"] << 20, limits["spare_mb"]
    if spare_mb is None:
        return resource.RLIMIT_AS, limits["base_bytes"] + allowed
    return resource.RLIMIT_DATA, limits["base_data"] + allowed + (spare_mb << 20)


def run_code(code: str, space: dict[str, Any], keep: int) -> dict[str, Any]:
    """Run code whose last expression has a value."""
    return make_report(lambda: evaluate_last(code, space, keep))


def make_report(work: Callable[[], str | None]) -> dict[str, Any]:
    """Do something that runs untrusted code; what that raises is a report, never a crash of ours."""
    try:
        return {"value": work()}
    except SystemExit as exit:
        return {"exit": find_exit_code(exit.code)}
    except BaseException as error:  # noqa: BLE001 - whatever a program raises is its result
        return {"error": describe_error(error), "memory": issubclass(type(error), OUT_OF_MEMORY)}
    finally:
        flush_streams()


def find_exit_code(value: object) -> int:
    """What a program asked to exit with, as Python has it; words are said, and mean 1."""
    if value is None:
        return 0
    if issubclass(type(value), int):
        code = int.__index__(value)  # type: ignore[arg-type]
        return (code if -LARGE <= code < LARGE else -1) & 0xFF
    with suppress(BaseException):  # its __str__ may do anything
        print(value, file=sys.stderr)  # noqa: T201 - the program's own words
    return 1


def run_program(work: Callable[[], str | None]) -> dict[str, Any]:
    """A whole program: it ends as Python ends it, when its threads have ended and what it left to the exit is done."""
    report = make_report(work)
    make_report(finish_threads)
    return report


def finish_threads() -> None:
    """Wait for the threads that are to be waited for, then call what was left to the exit."""
    if threading := sys.modules.get("threading"):
        for ends in reversed(getattr(threading, "_threading_atexits", ())):  # pools let their threads go
            ends()
        this = threading.current_thread()
        while others := [thread for thread in threading.enumerate() if thread is not this and not thread.daemon]:
            others[0].join()
    atexit._run_exitfuncs()


def evaluate_last(code: str, space: dict[str, Any], keep: int) -> str | None:
    """The repr of the last expression; one character more than is kept tells that there was more."""
    tree = ast.parse(code.removeprefix(BOM), "<code>")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<code>", "exec"), space)
    if not isinstance(last, ast.Expr):
        return None
    value = eval(compile(ast.Expression(last.value), "<code>", "eval"), space)
    return None if value is None else cut_text(repr(value), keep + 1)


def cut_text(text: str, most: int) -> str:
    """The head of a text, even of one whose class has ideas of its own."""
    return str.__getitem__(text, slice(most))


def describe_error(error: BaseException) -> dict[str, Any]:
    """An exception as plain data, its traceback from the program's own lines on."""
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


def make_globals(name: str = "__main__") -> dict[str, Any]:
    """The globals of a program, which are also its `__main__` module's; under another name it is not told so."""
    main = types.ModuleType(name)
    main.__dict__.update(__builtins__=__builtins__, __file__=f"{filesystem.WORKING_FOLDER}/{name.strip('_')}.py")
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]  # programs expect what -S leaves out
    sys.modules["__main__"] = sys.modules[name] = main
    return main.__dict__


def flush_streams() -> None:
    """What was printed goes out, whatever became of the streams."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            stream.flush()  # type: ignore[union-attr]
        except BaseException:  # noqa: BLE001 - it may have put anything there
            continue
