"""leases/CHUNK.EPOCH: who owns a chunk. A claim is one link(2); nothing is ever unlinked."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec

from rollbook.book.durable import write_aside
from rollbook.core.json import to_line
from rollbook.core.lease import Lease
from rollbook.errors import BookError

_decoder = msgspec.json.Decoder(Lease)


class Leases:
    """The claims of a book, seen by one worker (or by a mere reader, who gives no worker)."""

    def __init__(self, run: Path, worker: str = "", round_number: int = 0) -> None:
        self._folder = run / "leases"
        self._mine = Lease(worker, round_number)
        self._claim: Path | None = None
        self._leases: dict[tuple[int, int], Lease] = {}
        self.epochs: dict[int, int] = {}

    def refresh(self) -> dict[int, int]:
        """The highest epoch of every claimed chunk."""
        self.epochs = {}
        for name in os.listdir(self._folder):
            chunk, _, epoch = name.partition(".")
            if chunk.isdigit() and epoch.isdigit():
                self.epochs[int(chunk)] = max(self.epochs.get(int(chunk), 0), int(epoch))
        return self.epochs

    def lease(self, chunk: int, epoch: int) -> Lease:
        """The claim that was made on a chunk at an epoch."""
        found = self._leases.get((chunk, epoch))
        if found is None:
            found = _read(self._folder / _name(chunk, epoch))
            self._leases[chunk, epoch] = found
        return found

    def owners(self, chunk: int) -> dict[str, int]:
        """Every worker that ever owned a chunk, with the first epoch it had it in."""
        found: dict[str, int] = {}
        for epoch in range(1, self.epochs.get(chunk, 0) + 1):
            found.setdefault(self.lease(chunk, epoch).worker, epoch)
        return found

    def lost(self, chunk: int, epoch: int) -> bool:
        """Whether someone has taken a chunk over since we claimed it."""
        return (self._folder / _name(chunk, epoch + 1)).exists()

    def claim(self, chunk: int, epoch: int) -> bool:
        """Try to own a chunk at an epoch; exactly one worker can."""
        target = self._folder / _name(chunk, epoch)
        for _ in range(2):
            source = self._claim or self._new_claim()
            try:
                os.link(source, target)
                break
            except FileExistsError:
                # A network file system may have linked and lost the reply: then the name is our own file.
                if not os.path.samefile(source, target):
                    return False
                break
            except OSError as error:
                if error.errno != errno.EMLINK:
                    raise
                self._claim = None
        self.epochs[chunk] = epoch
        self._leases[chunk, epoch] = self._mine
        return True

    def _new_claim(self) -> Path:
        self._claim = write_aside(self._folder / self._mine.worker, to_line(self._mine))
        return self._claim


def _read(path: Path) -> Lease:
    try:
        return _decoder.decode(path.read_bytes())
    except FileNotFoundError:
        raise BookError(f"{path} is missing: restore it from a copy of the run") from None
    except msgspec.DecodeError as error:
        raise BookError(f"{path}: {error}; restore it from a copy of the run") from None


def _name(chunk: int, epoch: int) -> str:
    return f"{chunk:05}.{epoch}"
