"""maj@k: the expected value of a vote among k rollouts, over every choice of k; exact where cheap, else drawn.

Votes count answers; the answer with the most votes wins and ties share. An answer is worth the mean score of the
rollouts that gave it. A rollout without an answer does not vote; where nobody votes, the vote is worth what the
rollouts without an answer scored on average. So maj@1 is the mean.

The exact value needs the share of the win that each answer can expect, counted over every choice of k. A generating
function in z counts the rollouts chosen; y marks every other answer with as many votes. Sharing a tie among t + 1 is
the integral of y^t from 0 to 1, which Gauss's rule gives exactly with (t + 1) / 2 nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, comb, lgamma, log
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rollbook.stats.estimators import Floats

Ints = NDArray[np.integer]


IntArray = NDArray[np.integer]

MAX_PATTERN_CELLS = 1e7
"""How many numbers one pattern of votes may need at once."""

MAX_LOG_CHOICES = log(1e300)
"""Beyond that the number of choices no longer fits a float."""


def estimate_steps(counts: IntArray, silent: IntArray, top: int) -> Floats:
    """About how many multiplications the shares of each pattern take up to k = `top`; infinite where that is too much.

    A pattern is a row: how many rollouts gave each answer, and how many gave none.
    """
    n = counts.sum(axis=1) + silent
    nodes = np.cumsum([0, *(ceil(min(top // votes, counts.shape[1]) / 2) for votes in range(1, top + 1))])
    cost = nodes[np.minimum(counts.max(axis=1, initial=0), top)] * (np.minimum(counts, top) + 1).sum(axis=1)
    fits = {int(size): _fits_float(int(size), top) for size in np.unique(n)}
    able = np.array([fits[int(size)] for size in n], np.bool_) & bool(
        counts.shape[1] * nodes[1] * top <= MAX_PATTERN_CELLS
    )
    return np.where(able, 2.0 * top * cost, np.inf)


def _fits_float(n: int, top: int) -> bool:
    chosen = min(top, n // 2)
    return lgamma(n + 1) - lgamma(chosen + 1) - lgamma(n - chosen + 1) < MAX_LOG_CHOICES


def vote_shares(counts: IntArray, silent: IntArray, ks: Sequence[int]) -> dict[int, Floats]:
    """For each k the expected share of the win of every answer; the last column: how often nobody votes."""
    at_once = max(1, int(4e6 // (max(ks) ** 2 * max(1, counts.shape[1]))))
    found: dict[int, list[Floats]] = {k: [] for k in ks}
    for start in range(0, len(counts), at_once):
        some = slice(start, start + at_once)
        for k, shares in _compute_shares(counts[some], silent[some], ks).items():
            found[k].append(shares)
    return {k: np.concatenate(parts) if parts else np.zeros((0, counts.shape[1] + 1)) for k, parts in found.items()}


def _compute_shares(counts: IntArray, silent: IntArray, ks: Sequence[int]) -> dict[int, Floats]:
    tasks, answers = counts.shape
    top = max(ks)
    ways = count_choices(np.column_stack([counts, silent]), top)
    subsets = np.maximum(count_choices(counts.sum(axis=1) + silent, top), 1.0)
    shares = {k: np.zeros((tasks, answers + 1)) for k in ks}
    for votes in range(1, min(top, int(counts.max(initial=0))) + 1):
        for at, won in _count_wins(counts, ways, votes, top):
            for k in ks:
                if k >= votes:
                    shares[k][:, at] += won[:, k - votes] / subsets[:, k]
    for k in ks:
        shares[k][:, -1] = ways[:, -1, k] / subsets[:, k]
    return shares


def _count_wins(counts: IntArray, ways: Floats, votes: int, top: int) -> Iterator[tuple[int, Floats]]:
    """For each answer: in how many choices of `votes` + s rollouts it wins with so many votes, ties shared, by s."""
    room = top - votes
    answers = counts.shape[1]
    y, weights = gauss_nodes(ceil(min(top // votes, answers) / 2))
    most = counts.max(axis=0)
    factors = [_make_factor(ways[:, at], min(votes, int(most[at]), room), votes, y) for at in range(answers)]
    behind = [np.ones((len(counts), 1, 1))]
    for factor in reversed(factors[1:]):
        behind.append(multiply_polynomials(behind[-1], factor, room))
    before = ways[:, -1, None, : room + 1]
    for at in range(int((most >= votes).sum())):
        rest = multiply_polynomials(before, behind[answers - 1 - at], room)
        won = np.einsum("tgs,g->ts", np.broadcast_to(rest, (len(counts), len(y), rest.shape[2])), weights)
        yield at, ways[:, at, votes, None] * _pad(won, room + 1)
        before = multiply_polynomials(before, factors[at], room)


def _make_factor(ways: Floats, most: int, votes: int, y: Floats) -> Floats:
    """How many ways an answer has to get 0, 1, ... `most` votes; as many as the winner's are marked by y."""
    factor = np.repeat(ways[:, None, : most + 1], len(y), axis=1)
    if most == votes:
        factor[:, :, votes] *= y
    return factor


