"""The isolation that a user requires, and what a guest may see of this machine.

Required and reported layers (`require="full"`, `allow_weaker`); the visible paths: the interpreter, its libraries and
the chosen packages, asked of a clean interpreter; and a folder of the host that one session may read and write.

This module must stay directly in `rollbook/sandbox/`: PACKAGE_FOLDER is the folder on the sys.path of guests, and
`inner/` is found below it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import sysconfig
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from rollbook.core import JSON
from rollbook.errors import UsageError
from rollbook.sandbox.errors import SandboxError, SandboxUnsupported
from rollbook.sandbox.inner import kernel
from rollbook.sandbox.limits import Limits

Require: TypeAlias = Literal["full"]
WEAKER_ENV = "ROLLBOOK_WEAKER_SANDBOX"
NAMESPACE_LAYERS = frozenset({"pid", "mount", "network", "ipc"})
FULL_LAYERS = NAMESPACE_LAYERS | {"seccomp"}
CGROUP_LAYER = "cgroup"
UNCOUNTED_LAYER = "no process limit"
MEMORY_OPEN = "no cgroup: total memory open"
HOST_FOLDER = "folder of the host: total size open"


class IsolationRequirements(msgspec.Struct, frozen=True):
    """`require="full"`: namespaces, Landlock and seccomp, and a cgroup for those who may have several processes.

    `allow_weaker`: where namespaces are not to be had, less will do.
    """

    require: Require | None = None
    allow_weaker: bool = False

    def check(self, isolation: tuple[str, ...]) -> None:
        """SandboxError when these walls are not what was asked for."""
        missing = sorted(FULL_LAYERS - set(isolation)) + ([] if _has_landlock(isolation) else ["landlock"])
        if self.require == "full" and missing:
            raise SandboxError(f'require="full": this machine gives no {", no ".join(missing)}')

    def list_layers(self, isolation: tuple[str, ...], limits: Limits, host_folder: bool = False) -> tuple[str, ...]:
        """The walls of a guest with these limits, perhaps in a folder of the host; Refused when they cannot hold it."""
        return (*self._layers_for_processes(isolation, limits), *([HOST_FOLDER] if host_folder else []))

    def _layers_for_processes(self, isolation: tuple[str, ...], limits: Limits) -> tuple[str, ...]:
        if limits.processes == 1 or "remote" in isolation:
            return isolation
        if not set(isolation) >= NAMESPACE_LAYERS:
            raise SandboxUnsupported(f"processes={limits.processes}: without namespaces a run has 1 process")
        if UNCOUNTED_LAYER in isolation:
            raise SandboxUnsupported(
                f"processes={limits.processes}: root without privileges has 1, nobody counts its processes"
            )
        if CGROUP_LAYER in isolation:
            return isolation
        if self.require == "full":
            raise SandboxUnsupported(
                f'require="full" and processes={limits.processes}: that needs a cgroup for the memory'
            )
        return (*isolation, MEMORY_OPEN)


def make_requirements(require: str | None, allow_weaker: bool | None) -> IsolationRequirements:
    """What was asked for; whether less will do can also be said in the environment."""
    if require not in (None, "full"):
        raise UsageError(f'require={require!r}: the one thing to require is "full"')
    if require and allow_weaker:
        raise UsageError('require="full" and allow_weaker=True: one or the other')
    weaker = bool(os.environ.get(WEAKER_ENV)) and not require if allow_weaker is None else allow_weaker
    return IsolationRequirements("full" if require else None, weaker)


def _has_landlock(isolation: tuple[str, ...]) -> bool:
    return any(layer.startswith("landlock-") for layer in isolation)


PACKAGE_FOLDER = Path(__file__).parent
SURVEY_S = 120.0
PYTHON_FLAGS = ("-P", "-s", "-S")
PYTHON_ENVIRONMENT = {"PYTHONHASHSEED": "0"}
"""How an interpreter for guests is started: -I would not read its environment, where the seed of all hashes stands."""


class VisiblePaths(msgspec.Struct, frozen=True):
    """Folders to show; folders inside those to hide; and what to show of these after all."""

    places: list[str]
    hidden: list[str]
    shown: list[str]


def base_python() -> str:
    """The interpreter itself: a virtual environment's link to it would lead out of the walls."""
    return os.path.realpath(sys.executable)


def make_configuration(packages: list[str]) -> dict[str, JSON]:
    """What a zygote is told about the world it may show.

    Of the folders where packages lie, only those are shown that the chosen ones have imported when they were. What one
    of them imports later, on demand, has to be chosen as well.
    """
    paths = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}) if packages else []
    found = survey_paths(base_python(), tuple(packages), tuple(paths))
    return {"packages": packages, "paths": paths, **msgspec.to_builtins(found)}


