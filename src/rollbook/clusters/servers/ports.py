"""A port for a server that has to be told a number: free on this node, and held against our own kind meanwhile."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

from rollbook.errors import ChildFailed

LOWEST, HIGHEST = 20_000, 60_000
TRIES = 200


class Port:
    """A number that nobody listens on, locked for this user on this node until `release`."""

    def __init__(self, host: str) -> None:
        folder = _own_folder()
        for _ in range(TRIES):
            number = _candidate()
            handle = _locked(folder / str(number))
            if handle is None:
                continue
            if _free(host, number):
                self.number, self._handle = number, handle
                return
            os.close(handle)
        raise ChildFailed(f"no free port on {host} in {TRIES} tries")

    def release(self) -> None:
        """Let others have it."""
        os.close(self._handle)


def _own_folder() -> Path:
    """Where this user's processes on this node lock their ports."""
    folder = Path(tempfile.gettempdir()) / f"rollbook-ports-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise ChildFailed(f"{folder} belongs to somebody else: remove it, or set TMPDIR")
    except OSError as error:
        raise ChildFailed(f"{folder}: {error.strerror}") from None
    return folder


def _candidate() -> int:
    """Outside the range from which the kernel serves those who ask for any port."""
    low, high = _ephemeral()
    below, above = max(0, min(low, HIGHEST) - LOWEST), max(0, HIGHEST - max(high + 1, LOWEST))
    pick = random.randrange(below + above) if below + above else random.randrange(HIGHEST - LOWEST)
    return LOWEST + pick if pick < below or not above else max(high + 1, LOWEST) + pick - below


def _ephemeral() -> tuple[int, int]:
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except (OSError, ValueError):
        return 32_768, 60_999
    return int(low), int(high)


def _locked(path: Path) -> int | None:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def _free(host: str, number: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, number))
        except OSError:
            return False
    return True
