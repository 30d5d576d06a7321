"""Finding the one line that counts for a key again, without holding any line in memory."""

from __future__ import annotations

import os
from array import array
from pathlib import Path

import msgspec

from rollbook.book.book import Book
from rollbook.book.marks import Failed, KeyMap, Scored
from rollbook.book.rollouts import with_tokens
from rollbook.book.segment import malformed, whole_lines
from rollbook.core.line import FailedLine, ScoredLine
from rollbook.core.rollout import Rollout

NOWHERE = -1
BLOCK = 1 << 16
_scored = msgspec.json.Decoder(ScoredLine)
_failed = msgspec.json.Decoder(FailedLine)


class Stored:
    """Where every key's rollout lies: its journal and an offset, twelve bytes a key.

    Every line is read whole once, so that one that cannot be read is refused before anything is done with the others.
    """

    def __init__(self, book: Book) -> None:
        self._book = book
        self._keys = KeyMap(book)
        self._files: list[Path] = []
        self._file = array("i", [NOWHERE]) * self._keys.keys
        self._end = array("q", [0]) * self._keys.keys
        for path, end, failed in Failed(book).located():
            _read_line(path, end)
            self._note(failed.task, failed.sample, path, end)
        for _, path, end, scored in Scored(book, ScoredLine).located():
            self._note(scored.task, scored.sample, path, end)

    def _note(self, task: str, sample: int, path: Path, end: int) -> None:
        if not self._files or self._files[-1] != path:
            self._files.append(path)
        found = self._keys.find(task, sample)
        assert found is not None
        self._file[found[1]], self._end[found[1]] = len(self._files) - 1, end

    @property
    def missing(self) -> int:
        """How many keys nothing final was ever written about."""
        return self._file.count(NOWHERE)

    def has(self, task: str, sample: int) -> bool:
        """Whether anything final was written about a key."""
        found = self._keys.find(task, sample)
        return found is not None and self._file[found[1]] != NOWHERE

    def read(self, task: str, sample: int) -> Rollout | None:
        """The rollout of a key as it was kept, with its tokens; None if nothing final was ever written about it."""
        found = self._keys.find(task, sample)
        if found is None or self._file[found[1]] == NOWHERE:
            return None
        row, place, _ = found
        path = self._files[self._file[place]]
        line = _read_line(path, self._end[place])
        rollout = line.rollout(self._book.tasks.task(row))
        rollout.turns = with_tokens(path, line.turns)
        return rollout


def _read_line(path: Path, end: int) -> ScoredLine | FailedLine:
    """The line that ends at an offset; a BookError with its number if it cannot be read."""
    raw = line_before(path, end)
    try:
        return _failed.decode(raw) if path.name.endswith(".failures.jsonl") else _scored.decode(raw)
    except msgspec.DecodeError as error:
        number = sum(1 for at, _ in whole_lines(path) if at <= end)
        raise malformed(path, number, error) from None


def line_before(path: Path, end: int) -> bytes:
    """The line that ends just before an offset."""
    handle = os.open(path, os.O_RDONLY)
    try:
        size = BLOCK
        while True:
            start = max(0, end - size)
            data = os.pread(handle, end - 1 - start, start)
            at = data.rfind(b"\n")
            if at >= 0 or start == 0:
                return data[at + 1 :]
            size *= 4
    finally:
        os.close(handle)
