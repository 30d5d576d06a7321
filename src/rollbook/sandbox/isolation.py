"""The isolation that a user requires, and which files of this machine a guest can see.

Required and reported layers (`require="full"`, `allow_weaker`); the visible paths: the interpreter, its libraries and
the chosen packages, determined by a clean interpreter; and a folder of the host that one session may read and write.

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

from rollbook.core import JSON, JSON_ERRORS
from rollbook.errors import SandboxError, SandboxUnsupported, UsageError
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
    """`require="full"`: namespaces, Landlock and seccomp, and a cgroup for guests that may have several processes.

    `allow_weaker`: accept less where namespaces are not available.
    """

    require: Require | None = None
    allow_weaker: bool = False

    def check(self, isolation: tuple[str, ...]) -> None:
        """Raise SandboxError when these layers are not what the user requires."""
        missing = sorted(FULL_LAYERS - set(isolation)) + ([] if _has_landlock(isolation) else ["landlock"])
        if self.require == "full" and missing:
            raise SandboxError(f'require="full": this machine has no {", no ".join(missing)}')

    def list_layers(self, isolation: tuple[str, ...], limits: Limits, host_folder: bool = False) -> tuple[str, ...]:
        """Return the layers of a guest with these limits; SandboxUnsupported when they cannot enforce the limits."""
        return (*self._layers_for_processes(isolation, limits), *([HOST_FOLDER] if host_folder else []))

    def _layers_for_processes(self, isolation: tuple[str, ...], limits: Limits) -> tuple[str, ...]:
        if limits.processes == 1 or "remote" in isolation:
            return isolation
        if not set(isolation) >= NAMESPACE_LAYERS:
            raise SandboxUnsupported(f"processes={limits.processes}: without namespaces a run has 1 process")
        if UNCOUNTED_LAYER in isolation:
            raise SandboxUnsupported(
                f"processes={limits.processes}: root without privileges may have 1: its processes cannot be counted"
            )
        if CGROUP_LAYER in isolation:
            return isolation
        if self.require == "full":
            raise SandboxUnsupported(
                f'require="full" and processes={limits.processes}: that needs a cgroup for the memory'
            )
        return (*isolation, MEMORY_OPEN)


def make_requirements(require: str | None, allow_weaker: bool | None) -> IsolationRequirements:
    """Return the user's requirements; WEAKER_ENV in the environment sets the default of `allow_weaker`."""
    if require not in (None, "full"):
        raise UsageError(f'require={require!r}: only "full" can be required')
    if require and allow_weaker:
        raise UsageError('require="full" and allow_weaker=True: give one of them')
    weaker = bool(os.environ.get(WEAKER_ENV)) and not require if allow_weaker is None else allow_weaker
    return IsolationRequirements("full" if require else None, weaker)


def _has_landlock(isolation: tuple[str, ...]) -> bool:
    return any(layer.startswith("landlock-") for layer in isolation)


PACKAGE_FOLDER = Path(__file__).parent
SURVEY_S = 120.0
PYTHON_FLAGS = ("-P", "-s", "-S")
PYTHON_ENVIRONMENT = {"PYTHONHASHSEED": "0"}
"""How an interpreter for guests is started: with -I it would ignore its environment, which sets the hash seed."""


def make_boot_code(module: str, arguments: str) -> str:
    """Return code that calls `main` of a module of `inner/` in a fresh interpreter."""
    call_main = f"from inner import {module}; {module}.main({arguments})"
    return f"import sys; sys.path.insert(0, {str(PACKAGE_FOLDER)!r}); {call_main}"


class VisiblePaths(msgspec.Struct, frozen=True):
    """Folders to show; folders inside them to hide; and paths inside those to show nevertheless."""

    places: list[str]
    hidden: list[str]
    shown: list[str]


def base_python() -> str:
    """Return the interpreter itself: the link in a virtual environment would point to a path that guests cannot see."""
    return os.path.realpath(sys.executable)


def make_configuration(packages: list[str]) -> dict[str, JSON]:
    """Return the part of a zygote's configuration that names packages and visible paths.

    Of the folders that contain packages, only those are shown that were imported together with the chosen packages.
    What one of them imports later, on demand, has to be chosen as well.
    """
    paths = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}) if packages else []
    visible = survey_paths(base_python(), tuple(packages), tuple(paths))
    return {"packages": packages, "paths": paths, **msgspec.to_builtins(visible)}


