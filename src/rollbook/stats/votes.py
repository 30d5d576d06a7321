"""maj@k: what a vote among k rollouts is worth, expected over every choice of k; exact where cheap, else drawn.

Votes count answers; the answer with the most votes wins and ties share. An answer is worth the mean score of the
rollouts that gave it. Who gave no answer does not vote; where nobody votes, the vote is worth what the rollouts
without an answer scored on average. So maj@1 is the mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, comb

import numpy as np
from numpy.typing import NDArray

from rollbook.stats.estimators import Floats

Ints = NDArray[np.int64]

EXACT_STEPS = 3e8
"""How many multiplications an exact answer may cost; about two seconds."""

MOST_COUNTED = 1000
"""Beyond that many rollouts a task, the number of choices no longer fits a float."""

DRAWN_KEYS = 5e7
FEWEST_DRAWS, MOST_DRAWS = 32, 4096


@dataclass(frozen=True)
class Ballots:
    """The votes of tasks with equally many answers at most: one row a task, one column an answer, most votes first.

    `scores` are the mean scores behind each answer; `silent` and `silent_score` are of the rollouts without an answer.
    """

    counts: Ints
    scores: Floats
    silent: Ints
    silent_score: Floats

    @property
    def n(self) -> Ints:
        """How many rollouts each task has."""
        total: Ints = self.counts.sum(axis=1) + self.silent
        return total

    def where(self, chosen: NDArray[np.bool_]) -> Ballots:
        """Some of the tasks."""
        return Ballots(self.counts[chosen], self.scores[chosen], self.silent[chosen], self.silent_score[chosen])


@dataclass(frozen=True)
class Majority:
    """maj@k by task, and the variance of each value where it was drawn and not counted."""

    values: Floats
    variances: Floats | None = None

    @property
    def error(self) -> float | None:
        """The standard error that drawing leaves in the mean over the tasks; None where nothing was drawn."""
        if self.variances is None or not len(self.values):
            return None
        return float(np.sqrt(self.variances.sum()) / len(self.values))


def maj_at_k(ballots: Ballots, ks: Sequence[int], seed: int = 0) -> dict[int, Majority]:
    """The value of a vote of k for every k. A task with fewer than k rollouts has none: leave it out.

    >>> ballots = Ballots(np.array([[2, 1]]), np.array([[1.0, 0.0]]), np.array([1]), np.array([0.0]))
    >>> {k: round(float(m.values[0]), 4) for k, m in maj_at_k(ballots, [1, 2, 4]).items()}
    {1: 0.5, 2: 0.6667, 4: 1.0}
    """
    ks = sorted(set(ks))
    patterns, which = distinct(np.column_stack([ballots.counts, ballots.silent]))
    if steps(patterns, max(ks)) > EXACT_STEPS:
        return _drawn(ballots, ks, seed)
    shares = vote_shares(patterns[:, :-1], patterns[:, -1], ks)
    found = {}
    for k, share in shares.items():
        won, nobody = share[which, :-1], share[which, -1]
        found[k] = Majority((won * ballots.scores).sum(axis=1) + nobody * ballots.silent_score)
    return found


def distinct(patterns: Ints) -> tuple[Ints, Ints]:
    """The rows that occur, and which of them each row is; few patterns of votes stand for very many tasks."""
    packed = np.ascontiguousarray(patterns, np.uint32)
    keys = [row.tobytes() for row in packed]
    places: dict[bytes, int] = {}
    which = np.array([places.setdefault(key, len(places)) for key in keys], np.int64)
    first = np.zeros(len(places), np.int64)
    first[which[::-1]] = np.arange(len(which))[::-1]
    return patterns[first], which


def steps(patterns: Ints, top: int) -> float:
    """About how many multiplications the exact shares of these patterns take."""
    if patterns.size == 0:
        return 0.0
    if int(patterns.sum(axis=1).max()) > MOST_COUNTED:
        return float("inf")
    columns = np.minimum(patterns[:, :-1].max(axis=0), top) + 1
    nodes = sum(ceil(top / votes / 2) for votes in range(1, min(top, int(columns.max(initial=1)) - 1) + 1))
    return float(len(patterns)) * nodes * top * 2 * float(columns.sum())


def vote_shares(counts: Ints, silent: Ints, ks: Sequence[int]) -> dict[int, Floats]:
    """For each k the expected share of the win of every answer; the last column: how often nobody votes."""
    at_once = max(1, int(4e6 // (max(ks) ** 2 * max(1, counts.shape[1]))))
    found: dict[int, list[Floats]] = {k: [] for k in ks}
    for start in range(0, len(counts), at_once):
        some = slice(start, start + at_once)
        for k, shares in _shares(counts[some], silent[some], ks).items():
            found[k].append(shares)
    return {k: np.concatenate(parts) if parts else np.zeros((0, counts.shape[1] + 1)) for k, parts in found.items()}


def _shares(counts: Ints, silent: Ints, ks: Sequence[int]) -> dict[int, Floats]:
    tasks, answers = counts.shape
    top = max(ks)
    ways = choices(np.arange(int(max(counts.max(initial=0), silent.max(initial=0))) + 1), top)
    subsets = np.maximum(choices(counts.sum(axis=1) + silent, top), 1.0)
    shares = {k: np.zeros((tasks, answers + 1)) for k in ks}
    for votes in range(1, min(top, int(counts.max(initial=0))) + 1):
        for at, won in _winning(counts, silent, ways, votes, top):
            for k in ks:
                if k >= votes:
                    shares[k][:, at] += won[:, k - votes] / subsets[:, k]
    for k in ks:
        shares[k][:, -1] = ways[silent, k] / subsets[:, k]
    return shares


def _winning(counts: Ints, silent: Ints, ways: Floats, votes: int, top: int) -> Iterator[tuple[int, Floats]]:
    """For each answer: in how many choices of `votes` + s rollouts it wins with so many votes, ties shared, by s.

    A generating function in z counts the rollouts chosen; y marks every other answer with as many votes. Sharing a tie
    among t + 1 is the integral of y^t from 0 to 1, which Gauss's rule gives exactly with (t + 1) / 2 nodes.
    """
    room = top - votes
    answers = counts.shape[1]
    y, weights = unit_nodes(ceil(min(top // votes, answers) / 2))
    able = int((counts.max(axis=0) >= votes).sum())
    factors = [_factor(counts[:, at], ways, votes, room, y) for at in range(answers)]
    behind = [np.ones((len(counts), 1, 1))]
    for factor in reversed(factors[1:]):
        behind.append(times(behind[-1], factor, room))
    before = ways[silent, None, : room + 1]
    for at in range(able):
        rest = times(before, behind[answers - 1 - at], room)
        won = np.einsum("tgs,g->ts", np.broadcast_to(rest, (len(counts), len(y), rest.shape[2])), weights)
        yield at, ways[counts[:, at], votes, None] * _padded(won, room + 1)
        before = times(before, factors[at], room)


def _factor(counts: Ints, ways: Floats, votes: int, room: int, y: Floats) -> Floats:
    """How many ways an answer has to get 0, 1, ... `votes` votes; the last marked by y."""
    size = min(votes, int(counts.max()), room) + 1
    factor = np.repeat(ways[counts, None, :size], len(y), axis=1)
    if size > votes:
        factor[:, :, votes] *= y
    return factor


def times(left: Floats, right: Floats, room: int) -> Floats:
    """The product of polynomials (last axis) up to the power `room`."""
    if left.shape[2] < right.shape[2]:
        left, right = right, left
    size = min(left.shape[2] + right.shape[2] - 1, room + 1)
    product = np.zeros((left.shape[0], max(left.shape[1], right.shape[1]), size))
    for power in range(min(right.shape[2], size)):
        kept = min(left.shape[2], size - power)
        product[:, :, power : power + kept] += right[:, :, power, None] * left[:, :, :kept]
    return product


def _padded(values: Floats, size: int) -> Floats:
    return np.pad(values, ((0, 0), (0, size - values.shape[1])))


def choices(n: Ints, top: int) -> Floats:
    """C(n, k) for every n and every k up to `top`.

    >>> choices(np.array([4]), 5).tolist()
    [[1.0, 4.0, 6.0, 4.0, 1.0, 0.0]]
    """
    table = {int(size): [float(comb(int(size), k)) for k in range(top + 1)] for size in np.unique(n)}
    return np.array([table[int(size)] for size in n]).reshape(len(n), top + 1)


def unit_nodes(count: int) -> tuple[Floats, Floats]:
    """Gauss's nodes and weights on the unit interval: exact for polynomials of degree 2 x count - 1."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return (nodes + 1) / 2, weights / 2


