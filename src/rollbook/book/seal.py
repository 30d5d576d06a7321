"""done/NNNNN.json: a chunk that is over for its round, and exactly which bytes say so."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from rollbook.book.durable import sync_folder, write_aside
from rollbook.core.failure import reopens
from rollbook.core.json import pretty
from rollbook.core.manifest import Round
from rollbook.core.seal import Seal
from rollbook.errors import BookError

_decoder = msgspec.json.Decoder(Seal)


def seal_path(run: Path, chunk: int) -> Path:
    """Where the seal of a chunk lies."""
    return run / "done" / f"{chunk:05}.json"


def write_seals(run: Path, seals: dict[int, tuple[Seal, bool]]) -> None:
    """Seal chunks, each with whether it was sealed by an earlier round; a first seal never replaces another."""
    for chunk, (seal, again) in seals.items():
        path = seal_path(run, chunk)
        aside = write_aside(path, pretty(seal))
        if again:
            os.replace(aside, path)
            continue
        try:
            os.link(aside, path)
        except FileExistsError:
            pass  # an heir that thought us dead was quicker: its seal stands
        os.unlink(aside)
    if seals:
        sync_folder(run / "done")


class Seals:
    """All seals of a book, reread only where the folder has something new."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._seen: dict[int, tuple[int, int]] = {}
        self.all: dict[int, Seal] = {}
        self.numbers: set[int] = set()

    def list(self) -> set[int]:
        """The chunks that are sealed, from the names alone."""
        parts = (name.partition(".") for name in os.listdir(self._run / "done"))
        self.numbers = {int(number) for number, _, ending in parts if ending == "json" and number.isdigit()}
        return self.numbers

    def refresh(self) -> dict[int, Seal]:
        """Read what was sealed since the last look."""
        for number in self.list():
            if not self._is_final(number):
                self._look_at(number, seal_path(self._run, number))
        return self.all

    def read(self, number: int) -> Seal:
        """One seal, as it is now."""
        self.add(number, _read(seal_path(self._run, number)))
        return self.all[number]

    def add(self, number: int, seal: Seal) -> None:
        """Take note of a seal: one of our own need not be read back."""
        self.all[number] = seal
        self.numbers.add(number)

    def _is_final(self, number: int) -> bool:
        """Only failures are tried again: a seal without any will never be another."""
        return number in self.all and not self.all[number].failed

    def _look_at(self, number: int, path: Path) -> None:
        stat = path.stat()
        stamp = (stat.st_ino, stat.st_mtime_ns)
        if self._seen.get(number) != stamp:
            self.all[number] = _read(path)
            self._seen[number] = stamp


def _read(path: Path) -> Seal:
    try:
        return _decoder.decode(path.read_bytes())
    except msgspec.DecodeError as error:
        raise BookError(f"{path}: {error}; delete it to have the chunk counted again") from None


def reopened(failed: Iterable[str], sealed_in: int, rounds: Sequence[Round]) -> set[str]:
    """The failure kinds of a chunk sealed in one round that a later round tries again."""
    later = [r.settings.retry for r in rounds if r.number > sealed_in]
    return {kind for kind in failed if any(reopens(retry, kind) for retry in later)}