@lru_cache(maxsize=64)
def survey_paths(python: str, packages: tuple[str, ...], paths: tuple[str, ...]) -> VisiblePaths:
    """Find the visible paths in a clean interpreter: this one has loaded the modules of the host."""
    call_survey = "from inner import survey; del sys.path[0]; survey.main()"
    code = f"import sys; sys.path.insert(0, {str(PACKAGE_FOLDER)!r}); {call_survey}"
    command = [python, "-I", "-S", "-c", code, json.dumps({"packages": packages, "paths": paths})]
    try:
        process = subprocess.run(command, env={}, capture_output=True, timeout=SURVEY_S, check=True)
        return msgspec.json.decode(process.stdout, type=VisiblePaths)
    except subprocess.CalledProcessError as error:
        words = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise SandboxUnsupported(f"the packages {', '.join(packages)} cannot be loaded: {' '.join(words)}") from None
    except (OSError, subprocess.TimeoutExpired, *JSON_ERRORS) as error:
        raise SandboxError(f"{python} does not report where its libraries are: {error}") from None


TOP_FOLDERS = {"/", "/home", "/media", "/mnt", "/opt", "/root", "/run", "/srv", "/tmp", "/var"}
"""Not allowed themselves, but folders inside them are."""
SYSTEM_FOLDERS = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "sys", "usr")
KERNEL_FILESYSTEMS = """
    autofs binfmt_misc bpf cgroup cgroup2 configfs debugfs devpts devtmpfs efivarfs fusectl hugetlbfs mqueue nsfs proc
    pstore rpc_pipefs securityfs selinuxfs sysfs tracefs
""".split()  # noqa: SIM905
"""File systems whose files are an interface to the kernel."""


class HostFolder:
    """A folder of the host for one session: opened once, without following links, and locked against other sessions."""

    def __init__(self, path: str) -> None:
        self.path = os.path.normpath(path)
        self.trees: list[int] = []
        """Detached mounts of it, until they have been sent to the guest."""
        self._parent_fds: list[int] = []
        self.fd = _open_folder(path, self.path)
        try:
            _check_allowed(self.path, self.fd)
            _lock_folder(self.path, self.fd, fcntl.LOCK_EX)
            self._lock_above()
        except BaseException:
            self.close()
            raise

    def _lock_above(self) -> None:
        """Take shared locks on the folders above: a session that has one of those exclusively has this one too."""
        for outer in map(str, Path(self.path).parents):
            if outer in TOP_FOLDERS:
                return
            with suppress(PermissionError):  # then no session of ours can open it either
                self._parent_fds.append(os.open(outer, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
                _lock_folder(self.path, self._parent_fds[-1], fcntl.LOCK_SH)

    def close_trees(self) -> None:
        """Close the detached mounts once they have been sent to the guest."""
        while self.trees:
            os.close(self.trees.pop())

    def close(self) -> None:
        """Release the folder for other sessions."""
        self.close_trees()
        for fd in (self.fd, *self._parent_fds):
            with suppress(OSError):  # not by closing alone: the launcher may still have a copy of the descriptor
                fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)


def _open_folder(user_path: str, path: str) -> int:
    if not os.path.isabs(user_path) or "\0" in user_path:
        raise UsageError(f"folder {user_path!r}: give an absolute path")
    try:
        return kernel.open_without_links(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except kernel.Unsupported as error:
        raise SandboxUnsupported(f"folder {user_path}: {error}") from None
    except OSError as error:
        is_link = error.errno == errno.ELOOP
        why = "it is reached by a symbolic link: give its real path" if is_link else os.strerror(error.errno or 0)
        raise UsageError(f"folder {user_path}: {why}") from None


def _check_allowed(path: str, fd: int) -> None:
    """Refuse folders that no session may write to."""
    top = path.split("/")[1]
    if (
        path in TOP_FOLDERS
        or (top in SYSTEM_FOLDERS and not path.startswith("/dev/shm/"))
        or _filesystem_type(fd) in KERNEL_FILESYSTEMS
    ):
        raise UsageError(f"folder {path}: it belongs to the system; give one that was made for the session")
    for place in _own_paths():
        if _is_inside(place, path) or _is_inside(path, place):
            raise UsageError(f"folder {path}: the interpreter or this package is in it ({place})")


def _lock_folder(path: str, fd: int, kind: int) -> None:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        way = "give every session a folder of its own"
        raise UsageError(f"folder {path}: another session uses it or a part of it; {way}") from None
    except OSError as error:
        raise UsageError(f"folder {path}: it cannot be locked: {error.strerror}") from None


def _own_paths() -> set[str]:
    """Return paths that contain the host's own programs."""
    places = {sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"), base_python(), str(PACKAGE_FOLDER)}
    return {os.path.realpath(place) for place in places}


def _is_inside(inner: str, outer: str) -> bool:
    return Path(inner).is_relative_to(outer)


def _filesystem_type(fd: int) -> str:
    """Return the type of the file system that a folder is on."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines())
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words = line.split()
        if words[0] == fields["mnt_id"].strip():
            return words[words.index("-") + 1]
    return ""
