"""workers/: the workers of a book (ID.json), the keys each has in flight (ID.seats), and those that are gone (ID.gone).

ID.json is the heartbeat of a worker; ids are never used again.

ID.seats has one line of fixed width a slot, overwritten in place: `{"row":12,"sample":3}` while in use, blank while
free, so that a worker that takes over can tell which keys may have killed it. The page cache outlives the process, so
nothing is fsynced; after a power cut the worst case is that no key is suspected.
ID.gone lists the chunks that a dead worker left: one worker notices the death for all.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from rollbook.book.durable_files import overwrite_in_place, replace_without_sync, write_new
from rollbook.core import JSON_ERRORS, Presence, encode, encode_line

HEARTBEAT_S = 5.0
MAX_HEARTBEAT_S = 30.0

READ_TRIES = 3

_presence_decoder = msgspec.json.Decoder(Presence)


def make_presence(round_number: int, run: Path | None = None) -> Presence:
    """Return a presence record for this process, under a name that is never used again."""
    host = socket.gethostname()
    short = "".join(c for c in host.split(".")[0] if c.isalnum() or c == "-")[:24] or "host"
    return Presence(
        id=f"{short}-{os.getpid()}-{secrets.token_hex(4)}",
        host=host,
        boot=read_boot_id(),
        namespace=read_pid_namespace(),
        pid=os.getpid(),
        born=read_start_time(os.getpid()),
        round=round_number,
        started=time.time(),
        place=read_folder_id(run) if run else "",
    )


def read_folder_id(run: Path) -> str:
    """Return the device and inode of a folder of the book, as this process sees them."""
    stat = (run / "workers").stat()
    return f"{stat.st_dev}:{stat.st_ino}"


def is_copy(place: str, other: str) -> bool:
    """Return whether two ids, taken on one machine, are certainly of a run directory and a copy of it.

    A directory that is mounted twice can have two devices: only on one device are different inodes different folders.
    """
    device, _, inode = place.partition(":")
    other_device, _, other_inode = other.partition(":")
    return device == other_device and inode != other_inode


def read_boot_id() -> str:
    """Return an id of this boot of the machine; empty where the system has none."""
    return _read_text("/proc/sys/kernel/random/boot_id").strip()


def read_pid_namespace() -> str:
    """Return the pid namespace: pids are unique only within one (containers share a boot id)."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return sys.platform


def read_start_time(pid: int) -> str:
    """Return when a process started, in kernel ticks; empty if there is none. It identifies a reused pid."""
    stat = _read_text(f"/proc/{pid}/stat")
    fields = stat.rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] != "Z" else ""


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def next_heartbeat_s(age_s: float, minimum_s: float = HEARTBEAT_S) -> float:
    """Return the seconds until the next heartbeat: few for a new worker, then more, since hundreds share a disk.

    >>> [next_heartbeat_s(age) for age in (0, 120, 3600)]
    [5.0, 10.0, 30.0]
    """
    return max(minimum_s, min(MAX_HEARTBEAT_S, age_s / 12))


def write_heartbeat(run: Path, presence: Presence) -> None:
    """Advance the counter and write it. Only the first heartbeat creates a file: hundreds of workers share one disk."""
    presence.counter += 1
    path, data = run / "workers" / f"{presence.id}.json", encode(presence) + b"\n"
    if presence.counter == 1 or not overwrite_in_place(path, data):
        replace_without_sync(path, data)


def read_presences(run: Path) -> dict[str, Presence]:
    """Read the presence of every worker that ever joined."""
    names = [path.stem for path in (run / "workers").glob("[!.]*.json")]
    return {name: found for name in names if (found := read_presence(run, name))}


def read_presence(run: Path, worker: str) -> Presence | None:
    """Read the presence of a worker; None where a power cut tore it: then only missing heartbeats count."""
    with suppress(FileNotFoundError):
        for _ in range(READ_TRIES):
            with suppress(*JSON_ERRORS):  # it may be writing just now
                return _presence_decoder.decode((run / "workers" / f"{worker}.json").read_bytes())
    return None


