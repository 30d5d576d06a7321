"""The forked child: shuts every door behind itself, says that it starts, and runs the code it was given."""

import ast
import os
import resource
import sys
import traceback
from typing import Any

from . import filters, kernel, walls

FILES_MOST = 4096
STDIN, STDOUT, STDERR, REPORT = 0, 1, 2, 3


def confine(request: dict[str, Any], config: dict[str, Any], handles: list[int]) -> int:
    """All limits and walls, from the outside in; gives the descriptor that tells the host to start its clock."""
    limits = request["limits"]
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC)
    walls.private_box(limits["files_mb"], FILES_MOST)
    write_files(request["files"])
    start = arrange(handles)
    rlimits(limits)
    if walls.landlock_abi():
        walls.landlock(config["places"] + ["/dev"], [walls.BOX, "/dev/null"])
    become_nobody(config)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.seccomp_filter(filters.program(alone=limits["processes"] == 1))
    return start


def become_nobody(config: dict[str, Any]) -> None:
    """No capability, no group, and where we were root a user that owns nothing."""
    kernel.drop_bounding_set()
    if config["mode"] == "root":
        os.setgroups([])
        os.setresgid(config["uid"], config["uid"], config["uid"])
        os.setresuid(config["uid"], config["uid"], config["uid"])
    kernel.drop_capabilities()


def write_files(files: dict[str, str]) -> None:
    """The files of a run, in its box; the host has seen to it that their names do not lead out."""
    for name, content in files.items():
        path = os.path.join(walls.BOX, name)
        os.makedirs(os.path.dirname(path), mode=0o777, exist_ok=True)
        with open(path, "wb") as file:
            file.write(bytes.fromhex(content))
        os.chmod(path, 0o666)


def arrange(handles: list[int]) -> int:
    """stdin, stdout, stderr, the report and the start signal get the first descriptors; all others are closed."""
    high = [os.dup2(handle, 100 + place, inheritable=False) for place, handle in enumerate(handles)]
    for place, handle in enumerate(high):
        os.dup2(handle, place, inheritable=True)
    kernel.close_from(len(handles))
    return len(handles) - 1


def rlimits(limits: dict[str, Any]) -> None:
    """The kernel's own limits; soft and hard alike, so that none can be raised."""
    used = int(limits["base_bytes"])
    space = used + (limits["memory_mb"] << 20)
    for what, value in (
        (resource.RLIMIT_AS, space),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, limits["files_mb"] << 20),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_NPROC, limits["threads"]),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_CPU, int(limits["seconds"]) + 2),
    ):
        resource.setrlimit(what, (value, value))


def run(code: str, space: dict[str, Any]) -> dict[str, Any]:
    """Run code as a program whose last expression has a value; what it raises is a report, never a crash of ours."""
    try:
        tree = ast.parse(code, "<code>")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<code>", "exec"), space)
        value = (
            eval(compile(ast.Expression(last.value), "<code>", "eval"), space) if isinstance(last, ast.Expr) else None
        )
        return {"value": None if value is None else repr(value)}
    except SystemExit as exit:
        return {"exit": exit.code if isinstance(exit.code, int) else int(exit.code is not None)}
    except BaseException as error:  # noqa: BLE001 - whatever a program raises is its result
        return {"error": describe(error)}


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as plain data, its traceback from the program's own lines on."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename != "<code>":
        trace = trace.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, trace))
        message = str(error)
    except BaseException:  # noqa: BLE001 - its __str__ may do anything
        text = message = "the exception cannot be shown"
    return {"type": type(error).__name__, "message": message[:2000], "traceback": text[-4000:]}


def fresh_space() -> dict[str, Any]:
    """The globals of a program."""
    return {"__name__": "__main__", "__builtins__": __builtins__}


def flush() -> None:
    """What was printed goes out, whatever became of the streams."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:  # noqa: BLE001 - it may have put anything there
            continue
