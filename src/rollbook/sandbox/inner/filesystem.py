"""The files that a guest sees: a root with only the interpreter in it, Landlock rules on top, and mounted folders.

Folders of the host are mounted by the launcher, the zygote's parent. It stays outside of the zygote's root, where
folders of the host have names. On a channel of its own the host sends it {"path", "uid"} with a descriptor of the
folder, and receives a detached mount of it, which the guest then attaches. A process can only pass on mounts that it
sees itself: neither the host, as an ordinary user, nor the zygote could make it.
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
"""Landlock ignores the folder that a mount is attached to and looks at the one above: a rule for that one applies to
the working folder of every guest."""

_EXECUTE, _WRITE, _READ, _READ_DIR = 1, 2, 4, 8
_READING = _EXECUTE | _READ | _READ_DIR
_FS_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_RULE_PATH = 1


def landlock_abi() -> int:
    """Return the version of Landlock this kernel has; 0 for none."""
    try:
        return kernel.syscall("landlock", kernel.syscall_number("landlock"), None, 0, 1)
    except OSError:
        return 0


def apply_landlock(readable: list[str], writable: list[str]) -> None:
    """Allow only these paths to be read or written from here on; no TCP, no signals or abstract sockets across."""
    handle = make_ruleset(readable, writable)
    restrict_self(handle)
    os.close(handle)


def make_ruleset(readable: list[str], writable: list[str]) -> int:
    """Return a descriptor of such a set of rules, which can be applied many times."""
    abi = landlock_abi()
    rights = _FS_BY_ABI[max(v for v in _FS_BY_ABI if v <= abi)]
    fields = [rights] + ([3] if abi >= 4 else []) + ([3] if abi >= 6 else [])
    base = kernel.syscall_number("landlock")
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    ruleset = kernel.syscall("landlock", base, attributes, ctypes.c_size_t(len(attributes)), 0)
    for paths, allowed in ((readable, _READING), (writable, rights & ~_EXECUTE)):
        for path in filter(os.path.exists, paths):
            _allow_path(base, ruleset, path, allowed & rights)
    return ruleset


def restrict_self(ruleset: int) -> None:
    """Apply a set of rules to this process."""
    kernel.syscall("landlock", kernel.syscall_number("landlock") + 2, ruleset, 0)


def _allow_path(base: int, ruleset: int, path: str, rights: int) -> None:
    if not os.path.isdir(path):
        rights &= _EXECUTE | _WRITE | _READ | (1 << 14) | (1 << 15)
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        kernel.syscall("landlock", base + 1, ruleset, _RULE_PATH, struct.pack("=Qi", rights, handle), 0)
    finally:
        os.close(handle)


def list_visible_paths(config: dict[str, Any]) -> list[str]:
    """List the readable paths where nothing can be mounted: folders that contain hidden ones, entry by entry."""
    paths = list(config["shown"])
    for path in config["places"]:
        if not os.path.islink(path):  # its target is a folder of which only parts are visible
            paths += _list_around(path, config["hidden"])
    return paths


def _list_around(path: str, hidden: list[str]) -> list[str]:
    if path in hidden:
        return []
    if not any(folder.startswith(f"{path}/") for folder in hidden):
        return [path]
    return [inner for name in os.listdir(path) for inner in _list_around(os.path.join(path, name), hidden)]


def make_root(config: dict[str, Any]) -> None:
    """Make a root of read-only views of paths without the hidden ones, four devices, and an empty working folder."""
    root = config["root_folder"]
    kernel.mount(None, "/", None, MS_REC | MS_PRIVATE)
    kernel.mount("root", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for path in config["places"]:
        _bind_read_only(path, root)
    for folder in config["hidden"]:
        if os.path.isdir(root + folder):
            _hide_folder(folder, [path for path in config["shown"] if path.startswith(f"{folder}/")], root)
    for device in DEVICES:
        target = f"{root}/dev/{device}"
        os.makedirs(f"{root}/dev", exist_ok=True)
        open(target, "wb").close()
        kernel.mount(f"/dev/{device}", target, None, MS_BIND)
    os.makedirs(root + WORKING_FOLDER)
    kernel.pivot_root(root)
    kernel.mount(None, "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def _hide_folder(folder: str, shown: list[str], root: str) -> None:
    kernel.mount("nothing", root + folder, "tmpfs", MS_NOSUID | MS_NODEV, "size=64k,mode=755")
    for path in shown:
        _bind_read_only(path, root)
    kernel.mount(None, root + folder, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def _bind_read_only(path: str, root: str) -> None:
    target = root + path
    if os.path.islink(path):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "wb").close()
    kernel.mount(path, target, None, MS_BIND | MS_REC)
    kernel.mount(None, target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_REC)


def mount_host_folder(tree: int) -> None:
    """Mount a folder of the host as the working folder: it outlives the process."""
    kernel.move_mount(tree, WORKING_FOLDER)
    os.chdir(WORKING_FOLDER)


def mount_private_folder(megabytes: int, files: int) -> None:
    """Mount a working folder that is limited in bytes and files and vanishes with the process."""
    kernel.mount(
        "box",
        WORKING_FOLDER,
        "tmpfs",
        MS_NOSUID | MS_NODEV | MS_NOEXEC,
        f"size={megabytes}m,nr_inodes={files},mode=777",
    )
    os.chdir(WORKING_FOLDER)


def serve_mounts(mounts: Channel, zygote: int, as_root: bool) -> None:
    """Answer requests for mounts until the zygote has ended."""
    zygote_fd, poll = os.pidfd_open(zygote), select.poll()
    poll.register(zygote_fd, select.POLLIN)
    poll.register(mounts, select.POLLIN)
    while True:
        ready = [handle for handle, _ in poll.poll()]
        if zygote_fd in ready:
            os.waitpid(zygote, 0)
            return
        try:
            answer_mount_request(mounts, as_root)
        except (OSError, EOFError):  # the host has closed the channel, and will end us
            poll.unregister(mounts)


def answer_mount_request(mounts: Channel, as_root: bool) -> None:
    """Send one mount, or the reason why there is none."""
    request, handles = mounts.receive(1)
    try:
        tree = make_detached_mount(request["path"], handles[0], request["uid"] if as_root else None)
        mounts.send({"mounted": True}, [tree])
        os.close(tree)
    except (OSError, kernel.Unsupported) as error:
        mounts.send({"failed": str(error)})
    finally:
        os.close(handles[0])


def make_detached_mount(path: str, expected_fd: int, uid: int | None) -> int:
    """Return a mount of the folder without mounts below it: no programs, no devices, and for root, another owner."""
    fd = kernel.open_without_links(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not os.path.sameopenfile(fd, expected_fd):
            raise kernel.Unsupported("another folder now has that name")
        tree = kernel.open_tree(fd)
    finally:
        os.close(fd)
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
    """Make the guest appear as the folder's owner: it can write what the owner can, and its files are the owner's."""
    namespace = make_user_namespace(os.fstat(tree), uid)
    try:
        kernel.mount_setattr(tree, namespace)
    except OSError as error:
        raise kernel.Unsupported(f"its file system does not allow a temporary change of its owner ({error})") from None
    finally:
        os.close(namespace)


def make_user_namespace(owner: os.stat_result, uid: int) -> int:
    """Return a user namespace that maps the owner to a uid: a child creates it and stops until the maps are written."""
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
