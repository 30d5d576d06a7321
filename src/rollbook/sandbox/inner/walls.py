"""Walls of files: a root with nothing but the interpreter in it, and Landlock on top of that."""

import ctypes
import os
import struct
from typing import Any

from . import kernel
from .kernel import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_PRIVATE, MS_RDONLY, MS_REC, MS_REMOUNT

DEVICES = ("null", "zero", "random", "urandom")
HOME = "/home"
BOX = f"{HOME}/box"
"""Landlock looks past the folder that a mount lies on, at the one above: a rule for that one holds for every box."""

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
    handle = ruleset(readable, writable)
    restrict(handle)
    os.close(handle)


def ruleset(readable: list[str], writable: list[str]) -> int:
    """The same, put down once for all who will want it; gives a descriptor."""
    abi = landlock_abi()
    rights = _FS_BY_ABI[max(v for v in _FS_BY_ABI if v <= abi)]
    fields = [rights] + ([3] if abi >= 4 else []) + ([3] if abi >= 6 else [])
    base = kernel.number("landlock")
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    made = kernel.syscall("landlock", base, attributes, ctypes.c_size_t(len(attributes)), 0)
    for paths, allowed in ((readable, _READING), (writable, rights & ~_EXECUTE)):
        for path in filter(os.path.exists, paths):
            _allow(base, made, path, allowed & rights)
    return made


def restrict(made: int) -> None:
    """Live by a set of rules from here on."""
    kernel.syscall("landlock", kernel.number("landlock") + 2, made, 0)


def _allow(base: int, ruleset: int, path: str, rights: int) -> None:
    if not os.path.isdir(path):
        rights &= _EXECUTE | _WRITE | _READ | (1 << 14) | (1 << 15)
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        kernel.syscall("landlock", base + 1, ruleset, _RULE_PATH, struct.pack("=Qi", rights, handle), 0)
    finally:
        os.close(handle)


def visible(config: dict[str, Any]) -> list[str]:
    """The places to read where nothing can be mounted: those with something hidden in them, entry by entry."""
    found = list(config["shown"])
    for place in config["places"]:
        if not os.path.islink(place):  # it leads to a folder of which only parts are to be seen
            found += _around(place, config["hidden"])
    return found


def _around(place: str, hidden: list[str]) -> list[str]:
    if place in hidden:
        return []
    if not any(folder.startswith(f"{place}/") for folder in hidden):
        return [place]
    return [path for name in os.listdir(place) for path in _around(os.path.join(place, name), hidden)]


def new_root(config: dict[str, Any]) -> None:
    """A root made of read-only views of places less what is hidden in them, four devices, and an empty box."""
    stage = config["stage"]
    kernel.mount(None, "/", None, MS_REC | MS_PRIVATE)
    kernel.mount("root", stage, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for place in config["places"]:
        _bind(place, stage)
    for folder in config["hidden"]:
        if os.path.isdir(stage + folder):
            _hide(folder, [place for place in config["shown"] if place.startswith(f"{folder}/")], stage)
    for device in DEVICES:
        target = f"{stage}/dev/{device}"
        os.makedirs(f"{stage}/dev", exist_ok=True)
        open(target, "wb").close()
        kernel.mount(f"/dev/{device}", target, None, MS_BIND)
    os.makedirs(stage + BOX)
    kernel.pivot_root(stage)
    kernel.mount(None, "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def _hide(folder: str, shown: list[str], stage: str) -> None:
    kernel.mount("nothing", stage + folder, "tmpfs", MS_NOSUID | MS_NODEV, "size=64k,mode=755")
    for place in shown:
        _bind(place, stage)
    kernel.mount(None, stage + folder, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


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


def host_box(tree: int) -> None:
    """A folder of the host's as the working folder: it stays when the process is gone."""
    kernel.move_mount(tree, BOX)
    os.chdir(BOX)


def private_box(megabytes: int, files: int) -> None:
    """A working folder of one's own, bounded in bytes and in files, that vanishes with the process."""
    kernel.mount("box", BOX, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, f"size={megabytes}m,nr_inodes={files},mode=777")
    os.chdir(BOX)
