"""Lines of files by number, of which only the offsets are held in memory."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from rollbook.errors import UsageError

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Offsets: TypeAlias = NDArray[numpy.int64]


class Lines:
    """The lines of several files that are not blank, one after the other; it may be pickled, and read by many."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = [os.path.expanduser(path) for path in paths]
        self._offsets = [_offsets(path) for path in self.paths]
        self._ends = [0]
        for offsets in self._offsets:
            self._ends.append(self._ends[-1] + len(offsets))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, number: int) -> bytes:
        file, local = self._place(number)
        with open(self.paths[file], "rb") as opened:
            opened.seek(int(self._offsets[file][local]))
            return opened.readline().strip()

    def where(self, number: int) -> str:
        """The place of a line, as messages about it begin."""
        file, local = self._place(number)
        return f"{self.paths[file]} at byte {self._offsets[file][local]}"

    def _place(self, number: int) -> tuple[int, int]:
        if not 0 <= number < len(self):
            raise IndexError(number)
        file = bisect_right(self._ends, number) - 1
        return file, number - self._ends[file]


def _offsets(path: str) -> Offsets:
    import array

    import numpy as np

    found, at = array.array("q"), 0
    try:
        with open(path, "rb") as file:
            for line in file:
                if not line.isspace():
                    found.append(at)
                at += len(line)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    return np.frombuffer(found, np.int64) if found else np.empty(0, np.int64)