@lru_cache(maxsize=64)
def survey_paths(python: str, packages: tuple[str, ...], paths: tuple[str, ...]) -> VisiblePaths:
    """Asked of a clean interpreter: this one has loaded what the host needs."""
    enter = "from inner import survey; del sys.path[0]; survey.main()"
    code = f"import sys; sys.path.insert(0, {str(PACKAGE_FOLDER)!r}); {enter}"
    command = [python, "-I", "-S", "-c", code, json.dumps({"packages": packages, "paths": paths})]
    try:
        done = subprocess.run(command, env={}, capture_output=True, timeout=SURVEY_S, check=True)
        return msgspec.json.decode(done.stdout, type=VisiblePaths)
    except subprocess.CalledProcessError as error:
        words = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise SandboxUnsupported(f"the packages {', '.join(packages)} cannot be loaded: {' '.join(words)}") from None
    except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError) as error:
        raise SandboxError(f"{python} does not say where its libraries lie: {error}") from None


TOP_FOLDERS = {"/", "/home", "/media", "/mnt", "/opt", "/root", "/run", "/srv", "/tmp", "/var"}
"""Not themselves, though what lies in them may be given away."""
SYSTEM_FOLDERS = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "sys", "usr")
KERNEL_FILESYSTEMS = """
    autofs binfmt_misc bpf cgroup cgroup2 configfs debugfs devpts devtmpfs efivarfs fusectl hugetlbfs mqueue nsfs proc
    pstore rpc_pipefs securityfs selinuxfs sysfs tracefs
""".split()  # noqa: SIM905
"""File systems whose files are the kernel itself."""


class HostFolder:
    """Opened once, without a link on the way, and locked: no other session has it meanwhile."""

    def __init__(self, path: str) -> None:
        self.path = os.path.normpath(path)
        self.trees: list[int] = []
        """What a guest mounts of it, until it is told."""
        self._above: list[int] = []
        self.handle = _open_folder(path, self.path)
        try:
            _check_allowed(self.path, self.handle)
            _lock_folder(self.path, self.handle, fcntl.LOCK_EX)
            self._lock_above()
        except BaseException:
            self.close()
            raise

    def _lock_above(self) -> None:
        """Share the folders that it lies in: whoever has one of those to itself has this one too."""
        for outer in map(str, Path(self.path).parents):
            if outer in TOP_FOLDERS:
                return
            with suppress(PermissionError):  # then no session of ours can have it either
                self._above.append(os.open(outer, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
                _lock_folder(self.path, self._above[-1], fcntl.LOCK_SH)

    def close_trees(self) -> None:
        """The guest has been told."""
        while self.trees:
            os.close(self.trees.pop())

    def close(self) -> None:
        """Others may have it."""
        self.close_trees()
        for handle in (self.handle, *self._above):
            with suppress(OSError):  # not by closing alone: the launcher may still have a copy of the descriptor
                fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)


def _open_folder(asked: str, path: str) -> int:
    if not os.path.isabs(asked) or "\0" in asked:
        raise UsageError(f"folder {asked!r}: give an absolute path")
    try:
        return kernel.open_without_links(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except kernel.Unsupported as error:
        raise SandboxUnsupported(f"folder {asked}: {error}") from None
    except OSError as error:
        link = error.errno == errno.ELOOP
        why = "it is reached by a symbolic link: give its real path" if link else os.strerror(error.errno or 0)
        raise UsageError(f"folder {asked}: {why}") from None


def _check_allowed(path: str, handle: int) -> None:
    """What no session may write to, whatever it was told."""
    top = path.split("/")[1]
    if (
        path in TOP_FOLDERS
        or (top in SYSTEM_FOLDERS and not path.startswith("/dev/shm/"))
        or _filesystem_type(handle) in KERNEL_FILESYSTEMS
    ):
        raise UsageError(f"folder {path}: it is the system's; give one that was made for the session")
    for place in _own_paths():
        if _is_inside(place, path) or _is_inside(path, place):
            raise UsageError(f"folder {path}: the interpreter or this package lies there ({place})")


def _lock_folder(path: str, handle: int, kind: int) -> None:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        way = "give every session a folder of its own"
        raise UsageError(f"folder {path}: another session has it or a part of it; {way}") from None
    except OSError as error:
        raise UsageError(f"folder {path}: it cannot be locked: {error.strerror}") from None


def _own_paths() -> set[str]:
    """Whoever writes there writes the host's own programs."""
    places = {sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"), base_python(), str(PACKAGE_FOLDER)}
    return {os.path.realpath(place) for place in places}


def _is_inside(inner: str, outer: str) -> bool:
    return Path(inner).is_relative_to(outer)


def _filesystem_type(handle: int) -> str:
    """The name of the file system that a folder is on."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/self/fdinfo/{handle}").read_text().splitlines())
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words = line.split()
        if words[0] == fields["mnt_id"].strip():
            return words[words.index("-") + 1]
    return ""
