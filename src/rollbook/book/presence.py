"""workers/ID.json: who is at work on a book, and who is gone."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from rollbook.book.durable import overwrite, replace_quickly
from rollbook.core.json import encode
from rollbook.core.presence import Presence

HEARTBEAT_S = 5.0
SELDOM_S = 30.0
STALE_S = 180.0
TRIES = 3

_decoder = msgspec.json.Decoder(Presence)


def new_presence(round_number: int, run: Path | None = None) -> Presence:
    """A record for this process, under a name that is never used again."""
    host = socket.gethostname()
    short = "".join(c for c in host.split(".")[0] if c.isalnum() or c == "-")[:24] or "host"
    return Presence(
        id=f"{short}-{os.getpid()}-{secrets.token_hex(4)}",
        host=host,
        boot=boot_id(),
        namespace=pid_namespace(),
        pid=os.getpid(),
        born=born(os.getpid()),
        round=round_number,
        started=time.time(),
        place=place_of(run) if run else "",
    )


def place_of(run: Path) -> str:
    """What tells a run directory from a copy of it."""
    stat = (run / "workers").stat()
    return f"{stat.st_dev}:{stat.st_ino}"


def boot_id() -> str:
    """What tells one boot of a machine from another; empty where the system does not say."""
    return _text("/proc/sys/kernel/random/boot_id").strip()


def pid_namespace() -> str:
    """Pids mean something only within one of these (containers share a boot id)."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return sys.platform


def born(pid: int) -> str:
    """When a process started, in kernel ticks; empty if there is none. Tells a reused pid apart."""
    stat = _text(f"/proc/{pid}/stat")
    fields = stat.rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] != "Z" else ""


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def beat_s(age_s: float, least_s: float = HEARTBEAT_S) -> float:
    """How long until a worker beats again: soon while it is new, then ever more seldom, for hundreds share a disk.

    >>> [beat_s(age) for age in (0, 120, 3600)]
    [5.0, 10.0, 30.0]
    """
    return max(least_s, min(SELDOM_S, age_s / 12))


def write_presence(run: Path, presence: Presence) -> None:
    """Beat: move the counter and publish. Only the first beat makes a name: hundreds of workers share one disk."""
    presence.counter += 1
    path, data = run / "workers" / f"{presence.id}.json", encode(presence) + b"\n"
    if presence.counter == 1 or not overwrite(path, data):
        replace_quickly(path, data)


def read_presences(run: Path) -> dict[str, Presence]:
    """Every worker that ever joined."""
    names = [path.stem for path in (run / "workers").glob("[!.]*.json")]
    return {name: found for name in names if (found := read_presence(run, name))}


def read_presence(run: Path, worker: str) -> Presence | None:
    """What a worker says of itself; None where a power cut tore that: then it is judged by its silence."""
    for _ in range(TRIES):
        try:
            return _decoder.decode((run / "workers" / f"{worker}.json").read_bytes())
        except msgspec.DecodeError:
            continue  # it may be writing just now
        except FileNotFoundError:
            break
    return None


def count_presences(run: Path) -> int:
    """How many workers have ever joined."""
    return sum(name.endswith(".json") for name in os.listdir(run / "workers"))


class Watch:
    """Judges by its own clock whether workers are gone: time stamps of other machines are never compared."""

    def __init__(
        self, run: Path | None = None, clock: Callable[[], float] = time.monotonic, stale_s: float | None = None
    ) -> None:
        self._clock = clock
        self.stale_s = STALE_S if stale_s is None else stale_s
        self._last: dict[str, tuple[int, float]] = {}
        self._here = (socket.gethostname(), boot_id(), pid_namespace())
        self._place = place_of(run) if run else ""

    def gone(self, worker: str, presence: Presence | None) -> bool:
        """Whether a worker left, died on this machine, works on another copy, or has been silent for too long."""
        if presence is not None:
            if presence.state == "left":
                return True
            if (presence.host, presence.boot, presence.namespace) == self._here and presence.born:
                elsewhere = bool(presence.place and self._place) and presence.place != self._place
                if elsewhere or born(presence.pid) != presence.born:
                    return True
        return self._silent(worker, presence.counter if presence else -1)

    def _silent(self, worker: str, counter: int) -> bool:
        now = self._clock()
        seen, since = self._last.get(worker, (None, now))
        if seen != counter:
            self._last[worker] = (counter, now)
            return False
        return now - since >= self.stale_s
