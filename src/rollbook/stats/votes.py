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

EXACT_STEPS = 3e8
"""How many multiplications exact answers may cost together; about two seconds."""

DRAWN_KEYS = 5e7
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
    """Tasks with about as many answers and the same largest k, by their patterns of votes, cheapest first."""

    tasks: Bools
    counts: Ints
    silent: Ints
    costs: Floats
    which: Ints
    ks: list[int]


def maj_at_k(ballots: Ballots, ks: Sequence[int], seed: int = 0) -> dict[int, Majority]:
    """The value of a vote of k for every k. A task with fewer than k rollouts has none: leave it out.

    >>> ballots = Ballots(np.array([2, 1]), np.array([1.0, 0.0]), np.array([2]), np.array([1]), np.array([0.0]))
    >>> {k: round(float(m.values[0]), 4) for k, m in maj_at_k(ballots, [1, 2, 4]).items()}
    {1: 0.5, 2: 0.6667, 4: 1.0}
    """
    ks = sorted(set(ks))
    size = len(ballots)
    found = {k: Majority(np.zeros(size), np.zeros(size, np.bool_), np.zeros(size)) for k in ks}
    blocks = list(_blocks(ballots, ks))
    dearest = _affordable(np.concatenate([block.costs for block in blocks])) if blocks else 0.0
    left = np.zeros(size, np.bool_)
    for block in blocks:
        left |= _count(ballots, block, int(np.searchsorted(block.costs, dearest, "right")), found)
    _draw_all(ballots, np.flatnonzero(left), ks, seed, found)
    return found


def _affordable(costs: Floats) -> float:
    """The dearest pattern that is still counted, if the cheap ones are counted first."""
    kinds, times = np.unique(costs, return_counts=True)
    within = int(np.searchsorted(np.cumsum(kinds * times), EXACT_STEPS, "right"))
    return float(kinds[within - 1]) if within else -1.0


def _blocks(ballots: Ballots, ks: list[int]) -> Iterator[_Block]:
    """A table of one width would be as wide as the task with most answers: tasks of like width get one of their own."""
    widths = 2 ** np.ceil(np.log2(np.maximum(ballots.answers, 1))).astype(np.int64)
    tops = np.searchsorted(ks, ballots.n, "right")
    for width, top in sorted(set(zip(widths.tolist(), tops.tolist(), strict=True))):
        tasks = (widths == width) & (tops == top)
        if top:
            yield _block(ballots, tasks, width, ks[:top])


def _block(ballots: Ballots, tasks: Bools, width: int, ks: list[int]) -> _Block:
    patterns, which = distinct(np.column_stack([ballots.table(tasks, ballots.counts, width), ballots.silent[tasks]]))
    costs = steps(patterns[:, :-1], patterns[:, -1], ks[-1])
    order = np.argsort(costs, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return _Block(tasks, patterns[order, :-1], patterns[order, -1], costs[order], rank[which], ks)


def distinct(patterns: Ints) -> tuple[Ints, Ints]:
    """The rows that occur, and which of them each row is; few patterns of votes stand for very many tasks."""
    packed = np.ascontiguousarray(patterns, np.uint32)
    keys = [row.tobytes() for row in packed]
    places: dict[bytes, int] = {}
    which = np.array([places.setdefault(key, len(places)) for key in keys], np.int64)
    first = np.zeros(len(places), np.int64)
    first[which[::-1]] = np.arange(len(which))[::-1]
    return patterns[first], which


def _count(ballots: Ballots, block: _Block, cheap: int, found: dict[int, Majority]) -> Bools:
    """Put in the exact values of the tasks with the cheap patterns; gives the tasks that are left."""
    done, left = block.tasks.copy(), block.tasks.copy()
    done[block.tasks], left[block.tasks] = block.which < cheap, block.which >= cheap
    if done.any():
        which = block.which[block.which < cheap]
        scores = ballots.table(done, ballots.scores, block.counts.shape[1])
        for k, share in vote_shares(block.counts[:cheap], block.silent[:cheap], block.ks).items():
            won, nobody = share[which, :-1], share[which, -1]
            found[k].values[done] = (won * scores).sum(axis=1) + nobody * ballots.silent_score[done]
    return left


def _draw_all(ballots: Ballots, tasks: Ints, ks: list[int], seed: int, found: dict[int, Majority]) -> None:
    """Put in values from random orders of each task's rollouts: the first k of an order are one choice of k."""
    rng = np.random.default_rng(seed)
    draws = int(np.clip(DRAWN_KEYS / max(1, int(ballots.n[tasks].sum())), FEWEST_DRAWS, MOST_DRAWS))
    for task in tasks.tolist():
        able = [k for k in ks if k <= ballots.n[task]]
        for k, worth in zip(able, _draw(ballots, task, able, draws, rng), strict=True):
            found[k].values[task], found[k].variances[task] = worth.mean(), worth.var(ddof=1) / draws
            found[k].drawn[task] = True


def _draw(ballots: Ballots, task: int, ks: list[int], draws: int, rng: np.random.Generator) -> Floats:
    """What a vote is worth in every draw, for each k; few orders at a time are held."""
    mine = slice(ballots.starts[task], ballots.starts[task + 1])
    counts, scores, nobody = ballots.counts[mine], ballots.scores[mine], float(ballots.silent_score[task])
    given = np.repeat(np.arange(len(counts) + 1), [*counts, ballots.silent[task]])
    at_once = max(1, int(DRAWN_AT_ONCE // len(given)))
    parts = []
    for start in range(0, draws, at_once):
        orders = rng.permuted(np.broadcast_to(given, (min(at_once, draws - start), len(given))), axis=1)
        parts.append([_worth(votes[:, :-1], scores, nobody) for votes in _counted(orders, len(counts), ks)])
    return np.concatenate(parts, axis=1)


def _counted(orders: Ints, answers: int, ks: list[int]) -> Iterator[Ints]:
    """The votes among the first k of every order, for each k; the last column counts who gave no answer."""
    votes = np.zeros((len(orders), answers + 1), np.int64)
    rows, done = np.arange(len(orders)), 0
    for k in ks:
        for at in range(done, k):
            votes[rows, orders[:, at]] += 1
        done = k
        yield votes


def _worth(votes: Ints, scores: Floats, silent_score: float) -> Floats:
    """What each of many votes is worth."""
    most = votes.max(axis=1, initial=0)
    wins = (votes == most[:, None]) & (most > 0)[:, None]
    worth = (wins * scores).sum(axis=1) / np.maximum(wins.sum(axis=1), 1)
    return np.where(most > 0, worth, silent_score)
