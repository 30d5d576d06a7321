"""Walls of files: a root with nothing but the interpreter in it, and Landlock on top of that."""

import ctypes
import os
import struct

from . import kernel
from .kernel import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_PRIVATE, MS_RDONLY, MS_REC, MS_REMOUNT

DEVICES = ("null", "zero", "random", "urandom")
BOX = "/box"

_EXECUTE, _WRITE, _READ, _READ_DIR = 1, 2, 4, 8
_READING = _EXECUTE | _READ | _READ_DIR
_FS_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_RULE_PATH = 1


def landlock_abi() -> int:
    """The version of Landlock this kernel has; 0 for none."""
    try:
        return kernel.syscall("landlock", kernel.number("landlock"), None, 0, 1)
    except OSError:
        return 0


def landlock(readable: list[str], writable: list[str]) -> None:
    """Only these places can be read or written from here on; no TCP, no signals or abstract sockets across."""
    abi = landlock_abi()
    rights = _FS_BY_ABI[max(v for v in _FS_BY_ABI if v <= abi)]
    fields = [rights] + ([3] if abi >= 4 else []) + ([3] if abi >= 6 else [])
    base = kernel.number("landlock")
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    ruleset = kernel.syscall("landlock", base, attributes, ctypes.c_size_t(len(attributes)), 0)
    for paths, allowed in ((readable, _READING), (writable, rights & ~_EXECUTE)):
        for path in filter(os.path.exists, paths):
            _allow(base, ruleset, path, allowed & rights)
    kernel.syscall("landlock", base + 2, ruleset, 0)
    os.close(ruleset)


def _allow(base: int, ruleset: int, path: str, rights: int) -> None:
    if not os.path.isdir(path):
        rights &= _EXECUTE | _WRITE | _READ | (1 << 14) | (1 << 15)
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        kernel.syscall("landlock", base + 1, ruleset, _RULE_PATH, struct.pack("=Qi", rights, handle), 0)
    finally:
        os.close(handle)


def new_root(places: list[str], hidden: list[str], stage: str) -> None:
    """A root made of read-only views of `places` less what is hidden in them, four devices, and an empty box."""
    kernel.mount(None, "/", None, MS_REC | MS_PRIVATE)
    kernel.mount("root", stage, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for place in places:
        _bind(place, stage)
    for place in hidden:
        if os.path.isdir(stage + place):
            kernel.mount("nothing", stage + place, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV, "size=4k,mode=555")
    for device in DEVICES:
        target = f"{stage}/dev/{device}"
        os.makedirs(f"{stage}/dev", exist_ok=True)
        open(target, "wb").close()
        kernel.mount(f"/dev/{device}", target, None, MS_BIND)
    os.mkdir(stage + BOX)
    kernel.pivot_root(stage)
    kernel.mount(None, "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def _bind(place: str, stage: str) -> None:
    target = stage + place
    if os.path.islink(place):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.symlink(os.readlink(place), target)
        return
    if os.path.isdir(place):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "wb").close()
    kernel.mount(place, target, None, MS_BIND | MS_REC)
    kernel.mount(None, target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_REC)


def private_box(megabytes: int, files: int) -> None:
    """A working folder of one's own, bounded in bytes and in files, that vanishes with the process."""
    kernel.mount("box", BOX, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, f"size={megabytes}m,nr_inodes={files},mode=777")
    os.chdir(BOX)
