"""The scored lines of one journal file as columns, before lines that do not count are removed.

Answers are normalized here, so that one number is one answer however it is written.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b, sha256
from itertools import chain
from pathlib import Path
from typing import Annotated, TypeAlias
from unicodedata import normalize

import msgspec
import numpy as np

from rollbook.book import LineChecker, LineReader, read_line_before, read_line_blocks
from rollbook.core import JSON_ERRORS, Extent
from rollbook.errors import BookError
from rollbook.stats import NO_ANSWER, Bools, Columns, Floats, Ints, RewardParts, TextIds, merge_columns

MAX_ANSWER_CHARS = 200
"""A longer answer is represented by its beginning and its hash."""

_is_plain_integer = re.compile(r"-?[1-9][0-9]{0,30}|0").fullmatch
_match_number = re.compile(
    r"([+-]?)(?:([1-9][0-9]{0,2}(?:,[0-9]{3})+|[1-9][0-9]*|0)(?:\.([0-9]*))?|([0-9]*)\.([0-9]+))"
).fullmatch
MINUS = "\u2212"
TRUNCATED, CUT = 1, 2
TRUNCATED_REASONS = {"length": CUT, "context_length": TRUNCATED}
UNKNOWN_TASK = -1
NOT_REPORTED = -1


BoundedCount: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
"""A count small enough that sums over very many rollouts fit a column."""


class _Turn(msgspec.Struct, gc=False):
    finish_reason: str
    prompt_tokens: int = 0
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: BoundedCount
    completion_tokens: BoundedCount


class _Timing(msgspec.Struct, gc=False):
    seconds: float
    start: float = 0.0


class _ScoredLine(msgspec.Struct, gc=False):
    """The fields of a scored line that the numbers need."""

    task: str
    sample: BoundedCount
    attempt: BoundedCount
    reward: float
    parts: dict[str, float]
    answer: str | None
    turns: list[_Turn]
    usage: _Usage
    timing: _Timing
    ended: str = ""


@dataclass(frozen=True)
class JournalColumns:
    """The lines of a file: `columns` refers to answers and parts by their indices in `answers` and `parts`.

    A task that is not in the book has the row UNKNOWN_TASK. `starts` are the times at which the rollouts began,
    `cached` how many tokens of their prompts the server had cached, or NOT_REPORTED, `ends` the offsets just behind the
    lines, `damaged` those behind lines that were skipped; `extents` the extents of the file now, at every size at which
    it was sealed.
    """

    path: Path
    extents: set[Extent]
    answers: list[str]
    parts: list[str]
    columns: Columns
    sample: Ints
    attempt: Ints
    starts: Floats
    cached: Ints
    ends: Ints
    damaged: Ints

    def read_task_id(self, line: int) -> str:
        """Read the task id of a line from the file."""
        return _decoder.decode(read_line_before(self.path, int(self.ends[line]))).task


def renumber_columns(journal: JournalColumns, answers: TextIds, parts: TextIds) -> Columns:
    """Return the columns of a journal with the numbers of a run for answers and parts; empty text is not an answer."""
    columns = journal.columns
    numbers = np.array([*(answers[text] if text else NO_ANSWER for text in journal.answers), NO_ANSWER], np.int32)
    names = np.array([parts[name] for name in journal.parts], np.int32)
    renamed = replace(columns.parts, name=names[columns.parts.name])
    return replace(columns, answer=numbers[columns.answer], parts=renamed)


class _ColumnBuilder:
    """Builds the columns of a file block by block."""

    def __init__(self, rows: Mapping[str, int]) -> None:
        self._rows, self.answers, self.parts = rows, TextIds({None: NO_ANSWER}), TextIds()
        self._shapes = _PartNumbers(self.parts)
        self.columns: list[Columns] = []
        self.samples: list[Ints] = []
        self.attempts: list[Ints] = []
        self.starts: list[Floats] = [np.zeros(0)]
        self.cached: list[Ints] = [np.zeros(0, np.int64)]
        self.ends: list[Ints] = []
        self.damaged: list[Ints] = []

    def add_lines(self, lines: Sequence[_ScoredLine], ends: Ints) -> None:
        self.ends.append(ends)
        self.samples.append(np.array([line.sample for line in lines], np.int64))
        self.attempts.append(np.array([line.attempt for line in lines], np.int64))
        self.starts.append(np.array([line.timing.start for line in lines], np.float64))
        self.cached.append(np.array([_sum_cached(line.turns) for line in lines], np.int64))
        self.columns.append(self._columns(lines))

    def _columns(self, lines: Sequence[_ScoredLine]) -> Columns:
        row, answers = self._rows.get, self.answers
        turns = [line.turns for line in lines]
        reason = TRUNCATED_REASONS.get
        ends = np.array(
            [TRUNCATED if x.ended else reason(x.turns[-1].finish_reason, 0) if x.turns else 0 for x in lines], np.int8
        )
        return Columns(
            np.array([row(line.task, UNKNOWN_TASK) for line in lines], np.int32),
            np.array([line.reward for line in lines], np.float64),
            np.array([answers[line.answer] for line in lines], np.int32),
            np.array([line.usage.prompt_tokens for line in lines], np.int64),
            np.array([line.usage.completion_tokens for line in lines], np.int64),
            np.array([len(each) for each in turns], np.int32),
            ends > 0,
            ends == CUT,
            np.array([line.timing.seconds for line in lines], np.float64),
            self._parts([line.parts for line in lines]),
        )

    def _parts(self, parts: Sequence[dict[str, float]]) -> RewardParts:
        shapes = self._shapes
        numbers = [shapes[tuple(each)] for each in parts]
        names = np.fromiter(chain.from_iterable(numbers), np.int32)
        values = np.fromiter(chain.from_iterable(map(dict.values, parts)), np.float64, len(names))
        return RewardParts(np.repeat(np.arange(len(parts), dtype=np.int32), list(map(len, numbers))), names, values)

    def build(self, path: Path, extents: set[Extent]) -> JournalColumns:
        none = [np.zeros(0, np.int64)]
        by_line = (self.samples, self.attempts, self.ends, self.damaged)
        sample, attempt, ends, damaged = (np.concatenate(each or none) for each in by_line)
        answers = [normalize_answer(text) for text in self.answers.texts]
        columns = merge_columns(self.columns)
        return JournalColumns(
            path,
            extents,
            answers,
            self.parts.texts,
            columns,
            sample,
            attempt,
            np.concatenate(self.starts),
            np.concatenate(self.cached),
            ends,
            damaged,
        )


def _sum_cached(turns: Sequence[_Turn]) -> int:
    """Return the cached tokens of all prompts; some servers report more than a prompt has."""
    told = [min(turn.cached_tokens, turn.prompt_tokens) for turn in turns if turn.cached_tokens is not None]
    return max(0, sum(told)) if told else NOT_REPORTED


class _PartNumbers(dict[tuple[str, ...], list[int]]):
    """The part numbers for a tuple of part names: nearly all rollouts have the same names."""

    def __init__(self, known: TextIds) -> None:
        self._known = known

    def __missing__(self, shape: tuple[str, ...]) -> list[int]:
        self[shape] = numbers = [self._known[name] for name in shape]
        return numbers


_decoder = msgspec.json.Decoder(_ScoredLine)


def read_journal_columns(
    path: Path, schema: int, rows: Mapping[str, int], sealed: Sequence[int] = (), start: int = 0
) -> JournalColumns:
    """Read the whole lines of a journal of scored lines from `start` on; a malformed one is a BookError with its place.

    `schema` is the book's, `rows` maps its task ids to rows; `sealed` are the sizes at which the file was sealed, in
    ascending order.
    Checksums are compared behind the last of them only: sealed bytes are covered by the extents (json_lines.py).
    """
    reader, digests, checker = _ColumnBuilder(rows), ExtentDigests(sealed), LineChecker(path, schema)
    for offset, block in read_line_blocks(path, start, on_bytes=digests.add):
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == 10) + offset + 1
        lines = _decode_lines(block, len(ends)) if sealed and ends[-1] <= sealed[-1] else None
        if lines is None:
            good, damaged = _split_damaged(bytes(block), ends, checker)
            reader.damaged.append(ends[damaged])
            ends = ends[~damaged]
            lines = _decode_lines(good, len(ends))
        if lines is None:
            raise _find_malformed_line(path, schema)
        reader.add_lines(lines, ends)
    return reader.build(path, digests.found)


def _decode_lines(block: bytes | memoryview, count: int) -> list[_ScoredLine] | None:
    """Decode so many lines; return None if one of them cannot be."""
    try:
        lines = _decoder.decode_lines(block)
    except JSON_ERRORS:
        return None
    return lines if len(lines) == count else None


def _split_damaged(block: bytes, ends: Ints, checker: LineChecker) -> tuple[bytes, Bools]:
    """Return the undamaged lines of a block, and which lines are damaged."""
    lines = block[:-1].split(b"\n")
    damage = checker.find_damage(lines)
    damaged = np.zeros(len(ends), np.bool_)
    if not damage:
        return block, damaged
    damaged[list(damage)] = True
    return b"".join(line + b"\n" for at, line in enumerate(lines) if at not in damage), damaged


class ExtentDigests:
    """The extents of a file at given sizes, computed while the file is read."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = deque(sizes)
        self._digest, self._position = sha256(), 0
        self.found: set[Extent] = set()

    def add(self, block: memoryview) -> None:
        """Add the next bytes of the file."""
        while self._sizes and len(block) >= self._sizes[0] - self._position:
            cut = self._sizes.popleft() - self._position
            self._update(block[:cut])
            block = block[cut:]
            self.found.add(Extent(self._position, self._digest.hexdigest()))
        if self._sizes:
            self._update(block)

    def _update(self, block: memoryview) -> None:
        self._digest.update(block)
        self._position += len(block)


