"""Scored rollouts as columns of numbers, and what they are for every task: counts, sums, rewards in order, votes.

A rollout takes about fifty bytes, however long it is. Partial columns merge without reading anything again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rollbook.stats.estimators import Floats, best_at_k, pass_at_k, pass_hat_k
from rollbook.stats.majority_vote import Ballots, MajorityEstimate, maj_at_k

Ints = NDArray[np.integer]
Bools = NDArray[np.bool_]
NO_ANSWER = -1


class TextIds(dict[str | None, int]):
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
class RewardParts:
    """The reward parts of rollouts: of which rollout (its place in the columns), under which name, how much."""

    place: Ints
    name: Ints
    value: Floats

    def where(self, mask: Bools) -> RewardParts:
        """The parts of the chosen rollouts, whose places close up."""
        kept = mask[self.place]
        moved = np.cumsum(mask, dtype=np.int32) - 1
        return RewardParts(moved[self.place[kept]], self.name[kept], self.value[kept])

    def shift(self, by: int) -> RewardParts:
        """The same behind so many other rollouts."""
        return RewardParts(self.place + np.int32(by), self.name, self.value)


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
    parts: RewardParts

    def __len__(self) -> int:
        return len(self.task)

    def where(self, mask: Bools) -> Columns:
        """Some of the rollouts."""
        if mask.all():
            return self
        return Columns(**{name: getattr(self, name)[mask] for name in SCALAR_COLUMNS}, parts=self.parts.where(mask))


SCALAR_COLUMNS = [field.name for field in fields(Columns) if field.name != "parts"]
COLUMN_TYPES: Mapping[str, DTypeLike] = {
    **dict.fromkeys(SCALAR_COLUMNS, np.int64),
    "truncated": np.bool_,
    "seconds": np.float64,
}


def make_columns(
    task: Sequence[int],
    reward: Sequence[float],
    answer: Sequence[int] | None = None,
    **more: Sequence[float],
) -> Columns:
    """Columns from plain sequences; what is not given is nothing: no answer, no tokens, no time."""
    size = len(task)
    rest = {name: np.asarray(more.get(name, np.zeros(size)), COLUMN_TYPES[name]) for name in SCALAR_COLUMNS[3:]}
    return Columns(
        task=np.asarray(task, np.int64),
        reward=np.asarray(reward, np.float64),
        answer=np.full(size, NO_ANSWER) if answer is None else np.asarray(answer, np.int64),
        **rest,
        parts=RewardParts(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)),
    )


def merge_columns(several: Sequence[Columns]) -> Columns:
    """All rollouts of partial columns; tasks, answers and names of parts have the same numbers in all of them."""
    if not several:
        return make_columns([], [])
    starts = np.cumsum([0, *(len(each) for each in several)])
    moved = [each.parts.shift(int(start)) for each, start in zip(several, starts, strict=False)]
    parts = RewardParts(
        *(np.concatenate([getattr(each, name) for each in moved]) for name in ("place", "name", "value"))
    )
    return Columns(
        **{name: np.concatenate([getattr(each, name) for each in several]) for name in SCALAR_COLUMNS}, parts=parts
    )


PASS_THRESHOLD = 1.0


class TaskStats:
    """One entry a task with a score, by ascending row in tasks.jsonl.

    `groups` has the environment of every row, where there are several: one that reports no answers has no votes.
    """

    def __init__(self, columns: Columns, threshold: float = PASS_THRESHOLD, groups: Ints | None = None) -> None:
        self._groups = groups
        order = np.lexsort((columns.reward, columns.task))
        self._columns, self._order = columns, order
        self.rewards = columns.reward[order]
        by_task = columns.task[order]
        self._starts = np.flatnonzero(np.diff(by_task, prepend=-1))
        self.rows: Ints = by_task[self._starts]
        self.n: Ints = np.diff(self._starts, append=len(order))
        self.threshold = threshold
        with np.errstate(over="ignore"):  # sums that overflow make a number undefined, not wrong
            self.total = self._sum_by_task(self.rewards)
        self.passed = self._sum_by_task((self.rewards >= threshold).astype(np.float64))

    def __len__(self) -> int:
        return len(self.rows)

    def _sum_by_task(self, ordered: Floats) -> Floats:
        sums: Floats = np.add.reduceat(ordered, self._starts) if len(self.rows) else np.zeros(0)
        return sums

    def sum_column(self, name: str) -> Floats:
        """The sum of a column over each task's rollouts."""
        column: Floats = getattr(self._columns, name)[self._order].astype(np.float64)
        return self._sum_by_task(column)

    @property
    def low(self) -> Floats:
        """The smallest reward of each task."""
        return self.rewards[self._starts]

    @property
    def high(self) -> Floats:
        """The largest reward of each task."""
        highest: Floats = self.rewards[self._starts + self.n - 1]
        return highest

    @property
    def scale(self) -> Floats:
        """The size of each task's rewards, against which rounding is told from a difference."""
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @cached_property
    def means(self) -> Floats:
        """The mean reward of each task."""
        with np.errstate(over="ignore"):
            means: Floats = self.total / self.n
            return means

    @cached_property
    def stds(self) -> Floats:
        """The sample standard deviation of each task; meaningless where n is 1."""
        with np.errstate(over="ignore", invalid="ignore"):
            size = self.high - self.low  # from the lowest and by the width: neither an offset nor a unit costs digits
            off = (self.rewards - np.repeat(self.low, self.n)) / np.repeat(np.where(size > 0, size, 1.0), self.n)
            squares = (off - np.repeat(self._sum_by_task(off) / self.n, self.n)) ** 2
            return size * np.sqrt(self._sum_by_task(squares) / np.maximum(self.n - 1, 1))

    @property
    def binary(self) -> bool:
        """Whether every reward is 0 or 1."""
        return bool(np.all((self.rewards == 0.0) | (self.rewards == 1.0)))

    def covered_mask(self, k: int) -> Bools:
        """The tasks with at least k scored rollouts: only they have numbers @k."""
        return self.n >= k

    def pass_at(self, k: int) -> Floats:
        """pass@k of the covered tasks."""
        held = self.covered_mask(k)
        return pass_at_k(self.n[held], self.passed[held], k)

    def pass_hat(self, k: int) -> Floats:
        """pass^k of the covered tasks."""
        held = self.covered_mask(k)
        return pass_hat_k(self.n[held], self.passed[held], k)

    def best_at(self, k: int) -> Floats:
        """best@k of the covered tasks."""
        held = self.covered_mask(k)
        return best_at_k(self.rewards[np.repeat(held, self.n)], self.n[held], k)

    def maj_at(self, ks: Sequence[int], seed: int = 0) -> dict[int, MajorityEstimate]:
        """maj@k of the tasks that vote, for every k that any of them has; none where no rollout has an answer."""
        wanted = [k for k in ks if self.voting_mask(k).any()]
        votes = maj_at_k(self.ballots, wanted, seed) if wanted else {}
        return {k: votes[k].where(self.voting_mask(k)) for k in wanted}

    def voting_mask(self, k: int) -> Bools:
        """The tasks that have a maj@k: with at least k scored rollouts, of an environment that reports answers."""
        return self.covered_mask(k) & self.voting

    @cached_property
    def voting(self) -> Bools:
        """The tasks of environments of which any rollout has an answer."""
        spoken = self._columns.task[self._columns.answer != NO_ANSWER]
        if self._groups is None:
            return np.full(len(self), bool(len(spoken)))
        return np.isin(self._groups[self.rows], np.unique(self._groups[spoken]))

    @cached_property
    def ballots(self) -> Ballots:
        """The votes of every task, the most popular answer first."""
        task, _, counts, totals, first = self._answer_counts
        size = len(self)
        silent = self.n - np.bincount(task, counts, minlength=size).astype(np.int64)
        rest = self.total - np.bincount(task, totals, minlength=size)
        worth = np.where(silent > 0, rest / np.maximum(silent, 1), 0.0)
        return Ballots(counts, totals / counts, np.diff(first, append=len(task)), silent, worth)

    @cached_property
    def majority_answers(self) -> tuple[Ints, Floats]:
        """The answer given most often in each task (SILENT where none was), and its share of the answers given.

        Among equals it is the one with the smallest number, so that the choice does not depend on chance.
        """
        task, answer, counts, _, first = self._answer_counts
        held = np.flatnonzero(np.diff(first, append=len(task)))
        votes = np.bincount(task, counts, minlength=len(self))
        chosen, share = np.full(len(self), NO_ANSWER), np.zeros(len(self))
        chosen[held] = answer[first[held]]
        share[held] = counts[first[held]] / votes[held]
        return chosen, share

    @cached_property
    def _answer_counts(self) -> tuple[Ints, Ints, Ints, Floats, Ints]:
        """(task, answer, count, sum of rewards) of every answer of every task, and where each task begins."""
        owner = np.repeat(np.arange(len(self)), self.n)
        answer = self._columns.answer[self._order]
        spoke = answer != NO_ANSWER
        owner, answer, reward = owner[spoke], answer[spoke], self.rewards[spoke]
        order = np.lexsort((answer, owner))
        owner, answer, reward = owner[order], answer[order], reward[order]
        new = np.flatnonzero((np.diff(owner, prepend=-1) != 0) | (np.diff(answer, prepend=-1) != 0))
        counts = np.diff(new, append=len(owner))
        totals = np.add.reduceat(reward, new) if len(new) else np.zeros(0)
        ranked = np.lexsort((answer[new], -counts, owner[new]))
        task = owner[new][ranked]
        return task, answer[new][ranked], counts[ranked], totals[ranked], np.searchsorted(task, np.arange(len(self)))
