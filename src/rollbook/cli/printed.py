"""Standard output that says what is wrong with itself: a full disk is one line, a reader who has left is none."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from rollbook.errors import RollbookError

READER_LEFT = 141
"""What a shell reports of a program whose reader has left (`| head`)."""


class Unprinted(RollbookError):
    """Standard output takes no more; nothing is said where it has no reader."""

    def __init__(self, error: OSError) -> None:
        left = error.errno == errno.EPIPE
        self.exit_code = READER_LEFT if left else 2
        super().__init__("" if left else f"standard output cannot be written: {error.strerror or error}")


class Printed:
    """A stream whose failures are told from those of every other file."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, or say why not."""
        try:
            return self._stream.write(text)
        except OSError as error:
            raise self._given_up(error) from None

    def flush(self) -> None:
        """See to it that all is out."""
        try:
            self._stream.flush()
        except OSError as error:
            raise self._given_up(error) from None

    def _given_up(self, error: OSError) -> Unprinted:
        """What is still held goes nowhere, so that leaving does not fail once more."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        return Unprinted(error)


@contextmanager
def printing() -> Iterator[None]:
    """All that is printed within is out at its end, or an Unprinted tells why not."""
    stream, sys.stdout = sys.stdout, cast(TextIO, Printed(sys.stdout))
    try:
        yield
    finally:
        try:
            sys.stdout.flush()
        finally:
            sys.stdout = stream
