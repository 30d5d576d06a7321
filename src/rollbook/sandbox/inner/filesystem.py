"""What a guest sees of files: a root with nothing but the interpreter in it, Landlock on top, and mounted folders.

Folders of the host are mounted by the launcher, the zygote's parent. It stays outside of the zygote's root, where
folders of the host have names. On a line of its own the host asks it for one, {"path", "uid"} with a descriptor of the
folder, and gets a detached mount of it, which the guest then moves to its place. Among mounts, a process can only pass
on what it sees itself: neither the host, as an ordinary user, nor the zygote could make it.
"""

import ctypes
import os
import select
import signal
import struct
from contextlib import suppress
from typing import Any

from . import kernel
from .channel import Channel
from .kernel import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_PRIVATE, MS_RDONLY, MS_REC, MS_REMOUNT

DEVICES = ("null", "zero", "random", "urandom")
HOME_FOLDER = "/home"
WORKING_FOLDER = f"{HOME_FOLDER}/box"
"""Landlock looks past the folder that a mount lies on, at the one above: a rule for that one holds for every box."""

_EXECUTE, _WRITE, _READ, _READ_DIR = 1, 2, 4, 8
_READING = _EXECUTE | _READ | _READ_DIR
_FS_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_RULE_PATH = 1


def landlock_abi() -> int:
    """The version of Landlock this kernel has; 0 for none."""
    try:
        return kernel.syscall("landlock", kernel.syscall_number("landlock"), None, 0, 1)
    except OSError:
        return 0


def apply_landlock(readable: list[str], writable: list[str]) -> None:
    """Only these places can be read or written from here on; no TCP, no signals or abstract sockets across."""
    handle = make_ruleset(readable, writable)
    restrict_self(handle)
    os.close(handle)


def make_ruleset(readable: list[str], writable: list[str]) -> int:
    """The same, put down once for all who will want it; gives a descriptor."""
    abi = landlock_abi()
    rights = _FS_BY_ABI[max(v for v in _FS_BY_ABI if v <= abi)]
    fields = [rights] + ([3] if abi >= 4 else []) + ([3] if abi >= 6 else [])
    base = kernel.syscall_number("landlock")
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    made = kernel.syscall("landlock", base, attributes, ctypes.c_size_t(len(attributes)), 0)
    for paths, allowed in ((readable, _READING), (writable, rights & ~_EXECUTE)):
        for path in filter(os.path.exists, paths):
            _allow_path(base, made, path, allowed & rights)
    return made


def restrict_self(made: int) -> None:
    """Live by a set of rules from here on."""
    kernel.syscall("landlock", kernel.syscall_number("landlock") + 2, made, 0)


def _allow_path(base: int, ruleset: int, path: str, rights: int) -> None:
    if not os.path.isdir(path):
        rights &= _EXECUTE | _WRITE | _READ | (1 << 14) | (1 << 15)
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        kernel.syscall("landlock", base + 1, ruleset, _RULE_PATH, struct.pack("=Qi", rights, handle), 0)
    finally:
        os.close(handle)


def list_visible_paths(config: dict[str, Any]) -> list[str]:
    """The places to read where nothing can be mounted: those with something hidden in them, entry by entry."""
    found = list(config["shown"])
    for place in config["places"]:
        if not os.path.islink(place):  # it leads to a folder of which only parts are to be seen
            found += _list_around(place, config["hidden"])
    return found


def _list_around(place: str, hidden: list[str]) -> list[str]:
    if place in hidden:
        return []
    if not any(folder.startswith(f"{place}/") for folder in hidden):
        return [place]
    return [path for name in os.listdir(place) for path in _list_around(os.path.join(place, name), hidden)]