def count_workers(run: Path) -> int:
    """Return how many workers have ever joined."""
    return sum(name.endswith(".json") for name in os.listdir(run / "workers"))


SLOT_BYTES = 48
SLOTS_ADDED = 256
_FREE_SLOT = b" " * (SLOT_BYTES - 1) + b"\n"


class _InFlightKey(msgspec.Struct):
    row: int
    sample: int


_in_flight_decoder = msgspec.json.Decoder(_InFlightKey)


class InFlightKeys:
    """The keys that a worker has in flight, in a mapped file, so that adding one costs no system call."""

    def __init__(self, run: Path, worker: str) -> None:
        self._file = os.open(run / "workers" / f"{worker}.seats", os.O_RDWR | os.O_CREAT, 0o644)
        self._free: list[int] = []
        self._map: mmap.mmap | None = None
        self._add_slots()

    def _add_slots(self) -> None:
        """Make room for more; written out in full, since a mapped hole on a full disk would be a SIGBUS later."""
        held = os.fstat(self._file).st_size // SLOT_BYTES
        if os.pwrite(self._file, _FREE_SLOT * SLOTS_ADDED, held * SLOT_BYTES) < SLOT_BYTES * SLOTS_ADDED:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._map:
            self._map.close()
        self._map = mmap.mmap(self._file, (held + SLOTS_ADDED) * SLOT_BYTES)
        self._free.extend(range(held + SLOTS_ADDED - 1, held - 1, -1))

    def add(self, row: int, sample: int) -> int:
        """Mark a key as in flight."""
        if not self._free:
            self._add_slots()
        slot = self._free.pop()
        text = b'{"row":%d,"sample":%d}' % (row, sample)
        assert self._map
        self._map[slot * SLOT_BYTES : slot * SLOT_BYTES + len(text)] = text
        return slot

    def remove(self, slot: int) -> None:
        """Mark a key as no longer in flight."""
        assert self._map
        self._map[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES] = _FREE_SLOT
        self._free.append(slot)

    def close(self) -> None:
        """Empty the file and close it: nothing is in flight."""
        if self._map:
            self._map.close()
        os.ftruncate(self._file, 0)
        os.close(self._file)


def read_in_flight(run: Path, worker: str) -> set[tuple[int, int]]:
    """Return the (row, sample) keys that a worker had in flight last."""
    try:
        lines = (run / "workers" / f"{worker}.seats").read_bytes().split(b"\n")
    except FileNotFoundError:
        return set()
    taken = set()
    for line in lines:
        if line.strip():
            try:
                slot = _in_flight_decoder.decode(line)
            except JSON_ERRORS:
                continue  # half overwritten at a power cut: no key is suspected
            taken.add((slot.row, slot.sample))
    return taken


GONE_SUFFIX = ".gone"


class WorkerGone(msgspec.Struct):
    """The last heartbeat of a dead worker, and the epoch in which it owned each chunk.

    A later heartbeat invalidates this record.
    """

    counter: int
    chunks: dict[int, int]


_gone_decoder = msgspec.json.Decoder(WorkerGone)


def publish_worker_gone(run: Path, worker: str, record: WorkerGone) -> None:
    """Publish that a worker is gone; the first record stays."""
    write_new(run / "workers" / f"{worker}{GONE_SUFFIX}", encode_line(record))


def read_worker_gone(run: Path, worker: str) -> WorkerGone | None:
    """Read the record of a dead worker; None where a power cut tore it: then every chunk is checked instead."""
    with suppress(FileNotFoundError, *JSON_ERRORS):
        return _gone_decoder.decode((run / "workers" / f"{worker}{GONE_SUFFIX}").read_bytes())
    return None


def list_joined_and_gone(run: Path) -> tuple[set[str], set[str]]:
    """Return the names of all workers that ever joined, and of those recorded as gone."""
    names = [name for name in os.listdir(run / "workers") if not name.startswith(".")]
    return _select_by_suffix(names, ".json"), _select_by_suffix(names, GONE_SUFFIX)


def _select_by_suffix(names: list[str], suffix: str) -> set[str]:
    return {name.removesuffix(suffix) for name in names if name.endswith(suffix)}
