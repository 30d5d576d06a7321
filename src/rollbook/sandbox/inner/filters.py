"""The seccomp filter: what untrusted code may not even ask the kernel for."""

import errno
import struct
from functools import cache

from .kernel import ARCH, Unsupported

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CALLS = {
    "x86_64": {
        "socket": 41, "connect": 42, "socketpair": 53, "clone": 56, "fork": 57, "vfork": 58, "execve": 59,
        "ptrace": 101, "syslog": 103, "personality": 135, "pivot_root": 155,
        "chroot": 161, "acct": 163, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169,
        "init_module": 175, "delete_module": 176, "quotactl": 179, "shmget": 29, "semget": 64, "msgget": 68,
        "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "mq_open": 240, "unshare": 272,
        "perf_event_open": 298, "fanotify_init": 300, "name_to_handle_at": 303, "open_by_handle_at": 304,
        "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313,
        "seccomp": 317, "memfd_create": 319, "kexec_file_load": 320, "bpf": 321, "execveat": 322,
        "userfaultfd": 323, "pkey_alloc": 330, "io_uring_setup": 425, "open_tree": 428, "move_mount": 429,
        "fsopen": 430, "fsmount": 432, "pidfd_open": 434, "clone3": 435, "pidfd_getfd": 438,
        "mount_setattr": 442, "memfd_secret": 447,
        "pidfd_send_signal": 424, "ioctl": 16, "shutdown": 48, "setsockopt": 54, "kill": 62, "fcntl": 72,
        "rt_sigqueueinfo": 129, "tkill": 200, "tgkill": 234, "rt_tgsigqueueinfo": 297, "prlimit64": 302,
    },
    "aarch64": {
        "socket": 198, "connect": 203, "socketpair": 199, "clone": 220, "execve": 221, "ptrace": 117, "syslog": 116,
        "personality": 92, "pivot_root": 41, "chroot": 51, "acct": 89, "mount": 40,
        "umount2": 39, "swapon": 224, "swapoff": 225, "reboot": 142, "init_module": 105, "delete_module": 106,
        "quotactl": 60, "shmget": 194, "semget": 190, "msgget": 186, "kexec_load": 104, "add_key": 217,
        "request_key": 218, "keyctl": 219, "mq_open": 180, "unshare": 97, "perf_event_open": 241,
        "fanotify_init": 262, "name_to_handle_at": 264, "open_by_handle_at": 265, "setns": 268,
        "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "seccomp": 277,
        "memfd_create": 279, "bpf": 280, "execveat": 281, "userfaultfd": 282, "pkey_alloc": 289,
        "kexec_file_load": 294, "io_uring_setup": 425, "open_tree": 428, "move_mount": 429, "fsopen": 430,
        "fsmount": 432, "pidfd_open": 434, "clone3": 435, "pidfd_getfd": 438, "mount_setattr": 442,
        "memfd_secret": 447,
        "pidfd_send_signal": 424, "fcntl": 25, "ioctl": 29, "kill": 129, "tkill": 130, "tgkill": 131,
        "rt_sigqueueinfo": 138, "setsockopt": 208, "shutdown": 210, "rt_tgsigqueueinfo": 240, "prlimit64": 261,
    },
}  # fmt: skip
ALWAYS = [
    "socket",
    "connect",
    "ptrace",
    "syslog",
    "personality",
    "pivot_root",
    "chroot",
    "acct",
    "mount",
    "umount2",
    "swapon",
    "swapoff",
    "reboot",
    "init_module",
    "delete_module",
    "quotactl",
    "shmget",
    "semget",
    "msgget",
    "kexec_load",
    "add_key",
    "request_key",
    "keyctl",
    "mq_open",
    "unshare",
    "perf_event_open",
    "fanotify_init",
    "name_to_handle_at",
    "open_by_handle_at",
    "setns",
    "process_vm_readv",
    "process_vm_writev",
    "kcmp",
    "finit_module",
    "seccomp",
    "memfd_create",
    "kexec_file_load",
    "bpf",
    "execveat",
    "userfaultfd",
    "pkey_alloc",
    "io_uring_setup",
    "open_tree",
    "move_mount",
    "fsopen",
    "fsmount",
    "pidfd_open",
    "pidfd_getfd",
    "mount_setattr",
    "memfd_secret",
    "pidfd_send_signal",
]
ALONE = ("fork", "vfork", "execve")
HELLO = "personality"
"""Nobody needs it, so it carries something else where forks are watched: a fork says to the host that it is there."""
SIGNALS = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
"""A turn shares pid namespace and user with the process that holds the state before it."""
SHARED = ("shutdown", "setsockopt")
"""What changes a socket changes it for every process that has it: a turn could cut the other off."""