def normalize_answer(text: str) -> str:
    """Return the form of an answer that votes count: plain numbers in one notation, other text with white space folded.

    Text that is not entirely a number is not changed further: `10 am` is neither `10 pm` nor `10`. A whole number that
    begins with a zero may be a code, so `007` is not `7`.

    >>> [normalize_answer(text) for text in ("12", "+1,000.00", " 10  am", "$7", "007", "")]
    ['12', '1000', '10 am', '$7', '007', '']
    >>> [normalize_answer(text) for text in (".5", "+00.50", "7.", "-0", "\u22127", "1e3")]
    ['0.5', '0.5', '7', '0', '-7', '1e3']
    """
    if _is_plain_integer(text):
        return text
    folded = " ".join((text if text.isascii() else normalize("NFC", text)).split())
    number = _match_number(folded.replace(MINUS, "-", 1) if folded.startswith(MINUS) else folded)
    written = _format_number(*number.groups("")) if number else folded
    if len(written) <= MAX_ANSWER_CHARS:
        return written
    digest = blake2b(written.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{written[:MAX_ANSWER_CHARS]}... ({digest})"


def _format_number(sign: str, whole: str, fraction: str, padded: str, beyond: str) -> str:
    """Return a number without redundant commas, zeros and sign."""
    rest = (fraction or beyond).rstrip("0")
    number = (whole.replace(",", "") or padded.lstrip("0") or "0") + (f".{rest}" if rest else "")
    return f"-{number}" if sign == "-" and number != "0" else number


def _find_malformed_line(path: Path, schema: int) -> BookError:
    """Return the error for the malformed line: read the file again line by line to find it."""
    try:
        for _ in LineReader(_ScoredLine, schema).read(path):
            pass
    except BookError as error:
        return error
    return BookError(f"{path}: lines are malformed; restore the file from a copy of the run")
