"""Where every counted rollout lies: from a key to the bytes of its line, without a scan."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollbook.collect.sheet import Sheet
from rollbook.errors import BookError
from rollbook.stats.columns import Bools, Columns, Ints
from rollbook.stats.estimators import Floats


@dataclass(frozen=True)
class Located:
    """One entry a counted rollout, in the order of `columns`. `order` sorts them by task and sample."""

    columns: Columns
    paths: list[Path]
    file: Ints
    begin: Ints
    end: Ints
    sample: Ints
    starts: Floats
    order: Ints

    def of(self, row: int) -> Ints:
        """The places of a task's rollouts, by ascending sample."""
        rows = self.columns.task
        low = np.searchsorted(rows, row, "left", sorter=self.order)
        high = np.searchsorted(rows, row, "right", sorter=self.order)
        return self.order[low:high]

    def find(self, row: int, sample: int) -> int | None:
        """The place of one rollout; None if it has no score."""
        places = self.of(row)
        at = np.flatnonzero(self.sample[places] == sample)
        return int(places[at[0]]) if len(at) else None

    def line(self, place: int) -> bytes:
        """The line of a rollout, read from its journal."""
        return read_line(self.paths[int(self.file[place])], int(self.begin[place]), int(self.end[place]))

    def path(self, place: int) -> Path:
        """The journal of a rollout."""
        return self.paths[int(self.file[place])]


def locate(columns: Columns, sheets: Sequence[Sheet], chosen: Sequence[Bools]) -> Located:
    """The places of what was counted: the chosen lines of the sheets, one sheet after the other."""
    ends = [sheet.ends for sheet in sheets]
    begins = [np.concatenate([np.zeros(1, np.int64), each[:-1]])[: len(each)] for each in ends]
    sample = _picked([sheet.sample for sheet in sheets], chosen)
    return Located(
        columns=columns,
        paths=[sheet.path for sheet in sheets],
        file=np.repeat(np.arange(len(sheets)), [int(each.sum()) for each in chosen]),
        begin=_picked(begins, chosen),
        end=_picked(ends, chosen),
        sample=sample,
        starts=_picked([sheet.starts for sheet in sheets], chosen).astype(np.float64),
        order=np.lexsort((sample, columns.task)),
    )


def _picked(values: Sequence[Ints | Floats], chosen: Sequence[Bools]) -> Ints:
    return np.concatenate([np.zeros(0, np.int64), *(v[c] for v, c in zip(values, chosen, strict=True))])


def read_line(path: Path, begin: int, end: int) -> bytes:
    """Some bytes of a file, without the end of the line; BookError where they are no text."""
    handle = os.open(path, os.O_RDONLY)
    try:
        line = os.pread(handle, end - begin, begin).rstrip(b"\n")
    finally:
        os.close(handle)
    try:
        line.decode()
    except UnicodeDecodeError as error:
        raise BookError(f"{path}: byte {begin + error.start} is not UTF-8: the line is damaged") from None
    return line
