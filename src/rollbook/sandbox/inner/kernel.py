"""System calls that Python lacks, through ctypes. Runs inside the zygote: only the standard library."""

import ctypes
import errno
import os
import platform
import struct

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MS_SLAVE = (
    1, 2, 4, 8, 32, 4096, 16384, 1 << 18, 1 << 19,
)  # fmt: skip
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 36, 38
SECCOMP_NEW_LISTENER = 8
AT_FDCWD, AT_EMPTY_PATH, OPEN_TREE_CLONE, MOVE_MOUNT_F_EMPTY_PATH = -100, 0x1000, 1, 4
MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC, MOUNT_ATTR_IDMAP = 2, 4, 8, 0x100000
RESOLVE_NO_SYMLINKS = 4
OPEN_TREE, MOVE_MOUNT, OPENAT2, MOUNT_SETATTR = 428, 429, 437, 442
"""Recent calls have the same number on all machines."""

SYSCALL_NUMBERS = {
    "x86_64": {"pivot_root": 155, "capset": 126, "close_range": 436, "landlock": 444, "seccomp": 317},
    "aarch64": {"pivot_root": 41, "capset": 91, "close_range": 436, "landlock": 444, "seccomp": 277},
}
ARCH = platform.machine()


class Unsupported(Exception):
    """The kernel or the machine lacks something that an isolation level needs."""


def syscall_number(name: str) -> int:
    """Return the number of a system call on this machine."""
    if ARCH not in SYSCALL_NUMBERS:
        raise Unsupported(f"no system call numbers for {ARCH}")
    return SYSCALL_NUMBERS[ARCH][name]


def check_result(result: int, what: str) -> int:
    """Return the result of a call, or raise OSError with the name of the call."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def syscall(what: str, call: int, *arguments: object) -> int:
    """Make a raw system call."""
    return check_result(_syscall(ctypes.c_long(call), *arguments), what)


def unshare(flags: int) -> None:
    """Move this process (for pids: its children) to new namespaces."""
    check_result(_libc.unshare(flags), "unshare")


def setns(handle: int, kind: int) -> None:
    """Enter a namespace by descriptor."""
    check_result(_libc.setns(handle, kind), "setns")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """mount(2)."""
    encoded = [text.encode() if text is not None else None for text in (source, target, kind)]
    check_result(_libc.mount(*encoded, ctypes.c_ulong(flags), data.encode() or None), f"mount {target}")


def pivot_root(new: str) -> None:
    """Make a folder the root and unmount the old one."""
    os.chdir(new)
    syscall("pivot_root", syscall_number("pivot_root"), b".", b".")
    check_result(_libc.umount2(b".", MNT_DETACH), "umount2")
    os.chdir("/")


def open_without_links(path: str, flags: int) -> int:
    """Open a path that contains no symbolic link."""
    how = struct.pack("=3Q", flags, 0, RESOLVE_NO_SYMLINKS)
    try:
        return syscall(path, OPENAT2, AT_FDCWD, os.fsencode(path), how, ctypes.c_size_t(len(how)))
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):
            raise Unsupported("the kernel does not open folders without following links") from None
        raise


def open_tree(handle: int) -> int:
    """Return a detached mount of a folder, without what is mounted below it."""
    return syscall("open_tree", OPEN_TREE, handle, b"", OPEN_TREE_CLONE | AT_EMPTY_PATH | os.O_CLOEXEC)


def move_mount(tree: int, target: str) -> None:
    """Attach a detached mount."""
    syscall("move_mount", MOVE_MOUNT, tree, b"", AT_FDCWD, target.encode(), MOVE_MOUNT_F_EMPTY_PATH)


def mount_setattr(tree: int, users: int | None = None) -> None:
    """Restrict a mount for untrusted code; a user namespace maps the owners of its files."""
    flags = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC | (MOUNT_ATTR_IDMAP if users is not None else 0)
    attributes = struct.pack("=4Q", flags, 0, MS_PRIVATE, users or 0)
    syscall("mount_setattr", MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH, attributes, ctypes.c_size_t(len(attributes)))


def prctl(option: int, value: int = 0) -> None:
    """prctl(2)."""
    zero = ctypes.c_ulong(0)
    check_result(_libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero), f"prctl {option}")


def drop_bounding_set() -> None:
    """Prevent that a dropped capability can be regained."""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            break


def drop_capabilities() -> None:
    """Drop all capabilities."""
    header = struct.pack("=Ii", 0x20080522, 0)
    syscall("capset", syscall_number("capset"), header, b"\0" * 24)


def close_from(first: int) -> None:
    """Close every descriptor from `first` on."""
    try:
        syscall("close_range", syscall_number("close_range"), ctypes.c_uint(first), ctypes.c_uint(0xFFFFFFFF), 0)
    except OSError:
        os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def map_root(user: int, group: int, proc: int) -> None:
    """Map only root in a new user namespace. `proc` is a descriptor: /proc may not exist in the root."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        handle = os.open(f"self/{name}", os.O_WRONLY | os.O_CLOEXEC, dir_fd=proc)
        os.write(handle, text.encode())
        os.close(handle)


class SeccompFilter:
    """A BPF program in the memory layout that the kernel requires: made once, installed many times."""

    def __init__(self, program: bytes) -> None:
        self._program = ctypes.create_string_buffer(program)
        layout = "HL" if ctypes.sizeof(ctypes.c_long) == 8 else "HI"
        self._header = struct.pack(layout, len(program) // 8, ctypes.addressof(self._program))
        self._call = ctypes.c_long(syscall_number("seccomp"))

    def install(self, listen: bool = False) -> list[int]:
        """Install it for this process and its children; `listen` returns the descriptor that receives its questions."""
        handle = check_result(_syscall(self._call, 1, SECCOMP_NEW_LISTENER if listen else 0, self._header), "seccomp")
        return [handle] if listen else []


def install_filter(program: bytes, listen: bool = False) -> list[int]:
    """Install a program that is used only once."""
    return SeccompFilter(program).install(listen)
