"""A guest without a zygote: another program has put up namespaces and mounts, and started a fresh interpreter there."""

import os
import sys
from typing import Any

from . import filters, guest, kernel, walls
from .channel import Channel
from .exam import EXAM_ROLES
from .roles import ROLES

SETUP_FAILED = 97


def main(order: int, letter: int, birth: int, handles: list[int]) -> None:
    """Tell the host who we are, shut what doors are left, and play. Never returns."""
    code = SETUP_FAILED
    try:
        request = guest.opened(order) | guest.opened(letter)
        role = (ROLES | EXAM_ROLES)[request["role"]]
        announce(birth)
        load(request)
        channel = confine(request, handles, role.stays)
        code = role.play(request, channel)
    except BaseException as error:  # noqa: BLE001 - nothing may get past this point
        os.write(2, f"{type(error).__name__}: {error}\n".encode()[:500])
    finally:
        os._exit(code)


def load(request: dict[str, Any]) -> None:
    """The chosen packages, before any clock runs."""
    sys.path.extend(request["paths"])
    for name in request["packages"]:
        __import__(name)


def announce(birth: int) -> None:
    """Our pidfd, by which the host keeps our clock and ends us."""
    line = Channel(birth)
    pidfd = os.pidfd_open(os.getpid())
    line.send({"born": True}, [pidfd])
    os.close(pidfd)
    line.close()


def confine(request: dict[str, Any], handles: list[int], stays: bool) -> Channel:
    """The limits, and the walls that a process can put up for itself."""
    limits = request["limits"]
    limits |= guest.used_memory()
    os.environ.clear()  # bwrap leaves a PWD
    os.chdir(walls.BOX)
    guest.write_files(request["files"], walls.BOX)
    guest.arrange(handles)
    hard = guest.hard_limits()
    guest.lower(guest.COMMON, hard)
    guest.rlimits(limits, stays, hard)
    if walls.landlock_abi():
        walls.landlock(request["places"] + ["/dev"], [walls.BOX, "/dev/null"])
    guest.become_nobody("user", 0)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.seccomp_filter(filters.program(alone=limits["processes"] == 1))
    channel = Channel(guest.CHANNEL)
    channel.send({"started": True})
    return channel