def _drawn(ballots: Ballots, ks: Sequence[int], seed: int) -> dict[int, Majority]:
    """maj@k from random orders of each task's rollouts: the first k of an order are one choice of k."""
    rng = np.random.default_rng(seed)
    draws = int(np.clip(DRAWN_KEYS / max(1, int(ballots.n.sum())), FEWEST_DRAWS, MOST_DRAWS))
    values = {k: np.zeros(len(ballots.n)) for k in ks}
    variances = {k: np.zeros(len(ballots.n)) for k in ks}
    for task in range(len(ballots.n)):
        for k, worth in _draw(ballots, task, ks, draws, rng):
            values[k][task], variances[k][task] = worth.mean(), worth.var(ddof=1) / draws
    return {k: Majority(values[k], variances[k]) for k in ks}


def _draw(
    ballots: Ballots, task: int, ks: Sequence[int], draws: int, rng: np.random.Generator
) -> Iterator[tuple[int, Floats]]:
    counts = ballots.counts[task]
    answers = int((counts > 0).sum())
    given = np.repeat(np.arange(answers + 1), [*counts[:answers], ballots.silent[task]])
    order = rng.permuted(np.broadcast_to(given, (draws, len(given))), axis=1)
    votes = np.zeros((draws, answers + 1), np.int64)
    done = 0
    for k in sorted(ks):
        for at in range(done, min(k, len(given))):
            votes[np.arange(draws), order[:, at]] += 1
        done = k
        yield k, _worth(votes[:, :-1], ballots.scores[task, :answers], float(ballots.silent_score[task]))


def _worth(votes: Ints, scores: Floats, silent_score: float) -> Floats:
    """What each of many votes is worth."""
    most = votes.max(axis=1, initial=0)
    wins = (votes == most[:, None]) & (most > 0)[:, None]
    worth = (wins * scores).sum(axis=1) / np.maximum(wins.sum(axis=1), 1)
    return np.where(most > 0, worth, silent_score)
