"""maj@k: what a vote among k rollouts is worth, expected over every choice of k; exact where cheap, else drawn.

Votes count answers; the answer with the most votes wins and ties share. An answer is worth the mean score of the
rollouts that gave it. Who gave no answer does not vote; where nobody votes, the vote is worth what the rollouts
without an answer scored on average. So maj@1 is the mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rollbook.stats.estimators import Floats
from rollbook.stats.shares import steps, vote_shares

Ints = NDArray[np.integer]
Bools = NDArray[np.bool_]
S = TypeVar("S", bound=np.generic)

EXACT_STEPS = 1e8
"""How many multiplications the exact values of one k may cost over all tasks; about a second."""

DRAWN_COUNTS = 1e7
FEWEST_DRAWS, MOST_DRAWS = 32, 4096
DRAWN_AT_ONCE = 1e6


@dataclass(frozen=True)
class Ballots:
    """The votes of tasks: `counts` and mean `scores` of every answer, task after task, the most popular first.

    `answers` says how many answers a task has; `silent` and `silent_score` are of its rollouts without an answer.
    """

    counts: Ints
    scores: Floats
    answers: Ints
    silent: Ints
    silent_score: Floats

    def __len__(self) -> int:
        return len(self.answers)

    @cached_property
    def starts(self) -> Ints:
        """Where each task's answers begin, and where the last one's end."""
        return np.concatenate([[0], np.cumsum(self.answers)])

    @cached_property
    def n(self) -> Ints:
        """How many rollouts each task has."""
        votes = np.concatenate([[0], np.cumsum(self.counts)])
        total: Ints = votes[self.starts[1:]] - votes[self.starts[:-1]] + self.silent
        return total

    @cached_property
    def owners(self) -> Ints:
        """The task of every answer."""
        return np.repeat(np.arange(len(self)), self.answers)

    def sums(self, values: Floats) -> Floats:
        """Values of the answers, added up by task."""
        totals: Floats = np.bincount(self.owners, values, minlength=len(self)).astype(np.float64, copy=False)
        return totals

    @cached_property
    def of_one(self) -> Floats:
        """What a vote of one is worth: the mean."""
        means: Floats = (self.sums(self.counts * self.scores) + self.silent * self.silent_score) / self.n
        return means

    @cached_property
    def of_all(self) -> Floats:
        """What the vote of all rollouts of a task is worth: there is only one choice of all."""
        most = np.zeros(len(self), np.int64)
        np.maximum.at(most, self.owners, self.counts)
        wins = self.counts == most[self.owners]
        shared = self.sums(wins * self.scores) / np.maximum(self.sums(wins.astype(np.float64)), 1.0)
        return np.where(self.answers > 0, shared, self.silent_score)

    def table(self, tasks: Bools, values: NDArray[S], width: int) -> NDArray[S]:
        """Values of the answers of some tasks: one row a task, one column an answer, zeros behind."""
        held: NDArray[S] = np.zeros((int(tasks.sum()), width), values.dtype)
        chosen = np.repeat(tasks, self.answers)
        place = np.arange(len(values)) - np.repeat(self.starts[:-1], self.answers)
        held[np.repeat(np.arange(len(held)), self.answers[tasks]), place[chosen]] = values[chosen]
        return held


@dataclass(frozen=True)
class Majority:
    """maj@k by task; which of the values were drawn and not counted, and the variance that leaves in them."""

    values: Floats
    drawn: Bools
    variances: Floats

    @property
    def error(self) -> float | None:
        """The standard error that drawing leaves in the mean over the tasks; None where nothing was drawn."""
        return float(np.sqrt(self.variances.sum()) / len(self.values)) if self.drawn.any() else None

    def where(self, chosen: Bools) -> Majority:
        """Some of the tasks."""
        return Majority(self.values[chosen], self.drawn[chosen], self.variances[chosen])


@dataclass(frozen=True)
class _Block:
    """Tasks with about as many answers, by their patterns of votes; `which` says which pattern a task has."""

    tasks: Bools
    counts: Ints
    silent: Ints
    which: Ints

    def costs(self, k: int) -> Floats:
        """What each pattern costs to count for one k; nothing where there is no choice to count over."""
        costs = np.zeros(len(self.counts))
        open_ = self.counts.sum(axis=1) + self.silent > k
        costs[open_] = np.maximum(steps(self.counts[open_], self.silent[open_], k), 1.0)
        return costs


def maj_at_k(ballots: Ballots, ks: Sequence[int], seed: int = 0) -> dict[int, Majority]:
    """The value of a vote of k for every k, each found without regard to the others.

    A task with fewer than k rollouts has none: leave it out.

    >>> ballots = Ballots(np.array([2, 1]), np.array([1.0, 0.0]), np.array([2]), np.array([1]), np.array([0.0]))
    >>> {k: round(float(m.values[0]), 4) for k, m in maj_at_k(ballots, [1, 2, 4]).items()}
    {1: 0.5, 2: 0.6667, 4: 1.0}
    """
    blocks = list(_blocks(ballots)) if any(k > 1 for k in ks) else []
    return {k: _at(ballots, blocks, k, seed) for k in sorted(set(ks))}


def _at(ballots: Ballots, blocks: Sequence[_Block], k: int, seed: int) -> Majority:
    """One k: of one and of all is known, what is cheap is counted, and the rest drawn."""
    size = len(ballots)
    values = ballots.of_one.copy() if k == 1 else np.where(ballots.n == k, ballots.of_all, 0.0)
    found = Majority(values, np.zeros(size, np.bool_), np.zeros(size))
    if k > 1 and blocks:
        costs = [block.costs(k) for block in blocks]
        dearest = _affordable(np.concatenate(costs))
        for block, each in zip(blocks, costs, strict=True):
            _count(ballots, block, (each > 0) & (each <= dearest), k, found)
            found.drawn[block.tasks] = (each > dearest)[block.which]
        _draw_all(ballots, np.flatnonzero(found.drawn), k, seed, found)
    return found


def _affordable(costs: Floats) -> float:
    """The dearest pattern that is still counted, if the cheap ones are counted first."""
    kinds, times = np.unique(costs, return_counts=True)
    within = int(np.searchsorted(np.cumsum(kinds * times), EXACT_STEPS, "right"))
    return float(kinds[within - 1]) if within else 0.0


def _blocks(ballots: Ballots) -> Iterator[_Block]:
    """A table of one width would be as wide as the task with most answers: tasks of like width get one of their own."""
    widths = 2 ** np.ceil(np.log2(np.maximum(ballots.answers, 1))).astype(np.int64)
    for width in np.unique(widths).tolist():
        tasks = widths == width
        rows = np.column_stack([ballots.table(tasks, ballots.counts, width), ballots.silent[tasks]])
        patterns, which = distinct(rows)
        yield _Block(tasks, patterns[:, :-1], patterns[:, -1], which)


def distinct(patterns: Ints) -> tuple[Ints, Ints]:
    """The rows that occur, and which of them each row is; few patterns of votes stand for very many tasks."""
    packed = np.ascontiguousarray(patterns, np.uint32)
    keys = [row.tobytes() for row in packed]
    places: dict[bytes, int] = {}
    which = np.array([places.setdefault(key, len(places)) for key in keys], np.int64)
    first = np.zeros(len(places), np.int64)
    first[which[::-1]] = np.arange(len(which))[::-1]
    return patterns[first], which


def _count(ballots: Ballots, block: _Block, cheap: Bools, k: int, found: Majority) -> None:
    """Put in the exact values of the tasks with the cheap patterns."""
    if not cheap.any():
        return
    done = block.tasks.copy()
    done[block.tasks] = cheap[block.which]
    which = (np.cumsum(cheap) - 1)[block.which[cheap[block.which]]]
    scores = ballots.table(done, ballots.scores, block.counts.shape[1])
    share = vote_shares(block.counts[cheap], block.silent[cheap], [k])[k][which]
    found.values[done] = (share[:, :-1] * scores).sum(axis=1) + share[:, -1] * ballots.silent_score[done]


def _draw_all(ballots: Ballots, tasks: Ints, k: int, seed: int, found: Majority) -> None:
    """Put in values from random choices of k of each task's rollouts."""
    rng = np.random.default_rng([k, seed])
    cells = int((ballots.answers[tasks] + 1).sum())
    draws = int(np.clip(DRAWN_COUNTS / max(1, cells), FEWEST_DRAWS, MOST_DRAWS))
    for task in tasks.tolist():
        worth = _draw(ballots, task, k, draws, rng)
        found.values[task], found.variances[task] = worth.mean(), worth.var(ddof=1) / draws


def _draw(ballots: Ballots, task: int, k: int, draws: int, rng: np.random.Generator) -> Floats:
    """What the vote is worth in every draw; few draws at a time are held."""
    mine = slice(ballots.starts[task], ballots.starts[task + 1])
    scores, nobody = ballots.scores[mine], float(ballots.silent_score[task])
    given = np.append(ballots.counts[mine], ballots.silent[task])
    at_once = max(1, int(DRAWN_AT_ONCE // len(given)))
    sizes = [min(at_once, draws - start) for start in range(0, draws, at_once)]
    drawn = (rng.multivariate_hypergeometric(given, k, size) for size in sizes)
    return np.concatenate([_worth(votes[:, :-1], scores, nobody) for votes in drawn])


def _worth(votes: Ints, scores: Floats, silent_score: float) -> Floats:
    """What each of many votes is worth."""
    most = votes.max(axis=1, initial=0)
    wins = (votes == most[:, None]) & (most > 0)[:, None]
    worth = (wins * scores).sum(axis=1) / np.maximum(wins.sum(axis=1), 1)
    return np.where(most > 0, worth, silent_score)
