"""leases/CHUNK.EPOCH: who owns a chunk, when a lease is stale, and workers that watch each other for that.

A claim is one link(2); no lease is ever unlinked. A lease is stale when its worker is gone: it left, its process died
on this machine, or its heartbeat has not moved for STALE_S of our own clock. Each worker watches the few that come
after it by name, so that a death is noticed while all are busy.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from bisect import bisect
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from rollbook.book.durable_files import write_temporary
from rollbook.book.heartbeats import (
    WorkerGone,
    is_copy,
    list_joined_and_gone,
    publish_worker_gone,
    read_boot_id,
    read_folder_id,
    read_pid_namespace,
    read_presence,
    read_start_time,
    read_worker_gone,
)
from rollbook.book.seals import Seals
from rollbook.core import JSON_ERRORS, Lease, Presence, add_crc, decode_record, encode
from rollbook.errors import BookError

CLAIM_TRIES = 3

_decoder = msgspec.json.Decoder(Lease)


class Leases:
    """The leases of a book, for one worker, or for a reader (without `worker`)."""

    def __init__(self, run: Path, worker: str = "", round_number: int = 0) -> None:
        self._run, self._folder = run, run / "leases"
        self._mine = Lease(worker, round_number)
        self._claim_file: Path | None = None
        self._claim_files: list[Path] = []
        self._leases: dict[tuple[int, int], Lease] = {}
        self.epochs: dict[int, int] = {}

    @property
    def worker(self) -> str:
        """The worker that claims; empty for a reader."""
        return self._mine.worker

    def refresh(self) -> dict[int, int]:
        """Read the highest epoch of every claimed chunk."""
        self.epochs = {}
        for name in os.listdir(self._folder):
            chunk, _, epoch = name.partition(".")
            if chunk.isdigit() and epoch.isdigit():
                self.epochs[int(chunk)] = max(self.epochs.get(int(chunk), 0), int(epoch))
        return self.epochs

    def read_lease(self, chunk: int, epoch: int) -> Lease:
        """Read the lease of a chunk at an epoch."""
        found = self._leases.get((chunk, epoch))
        if found is None:
            found = _read_lease(lease_path(self._run, chunk, epoch))
            self._leases[chunk, epoch] = found
        return found

    def find_owners(self, chunk: int) -> dict[str, int]:
        """Return every worker that ever owned a chunk, with its first epoch."""
        found: dict[str, int] = {}
        for epoch in range(1, self.epochs.get(chunk, 0) + 1):
            found.setdefault(self.read_lease(chunk, epoch).worker, epoch)
        return found

    def is_lost(self, chunk: int, epoch: int) -> bool:
        """Return whether another worker has taken over a chunk since we claimed it."""
        return lease_path(self._run, chunk, epoch + 1).exists()

    def claim(self, chunk: int, epoch: int) -> bool:
        """Try to own a chunk at an epoch; exactly one worker can."""
        target = lease_path(self._run, chunk, epoch)
        for _ in range(CLAIM_TRIES):
            source = self._claim_file or self._write_claim_file()
            try:
                os.link(source, target)
            except FileExistsError:
                # A network file system may have linked and lost the reply: then the lease is our own.
                if not self._is_ours(source, target):
                    return False
            except FileNotFoundError:  # others took this worker for dead, and removed its file
                self._claim_file = None
                continue
            except OSError as error:
                if error.errno != errno.EMLINK:
                    raise
                self._claim_file = None
                continue
            self.epochs[chunk] = epoch
            self._leases[chunk, epoch] = self._mine
            return True
        return False

    def _is_ours(self, source: Path, target: Path) -> bool:
        try:
            return os.path.samefile(source, target)
        except FileNotFoundError:  # others took this worker for dead, and removed its file
            return _read_lease(target) == self._mine

    def _write_claim_file(self) -> Path:
        self._claim_file = write_temporary(self._folder / self._mine.worker, add_crc(encode(self._mine)) + b"\n")
        self._claim_files.append(self._claim_file)
        return self._claim_file

    def close(self) -> None:
        """Remove the hidden files that the claims of this worker were linked from; the leases stay."""
        for path in self._claim_files:
            path.unlink(missing_ok=True)
        self._claim_file = None

    def remove_claim_files_of(self, is_gone: Callable[[str], bool]) -> None:
        """Remove the hidden files of workers that were killed. A worker that is alive after all writes a new one."""
        for name in os.listdir(self._folder):
            worker = name[1:].rpartition(".")[0]
            if name.startswith(".") and worker and is_gone(worker):
                with suppress(OSError):  # it may belong to another user
                    (self._folder / name).unlink(missing_ok=True)


def _read_lease(path: Path) -> Lease:
    try:
        return decode_record(path.read_bytes(), _decoder)
    except FileNotFoundError:
        raise BookError(f"{path} is missing: restore it from a copy of the run") from None
    except JSON_ERRORS as error:
        raise BookError(f"{path}: {error}; restore it from a copy of the run") from None


def lease_path(run: Path, chunk: int, epoch: int) -> Path:
    """Return the path of the lease of a chunk at an epoch."""
    return run / "leases" / f"{chunk:05}.{epoch}"


STALE_S = 180.0


class WorkerMonitor:
    """Decides by its own clock whether workers are gone: time stamps of other machines are never compared."""

    def __init__(
        self, run: Path | None = None, clock: Callable[[], float] = time.monotonic, stale_s: float | None = None
    ) -> None:
        self.clock = clock
        self.stale_s = STALE_S if stale_s is None else stale_s
        self._last: dict[str, tuple[int, float]] = {}
        self._machine = (socket.gethostname(), read_boot_id(), read_pid_namespace())
        self._folder_id = read_folder_id(run) if run else ""

    def is_gone(self, worker: str, presence: Presence | None) -> bool:
        """Return whether a worker left, died on this machine, works on another copy, or sent no heartbeat lately.

        Where it cannot be certain that the worker is on a copy, the heartbeat decides, which a copy never gets.
        """
        if presence is not None:
            if presence.state == "left":
                return True
            if (presence.host, presence.boot, presence.namespace) == self._machine and presence.born:
                elsewhere = presence.place and self._folder_id and is_copy(presence.place, self._folder_id)
                if elsewhere or read_start_time(presence.pid) != presence.born:
                    return True
        return self._is_silent(worker, presence.counter if presence else -1)

    def _is_silent(self, worker: str, counter: int) -> bool:
        now = self.clock()
        seen, since = self._last.get(worker, (None, now))
        if seen != counter:
            self._last[worker] = (counter, now)
            return False
        return now - since >= self.stale_s


def remove_dead_claim_files(run: Path, monitor: WorkerMonitor) -> None:
    """Remove the hidden files that workers left in the folder of leases when they were killed."""

    def is_gone(worker: str) -> bool:
        presence, notice = read_presence(run, worker), read_worker_gone(run, worker)
        is_published = presence is not None and notice is not None and presence.counter == notice.counter
        return is_published or monitor.is_gone(worker, presence)

    Leases(run).remove_claim_files_of(is_gone)


PEERS_WATCHED = 3
"""A death is missed only if so many workers before it by name die too: idle workers then find its chunks at the end."""

RELIST_EVERY = 4
"""The folder is listed at every fourth check only: hundreds of workers read it."""


class PeerMonitor:
    """Watches the next few workers by name and publishes it when one is gone."""

    def __init__(self, run: Path, worker: str, monitor: WorkerMonitor) -> None:
        self._run, self._worker, self._monitor = run, worker, monitor
        self._gone: set[str] = set()
        self._nearest: list[str] = []
        self._checks = 0

    def check(self) -> None:
        """Check them, once a heartbeat; publish the chunks of one that is gone."""
        if self._checks % RELIST_EVERY == 0:
            self._nearest = self._list_nearest()
        self._checks += 1
        for worker in self._nearest:
            presence = read_presence(self._run, worker)
            if not self._monitor.is_gone(worker, presence):
                continue
            self._gone.add(worker)
            self._checks = 0
            if chunks := self._find_chunks_left(worker):
                publish_worker_gone(self._run, worker, WorkerGone(presence.counter if presence else -1, chunks))

    def _list_nearest(self) -> list[str]:
        joined, dead = list_joined_and_gone(self._run)
        others = sorted(joined - dead - self._gone - {self._worker})
        at = bisect(others, self._worker)
        return (others[at:] + others[:at])[:PEERS_WATCHED]

    def _find_chunks_left(self, worker: str) -> dict[int, int]:
        """Return the unsealed chunks that it owns, with the epoch."""
        seals, leases = Seals(self._run), Leases(self._run)
        sealed = seals.list_numbers()  # before the leases: what is sealed in between then looks held, never free
        held = {number: epoch for number, epoch in leases.refresh().items() if number not in sealed or epoch > 1}
        mine = {number: epoch for number, epoch in held.items() if leases.read_lease(number, epoch).worker == worker}
        return {n: e for n, e in mine.items() if n not in sealed or seals.read(n).epoch < e}
