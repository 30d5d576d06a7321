"""The seccomp filter: what untrusted code may not even ask the kernel for."""

import errno
import struct
from functools import cache

from .calls import CALLS as CALLS
from .kernel import ARCH, Filter, Unsupported

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALWAYS = """
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
ALONE = ("fork", "vfork", "execve")
HELLO = "personality"
"""Nobody needs it, so it carries something else where forks are watched: a fork says to the host that it is there."""
SIGNALS = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
"""A turn shares pid namespace and user with the process that holds the state before it."""
SO_SNDBUF, SO_RCVBUF, SO_SNDBUFFORCE, SO_RCVBUFFORCE = 7, 8, 32, 33
SHARED = ("shutdown", "setsockopt")
"""What changes a socket changes it for every process that has it: a turn could cut the other off."""
OWNERSHIP = """
    chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat truncate utime utimes futimesat utimensat
    setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr
""".split()  # noqa: SIM905
"""What Landlock lets pass, and no mount of one's own keeps from the host's files."""

_LOAD, _JA, _JEQ, _JSET, _JGE, _AND, _RET = 0x20, 0x05, 0x15, 0x45, 0x35, 0x54, 0x06
_ALLOW, _ASK, _ERRNO, _KILL = 0x7FFF0000, 0x7FC00000, 0x00050000, 0x80000000
_NR, _ARCH, _ARGUMENTS = 0, 4, 16
CLONE_THREAD, NEW_NAMESPACES = 0x00010000, 0x7E020000
AF_UNIX, SOCK_STREAM, SOCK_SEQPACKET = 1, 1, 5
F_SETOWN, F_SETOWN_EX, FIOSETOWN, SIOCSPGRP, PR_SET_PDEATHSIG = 8, 15, 0x8901, 0x8902, 1
MODES = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "open": 2, "openat": 3, "creat": 1} | {
    "mknod": 1,
    "mknodat": 2,
}
"""Which argument of a call says what may be done with a file."""
SETUID_SETGID = 0o6000
X32, UNHEARD_OF = 0x40000000, 463
"""The x32 way in has numbers of its own; and what a later kernel adds is not there."""
SOMEBODY = 0x7FFFFFFE
"""Stands for the pid that the process will have."""
FARTHEST = 255
"""That a conditional jump can lead."""

Block = list[bytes]


def _op(code: int, k: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, no, k)


def _deny(code: int) -> bytes:
    return _op(_RET, _ERRNO | code)


@cache
def ready(alone: bool, forks: bool, hosted: bool) -> Filter:
    """The filter of a process in its namespaces, to be installed."""
    return Filter(program(alone, forks, hosted=hosted))


def own(alone: bool, pid: int) -> Filter:
    """The filter of a process without namespaces: it may signal itself and nobody else."""
    return Filter(program(alone, apart=False).replace(_op(_JEQ, SOMEBODY, 1, 0), _op(_JEQ, pid, 1, 0)))


@cache
def program(alone: bool, forks: bool = False, apart: bool = True, hosted: bool = False) -> bytes:
    """The filter. `alone` forbids other processes (threads stay); `forks` asks the host about each, and says hello;
    not `apart`: there are no namespaces, and the host's processes and files have names; `hosted`: the working folder
    is the host's."""
    if ARCH not in CALLS:
        raise Unsupported(f"no seccomp filter for {ARCH}")
    calls, blocks = CALLS[ARCH], {UNHEARD_OF: [_deny(errno.ENOSYS)]}
    blocks[calls["setsockopt"]] = _on_argument(2, _deny_values(SO_SNDBUF, SO_RCVBUF, SO_SNDBUFFORCE, SO_RCVBUFFORCE))
    for name in [*ALWAYS, *(ALONE if alone else ()), *((*SIGNALS, *SHARED) if forks else ())]:
        if name in calls:
            blocks[calls[name]] = [_deny(errno.EPERM)]
    blocks[calls["clone3"]] = [_deny(errno.ENOSYS)]  # its flags lie in memory: libc falls back to clone
    blocks[calls["clone"]] = _on_argument(0, _clone_rules(alone, forks))
    blocks[calls["socketpair"]] = [*_check(0, AF_UNIX), *_pair_rules()]
    if forks:
        blocks[calls[HELLO]] = [_op(_RET, _ASK)]
    if forks or not apart:
        blocks |= _leave_others_alone(calls)
    if not apart:
        blocks |= _leave_the_host_alone(calls)
    if hosted:
        blocks |= _leave_no_traps(calls)
    start = [_op(_LOAD, _ARCH), _op(_JEQ, AUDIT[ARCH], 1, 0), _op(_RET, _KILL), _op(_LOAD, _NR)]
    if ARCH == "x86_64":
        start += [_op(_JGE, X32, 0, 1), _op(_RET, _KILL)]
    return b"".join([*start, *_tree(_intervals(blocks))])