def multiply_polynomials(left: Floats, right: Floats, room: int) -> Floats:
    """The product of polynomials (last axis) up to the power `room`."""
    if left.shape[2] < right.shape[2]:
        left, right = right, left
    size = min(left.shape[2] + right.shape[2] - 1, room + 1)
    product = np.zeros((left.shape[0], max(left.shape[1], right.shape[1]), size))
    for power in range(min(right.shape[2], size)):
        kept = min(left.shape[2], size - power)
        product[:, :, power : power + kept] += right[:, :, power, None] * left[:, :, :kept]
    return product


def _pad(values: Floats, size: int) -> Floats:
    return np.pad(values, ((0, 0), (0, size - values.shape[1])))


def count_choices(n: IntArray, top: int) -> Floats:
    """C(n, k) for every n and, on a further axis, every k up to `top`.

    >>> count_choices(np.array([4]), 5).tolist()
    [[1.0, 4.0, 6.0, 4.0, 1.0, 0.0]]
    """
    sizes, which = np.unique(n, return_inverse=True)
    table = np.array([[float(comb(int(size), k)) for k in range(top + 1)] for size in sizes]).reshape(-1, top + 1)
    return table[which].reshape(*n.shape, top + 1)


def gauss_nodes(count: int) -> tuple[Floats, Floats]:
    """Gauss's nodes and weights on the unit interval: exact for polynomials of degree 2 x count - 1."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return (nodes + 1) / 2, weights / 2


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

    def sum_by_task(self, values: Floats) -> Floats:
        """Values of the answers, added up by task."""
        totals: Floats = np.bincount(self.owners, values, minlength=len(self)).astype(np.float64, copy=False)
        return totals

    @cached_property
    def single_vote_values(self) -> Floats:
        """What a vote of one is worth: the mean."""
        means: Floats = (self.sum_by_task(self.counts * self.scores) + self.silent * self.silent_score) / self.n
        return means

    @cached_property
    def full_vote_values(self) -> Floats:
        """What the vote of all rollouts of a task is worth: there is only one choice of all."""
        most = np.zeros(len(self), np.int64)
        np.maximum.at(most, self.owners, self.counts)
        wins = self.counts == most[self.owners]
        shared = self.sum_by_task(wins * self.scores) / np.maximum(self.sum_by_task(wins.astype(np.float64)), 1.0)
        return np.where(self.answers > 0, shared, self.silent_score)

    def to_table(self, tasks: Bools, values: NDArray[S], width: int) -> NDArray[S]:
        """Values of the answers of some tasks: one row a task, one column an answer, zeros behind."""
        held: NDArray[S] = np.zeros((int(tasks.sum()), width), values.dtype)
        chosen = np.repeat(tasks, self.answers)
        place = np.arange(len(values)) - np.repeat(self.starts[:-1], self.answers)
        held[np.repeat(np.arange(len(held)), self.answers[tasks]), place[chosen]] = values[chosen]
        return held


@dataclass(frozen=True)
class MajorityEstimate:
    """maj@k by task; which of the values were drawn and not counted, and the variance that leaves in them."""

    values: Floats
    drawn: Bools
    variances: Floats

    @property
    def error(self) -> float | None:
        """The standard error that drawing leaves in the mean over the tasks; None where nothing was drawn."""
        return float(np.sqrt(self.variances.sum()) / len(self.values)) if self.drawn.any() else None

    def where(self, chosen: Bools) -> MajorityEstimate:
        """Some of the tasks."""
        return MajorityEstimate(self.values[chosen], self.drawn[chosen], self.variances[chosen])


@dataclass(frozen=True)
class _Block:
    """Tasks with about as many answers, by their patterns of votes; `which` says which pattern a task has."""

    tasks: Bools
    counts: Ints
    silent: Ints
    which: Ints

    def estimate_costs(self, k: int) -> Floats:
        """What each pattern costs to count for one k; nothing where there is no choice to count over."""
        costs = np.zeros(len(self.counts))
        open_ = self.counts.sum(axis=1) + self.silent > k
        costs[open_] = np.maximum(estimate_steps(self.counts[open_], self.silent[open_], k), 1.0)
        return costs


def maj_at_k(ballots: Ballots, ks: Sequence[int], seed: int = 0) -> dict[int, MajorityEstimate]:
    """The value of a vote of k for every k, each found without regard to the others.

    A task with fewer than k rollouts has none: leave it out.

    >>> ballots = Ballots(np.array([2, 1]), np.array([1.0, 0.0]), np.array([2]), np.array([1]), np.array([0.0]))
    >>> {k: round(float(m.values[0]), 4) for k, m in maj_at_k(ballots, [1, 2, 4]).items()}
    {1: 0.5, 2: 0.6667, 4: 1.0}
    """
    blocks = list(_group_by_width(ballots)) if any(k > 1 for k in ks) else []
    return {k: _estimate_at_k(ballots, blocks, k, seed) for k in sorted(set(ks))}


def _estimate_at_k(ballots: Ballots, blocks: Sequence[_Block], k: int, seed: int) -> MajorityEstimate:
    """One k: of one and of all is known, what is cheap is counted, and the rest drawn."""
    size = len(ballots)
    values = ballots.single_vote_values.copy() if k == 1 else np.where(ballots.n == k, ballots.full_vote_values, 0.0)
    found = MajorityEstimate(values, np.zeros(size, np.bool_), np.zeros(size))
    if k > 1 and blocks:
        costs = [block.estimate_costs(k) for block in blocks]
        dearest = _find_cost_limit(np.concatenate(costs))
        for block, each in zip(blocks, costs, strict=True):
            _fill_exact(ballots, block, (each > 0) & (each <= dearest), k, found)
            found.drawn[block.tasks] = (each > dearest)[block.which]
        _fill_drawn(ballots, np.flatnonzero(found.drawn), k, seed, found)
    return found


def _find_cost_limit(costs: Floats) -> float:
    """The dearest pattern that is still counted, if the cheap ones are counted first."""
    kinds, times = np.unique(costs, return_counts=True)
    within = int(np.searchsorted(np.cumsum(kinds * times), EXACT_STEPS, "right"))
    return float(kinds[within - 1]) if within else 0.0


def _group_by_width(ballots: Ballots) -> Iterator[_Block]:
    """A table of one width would be as wide as the task with most answers: tasks of like width get one of their own."""
    widths = 2 ** np.ceil(np.log2(np.maximum(ballots.answers, 1))).astype(np.int64)
    for width in np.unique(widths).tolist():
        tasks = widths == width
        rows = np.column_stack([ballots.to_table(tasks, ballots.counts, width), ballots.silent[tasks]])
        patterns, which = find_distinct_rows(rows)
        yield _Block(tasks, patterns[:, :-1], patterns[:, -1], which)


def find_distinct_rows(patterns: Ints) -> tuple[Ints, Ints]:
    """The rows that occur, and which of them each row is; few patterns of votes stand for very many tasks."""
    packed = np.ascontiguousarray(patterns, np.uint32)
    keys = [row.tobytes() for row in packed]
    places: dict[bytes, int] = {}
    which = np.array([places.setdefault(key, len(places)) for key in keys], np.int64)
    first = np.zeros(len(places), np.int64)
    first[which[::-1]] = np.arange(len(which))[::-1]
    return patterns[first], which


def _fill_exact(ballots: Ballots, block: _Block, cheap: Bools, k: int, found: MajorityEstimate) -> None:
    """Put in the exact values of the tasks with the cheap patterns."""
    if not cheap.any():
        return
    done = block.tasks.copy()
    done[block.tasks] = cheap[block.which]
    which = (np.cumsum(cheap) - 1)[block.which[cheap[block.which]]]
    scores = ballots.to_table(done, ballots.scores, block.counts.shape[1])
    share = vote_shares(block.counts[cheap], block.silent[cheap], [k])[k][which]
    found.values[done] = (share[:, :-1] * scores).sum(axis=1) + share[:, -1] * ballots.silent_score[done]


def _fill_drawn(ballots: Ballots, tasks: Ints, k: int, seed: int, found: MajorityEstimate) -> None:
    """Put in values from random choices of k of each task's rollouts."""
    rng = np.random.default_rng([k, seed])
    cells = int((ballots.answers[tasks] + 1).sum())
    draws = int(np.clip(DRAWN_COUNTS / max(1, cells), FEWEST_DRAWS, MOST_DRAWS))
    for task in tasks.tolist():
        worth = _draw_values(ballots, task, k, draws, rng)
        found.values[task], found.variances[task] = worth.mean(), worth.var(ddof=1) / draws


def _draw_values(ballots: Ballots, task: int, k: int, draws: int, rng: np.random.Generator) -> Floats:
    """What the vote is worth in every draw; few draws at a time are held."""
    mine = slice(ballots.starts[task], ballots.starts[task + 1])
    scores, nobody = ballots.scores[mine], float(ballots.silent_score[task])
    given = np.append(ballots.counts[mine], ballots.silent[task])
    at_once = max(1, int(DRAWN_AT_ONCE // len(given)))
    sizes = [min(at_once, draws - start) for start in range(0, draws, at_once)]
    drawn = (rng.multivariate_hypergeometric(given, k, size) for size in sizes)
    return np.concatenate([_value_votes(votes[:, :-1], scores, nobody) for votes in drawn])


def _value_votes(votes: Ints, scores: Floats, silent_score: float) -> Floats:
    """What each of many votes is worth."""
    most = votes.max(axis=1, initial=0)
    wins = (votes == most[:, None]) & (most > 0)[:, None]
    worth = (wins * scores).sum(axis=1) / np.maximum(wins.sum(axis=1), 1)
    return np.where(most > 0, worth, silent_score)
