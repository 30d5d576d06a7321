"""What every task came to: its counts, its sums, its rewards in order and its votes, from columns of rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from rollbook.stats.best import best_at_k
from rollbook.stats.columns import SILENT, Bools, Columns, Ints
from rollbook.stats.estimators import Floats, pass_at_k, pass_hat_k
from rollbook.stats.votes import Ballots, Majority, maj_at_k

PASS = 1.0


class Tasks:
    """One entry a task with a score, by ascending row in tasks.jsonl.

    `groups` has the environment of every row, where there are several: one that reports no answers has no votes.
    """

    def __init__(self, columns: Columns, threshold: float = PASS, groups: Ints | None = None) -> None:
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
            self.total = self._sum(self.rewards)
        self.passed = self._sum((self.rewards >= threshold).astype(np.float64))

    def __len__(self) -> int:
        return len(self.rows)

    def _sum(self, ordered: Floats) -> Floats:
        sums: Floats = np.add.reduceat(ordered, self._starts) if len(self.rows) else np.zeros(0)
        return sums

    def sum(self, name: str) -> Floats:
        """The sum of a column over each task's rollouts."""
        column: Floats = getattr(self._columns, name)[self._order].astype(np.float64)
        return self._sum(column)

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
            squares = (off - np.repeat(self._sum(off) / self.n, self.n)) ** 2
            return size * np.sqrt(self._sum(squares) / np.maximum(self.n - 1, 1))

    @property
    def binary(self) -> bool:
        """Whether every reward is 0 or 1."""
        return bool(np.all((self.rewards == 0.0) | (self.rewards == 1.0)))

    def covered(self, k: int) -> Bools:
        """The tasks with at least k scored rollouts: only they have numbers @k."""
        return self.n >= k

    def pass_at(self, k: int) -> Floats:
        """pass@k of the covered tasks."""
        held = self.covered(k)
        return pass_at_k(self.n[held], self.passed[held], k)

    def pass_hat(self, k: int) -> Floats:
        """pass^k of the covered tasks."""
        held = self.covered(k)
        return pass_hat_k(self.n[held], self.passed[held], k)

    def best_at(self, k: int) -> Floats:
        """best@k of the covered tasks."""
        held = self.covered(k)
        return best_at_k(self.rewards[np.repeat(held, self.n)], self.n[held], k)

    def maj_at(self, ks: Sequence[int], seed: int = 0) -> dict[int, Majority]:
        """maj@k of the tasks that vote, for every k that any of them has; none where no rollout has an answer."""
        wanted = [k for k in ks if self.polled(k).any()]
        votes = maj_at_k(self.ballots, wanted, seed) if wanted else {}
        return {k: votes[k].where(self.polled(k)) for k in wanted}

    def polled(self, k: int) -> Bools:
        """The tasks that have a maj@k: with at least k scored rollouts, of an environment that reports answers."""
        return self.covered(k) & self.voting

    @cached_property
    def voting(self) -> Bools:
        """The tasks of environments of which any rollout has an answer."""
        spoken = self._columns.task[self._columns.answer != SILENT]
        if self._groups is None:
            return np.full(len(self), bool(len(spoken)))
        return np.isin(self._groups[self.rows], np.unique(self._groups[spoken]))

    @cached_property
    def ballots(self) -> Ballots:
        """The votes of every task, the most popular answer first."""
        task, _, counts, totals, first = self._votes
        size = len(self)
        silent = self.n - np.bincount(task, counts, minlength=size).astype(np.int64)
        rest = self.total - np.bincount(task, totals, minlength=size)
        worth = np.where(silent > 0, rest / np.maximum(silent, 1), 0.0)
        return Ballots(counts, totals / counts, np.diff(first, append=len(task)), silent, worth)

    @cached_property
    def favourites(self) -> tuple[Ints, Floats]:
        """The answer given most often in each task (SILENT where none was), and its share of the answers given.

        Among equals it is the one with the smallest number, so that the choice does not depend on chance.
        """
        task, answer, counts, _, first = self._votes
        held = np.flatnonzero(np.diff(first, append=len(task)))
        votes = np.bincount(task, counts, minlength=len(self))
        chosen, share = np.full(len(self), SILENT), np.zeros(len(self))
        chosen[held] = answer[first[held]]
        share[held] = counts[first[held]] / votes[held]
        return chosen, share

    @cached_property
    def _votes(self) -> tuple[Ints, Ints, Ints, Floats, Ints]:
        """(task, answer, count, sum of rewards) of every answer of every task, and where each task begins."""
        owner = np.repeat(np.arange(len(self)), self.n)
        answer = self._columns.answer[self._order]
        spoke = answer != SILENT
        owner, answer, reward = owner[spoke], answer[spoke], self.rewards[spoke]
        order = np.lexsort((answer, owner))
        owner, answer, reward = owner[order], answer[order], reward[order]
        new = np.flatnonzero((np.diff(owner, prepend=-1) != 0) | (np.diff(answer, prepend=-1) != 0))
        counts = np.diff(new, append=len(owner))
        totals = np.add.reduceat(reward, new) if len(new) else np.zeros(0)
        ranked = np.lexsort((answer[new], -counts, owner[new]))
        task = owner[new][ranked]
        return task, answer[new][ranked], counts[ranked], totals[ranked], np.searchsorted(task, np.arange(len(self)))
