"""A folder of the host that a session has to itself, to read and to write."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path

from rollbook.errors import UsageError
from rollbook.sandbox.errors import Refused
from rollbook.sandbox.inner import kernel
from rollbook.sandbox.places import HERE, base_python

TOPS = {"/", "/home", "/media", "/mnt", "/opt", "/root", "/run", "/srv", "/tmp", "/var"}
"""Not themselves, though what lies in them may be given away."""
SYSTEM = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "sys", "usr")
KERNELS = """
    autofs binfmt_misc bpf cgroup cgroup2 configfs debugfs devpts devtmpfs efivarfs fusectl hugetlbfs mqueue nsfs proc
    pstore rpc_pipefs securityfs selinuxfs sysfs tracefs
""".split()  # noqa: SIM905
"""File systems whose files are the kernel itself."""


class Folder:
    """Opened once, without a link on the way, and locked: no other session has it meanwhile."""

    def __init__(self, path: str) -> None:
        self.path = os.path.normpath(path)
        self.trees: list[int] = []
        """What a guest mounts of it, until it is told."""
        self._above: list[int] = []
        self.handle = _opened(path, self.path)
        try:
            _check(self.path, self.handle)
            _lock(self.path, self.handle, fcntl.LOCK_EX)
            self._lock_above()
        except BaseException:
            self.close()
            raise

    def _lock_above(self) -> None:
        """Share the folders that it lies in: whoever has one of those to itself has this one too."""
        for outer in map(str, Path(self.path).parents):
            if outer in TOPS:
                return
            with suppress(PermissionError):  # then no session of ours can have it either
                self._above.append(os.open(outer, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
                _lock(self.path, self._above[-1], fcntl.LOCK_SH)

    def let_in(self) -> None:
        """The guest has been told."""
        while self.trees:
            os.close(self.trees.pop())

    def close(self) -> None:
        """Others may have it."""
        self.let_in()
        for handle in (self.handle, *self._above):
            with suppress(OSError):  # not by closing alone: the launcher may still have a copy of the descriptor
                fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)


def _opened(given: str, path: str) -> int:
    if not os.path.isabs(given) or "\0" in given:
        raise UsageError(f"folder {given!r}: give an absolute path")
    try:
        return kernel.open_without_links(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except kernel.Unsupported as error:
        raise Refused(f"folder {given}: {error}") from None
    except OSError as error:
        link = error.errno == errno.ELOOP
        why = "it is reached by a symbolic link: give its real path" if link else os.strerror(error.errno or 0)
        raise UsageError(f"folder {given}: {why}") from None


def _check(path: str, handle: int) -> None:
    """What no session may write to, whatever it was told."""
    top = path.split("/")[1]
    if path in TOPS or (top in SYSTEM and not path.startswith("/dev/shm/")) or _kind(handle) in KERNELS:
        raise UsageError(f"folder {path}: it is the system's; give one that was made for the session")
    for place in _ours():
        if _is_in(place, path) or _is_in(path, place):
            raise UsageError(f"folder {path}: the interpreter or this package lies there ({place})")


def _lock(path: str, handle: int, kind: int) -> None:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        way = "give every session a folder of its own"
        raise UsageError(f"folder {path}: another session has it or a part of it; {way}") from None
    except OSError as error:
        raise UsageError(f"folder {path}: it cannot be locked: {error.strerror}") from None


def _ours() -> set[str]:
    """Whoever writes there writes the host's own programs."""
    places = {sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"), base_python(), str(HERE)}
    return {os.path.realpath(place) for place in places}


def _is_in(inner: str, outer: str) -> bool:
    return Path(inner).is_relative_to(outer)


def _kind(handle: int) -> str:
    """The name of the file system that a folder is on."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/self/fdinfo/{handle}").read_text().splitlines())
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words = line.split()
        if words[0] == fields["mnt_id"].strip():
            return words[words.index("-") + 1]
    return ""