def make_root(config: dict[str, Any]) -> None:
    """A root made of read-only views of places less what is hidden in them, four devices, and an empty box."""
    stage = config["stage"]
    kernel.mount(None, "/", None, MS_REC | MS_PRIVATE)
    kernel.mount("root", stage, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for place in config["places"]:
        _bind_read_only(place, stage)
    for folder in config["hidden"]:
        if os.path.isdir(stage + folder):
            _hide_folder(folder, [place for place in config["shown"] if place.startswith(f"{folder}/")], stage)
    for device in DEVICES:
        target = f"{stage}/dev/{device}"
        os.makedirs(f"{stage}/dev", exist_ok=True)
        open(target, "wb").close()
        kernel.mount(f"/dev/{device}", target, None, MS_BIND)
    os.makedirs(stage + WORKING_FOLDER)
    kernel.pivot_root(stage)
    kernel.mount(None, "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def _hide_folder(folder: str, shown: list[str], stage: str) -> None:
    kernel.mount("nothing", stage + folder, "tmpfs", MS_NOSUID | MS_NODEV, "size=64k,mode=755")
    for place in shown:
        _bind_read_only(place, stage)
    kernel.mount(None, stage + folder, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def _bind_read_only(place: str, stage: str) -> None:
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


def mount_host_folder(tree: int) -> None:
    """A folder of the host's as the working folder: it stays when the process is gone."""
    kernel.move_mount(tree, WORKING_FOLDER)
    os.chdir(WORKING_FOLDER)


def mount_private_folder(megabytes: int, files: int) -> None:
    """A working folder of one's own, bounded in bytes and in files, that vanishes with the process."""
    kernel.mount(
        "box",
        WORKING_FOLDER,
        "tmpfs",
        MS_NOSUID | MS_NODEV | MS_NOEXEC,
        f"size={megabytes}m,nr_inodes={files},mode=777",
    )
    os.chdir(WORKING_FOLDER)


def serve_mounts(mounts: Channel, zygote: int, as_root: bool) -> None:
    """Hand out folders until the zygote has ended."""
    ended, poll = os.pidfd_open(zygote), select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(mounts, select.POLLIN)
    while True:
        ready = [handle for handle, _ in poll.poll()]
        if ended in ready:
            os.waitpid(zygote, 0)
            return
        try:
            answer_mount_request(mounts, as_root)
        except (OSError, EOFError):  # the host has hung up, and will end us
            poll.unregister(mounts)


def answer_mount_request(mounts: Channel, as_root: bool) -> None:
    """One folder, or why not."""
    request, handles = mounts.receive(1)
    try:
        tree = make_detached_mount(request["path"], handles[0], request["uid"] if as_root else None)
        mounts.send({"mounted": True}, [tree])
        os.close(tree)
    except (OSError, kernel.Unsupported) as error:
        mounts.send({"failed": str(error)})
    finally:
        os.close(handles[0])


def make_detached_mount(path: str, meant: int, uid: int | None) -> int:
    """The folder alone, without what is mounted below it: no programs, no devices, and for root, another owner."""
    found = kernel.open_without_links(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not os.path.sameopenfile(found, meant):
            raise kernel.Unsupported("another folder has that name by now")
        tree = kernel.open_tree(found)
    finally:
        os.close(found)
    try:
        if uid is None:
            kernel.mount_setattr(tree)
        else:
            shift_owner(tree, uid)
    except BaseException:
        os.close(tree)
        raise
    return tree


def shift_owner(tree: int, uid: int) -> None:
    """Inside, the folder's owner is the guest: it can write what the owner can, and what it makes is the owner's."""
    namespace = make_user_namespace(os.fstat(tree), uid)
    try:
        kernel.mount_setattr(tree, namespace)
    except OSError as error:
        raise kernel.Unsupported(f"its file system does not let another user own it for a while ({error})") from None
    finally:
        os.close(namespace)


def make_user_namespace(owner: os.stat_result, uid: int) -> int:
    """A user namespace that says who is whom: made by a child that stops until this is written down."""
    child = os.fork()
    if not child:
        with suppress(OSError):
            kernel.unshare(kernel.CLONE_NEWUSER)
            os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(1)
    _, status = os.waitpid(child, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        raise kernel.Unsupported("no user namespace can be made")
    try:
        for name, number in (("uid_map", owner.st_uid), ("gid_map", owner.st_gid)):
            with open(f"/proc/{child}/{name}", "w") as file:
                file.write(f"{number} {uid} 1")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
