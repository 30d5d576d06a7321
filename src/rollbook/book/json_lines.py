"""Reading JSON-lines files that are appended to: whole lines, offsets, damage, and errors that name file and line.

An unterminated end is torn, or not yet written: it is not read, NUL bytes up to the end of the file included. A whole
line is damaged if its checksum is wrong, or if it has none in a book of schema 2. In a book of schema 1 it is damaged
if it has none in a file where another line has one, or if it has a NUL byte. A damaged line is skipped and recorded,
and what follows is read. Any other line that cannot be decoded is an error.

Sealed bytes are covered by the sha256 of the seal, and a seal lists the damaged lines in the journals of earlier owners
of its chunk. So a reader that compares the sha256 may skip the listed lines and check only the lines behind the last
sealed byte; a reader that does not must check every line.

Files that people write (data, scripts) may end without a newline and have blank lines: `core.iterate_lines` reads them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import msgspec

from rollbook.core import CHECKSUM_SCHEMA, JSON_ERRORS, has_crc, is_crc_right
from rollbook.errors import BookError

T = TypeVar("T")
BLOCK_BYTES = 256 << 10
"""Small enough that the lines of a block stay in the processor's cache while they are decoded."""

NO_LIMIT = 1 << 62


def read_line_blocks(
    path: Path, start: int = 0, stop: int = NO_LIMIT, on_bytes: Callable[[memoryview], None] | None = None
) -> Iterator[tuple[int, memoryview]]:
    """Yield a file in blocks of whole lines from `start` up to `stop`, each with its offset, without a torn end.

    A block is valid until the next one is requested. `on_bytes` gets every byte that is read, torn ones included.
    """
    buffer, kept, offset, position = bytearray(BLOCK_BYTES), 0, start, start
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        while size := file.readinto(memoryview(buffer)[kept : kept + stop - position]):
            position += size
            if on_bytes:
                on_bytes(memoryview(buffer)[kept : kept + size])
            end = kept + size
            cut = buffer.rfind(b"\n", kept, end) + 1
            if cut:
                yield offset, memoryview(buffer)[:cut]
            offset, kept = offset + cut, end - cut
            rest = buffer[cut:end]
            if kept > len(buffer) // 2:  # a line that does not fit
                buffer = bytearray(2 * len(buffer))
            buffer[:kept] = rest


def read_whole_lines(path: Path, start: int = 0, stop: int = NO_LIMIT) -> Iterator[tuple[int, bytes]]:
    """Yield every terminated line with the offset just behind it, from `start` up to `stop`."""
    for end, block in read_line_blocks(path, start, stop):
        for line in bytes(block[:-1]).split(b"\n"):
            end += len(line) + 1
            yield end, line


class DamagedLine(NamedTuple):
    """A line that is not as it was written."""

    path: Path
    end: int
    number: int
    why: str

    def __str__(self) -> str:
        return f"{self.path}:{self.number}: {self.why}"


class LineChecker:
    """Finds the damaged lines of one journal file of a book of this schema, whichever lines it is given, in any order.

    Since schema 2 every line has a checksum. In a book of schema 1 a file has one on every line or on none.
    """

    def __init__(self, path: Path, schema: int) -> None:
        self._path, self._schema = path, schema

    @cached_property
    def _has_checksums(self) -> bool:
        """Whether lines need a checksum: in schema 1 the whole file is read to decide it, at its first line without."""
        return self._schema >= CHECKSUM_SCHEMA or any(
            _find_checksum(block) for _, block in read_line_blocks(self._path)
        )

    def find_damage(self, lines: list[bytes]) -> dict[int, str]:
        """Return the damaged ones of these lines by position, each with what is wrong."""
        return {at: why for at, line in enumerate(lines) if (why := self._describe_damage(line))}

    def _describe_damage(self, line: bytes) -> str:
        if has_crc(line):
            return "" if is_crc_right(line) else "the checksum is wrong"
        if self._has_checksums:
            return "the checksum is missing"
        return "a NUL byte" if b"\0" in line else ""


_find_checksum = re.compile(rb',"crc":".{8}"}\n', re.DOTALL).search
"""Finds the end of a line for which `has_crc` is true."""


class LineReader(Generic[T]):
    """Decodes lines of the journals of a book of this schema into one type; `damaged` are those that it skipped."""

    def __init__(self, struct_type: type[T], schema: int) -> None:
        self._decode, self._schema = msgspec.json.Decoder(struct_type).decode, schema
        self.damaged: list[DamagedLine] = []

    def read(self, path: Path, stop: int = NO_LIMIT, start: int = 0, first_number: int = 1) -> Iterator[tuple[int, T]]:
        """Yield every line, decoded, with its end offset; `first_number` is that of the line at `start`."""
        checker, number = LineChecker(path, self._schema), first_number
        for end, block in read_line_blocks(path, start, stop):
            lines = bytes(block[:-1]).split(b"\n")
            damage = checker.find_damage(lines)
            for at, line in enumerate(lines):
                end += len(line) + 1
                if at in damage:
                    self.damaged.append(DamagedLine(path, end, number + at, damage[at]))
                    continue
                try:
                    yield end, self._decode(line)
                except JSON_ERRORS as error:
                    raise malformed_line_error(path, number + at, error) from None
            number += len(lines)


def number_damaged_lines(path: Path, schema: int, ends: set[int]) -> list[DamagedLine]:
    """Return the damaged lines of a file that end at these offsets, with their numbers."""
    checker, found = LineChecker(path, schema), []
    for number, (end, line) in enumerate(read_whole_lines(path), 1):
        if end in ends:
            why = checker.find_damage([line]).get(0)
            found.append(DamagedLine(path, end, number, why or "a seal lists it as damaged"))
    return found


def count_lines(path: Path, end: int) -> int:
    """Return the number of the line that ends at an offset."""
    return sum(1 for _ in read_whole_lines(path, stop=end))


def malformed_line_error(path: Path, number: int, error: Exception) -> BookError:
    """Return the error about a line that cannot be read."""
    return BookError(f"{path}:{number}: malformed line ({error}); restore the file from a copy of the run")