def _clone_rules(alone: bool, forks: bool) -> Block:
    rules = [_op(_JSET, NEW_NAMESPACES, 0, 1), _deny(errno.EPERM)]
    if alone:
        rules += [_op(_JSET, CLONE_THREAD, 1, 0), _op(_RET, _ASK) if forks else _deny(errno.EAGAIN)]
    return rules


def _pair_rules() -> Block:
    """No datagrams: with one end of such a pair one may write to any socket that has a name."""
    only = [_op(_AND, 0xF), _op(_JEQ, SOCK_STREAM, 2, 0), _op(_JEQ, SOCK_SEQPACKET, 1, 0), _deny(errno.EPERM)]
    return _on_argument(1, only)


def _leave_others_alone(calls: dict[str, int]) -> dict[int, Block]:
    """No signals by way of a descriptor's owner, no limits for another process."""
    return {
        calls["fcntl"]: _on_argument(1, _deny_values(F_SETOWN, F_SETOWN_EX)),
        calls["ioctl"]: _on_argument(1, _deny_values(FIOSETOWN, SIOCSPGRP)),
        calls["prlimit64"]: _on_argument(0, [_op(_JEQ, 0, 1, 0), _deny(errno.EPERM)]),
    }


def _leave_the_host_alone(calls: dict[str, int]) -> dict[int, Block]:
    """No signals but to oneself, no change of what files are, and no way to outlive the zygote."""
    only_self = _on_argument(0, [_op(_JEQ, SOMEBODY, 1, 0), _deny(errno.EPERM)])
    blocks = {calls[name]: only_self for name in SIGNALS if name != "tkill"}
    blocks |= {calls[name]: [_deny(errno.EPERM)] for name in [*OWNERSHIP, "tkill"] if name in calls}
    return blocks | {calls["prctl"]: _on_argument(0, _deny_values(PR_SET_PDEATHSIG))}


def _leave_no_traps(calls: dict[str, int]) -> dict[int, Block]:
    """No file that would run as its owner, whoever starts it: it outlives the session, and is the host's."""
    rules = [_op(_JSET, SETUID_SETGID, 0, 1), _deny(errno.EPERM)]
    blocks = {calls[name]: _on_argument(place, rules) for name, place in MODES.items() if name in calls}
    return blocks | {calls["openat2"]: [_deny(errno.ENOSYS)]}  # its mode lies in memory


def _deny_values(*values: int) -> Block:
    return [line for value in values for line in (_op(_JEQ, value, 0, 1), _deny(errno.EPERM))]


def _check(place: int, value: int) -> Block:
    """Nothing but this value will do; go on."""
    return [_op(_LOAD, _ARGUMENTS + 8 * place), _op(_JEQ, value, 1, 0), _deny(errno.EPERM)]


def _on_argument(place: int, rules: Block) -> Block:
    """Rules on one argument of a call; falling through allows it."""
    return [_op(_LOAD, _ARGUMENTS + 8 * place), *rules, _op(_RET, _ALLOW)]


def _intervals(blocks: dict[int, Block]) -> list[tuple[int, Block]]:
    """All numbers there are, in stretches that are treated alike: where each begins, and what is done."""
    found: list[tuple[int, Block]] = [(0, [_op(_RET, _ALLOW)])]
    for call in sorted({*blocks, *(call + 1 for call in blocks if call != UNHEARD_OF)}):
        block = blocks.get(call, [_op(_RET, _ALLOW)])
        if block != found[-1][1]:
            found.append((call, block))
    return found


def _tree(stretches: list[tuple[int, Block]]) -> Block:
    """A search by halves: the kernel walks through the filter for every call there is when it is installed."""
    if len(stretches) == 1:
        return stretches[0][1]
    middle = len(stretches) // 2
    below, above = _tree(stretches[:middle]), _tree(stretches[middle:])
    first, skip = stretches[middle][0], len(below)
    turn = [_op(_JGE, first, skip)] if skip <= FARTHEST else [_op(_JGE, first, 0, 1), _op(_JA, skip)]
    return [*turn, *below, *above]
