"""The seccomp filter: which system calls untrusted code may not make, and the call numbers by machine."""

import errno
import struct
from functools import cache

from .kernel import ARCH, SeccompFilter, Unsupported

CALLS = {
    "x86_64": {
        "open": 2, "creat": 85, "mknod": 133, "openat": 257, "mknodat": 259, "openat2": 437,
        "ioctl": 16, "shmget": 29, "shmat": 30, "shmctl": 31, "socket": 41, "connect": 42, "accept": 43,
        "shutdown": 48, "bind": 49, "listen": 50, "socketpair": 53, "setsockopt": 54, "getsockopt": 55, "clone": 56,
        "fork": 57, "vfork": 58, "execve": 59, "kill": 62, "semget": 64, "semop": 65, "semctl": 66, "msgget": 68,
        "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "fcntl": 72, "truncate": 76, "chmod": 90, "fchmod": 91, "chown": 92,
        "fchown": 93, "lchown": 94, "ptrace": 101, "syslog": 103, "rt_sigqueueinfo": 129, "utime": 132, "uselib": 134,
        "personality": 135, "setpriority": 141, "sched_setparam": 142, "sched_setscheduler": 144, "vhangup": 153,
        "modify_ldt": 154, "pivot_root": 155, "prctl": 157, "setrlimit": 160, "chroot": 161, "sync": 162, "acct": 163,
        "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169, "iopl": 172, "ioperm": 173,
        "init_module": 175,
        "delete_module": 176, "quotactl": 179, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190,
        "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199, "tkill": 200, "sched_setaffinity": 203,
        "io_setup": 206, "lookup_dcookie": 212, "semtimedop": 220, "timer_create": 222, "tgkill": 234, "utimes": 235,
        "mq_open": 240, "mq_unlink": 241,
        "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "ioprio_set": 251, "inotify_init": 253,
        "migrate_pages": 256, "fchownat": 260, "futimesat": 261, "fchmodat": 268, "unshare": 272, "move_pages": 279,
        "utimensat": 280, "accept4": 288, "inotify_init1": 294, "rt_tgsigqueueinfo": 297, "perf_event_open": 298,
        "fanotify_init": 300, "fanotify_mark": 301, "prlimit64": 302, "name_to_handle_at": 303,
        "open_by_handle_at": 304, "syncfs": 306, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311,
        "kcmp": 312, "finit_module": 313, "sched_setattr": 314, "seccomp": 317, "memfd_create": 319,
        "kexec_file_load": 320, "bpf": 321, "execveat": 322, "userfaultfd": 323, "pkey_alloc": 330,
        "pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
        "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
        "pidfd_open": 434, "clone3": 435, "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442,
        "quotactl_fd": 443, "memfd_secret": 447, "process_mrelease": 448, "fchmodat2": 452, "statmount": 457,
        "listmount": 458,
    },
    "aarch64": {
        "io_setup": 0, "mknodat": 33, "openat": 56, "openat2": 437,
        "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16,
        "lookup_dcookie": 18, "fcntl": 25, "inotify_init1": 26, "ioctl": 29, "ioprio_set": 30, "umount2": 39,
        "mount": 40, "pivot_root": 41, "truncate": 45, "chroot": 51, "fchmod": 52, "fchmodat": 53, "fchownat": 54,
        "fchown": 55, "vhangup": 58, "quotactl": 60, "sync": 81, "utimensat": 88, "acct": 89, "personality": 92,
        "unshare": 97, "kexec_load": 104, "init_module": 105, "delete_module": 106, "timer_create": 107, "syslog": 116,
        "ptrace": 117,
        "sched_setparam": 118, "sched_setscheduler": 119, "sched_setaffinity": 122, "kill": 129, "tkill": 130,
        "tgkill": 131, "rt_sigqueueinfo": 138, "setpriority": 140, "reboot": 142, "setrlimit": 164, "prctl": 167,
        "mq_open": 180, "mq_unlink": 181, "msgget": 186, "msgctl": 187, "msgrcv": 188, "msgsnd": 189, "semget": 190,
        "semctl": 191, "semtimedop": 192, "semop": 193, "shmget": 194, "shmctl": 195, "shmat": 196, "socket": 198,
        "socketpair": 199, "bind": 200, "listen": 201, "accept": 202, "connect": 203, "setsockopt": 208,
        "getsockopt": 209, "shutdown": 210, "add_key": 217,
        "request_key": 218, "keyctl": 219, "clone": 220, "execve": 221, "swapon": 224, "swapoff": 225,
        "migrate_pages": 238, "move_pages": 239, "rt_tgsigqueueinfo": 240, "perf_event_open": 241, "accept4": 242,
        "prlimit64": 261, "fanotify_init": 262, "fanotify_mark": 263, "name_to_handle_at": 264,
        "open_by_handle_at": 265, "syncfs": 267, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271,
        "kcmp": 272, "finit_module": 273, "sched_setattr": 274, "seccomp": 277, "memfd_create": 279, "bpf": 280,
        "execveat": 281, "userfaultfd": 282, "pkey_alloc": 289, "kexec_file_load": 294, "pidfd_send_signal": 424,
        "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
        "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_open": 434, "clone3": 435,
        "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443, "memfd_secret": 447,
        "process_mrelease": 448, "fchmodat2": 452, "statmount": 457, "listmount": 458,
    },
}  # fmt: skip


AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALWAYS_DENIED = """
    socket connect bind listen accept accept4
    ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp migrate_pages move_pages
    pidfd_open pidfd_getfd pidfd_send_signal
    unshare setns chroot pivot_root mount umount2 open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr
    statmount listmount name_to_handle_at open_by_handle_at quotactl quotactl_fd lookup_dcookie sync syncfs
    fanotify_init fanotify_mark inotify_init inotify_init1
    shmget shmat shmctl semget semop semctl semtimedop msgget msgsnd msgrcv msgctl mq_open mq_unlink
    add_key request_key keyctl bpf perf_event_open userfaultfd seccomp pkey_alloc memfd_create memfd_secret
    io_setup io_uring_setup io_uring_enter io_uring_register execveat
    sched_setaffinity sched_setattr sched_setparam sched_setscheduler setpriority ioprio_set
    personality syslog acct swapon swapoff reboot vhangup modify_ldt iopl ioperm uselib
    init_module finit_module delete_module kexec_load kexec_file_load
""".split()  # noqa: SIM905 - a hundred quotes would hide the words
SINGLE_PROCESS_DENIED = ("fork", "vfork", "execve")
HELLO_CALL = "personality"
"""Not needed by programs, so it has another meaning where forks are watched: a fork announces itself to the host."""
SIGNAL_CALLS = {"kill": 1, "tkill": 1, "tgkill": 2, "rt_sigqueueinfo": 1, "rt_tgsigqueueinfo": 2}
"""Calls that send a signal, and which argument is its number. A turn shares pid namespace and user with the process
that holds the state before it."""
SO_SNDBUF, SO_RCVBUF, SO_SNDBUFFORCE, SO_RCVBUFFORCE = 7, 8, 32, 33
SO_PASSPIDFD, SO_PEERPIDFD = 76, 77
"""They give a descriptor of the process at the other end: of the host, or of the tests."""
SHARED_SOCKET_CALLS = ("shutdown", "setsockopt")
"""They change a socket for every process that has it: a turn could cut the other off."""
OWNERSHIP_CALLS = """
    chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat truncate utime utimes futimesat utimensat
    setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr
""".split()  # noqa: SIM905
"""Calls that Landlock does not control; without a mount namespace they reach the host's files."""

_LOAD, _JA, _JEQ, _JSET, _JGE, _AND, _RET = 0x20, 0x05, 0x15, 0x45, 0x35, 0x54, 0x06
_ALLOW, _ASK, _ERRNO, _KILL = 0x7FFF0000, 0x7FC00000, 0x00050000, 0x80000000
_NR, _ARCH, _ARGUMENTS = 0, 4, 16
CLONE_THREAD, NEW_NAMESPACES = 0x00010000, 0x7E020000
AF_UNIX, SOCK_STREAM, SOCK_SEQPACKET = 1, 1, 5
F_SETOWN, F_SETSIG, F_SETOWN_EX, FIOSETOWN, SIOCSPGRP, PR_SET_PDEATHSIG = 8, 10, 15, 0x8901, 0x8902, 1
RLIMIT_CPU, SIGKILL = 0, 9
MODE_ARGUMENTS = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "open": 2, "openat": 3, "creat": 1} | {
    "mknod": 1,
    "mknodat": 2,
}
"""Which argument of a call is the mode of a file."""
SETUID_SETGID = 0o6000
X32, FIRST_UNKNOWN_CALL = 0x40000000, 463
"""The x32 entry has its own call numbers; and calls that a later kernel adds are treated as missing."""
PID_PLACEHOLDER = 0x7FFFFFFE
"""Stands for the pid that the process will have."""
MAX_JUMP = 255
"""The longest conditional jump."""

