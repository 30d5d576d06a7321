"""A sheet: the scored lines of one journal file as columns, before it is known which of them count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np

from rollbook.book.segment import LineReader
from rollbook.errors import BookError
from rollbook.stats.columns import SILENT, Columns, Ints, Names, Parts, merged

BLOCK = 256 << 10
"""Small enough that the lines of a block stay in the processor's cache while they are taken apart."""
CUT_SHORT = ("length", "context_length")


class _Turn(msgspec.Struct, gc=False):
    finish_reason: str


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int
    completion_tokens: int


class _Timing(msgspec.Struct, gc=False):
    seconds: float


class _Line(msgspec.Struct, gc=False):
    """What of a scored line the numbers need."""

    task: str
    sample: int
    attempt: int
    reward: float
    parts: dict[str, float]
    answer: str | None
    turns: list[_Turn]
    usage: _Usage
    timing: _Timing


@dataclass(frozen=True)
class Sheet:
    """A file's lines: `columns` name tasks, answers and parts by their numbers in the lists of texts beside them.

    `ends` are the offsets just behind the lines.
    """

    path: Path
    tasks: list[str]
    answers: list[str]
    parts: list[str]
    columns: Columns
    sample: Ints
    attempt: Ints
    ends: Ints


class _Reader:
    """Takes in a file block by block."""

    def __init__(self) -> None:
        self.tasks, self.answers, self.parts = Names(), Names({None: SILENT}), Names()
        self.columns: list[Columns] = []
        self.samples: list[Ints] = []
        self.attempts: list[Ints] = []
        self.ends: list[Ints] = []

    def take(self, lines: Sequence[_Line], ends: Ints) -> None:
        self.ends.append(ends)
        self.samples.append(np.array([line.sample for line in lines], np.int64))
        self.attempts.append(np.array([line.attempt for line in lines], np.int64))
        self.columns.append(self._columns(lines))

    def _columns(self, lines: Sequence[_Line]) -> Columns:
        tasks, answers = self.tasks, self.answers
        turns = [line.turns for line in lines]
        return Columns(
            np.array([tasks[line.task] for line in lines], np.int64),
            np.array([line.reward for line in lines], np.float64),
            np.array([answers[line.answer] for line in lines], np.int64),
            np.array([line.usage.prompt_tokens for line in lines], np.int64),
            np.array([line.usage.completion_tokens for line in lines], np.int64),
            np.array([len(each) for each in turns], np.int64),
            np.array([bool(each) and each[-1].finish_reason in CUT_SHORT for each in turns], np.bool_),
            np.array([line.timing.seconds for line in lines], np.float64),
            self._parts([line.parts for line in lines]),
        )

    def _parts(self, parts: Sequence[dict[str, float]]) -> Parts:
        sizes = np.array([len(each) for each in parts], np.int64)
        known = self.parts
        names = [known[name] for name in chain.from_iterable(parts)]
        values = np.fromiter(chain.from_iterable(map(dict.values, parts)), np.float64, len(names))
        return Parts(np.repeat(np.arange(len(parts)), sizes), np.array(names, np.int64), values)

    def sheet(self, path: Path) -> Sheet:
        none = [np.zeros(0, np.int64)]
        numbers = (np.concatenate(each or none) for each in (self.samples, self.attempts, self.ends))
        return Sheet(path, self.tasks.texts, self.answers.texts, self.parts.texts, merged(self.columns), *numbers)


_decoder = msgspec.json.Decoder(_Line)


def read_sheet(path: Path) -> Sheet:
    """All whole lines of a journal of scored lines; a malformed one is a BookError that names file and line."""
    reader = _Reader()
    for start, block in whole_blocks(path):
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == 10) + start + 1
        try:
            lines = _decoder.decode_lines(block)
        except msgspec.DecodeError:
            raise _malformed(path) from None
        if len(lines) != len(ends):
            raise _malformed(path)
        reader.take(lines, ends)
    return reader.sheet(path)


def whole_blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """The file in blocks of whole lines, each with its offset; what is torn off at the end is not given."""
    offset, rest = 0, b""
    with open(path, "rb", buffering=0) as file:
        while block := file.read(BLOCK):
            torn = block.find(b"\0")
            block = rest + (block if torn < 0 else block[:torn])
            cut = block.rfind(b"\n") + 1
            if cut:
                yield offset, block[:cut]
            offset, rest = offset + cut, block[cut:]
            if torn >= 0:
                return


def _malformed(path: Path) -> BookError:
    """Read the file again line by line, which finds the place."""
    try:
        for _ in LineReader(_Line).read(path):
            pass
    except BookError as error:
        return error
    return BookError(f"{path}: lines are malformed; restore the file from a copy of the run")
