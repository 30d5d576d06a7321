"""A guest without a zygote: another program (bwrap) has made namespaces and mounts and started an interpreter there.

Started as `python -c "from inner import standalone_guest; standalone_guest.main(...)"`.
"""

import os
import sys
from typing import Any

from . import filesystem, guest, kernel, seccomp
from .channel import Channel
from .exam import EXAM_ROLES
from .roles import ROLES


def main(order: int, payload: int, announce_fd: int, handles: list[int]) -> None:
    """Send our pidfd to the host, set up the remaining isolation, and run the role. Never returns."""
    code = guest.SETUP_FAILED
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
    """Import the chosen packages, and what Python itself would, before any clock runs."""
    sys.path.extend(request["paths"])
    for name in request["packages"]:
        __import__(name)
    guest.add_site_builtins()
    guest.write_at_once()


def announce_pidfd(announce_fd: int) -> None:
    """Send our pidfd, by which the host measures and ends us."""
    channel = Channel(announce_fd)
    pidfd = os.pidfd_open(os.getpid())
    channel.send({"born": True}, [pidfd])
    os.close(pidfd)
    channel.close()


def confine(request: dict[str, Any], handles: list[int], stays: bool) -> Channel:
    """Set the limits, and the isolation that a process can set up for itself."""
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
    # The first process of the namespace is bwrap's own.
    kernel.install_filter(seccomp.make_program(alone=limits["processes"] == 1, first=False))
    channel = Channel(guest.CHANNEL)
    channel.send(guest.STARTED)
    return channel