Instructions = list[bytes]


def _op(code: int, k: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, no, k)


def _deny(code: int) -> bytes:
    return _op(_RET, _ERRNO | code)


@cache
def cached_filter(alone: bool, forks: bool, hosted: bool) -> SeccompFilter:
    """Return the filter of a process in its namespaces."""
    return SeccompFilter(make_program(alone, forks, hosted=hosted))


def make_own_filter(alone: bool, pid: int) -> SeccompFilter:
    """Return the filter of a process without namespaces: it may signal only itself."""
    return SeccompFilter(
        make_program(alone, apart=False).replace(_op(_JEQ, PID_PLACEHOLDER, 1, 0), _op(_JEQ, pid, 1, 0))
    )


@cache
def make_program(
    alone: bool, forks: bool = False, apart: bool = True, hosted: bool = False, first: bool = True
) -> bytes:
    """Return the filter program. `alone` forbids other processes (threads are allowed); `forks` asks the host about
    each fork, and about the hello call; not `apart`: there are no namespaces, so the host's processes and files have
    names; `hosted`: the working folder is the host's; not `first`: the process is not the first of its namespace, which
    the kernel protects from a SIGKILL of its own code.

    Code never ends by a SIGKILL of its own, so that one from outside can be told from what the code did.
    """
    if ARCH not in CALLS:
        raise Unsupported(f"no seccomp filter for {ARCH}")
    calls, blocks = CALLS[ARCH], {FIRST_UNKNOWN_CALL: [_deny(errno.ENOSYS)]}
    set_options = _deny_values(SO_SNDBUF, SO_RCVBUF, SO_SNDBUFFORCE, SO_RCVBUFFORCE, SO_PASSPIDFD)
    blocks[calls["setsockopt"]] = _on_argument(2, set_options)
    blocks[calls["getsockopt"]] = _on_argument(2, _deny_values(SO_PEERPIDFD))
    for name in [
        *ALWAYS_DENIED,
        *(SINGLE_PROCESS_DENIED if alone else ()),
        *((*SIGNAL_CALLS, *SHARED_SOCKET_CALLS) if forks else ()),
    ]:
        if name in calls:
            blocks[calls[name]] = [_deny(errno.EPERM)]
    blocks[calls["clone3"]] = [_deny(errno.ENOSYS)]  # its flags are in memory: libc falls back to clone
    blocks[calls["clone"]] = _on_argument(0, _clone_rules(alone, forks))
    blocks[calls["socketpair"]] = [*_check(0, AF_UNIX), *_pair_rules()]
    if forks:
        blocks[calls[HELLO_CALL]] = [_op(_RET, _ASK)]
    if forks or not apart:
        blocks |= _protect_other_processes(calls)
    blocks |= _keep_cpu_limit(calls, own_only=forks or not apart)
    if alone and not first:
        blocks |= _deny_own_kill(calls)
    if not apart:
        blocks |= _protect_host(calls)
    if hosted:
        blocks |= _deny_setuid_files(calls)
    start = [_op(_LOAD, _ARCH), _op(_JEQ, AUDIT[ARCH], 1, 0), _op(_RET, _KILL), _op(_LOAD, _NR)]
    if ARCH == "x86_64":
        start += [_op(_JGE, X32, 0, 1), _op(_RET, _KILL)]
    return b"".join([*start, *_tree(_intervals(blocks))])


def _clone_rules(alone: bool, forks: bool) -> Instructions:
    rules = [_op(_JSET, NEW_NAMESPACES, 0, 1), _deny(errno.EPERM)]
    if alone:
        rules += [_op(_JSET, CLONE_THREAD, 1, 0), _op(_RET, _ASK) if forks else _deny(errno.EAGAIN)]
    return rules


def _pair_rules() -> Instructions:
    """Deny datagram pairs: with one end of such a pair a process can write to any socket that has a name."""
    rules = [_op(_AND, 0xF), _op(_JEQ, SOCK_STREAM, 2, 0), _op(_JEQ, SOCK_SEQPACKET, 1, 0), _deny(errno.EPERM)]
    return _on_argument(1, rules)


def _protect_other_processes(calls: dict[str, int]) -> dict[int, Instructions]:
    """Deny signals through a descriptor's owner, and through timers, which can send SIGKILL."""
    return {
        calls["fcntl"]: _on_argument(1, _deny_values(F_SETOWN, F_SETSIG, F_SETOWN_EX)),
        calls["ioctl"]: _on_argument(1, _deny_values(FIOSETOWN, SIOCSPGRP)),
        calls["timer_create"]: [_deny(errno.EPERM)],
    }


