"""The order in which chunks are claimed: those with the longest tasks first, by the lengths of earlier rollouts.

A run ends when its longest rollout does, so the long ones should begin first. The lengths are measured once, when a
round is opened, and stored next to it (rounds/lengths-NNNN.json): workers need not read all journals. The plan does not
change, and a run without this file is worked on in the order of its plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from math import inf
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from rollbook.book.book import Book
from rollbook.book.counted_lines import list_journals
from rollbook.book.durable_files import write_atomically
from rollbook.book.json_lines import LineReader
from rollbook.book.tasks import read_rows
from rollbook.core import JSON_ERRORS, Chunk, Chunks, Round, Settings, Timing, Usage, encode
from rollbook.errors import UsageError

LengthUnit: TypeAlias = Literal["tokens", "seconds"]


class TaskLengths(msgspec.Struct, frozen=True):
    """rounds/lengths-NNNN.json: how long the rollouts of each task were on average; None where none was scored."""

    unit: LengthUnit
    lengths: list[float | None]
    """By row of tasks.jsonl."""

    def length(self, row: int) -> float:
        """Return the length of a task; one that was never scored comes first, as it may be the longest."""
        known = self.lengths[row] if row < len(self.lengths) else None
        return inf if known is None else known

    def longest_in(self, chunk: Chunk) -> float:
        """Return the length of the longest task of a chunk."""
        width = chunk.part.samples[1] - chunk.part.samples[0]
        first = chunk.part.tasks[0]
        return max(self.length(first + row) for row in range(chunk.start // width, (chunk.stop - 1) // width + 1))

    def order_chunks(self, chunks: Chunks, order: Sequence[int] | None = None) -> list[int]:
        """Return the numbers of all chunks, the one with the longest task first; equal ones stay in `order`."""
        return sorted(order or range(len(chunks)), key=lambda number: -self.longest_in(chunks[number]))


class _LengthLine(msgspec.Struct, gc=False):
    task: str
    usage: Usage = Usage()
    timing: Timing = Timing()


def measure_lengths(runs: Sequence[Book], rows: Mapping[str, int]) -> TaskLengths | None:
    """Return the mean lengths of the scored rollouts of these tasks in these runs; None if there are none.

    They are counted in tokens of answers, or in seconds if no server has counted tokens.
    """
    sums: dict[str, tuple[int, int, float]] = {}
    for line in (line for book in runs for line in _read_lines(book)):
        if line.task in rows:
            count, tokens, seconds = sums.get(line.task, (0, 0, 0.0))
            sums[line.task] = count + 1, tokens + line.usage.completion_tokens, seconds + line.timing.seconds
    if not sums:
        return None
    counted = any(tokens for _, tokens, _ in sums.values())
    lengths: list[float | None] = [None] * (max(rows.values()) + 1)
    for task, (count, tokens, seconds) in sums.items():
        if counted:
            lengths[rows[task]] = round(tokens / count, 1) or None  # a server that counts none says nothing of it
        else:
            lengths[rows[task]] = round(seconds / count, 3)
    return TaskLengths("tokens" if counted else "seconds", lengths)


def _read_lines(book: Book) -> Iterator[_LengthLine]:
    reader = LineReader(_LengthLine, book.manifest.schema)
    for path in list_journals(book.path, failures=False):
        for _, line in reader.read(path):
            yield line


def open_ordered_round(book: Book, settings: Settings) -> Round:
    """Open a round whose workers begin with the longest tasks, as far as earlier rollouts of this run tell.

    Of tasks that this run has not scored yet, what earlier rounds knew still holds.
    """
    lengths = find_lengths(read_rows(book.tasks.path, len(book.tasks)), settings.order, book)
    for earlier in reversed(book.rounds()):
        lengths = _complete(lengths, read_lengths(book.path, earlier.number))
    opened = book.open_round(settings)
    write_lengths(book, opened.number, lengths)
    return opened


def _complete(lengths: TaskLengths | None, earlier: TaskLengths | None) -> TaskLengths | None:
    """Fill in what only the earlier lengths know, if they are in the same unit."""
    if lengths is None or earlier is None or lengths.unit != earlier.unit:
        return lengths or earlier
    both = zip_longest(lengths.lengths, earlier.lengths)
    return TaskLengths(lengths.unit, [known if known is not None else before for known, before in both])


def find_lengths(rows: Mapping[str, int], order: str, *runs: Book) -> TaskLengths | None:
    """Return what is known of the lengths of these tasks, from runs and from the one that --order names."""
    lengths = measure_lengths([*runs, *([open_profile(order)] if order else [])], rows)
    if lengths is None and order:
        raise UsageError(f"--order {order}: that run has scored none of these tasks; leave out --order")
    return lengths


PROFILE = "profile:"


def open_profile(order: str) -> Book:
    """Open the run that --order names."""
    if not order.startswith(PROFILE) or order == PROFILE:
        raise UsageError(f"--order {order}: write profile:RUN, a run that has worked on these tasks before")
    return Book(order.removeprefix(PROFILE))


def write_lengths(book: Book, round_number: int, lengths: TaskLengths | None) -> None:
    """Store the lengths for the workers of a round, if any are known."""
    if lengths is not None:
        write_atomically(_lengths_path(book.path, round_number), encode(lengths))


def read_lengths(run: Path, round_number: int) -> TaskLengths | None:
    """Return the lengths that were known when a round began; None if none were."""
    with suppress(FileNotFoundError, *JSON_ERRORS):  # without it the order is that of the plan, with the same results
        return msgspec.json.decode(_lengths_path(run, round_number).read_bytes(), type=TaskLengths)
    return None


def _lengths_path(run: Path, round_number: int) -> Path:
    return run / "rounds" / f"lengths-{round_number:04}.json"
