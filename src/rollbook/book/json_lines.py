"""Reading JSON-lines files that are appended to: whole lines, their offsets, and errors that name file and line.

An unterminated last line is torn, or not yet written; everything from a NUL byte on is torn too. Files that people
write (data, scripts) may end without a newline and have blank lines: `core.iterate_lines` reads those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

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
    buffer, kept, offset, position, torn = bytearray(BLOCK_BYTES), 0, start, start, False
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        while size := file.readinto(memoryview(buffer)[kept : kept + stop - position]):
            position += size
            if on_bytes:
                on_bytes(memoryview(buffer)[kept : kept + size])
            if torn:
                if on_bytes:
                    continue  # what follows may be sealed, but is not read
                return
            nul = buffer.find(0, kept, kept + size)
            end, torn = (kept + size, False) if nul < 0 else (nul, True)
            cut = buffer.rfind(b"\n", 0, end) + 1
            if cut:
                yield offset, memoryview(buffer)[:cut]
            offset, kept = offset + cut, 0 if torn else end - cut
            rest = buffer[cut : cut + kept]
            if kept > len(buffer) // 2:  # a line that does not fit
                buffer = bytearray(2 * len(buffer))
            buffer[:kept] = rest


def read_whole_lines(path: Path, start: int = 0, stop: int = NO_LIMIT) -> Iterator[tuple[int, bytes]]:
    """Yield every terminated line with the offset just behind it, from `start` up to `stop`."""
    for end, block in read_line_blocks(path, start, stop):
        for line in bytes(block[:-1]).split(b"\n"):
            end += len(line) + 1
            yield end, line


class LineReader(Generic[T]):
    """Decodes the lines of journal files into one type."""

    def __init__(self, struct_type: type[T]) -> None:
        self._decode = msgspec.json.Decoder(struct_type).decode

    def read(self, path: Path, stop: int = NO_LIMIT, start: int = 0, first_number: int = 1) -> Iterator[tuple[int, T]]:
        """Yield every line, decoded, with its end offset; `first_number` is that of the line at `start`."""
        for number, (end, line) in enumerate(read_whole_lines(path, start, stop), first_number):
            try:
                yield end, self._decode(line)
            except msgspec.DecodeError as error:
                raise malformed_line_error(path, number, error) from None


def malformed_line_error(path: Path, number: int, error: msgspec.DecodeError) -> BookError:
    """Return the error about a line that cannot be read."""
    return BookError(f"{path}:{number}: malformed line ({error}); restore the file from a copy of the run")