def _keep_cpu_limit(calls: dict[str, int], own_only: bool) -> dict[int, Instructions]:
    """Ignore new limits of CPU time: a lower one would end the code by SIGKILL. `own_only` denies those of others."""
    ignore, new, high = _op(_RET, _ERRNO), _ARGUMENTS + 8 * 2, 4
    rules = [_op(_JEQ, RLIMIT_CPU, 0, 5), _op(_LOAD, new), _op(_JEQ, 0, 0, 2), _op(_LOAD, new + high), _op(_JEQ, 0, 1)]
    check = _check(0, 0) if own_only else []
    return {
        calls["prlimit64"]: [*check, *_on_argument(1, [*rules, ignore])],
        calls["setrlimit"]: _on_argument(0, [_op(_JEQ, RLIMIT_CPU, 0, 1), ignore]),
    }


def _deny_own_kill(calls: dict[str, int]) -> dict[int, Instructions]:
    """Deny every way to send oneself SIGKILL, where only this code can be reached by a signal anyway."""
    no_kill = _deny_values(SIGKILL)
    blocks = {calls[name]: _on_argument(index, no_kill) for name, index in SIGNAL_CALLS.items()}
    return blocks | {
        calls["fcntl"]: _on_argument(1, _deny_values(F_SETSIG)),
        calls["timer_create"]: [_deny(errno.EPERM)],
    }


def _protect_host(calls: dict[str, int]) -> dict[int, Instructions]:
    """Deny signals to other processes and SIGKILL to oneself, changes of files' ownership, modes and times, and ways to
    outlive the zygote."""
    only_self, no_kill = _check(0, PID_PLACEHOLDER), _deny_values(SIGKILL)
    blocks = {calls[name]: [*only_self, *_on_argument(index, no_kill)] for name, index in SIGNAL_CALLS.items()}
    blocks |= {calls[name]: [_deny(errno.EPERM)] for name in [*OWNERSHIP_CALLS, "tkill"] if name in calls}
    return blocks | {calls["prctl"]: _on_argument(0, _deny_values(PR_SET_PDEATHSIG))}


def _deny_setuid_files(calls: dict[str, int]) -> dict[int, Instructions]:
    """Deny files that run as their owner for every user: they outlive the session, and are the host's."""
    rules = [_op(_JSET, SETUID_SETGID, 0, 1), _deny(errno.EPERM)]
    blocks = {calls[name]: _on_argument(index, rules) for name, index in MODE_ARGUMENTS.items() if name in calls}
    return blocks | {calls["openat2"]: [_deny(errno.ENOSYS)]}  # its mode is in memory


def _deny_values(*values: int) -> Instructions:
    return [instruction for value in values for instruction in (_op(_JEQ, value, 0, 1), _deny(errno.EPERM))]


def _check(index: int, value: int) -> Instructions:
    """Deny every other value of an argument; otherwise continue."""
    return [_op(_LOAD, _ARGUMENTS + 8 * index), _op(_JEQ, value, 1, 0), _deny(errno.EPERM)]


def _on_argument(index: int, rules: Instructions) -> Instructions:
    """Apply rules to one argument of a call; falling through allows it."""
    return [_op(_LOAD, _ARGUMENTS + 8 * index), *rules, _op(_RET, _ALLOW)]


def _intervals(blocks: dict[int, Instructions]) -> list[tuple[int, Instructions]]:
    """Return all call numbers as intervals with the same rules: where each begins, and its rules."""
    intervals: list[tuple[int, Instructions]] = [(0, [_op(_RET, _ALLOW)])]
    for call in sorted({*blocks, *(call + 1 for call in blocks if call != FIRST_UNKNOWN_CALL)}):
        block = blocks.get(call, [_op(_RET, _ALLOW)])
        if block != intervals[-1][1]:
            intervals.append((call, block))
    return intervals


def _tree(intervals: list[tuple[int, Instructions]]) -> Instructions:
    """Return a binary search: when a filter is installed, the kernel runs it for every call number."""
    if len(intervals) == 1:
        return intervals[0][1]
    middle = len(intervals) // 2
    below, above = _tree(intervals[:middle]), _tree(intervals[middle:])
    first, skip = intervals[middle][0], len(below)
    jump = [_op(_JGE, first, skip)] if skip <= MAX_JUMP else [_op(_JGE, first, 0, 1), _op(_JA, skip)]
    return [*jump, *below, *above]
