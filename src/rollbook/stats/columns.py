"""Scored rollouts as columns of numbers, and their statistics for every task: counts, sums, sorted rewards, votes.

A rollout takes about fifty bytes, however long it is. Partial columns are merged without reading anything again.
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
    """Maps texts to small numbers, each text stored once: `ids[text]` assigns a new number to a new text.

    If None needs a number, add it beforehand.
    """

    def __missing__(self, text: str | None) -> int:
        self[text] = number = len(self) - (None in self)
        return number

    @property
    def texts(self) -> list[str]:
        """The texts in the order of their numbers."""
        return [text for text in self if text is not None]


@dataclass(frozen=True)
class RewardParts:
    """The reward parts of rollouts: the rollout's index in the columns, the number of the part's name, and its
    value."""

    place: Ints
    name: Ints
    value: Floats

    def where(self, mask: Bools) -> RewardParts:
        """Return the parts of the selected rollouts, with the indices they have after the selection."""
        selected = mask[self.place]
        new_index = np.cumsum(mask, dtype=np.int32) - 1
        return RewardParts(new_index[self.place[selected]], self.name[selected], self.value[selected])

    def shift(self, by: int) -> RewardParts:
        """Return the parts with indices shifted behind `by` other rollouts."""
        return RewardParts(self.place + np.int32(by), self.name, self.value)


@dataclass(frozen=True)
class Columns:
    """One entry per scored rollout. `task` is the row of its task, `answer` the number of its answer or NO_ANSWER."""

    task: Ints
    reward: Floats
    answer: Ints
    prompt_tokens: Ints
    completion_tokens: Ints
    turns: Ints
    truncated: Bools
    cut: Bools
    """Whether the last answer was cut by the limit of its tokens; all of these are `truncated` too."""
    seconds: Floats
    parts: RewardParts

    def __len__(self) -> int:
        return len(self.task)

    def where(self, mask: Bools) -> Columns:
        """Return the selected rollouts."""
        if mask.all():
            return self
        return Columns(**{name: getattr(self, name)[mask] for name in SCALAR_COLUMNS}, parts=self.parts.where(mask))


SCALAR_COLUMNS = [field.name for field in fields(Columns) if field.name != "parts"]
COST_COLUMNS = [name for name in SCALAR_COLUMNS if name not in ("task", "reward", "answer", "cut")]
COLUMN_TYPES: Mapping[str, DTypeLike] = {
    **dict.fromkeys(SCALAR_COLUMNS, np.int64),
    "truncated": np.bool_,
    "cut": np.bool_,
    "seconds": np.float64,
}


def make_columns(
    task: Sequence[int], reward: Sequence[float], answer: Sequence[int] | None = None, **others: Sequence[float]
) -> Columns:
    """Make columns from plain sequences; missing columns are zero: no answer, no tokens, no time."""
    size = len(task)
    rest = {name: np.asarray(others.get(name, np.zeros(size)), COLUMN_TYPES[name]) for name in (*COST_COLUMNS, "cut")}
    return Columns(
        task=np.asarray(task, np.int64),
        reward=np.asarray(reward, np.float64),
        answer=np.full(size, NO_ANSWER) if answer is None else np.asarray(answer, np.int64),
        **rest,
        parts=RewardParts(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)),
    )


def merge_columns(partials: Sequence[Columns]) -> Columns:
    """Return all rollouts of partial columns, whose tasks, answers and part names must be numbered alike."""
    if not partials:
        return make_columns([], [])
    starts = np.cumsum([0, *(len(columns) for columns in partials)])
    shifted = [columns.parts.shift(int(start)) for columns, start in zip(partials, starts, strict=False)]
    parts = RewardParts(
        *(np.concatenate([getattr(columns, name) for columns in shifted]) for name in ("place", "name", "value"))
    )
    return Columns(
        **{name: np.concatenate([getattr(columns, name) for columns in partials]) for name in SCALAR_COLUMNS},
        parts=parts,
    )


PASS_THRESHOLD = 1.0


class TaskStats:
    """One entry per task with a score, by ascending row in tasks.jsonl.

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
        with np.errstate(over="ignore"):  # a sum that overflows makes a number undefined, not wrong
            self.total = self._sum_by_task(self.rewards)
        self.passed = self._sum_by_task((self.rewards >= threshold).astype(np.float64))

    def __len__(self) -> int:
        return len(self.rows)

    def _sum_by_task(self, ordered: Floats) -> Floats:
        sums: Floats = np.add.reduceat(ordered, self._starts)
        return sums

    def sum_column(self, name: str) -> Floats:
        """Return the sum of a column over each task's rollouts."""
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
        """The size of each task's rewards: differences that are tiny relative to it are rounding."""
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
            # Relative to the lowest reward and in units of the range, so that no offset or unit costs digits.
            width = self.high - self.low
            offsets = (self.rewards - np.repeat(self.low, self.n)) / np.repeat(np.where(width > 0, width, 1.0), self.n)
            squares = (offsets - np.repeat(self._sum_by_task(offsets) / self.n, self.n)) ** 2
            return width * np.sqrt(self._sum_by_task(squares) / np.maximum(self.n - 1, 1))

    @property
    def binary(self) -> bool:
        """Whether every reward is 0 or 1."""
        return bool(np.all((self.rewards == 0.0) | (self.rewards == 1.0)))

    def covered_mask(self, k: int) -> Bools:
        """Return the tasks with at least k scored rollouts: only they have numbers @k."""
        return self.n >= k

    def pass_at(self, k: int) -> Floats:
        """Return pass@k of the covered tasks."""
        covered = self.covered_mask(k)
        return pass_at_k(self.n[covered], self.passed[covered], k)

    def pass_hat(self, k: int) -> Floats:
        """Return pass^k of the covered tasks."""
        covered = self.covered_mask(k)
        return pass_hat_k(self.n[covered], self.passed[covered], k)

    def best_at(self, k: int) -> Floats:
        """Return best@k of the covered tasks."""
        covered = self.covered_mask(k)
        return best_at_k(self.rewards[np.repeat(covered, self.n)], self.n[covered], k)

    def maj_at(self, ks: Sequence[int], seed: int = 0) -> dict[int, MajorityEstimate]:
        """Return maj@k of the voting tasks, for every k that any of them has; empty where no rollout has an answer."""
        voting_ks = [k for k in ks if self.voting_mask(k).any()]
        votes = maj_at_k(self.ballots, voting_ks, seed) if voting_ks else {}
        return {k: votes[k].where(self.voting_mask(k)) for k in voting_ks}

    def voting_mask(self, k: int) -> Bools:
        """Return the tasks that have a maj@k: at least k scored rollouts, in an environment that reports answers."""
        return self.covered_mask(k) & self.voting

    @cached_property
    def voting(self) -> Bools:
        """The tasks of environments in which any rollout has an answer."""
        answering = self._columns.task[self._columns.answer != NO_ANSWER]
        if self._groups is None:
            return np.full(len(self), bool(len(answering)))
        return np.isin(self._groups[self.rows], np.unique(self._groups[answering]))

    @cached_property
    def ballots(self) -> Ballots:
        """The votes of every task, the most frequent answer first."""
        task, _, counts, totals, first = self._answer_counts
        size = len(self)
        silent = self.n - np.bincount(task, counts, minlength=size).astype(np.int64)
        silent_total = self.total - np.bincount(task, totals, minlength=size)
        silent_score = np.divide(silent_total, silent, out=np.zeros(size), where=silent > 0)
        return Ballots(counts, totals / counts, np.diff(first, append=len(task)), silent, silent_score)

    @cached_property
    def majority_answers(self) -> tuple[Ints, Floats]:
        """The most frequent answer of each task (NO_ANSWER where there is none), and its share of the answers.

        A tie goes to the smallest number, so that the choice does not depend on chance.
        """
        task, answer, counts, _, first = self._answer_counts
        answered = np.flatnonzero(np.diff(first, append=len(task)))
        votes = np.bincount(task, counts, minlength=len(self))
        chosen, share = np.full(len(self), NO_ANSWER), np.zeros(len(self))
        chosen[answered] = answer[first[answered]]
        share[answered] = counts[first[answered]] / votes[answered]
        return chosen, share

    @cached_property
    def _answer_counts(self) -> tuple[Ints, Ints, Ints, Floats, Ints]:
        """(task, answer, count, sum of rewards) of every answer of every task, and where each task begins."""
        owner = np.repeat(np.arange(len(self)), self.n)
        answer = self._columns.answer[self._order]
        answered = answer != NO_ANSWER
        owner, answer, reward = owner[answered], answer[answered], self.rewards[answered]
        order = np.lexsort((answer, owner))
        owner, answer, reward = owner[order], answer[order], reward[order]
        starts = np.flatnonzero((np.diff(owner, prepend=-1) != 0) | (np.diff(answer, prepend=-1) != 0))
        counts = np.diff(starts, append=len(owner))
        totals = np.add.reduceat(reward, starts)
        ranked = np.lexsort((answer[starts], -counts, owner[starts]))
        task = owner[starts][ranked]
        return task, answer[starts][ranked], counts[ranked], totals[ranked], np.searchsorted(task, np.arange(len(self)))
