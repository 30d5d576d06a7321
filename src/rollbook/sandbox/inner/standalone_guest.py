"""A guest without a zygote: another program (bwrap) has made namespaces and mounts and started an interpreter there.

Entered as `python -c "from inner import standalone_guest; standalone_guest.main(...)"`.
"""

import os
import sys
from typing import Any

from . import filesystem, guest, kernel, seccomp
from .channel import Channel
from .exam import EXAM_ROLES
from .roles import ROLES

SETUP_FAILED = 97


def main(order: int, payload: int, announce_fd: int, handles: list[int]) -> None:
    """Tell the host who we are, shut what doors are left, and play. Never returns."""
    code = SETUP_FAILED
    try:
        request = guest.read_payload(order) | guest.read_payload(payload)
        role = (ROLES | EXAM_ROLES)[request["role"]]
        announce_pidfd(announce_fd)
        load_packages(request)
        channel = confine(request, handles, role.stays)
        code = role.main(request, channel)
    except BaseException as error:  # noqa: BLE001 - nothing may get past this point
        os.write(2, f"{type(error).__name__}: {error}\n".encode()[:500])
    finally:
        os._exit(code)


def load_packages(request: dict[str, Any]) -> None:
    """The chosen packages, before any clock runs."""
    sys.path.extend(request["paths"])
    for name in request["packages"]:
        __import__(name)


def announce_pidfd(announce_fd: int) -> None:
    """Our pidfd, by which the host keeps our clock and ends us."""
    line = Channel(announce_fd)
    pidfd = os.pidfd_open(os.getpid())
    line.send({"born": True}, [pidfd])
    os.close(pidfd)
    line.close()


def confine(request: dict[str, Any], handles: list[int], stays: bool) -> Channel:
    """The limits, and the walls that a process can put up for itself."""
    limits = request["limits"]
    limits |= guest.measure_memory()
    os.environ.clear()  # bwrap leaves a PWD
    os.chdir(filesystem.WORKING_FOLDER)
    guest.write_files(request["files"], filesystem.WORKING_FOLDER)
    guest.arrange_descriptors(handles)
    hard = guest.read_hard_limits()
    guest.lower_limits(guest.COMMON_LIMITS, hard)
    guest.set_rlimits(limits, stays, hard)
    if filesystem.landlock_abi():
        filesystem.apply_landlock(request["places"] + ["/dev"], [filesystem.WORKING_FOLDER, "/dev/null"])
    guest.drop_privileges("user", 0)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.install_filter(seccomp.make_program(alone=limits["processes"] == 1))
    channel = Channel(guest.CHANNEL)
    channel.send({"started": True})
    return channel