_LOAD, _JEQ, _JSET, _JGE, _RET = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _ASK, _ERRNO, _KILL = 0x7FFF0000, 0x7FC00000, 0x00050000, 0x80000000
_NR, _ARCH, _ARGUMENTS = 0, 4, 16
CLONE_THREAD, NEW_NAMESPACES, AF_UNIX = 0x00010000, 0x7E020000, 1
F_SETOWN, F_SETOWN_EX, FIOSETOWN, SIOCSPGRP = 8, 15, 0x8901, 0x8902


def _op(code: int, k: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, no, k)


def _deny(code: int) -> bytes:
    return _op(_RET, _ERRNO | code)


@cache
def program(alone: bool, forks: bool = False) -> bytes:
    """The filter. `alone` forbids other processes (threads stay); `forks` asks the host about each, and says hello."""
    if ARCH not in CALLS:
        raise Unsupported(f"no seccomp filter for {ARCH}")
    calls = CALLS[ARCH]
    lines = [_op(_LOAD, _ARCH), _op(_JEQ, AUDIT[ARCH], 1, 0), _op(_RET, _KILL), _op(_LOAD, _NR)]
    if ARCH == "x86_64":  # the x32 way in has numbers of its own
        lines += [_op(_JGE, 0x40000000, 0, 1), _op(_RET, _KILL)]
    if forks:
        lines += [_op(_JEQ, calls[HELLO], 0, 1), _op(_RET, _ASK)]
    for name in [*ALWAYS, *(ALONE if alone else ()), *((*SIGNALS, *SHARED) if forks else ())]:
        if name in calls:
            lines += [_op(_JEQ, calls[name], 0, 1), _deny(errno.EPERM)]
    lines += [
        _op(_JEQ, calls["clone3"], 0, 1),
        _deny(errno.ENOSYS),
    ]  # its flags lie in memory: libc falls back to clone
    lines += _on_argument(calls["clone"], 0, _clone_rules(alone, forks))
    lines += _on_argument(calls["socketpair"], 0, [_op(_JEQ, AF_UNIX, 1, 0), _deny(errno.EPERM)])
    lines += _leave_others_alone(calls) if forks else []
    lines.append(_op(_RET, _ALLOW))
    return b"".join(lines)


def _clone_rules(alone: bool, forks: bool) -> list[bytes]:
    rules = [_op(_JSET, NEW_NAMESPACES, 0, 1), _deny(errno.EPERM)]
    if alone:
        rules += [_op(_JSET, CLONE_THREAD, 1, 0), _op(_RET, _ASK) if forks else _deny(errno.EAGAIN)]
    return rules


def _leave_others_alone(calls: dict[str, int]) -> list[bytes]:
    """No signals by way of a descriptor's owner, no limits for another process."""
    return [
        *_on_argument(calls["fcntl"], 1, _deny_values(F_SETOWN, F_SETOWN_EX)),
        *_on_argument(calls["ioctl"], 1, _deny_values(FIOSETOWN, SIOCSPGRP)),
        *_on_argument(calls["prlimit64"], 0, [_op(_JEQ, 0, 1, 0), _deny(errno.EPERM)]),
    ]


def _deny_values(*values: int) -> list[bytes]:
    return [line for value in values for line in (_op(_JEQ, value, 0, 1), _deny(errno.EPERM))]


def _on_argument(call: int, place: int, rules: list[bytes]) -> list[bytes]:
    """Rules on one argument of one call; falling through allows it."""
    body = [_op(_LOAD, _ARGUMENTS + 8 * place), *rules, _op(_RET, _ALLOW)]
    return [_op(_JEQ, call, 0, len(body)), *body]
