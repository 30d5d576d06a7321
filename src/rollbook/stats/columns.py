"""Scored rollouts as columns: some fifty bytes each, whatever was said. Partial columns merge without rereading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rollbook.stats.estimators import Floats

Ints = NDArray[np.integer]
Bools = NDArray[np.bool_]
SILENT = -1


class Names(dict[str | None, int]):
    """Texts as small numbers, each text held once: `names[text]` gives a new number to a new text.

    None, where it is to have a number, is put in beforehand.
    """

    def __missing__(self, text: str | None) -> int:
        self[text] = number = len(self) - (None in self)
        return number

    @property
    def texts(self) -> list[str]:
        """The texts by their numbers."""
        return [text for text in self if text is not None]


@dataclass(frozen=True)
class Parts:
    """The reward parts of rollouts: of which rollout (its place in the columns), under which name, how much."""

    place: Ints
    name: Ints
    value: Floats

    def where(self, chosen: Bools) -> Parts:
        """The parts of the chosen rollouts, whose places close up."""
        kept = chosen[self.place]
        moved = np.cumsum(chosen, dtype=np.int32) - 1
        return Parts(moved[self.place[kept]], self.name[kept], self.value[kept])

    def shifted(self, by: int) -> Parts:
        """The same behind so many other rollouts."""
        return Parts(self.place + np.int32(by), self.name, self.value)


@dataclass(frozen=True)
class Columns:
    """One entry a scored rollout. `task` is the row of its task, `answer` the number of its answer or SILENT."""

    task: Ints
    reward: Floats
    answer: Ints
    prompt_tokens: Ints
    completion_tokens: Ints
    turns: Ints
    truncated: Bools
    seconds: Floats
    parts: Parts

    def __len__(self) -> int:
        return len(self.task)

    def where(self, chosen: Bools) -> Columns:
        """Some of the rollouts."""
        if chosen.all():
            return self
        return Columns(**{name: getattr(self, name)[chosen] for name in PLAIN}, parts=self.parts.where(chosen))


PLAIN = [field.name for field in fields(Columns) if field.name != "parts"]
KINDS: Mapping[str, DTypeLike] = {**dict.fromkeys(PLAIN, np.int64), "truncated": np.bool_, "seconds": np.float64}


def columns(
    task: Sequence[int],
    reward: Sequence[float],
    answer: Sequence[int] | None = None,
    **more: Sequence[float],
) -> Columns:
    """Columns from plain sequences; what is not given is nothing: no answer, no tokens, no time."""
    size = len(task)
    rest = {name: np.asarray(more.get(name, np.zeros(size)), KINDS[name]) for name in PLAIN[3:]}
    return Columns(
        task=np.asarray(task, np.int64),
        reward=np.asarray(reward, np.float64),
        answer=np.full(size, SILENT) if answer is None else np.asarray(answer, np.int64),
        **rest,
        parts=Parts(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)),
    )


def merged(several: Sequence[Columns]) -> Columns:
    """All rollouts of partial columns; tasks, answers and names of parts have the same numbers in all of them."""
    if not several:
        return columns([], [])
    starts = np.cumsum([0, *(len(each) for each in several)])
    moved = [each.parts.shifted(int(start)) for each, start in zip(several, starts, strict=False)]
    parts = Parts(*(np.concatenate([getattr(each, name) for each in moved]) for name in ("place", "name", "value")))
    return Columns(**{name: np.concatenate([getattr(each, name) for each in several]) for name in PLAIN}, parts=parts)
