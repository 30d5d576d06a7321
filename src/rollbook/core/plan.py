"""The plan: which keys are asked for, cut into chunks that workers claim."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

import msgspec

MAX_CHUNK = 256


class Part(msgspec.Struct, frozen=True):
    """A block of keys: tasks[0] <= row in tasks.jsonl < tasks[1], samples[0] <= sample < samples[1].

    `chunks` are the sizes of consecutive chunks over the block's keys, task by task.
    """

    tasks: tuple[int, int]
    samples: tuple[int, int]
    chunks: list[int]

    @property
    def keys(self) -> int:
        """How many keys the block holds."""
        return (self.tasks[1] - self.tasks[0]) * (self.samples[1] - self.samples[0])


class Plan(msgspec.Struct, frozen=True):
    """All blocks; `extend` appends one, nothing is ever changed."""

    schema: int
    parts: list[Part]

    @property
    def requested(self) -> int:
        """How many rollouts are asked for in all."""
        return sum(part.keys for part in self.parts)

    @property
    def samples(self) -> int:
        """How many tries at a task are asked for, at most: `extend` may have added some."""
        return max((part.samples[1] for part in self.parts), default=0)


class Chunk(msgspec.Struct, frozen=True):
    """A range of keys: the unit that a worker claims."""

    number: int
    part: Part
    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many keys it holds."""
        return self.stop - self.start

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Its keys as (row in tasks.jsonl, sample)."""
        width = self.part.samples[1] - self.part.samples[0]
        for position in range(self.start, self.stop):
            row, sample = divmod(position, width)
            yield self.part.tasks[0] + row, self.part.samples[0] + sample


class Chunks(Sequence[Chunk]):
    """The chunks of a plan by number, found in logarithmic time and held as bare integers."""

    def __init__(self, plan: Plan) -> None:
        self._parts = plan.parts
        self._ends = [list(accumulate(part.chunks)) for part in plan.parts]
        self._first = [0, *accumulate(len(part.chunks) for part in plan.parts)]

    def __len__(self) -> int:
        return self._first[-1]

    def __getitem__(self, number: int) -> Chunk:  # type: ignore[override]
        if not 0 <= number < len(self):
            raise IndexError(number)
        at = bisect_right(self._first, number) - 1
        local = number - self._first[at]
        ends = self._ends[at]
        return Chunk(number, self._parts[at], ends[local - 1] if local else 0, ends[local])

    def side_by_side(self) -> list[int]:
        """The numbers of all chunks in an order in which every part gets ahead at the same pace.

        >>> Chunks(Plan(1, [Part((0, 4), (0, 1), [2, 1, 1]), Part((4, 8), (0, 1), [2, 1, 1])])).side_by_side()
        [0, 3, 1, 4, 2, 5]
        """
        done = [start / ends[-1] for ends in self._ends if ends for start in (0, *ends[:-1])]
        return sorted(range(len(done)), key=done.__getitem__)


def chunk_sizes(keys: int, workers: int) -> list[int]:
    """Big chunks first and singles last, so that the last worker to finish is not far behind.

    >>> chunk_sizes(10, 1)
    [5, 2, 1, 1, 1]
    """
    sizes = []
    while keys:
        size = min(MAX_CHUNK, max(1, keys // (2 * workers)))
        sizes.append(size)
        keys -= size
    return sizes


def part(tasks: tuple[int, int], samples: tuple[int, int], workers: int) -> Part:
    """A block of keys with its chunks sized for so many workers."""
    keys = (tasks[1] - tasks[0]) * (samples[1] - samples[0])
    return Part(tasks, samples, chunk_sizes(keys, workers))
