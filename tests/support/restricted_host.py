"""A sandbox in a process with as few rights as one in a container; requests and answers are lines of pipes.

`python -m support.restricted_host PLACE` turns itself into such a process, opens a sandbox and answers.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from rollbook.processes import find_members
from rollbook.sandbox import Limits, Result, Sandbox
from rollbook.sandbox.inner import kernel, seccomp

USER = 54_321
DOCKER_CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31)
"""The capabilities that Docker leaves to root."""
FORBIDDEN = ("unshare", "setns", "mount", "umount2", "pivot_root", "open_tree", "move_mount", "fsopen", "fsmount")
PLACES = ("ordinary user", "container root", "container user")
UNRESTRICTED = "unrestricted"
"""The host as it is, in a process of its own."""
PRIVATE_PYTHON = "container root with a private interpreter"
"""Other users cannot read the standard library, so no guest can have a user of its own."""
LESSER_ROOT = "lesser root"
"""Root with Docker's capabilities and no forbidden calls: it can still make a user namespace, as every user can."""


class RestrictedHost:
    """The client of such a process."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child
        self.pid = child.pid

    def ask(self, **question: object) -> dict[str, object]:
        """Send one request and return its answer."""
        assert self._child.stdin
        assert self._child.stdout
        self._child.stdin.write(json.dumps(question) + "\n")
        self._child.stdin.flush()
        answer = self._child.stdout.readline()
        assert answer, f"it is gone: {self._child.wait(timeout=10)}"
        return dict(json.loads(answer))

    def run(self, code: str, limits: Limits | None = None, files: dict[str, str] | None = None) -> Result:
        """Run code in a fresh guest."""
        encoded = msgspec.to_builtins(limits) if limits else None
        return msgspec.convert(self.ask(code=code, limits=encoded, files=files or {}), Result)

    def do(self, code: str) -> object:
        """Return the result of a function body that is run there with `box`, the open sandbox."""
        answer = self.ask(body=code)
        assert "raised" not in answer, answer
        return answer["made"]

    def processes(self) -> int:
        """Return how many processes it has started."""
        return len(find_members(self.pid)) - 1


@contextmanager
def start_restricted_host(place: str, limits: Limits) -> Iterator[RestrictedHost]:
    """Start a sandbox in such a place; the caller skips the test where this machine cannot."""
    here = Path(__file__).parent.parent
    command = [sys.executable, "-m", "support.restricted_host", place, msgspec.json.encode(limits).decode()]
    env = {**os.environ, "PYTHONPATH": str(here), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as child:
        try:
            assert child.stdout
            assert child.stdout.readline() == "ready\n"
            yield RestrictedHost(child)
        finally:
            child.kill()


def can_enter(place: str) -> bool:
    """Return whether this process can enter such a place: only root can change users or drop some of its rights."""
    return place in ("container user", UNRESTRICTED) or os.geteuid() == 0


def become(place: str) -> None:
    """Turn this process into one in such a place, irrevocably."""
    if place == UNRESTRICTED:
        return
    is_root = os.geteuid() == 0
    if is_root:
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
        make_path_accessible(os.path.realpath(sys.executable))
        if place == PRIVATE_PYTHON:
            hide_from_others(Path(os.__file__).resolve().parent)
        kernel.mount("none", "/sys/fs/cgroup", "tmpfs", kernel.MS_RDONLY)
    else:
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if place.startswith("container"):
        kernel.install_filter(make_docker_filter())
    if place.endswith("user") and is_root:
        os.setgroups([])
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
    elif is_root:
        keep_capabilities(DOCKER_CAPABILITIES)


def make_path_accessible(path: str) -> None:
    """Let others pass through the folders above the interpreter, which may be in a home, in this mount namespace."""
    for parent in list(Path(path).parents)[::-1][1:]:
        if not parent.stat().st_mode & 1:
            child = Path(*Path(path).parts[: len(parent.parts) + 1])
            handle = os.open(child, os.O_PATH)
            kernel.mount("way", str(parent), "tmpfs", 0, "mode=755")
            child.mkdir()
            kernel.mount(f"/proc/self/fd/{handle}", str(child), None, kernel.MS_BIND | kernel.MS_REC)
            os.close(handle)


def hide_from_others(folder: Path) -> None:
    """Let only root enter a folder, in this mount namespace."""
    handle = os.open(folder, os.O_PATH)
    kernel.mount("private", str(folder), "tmpfs", 0, "mode=700")
    for entry in Path(f"/proc/self/fd/{handle}").iterdir():
        place = folder / entry.name
        if entry.is_dir():
            place.mkdir()
        else:
            place.touch()
        kernel.mount(str(entry), str(place), None, kernel.MS_BIND)
    os.close(handle)


def make_docker_filter() -> bytes:
    """Return a filter without namespaces and mounts, like Docker's own."""
    calls = seccomp.CALLS[kernel.ARCH]
    blocks = {calls[name]: [seccomp._deny(errno.EPERM)] for name in FORBIDDEN}
    blocks[calls["clone3"]] = [seccomp._deny(errno.ENOSYS)]
    no_namespaces = [seccomp._op(seccomp._JSET, seccomp.NEW_NAMESPACES, 0, 1), seccomp._deny(errno.EPERM)]
    blocks[calls["clone"]] = seccomp._on_argument(0, no_namespaces)
    start = [seccomp._op(seccomp._LOAD, seccomp._NR)]
    return b"".join([*start, *seccomp._tree(seccomp._intervals(blocks))])


def keep_capabilities(kept: tuple[int, ...]) -> None:
    """Keep only these capabilities of root."""
    for capability in range(41):
        if capability not in kept:
            try:
                kernel.prctl(kernel.PR_CAPBSET_DROP, capability)
            except OSError:
                continue
    low = sum(1 << capability for capability in kept)
    header = struct.pack("=Ii", 0x20080522, 0)
    kernel.syscall("capset", kernel.syscall_number("capset"), header, struct.pack("=6I", low, low, 0, 0, 0, 0))
    assert ctypes.CDLL(None).unshare(kernel.CLONE_NEWNS) != 0, "this root can do too much"


def answer(box: Sandbox, question: dict[str, object]) -> object:
    """Return the result of a run, or of a test's code with the sandbox."""
    if "body" in question:
        return run_body(box, str(question["body"]))
    limits = question.get("limits")
    files = {name: text.encode() for name, text in dict(question["files"]).items()}  # type: ignore[call-overload]
    try:
        run_limits = msgspec.convert(limits, Limits) if limits else None
        return box.run_sync(str(question["code"]), files=files, limits=run_limits)
    except Exception as error:
        return {"status": "killed", "stderr": f"{type(error).__name__}: {error}"}


def run_body(box: Sandbox, body: str) -> object:
    """Run a test's code, which is trusted."""
    module_globals: dict[str, Any] = {"box": box}
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    try:
        exec(f"def run():\n{lines}", module_globals)
        return {"made": module_globals["run"]()}
    except Exception as error:
        return {"raised": f"{type(error).__name__}: {error}"}


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    become(sys.argv[1])
    os.environ["TMPDIR"] = "/tmp"
    with Sandbox(msgspec.json.decode(sys.argv[2], type=Limits), size=1, allow_weaker=True) as box:
        print("ready", flush=True)
        for line in sys.stdin:
            print(msgspec.json.encode(answer(box, json.loads(line))).decode(), flush=True)


if __name__ == "__main__":
    main()
