"""The forked child: shuts every door behind itself, says that it starts, and runs the code it was given."""

import ast
import fcntl
import os
import resource
import signal
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

from . import filters, kernel, walls
from .channel import Channel

FILES_MOST = 4096
CHANNEL = 3
NO_CORE = 1
"""Too small for any core, and the one size that also keeps the kernel from starting a program to take it."""
MESSAGE_MOST, TRACEBACK_MOST = 2000, 4000


def confine(request: dict[str, Any], config: dict[str, Any], handles: list[int], stays: bool, forks: bool) -> Channel:
    """All limits and walls, from the outside in; then the host is told to start its clock."""
    limits = request["limits"]
    namespaces(config, stays)
    walls.private_box(limits["files_mb"], FILES_MOST)
    write_files(request["files"])
    arrange(handles)
    if forks:
        leave_a_first_process()
    rlimits(limits, stays)
    if walls.landlock_abi():
        walls.landlock(config["places"] + ["/dev"], [walls.BOX, "/dev/null"])
    become_nobody(config["mode"], request["uid"])
    # How a fork ended, an ordinary user may only ask of the kernel if it is dumpable (it has no core all the same).
    kernel.prctl(kernel.PR_SET_DUMPABLE, int(forks and config["mode"] == "user"))
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    gate = kernel.seccomp_filter(filters.program(limits["processes"] == 1, forks), listen=forks)
    channel = Channel(CHANNEL)
    channel.send({"started": True}, gate)
    for handle in gate:
        os.close(handle)
    return channel


def namespaces(config: dict[str, Any], stays: bool) -> None:
    """Mounts and IPC of one's own; who stays, and cannot have a uid of its own, gets a user namespace of its own.

    The kernel counts processes by user and user namespace: without it, sessions would use up each other's.
    """
    apart = stays and config["mode"] == "user"
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | (kernel.CLONE_NEWUSER if apart else 0))
    if apart:
        kernel.map_root(0, 0, config["proc"])
        kernel.drop_bounding_set()  # a new user namespace begins with a full one


def leave_a_first_process() -> None:
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


def become_nobody(mode: str, uid: int) -> None:
    """No capability (the zygote saw to it that none comes back), no group, and for root a user that owns nothing."""
    if mode == "root":
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    kernel.drop_capabilities()


def write_files(files: dict[str, str]) -> None:
    """The files of a run, in its box; the host has seen to it that their names do not lead out."""
    for name, content in files.items():
        path = os.path.join(walls.BOX, name)
        os.makedirs(os.path.dirname(path), mode=0o777, exist_ok=True)
        with open(path, "wb") as file:
            file.write(bytes.fromhex(content))
        os.chmod(path, 0o666)


def arrange(handles: list[int]) -> None:
    """stdin, stdout, stderr, the channel and what else was given get the first descriptors; all others are closed."""
    above = max([*handles, len(handles)]) + 1
    high = [fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, above) for handle in handles]
    for place, handle in enumerate(high):
        os.dup2(handle, place, inheritable=place < CHANNEL)
    kernel.close_from(len(handles))


def rlimits(limits: dict[str, Any], stays: bool) -> None:
    """The kernel's own limits; soft and hard alike, so that none can be raised."""
    cpu = resource.RLIM_INFINITY if stays else int(limits["seconds"]) + 2
    for what, value in (
        (resource.RLIMIT_AS, int(limits["base_bytes"]) + (limits["memory_mb"] << 20)),
        (resource.RLIMIT_CORE, NO_CORE),
        (resource.RLIMIT_FSIZE, limits["files_mb"] << 20),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_NPROC, limits["threads"]),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_CPU, cpu),
    ):
        resource.setrlimit(what, (value, value))


def run(code: str, space: dict[str, Any], keep: int) -> dict[str, Any]:
    """Run code whose last expression has a value."""
    return reported(lambda: last_value(code, space, keep))


def reported(play: Callable[[], str | None]) -> dict[str, Any]:
    """Do something that runs untrusted code; what that raises is a report, never a crash of ours."""
    try:
        return {"value": play()}
    except SystemExit as exit:
        return {"exit": exit.code & 0xFF if type(exit.code) is int else int(exit.code is not None)}
    except BaseException as error:  # noqa: BLE001 - whatever a program raises is its result
        return {"error": describe(error)}
    finally:
        flush()


def last_value(code: str, space: dict[str, Any], keep: int) -> str | None:
    """The repr of the last expression; one character more than is kept tells that there was more."""
    tree = ast.parse(code, "<code>")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<code>", "exec"), space)
    if not isinstance(last, ast.Expr):
        return None
    value = eval(compile(ast.Expression(last.value), "<code>", "eval"), space)
    return None if value is None else plain(repr(value), keep + 1)


def plain(text: str, most: int) -> str:
    """The head of a text, even of one whose class has ideas of its own."""
    return str.__getitem__(text, slice(most))


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as plain data, its traceback from the program's own lines on."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename != "<code>":
        trace = trace.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, trace))
        message = plain(str(error), MESSAGE_MOST)
    except BaseException:  # noqa: BLE001 - its __str__ may do anything
        text = message = "the exception cannot be shown"
    return {
        "type": type.__dict__["__name__"].__get__(type(error)),
        "message": message,
        "traceback": text[-TRACEBACK_MOST:],
    }


def fresh_space() -> dict[str, Any]:
    """The globals of a program, which are also its `__main__` module's."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    return main.__dict__


def flush() -> None:
    """What was printed goes out, whatever became of the streams."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            stream.flush()  # type: ignore[union-attr]
        except BaseException:  # noqa: BLE001 - it may have put anything there
            continue
