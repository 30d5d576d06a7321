"""Reading a journal file: whole lines, torn ends dropped, anything else malformed refused by file and line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from rollbook.errors import BookError

T = TypeVar("T")
BLOCK = 4 << 20


def whole_lines(path: Path, stop: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Every terminated line with the offset just behind it, up to `stop` bytes.

    An unterminated last line is torn (or not yet written): it is not given. Anything from a NUL byte on is torn too.
    """
    offset, rest = 0, b""
    left = stop if stop is not None else 1 << 62
    with open(path, "rb", buffering=0) as file:
        while left > 0 and (block := file.read(min(BLOCK, left))):
            left -= len(block)
            torn = block.find(b"\0")
            if torn >= 0:
                block, left = block[:torn], 0
            lines = (rest + block).split(b"\n")
            rest = lines.pop()
            for line in lines:
                offset += len(line) + 1
                yield offset, line


class LineReader(Generic[T]):
    """Decodes the lines of journal files into one noun."""

    def __init__(self, kind: type[T]) -> None:
        self._decode = msgspec.json.Decoder(kind).decode

    def read(self, path: Path, stop: int | None = None) -> Iterator[tuple[int, T]]:
        """Every line as the noun, with the offset just behind it."""
        for number, (end, line) in enumerate(whole_lines(path, stop), start=1):
            try:
                yield end, self._decode(line)
            except msgspec.DecodeError as error:
                raise malformed(path, number, error) from None


def malformed(path: Path, number: int, error: msgspec.DecodeError) -> BookError:
    """The one line about a line that cannot be read."""
    return BookError(f"{path}:{number}: malformed line ({error}); restore the file from a copy of the run")
