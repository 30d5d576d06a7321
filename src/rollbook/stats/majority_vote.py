"""maj@k: the expected value of a vote among k rollouts, over every choice of k; exact where cheap, else sampled.

Votes count answers; the answer with the most votes wins, and tied answers share the win. An answer is worth the mean
score of the rollouts that gave it. A rollout without an answer does not vote; where no rollout votes, the vote is worth
the mean score of the rollouts without an answer. So maj@1 is the mean.

The exact value needs the expected share of the win of each answer, counted over every choice of k. A generating
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

MAX_PATTERN_CELLS = 1e7
"""How many numbers one pattern of votes may need at once."""

MAX_LOG_CHOICES = log(1e300)
"""Beyond it the number of choices does not fit a float."""


def estimate_steps(counts: Ints, silent: Ints, top: int) -> Floats:
    """Return roughly how many multiplications the shares of each pattern take up to k = `top`; infinite where too many.

    A pattern is a row: how many rollouts gave each answer, and how many gave none.
    """
    n = counts.sum(axis=1) + silent
    nodes = np.cumsum([0, *(ceil(min(top // votes, counts.shape[1]) / 2) for votes in range(1, top + 1))])
    cost = nodes[np.minimum(counts.max(axis=1, initial=0), top)] * (np.minimum(counts, top) + 1).sum(axis=1)
    fits = {int(size): _fits_float(int(size), top) for size in np.unique(n)}
    feasible = np.array([fits[int(size)] for size in n], np.bool_) & bool(
        counts.shape[1] * nodes[1] * top <= MAX_PATTERN_CELLS
    )
    return np.where(feasible, 2.0 * top * cost, np.inf)


def _fits_float(n: int, top: int) -> bool:
    chosen = min(top, n // 2)
    return lgamma(n + 1) - lgamma(chosen + 1) - lgamma(n - chosen + 1) < MAX_LOG_CHOICES


def vote_shares(counts: Ints, silent: Ints, k: int) -> Floats:
    """Return the expected share of every answer in the win of k votes; the last column: how often no rollout votes."""
    portion_size = max(1, int(4e6 // (k**2 * max(1, counts.shape[1]))))
    shares = [np.zeros((0, counts.shape[1] + 1))]
    for start in range(0, len(counts), portion_size):
        portion = slice(start, start + portion_size)
        shares.append(_compute_shares(counts[portion], silent[portion], k))
    return np.concatenate(shares)


def _compute_shares(counts: Ints, silent: Ints, k: int) -> Floats:
    tasks, answers = counts.shape
    ways = count_choices(np.column_stack([counts, silent]), k)
    subsets = np.maximum(count_choices(counts.sum(axis=1) + silent, k)[:, k], 1.0)
    shares = np.zeros((tasks, answers + 1))
    for votes in range(1, min(k, int(counts.max(initial=0))) + 1):
        for index, wins in _count_wins(counts, ways, votes, k):
            shares[:, index] += wins[:, k - votes] / subsets
    shares[:, -1] = ways[:, -1, k] / subsets
    return shares


def _count_wins(counts: Ints, ways: Floats, votes: int, top: int) -> Iterator[tuple[int, Floats]]:
    """Yield for each answer in how many choices of `votes` + s rollouts it wins with `votes`, ties shared, by s."""
    max_power = top - votes
    answers = counts.shape[1]
    y, weights = gauss_nodes(ceil(min(top // votes, answers) / 2))
    most = counts.max(axis=0)
    factors = [
        _make_factor(ways[:, index], min(votes, int(most[index]), max_power), votes, y) for index in range(answers)
    ]
    products_after = [np.ones((len(counts), 1, 1))]
    for factor in reversed(factors[1:]):
        products_after.append(multiply_polynomials(products_after[-1], factor, max_power))
    product_before = ways[:, -1, None, : max_power + 1]
    for index in range(int((most >= votes).sum())):
        rest = multiply_polynomials(product_before, products_after[answers - 1 - index], max_power)
        wins = np.einsum("tgs,g->ts", np.broadcast_to(rest, (len(counts), len(y), rest.shape[2])), weights)
        padded = np.pad(wins, ((0, 0), (0, max_power + 1 - wins.shape[1])))
        yield index, ways[:, index, votes, None] * padded
        product_before = multiply_polynomials(product_before, factors[index], max_power)


def _make_factor(ways: Floats, most: int, votes: int, y: Floats) -> Floats:
    """Return how many ways an answer has to get 0, 1, ... `most` votes; a tie with the winner is marked by y."""
    factor = np.repeat(ways[:, None, : most + 1], len(y), axis=1)
    if most == votes:
        factor[:, :, votes] *= y
    return factor


def multiply_polynomials(left: Floats, right: Floats, max_power: int) -> Floats:
    """Return the product of polynomials (last axis) up to the power `max_power`."""
    if left.shape[2] < right.shape[2]:
        left, right = right, left
    size = min(left.shape[2] + right.shape[2] - 1, max_power + 1)
    product = np.zeros((left.shape[0], max(left.shape[1], right.shape[1]), size))
    for power in range(min(right.shape[2], size)):
        length = min(left.shape[2], size - power)
        product[:, :, power : power + length] += right[:, :, power, None] * left[:, :, :length]
    return product


def count_choices(n: Ints, top: int) -> Floats:
    """Return C(n, k) for every n and, on a further axis, every k up to `top`.

    >>> count_choices(np.array([4]), 5).tolist()
    [[1.0, 4.0, 6.0, 4.0, 1.0, 0.0]]
    """
    sizes, which = np.unique(n, return_inverse=True)
    table = np.array([[float(comb(int(size), k)) for k in range(top + 1)] for size in sizes]).reshape(-1, top + 1)
    return table[which].reshape(*n.shape, top + 1)


def gauss_nodes(count: int) -> tuple[Floats, Floats]:
    """Return Gauss's nodes and weights on the unit interval: exact for polynomials of degree 2 x count - 1."""
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
    """The votes of tasks: `counts` and mean `scores` of every answer, task after task, the most frequent first.

    `answers` is the number of answers of each task; `silent` and `silent_score` are of its rollouts without an answer.
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
        """Sum values of the answers by task."""
        totals: Floats = np.bincount(self.owners, values, minlength=len(self)).astype(np.float64, copy=False)
        return totals

    @cached_property
    def single_vote_values(self) -> Floats:
        """The value of a vote of one rollout: the mean."""
        means: Floats = (self.sum_by_task(self.counts * self.scores) + self.silent * self.silent_score) / self.n
        return means

    @cached_property
    def full_vote_values(self) -> Floats:
        """The value of a vote of all rollouts of a task: there is only one choice of all."""
        most = np.zeros(len(self), np.int64)
        np.maximum.at(most, self.owners, self.counts)
        wins = self.counts == most[self.owners]
        shared = self.sum_by_task(wins * self.scores) / np.maximum(self.sum_by_task(wins.astype(np.float64)), 1.0)
        return np.where(self.answers > 0, shared, self.silent_score)

    def to_table(self, tasks: Bools, values: NDArray[S], width: int) -> NDArray[S]:
        """Return values of the answers of some tasks: one row per task, one column per answer, padded with zeros."""
        table: NDArray[S] = np.zeros((int(tasks.sum()), width), values.dtype)
        chosen = np.repeat(tasks, self.answers)
        column = np.arange(len(values)) - np.repeat(self.starts[:-1], self.answers)
        table[np.repeat(np.arange(len(table)), self.answers[tasks]), column[chosen]] = values[chosen]
        return table


@dataclass(frozen=True)
class MajorityEstimate:
    """maj@k by task; which of the values were sampled instead of counted, and the variance of those."""

    values: Floats
    drawn: Bools
    variances: Floats

    @property
    def error(self) -> float | None:
        """The standard error that sampling leaves in the mean over the tasks; None where nothing was sampled."""
        return float(np.sqrt(self.variances.sum()) / len(self.values)) if self.drawn.any() else None

    def where(self, chosen: Bools) -> MajorityEstimate:
        """Return the selected tasks."""
        return MajorityEstimate(self.values[chosen], self.drawn[chosen], self.variances[chosen])


@dataclass(frozen=True)
class _Block:
    """Tasks with similar numbers of answers, by their patterns of votes; `which` is the pattern of each task."""

    tasks: Bools
    counts: Ints
    silent: Ints
    which: Ints

    def estimate_costs(self, k: int) -> Floats:
        """Return what each pattern costs to count for one k; 0 where there is only one choice."""
        costs = np.zeros(len(self.counts))
        has_choice = self.counts.sum(axis=1) + self.silent > k
        costs[has_choice] = np.maximum(estimate_steps(self.counts[has_choice], self.silent[has_choice], k), 1.0)
        return costs


def maj_at_k(ballots: Ballots, ks: Sequence[int], seed: int = 0) -> dict[int, MajorityEstimate]:
    """Return the value of a vote of k for every k, each computed independently of the others.

    A task with fewer than k rollouts has none: leave it out.

    >>> ballots = Ballots(np.array([2, 1]), np.array([1.0, 0.0]), np.array([2]), np.array([1]), np.array([0.0]))
    >>> {k: round(float(m.values[0]), 4) for k, m in maj_at_k(ballots, [1, 2, 4]).items()}
    {1: 0.5, 2: 0.6667, 4: 1.0}
    """
    blocks = list(_group_by_width(ballots)) if any(k > 1 for k in ks) else []
    return {k: _estimate_at_k(ballots, blocks, k, seed) for k in sorted(set(ks))}


def _estimate_at_k(ballots: Ballots, blocks: Sequence[_Block], k: int, seed: int) -> MajorityEstimate:
    """Votes of one and of all rollouts are known, cheap patterns are counted, and the rest is sampled."""
    size = len(ballots)
    values = (ballots.single_vote_values if k == 1 else ballots.full_vote_values).copy()
    estimate = MajorityEstimate(values, np.zeros(size, np.bool_), np.zeros(size))
    if k > 1 and blocks:
        costs = [block.estimate_costs(k) for block in blocks]
        cost_limit = _find_cost_limit(np.concatenate(costs))
        for block, pattern_costs in zip(blocks, costs, strict=True):
            _fill_exact(ballots, block, (pattern_costs > 0) & (pattern_costs <= cost_limit), k, estimate)
            estimate.drawn[block.tasks] = (pattern_costs > cost_limit)[block.which]
        _fill_drawn(ballots, np.flatnonzero(estimate.drawn), k, seed, estimate)
    return estimate


def _find_cost_limit(costs: Floats) -> float:
    """Return the cost of the most expensive pattern that is still counted, if the cheap ones are counted first."""
    kinds, times = np.unique(costs, return_counts=True)
    within = int(np.searchsorted(np.cumsum(kinds * times), EXACT_STEPS, "right"))
    return float(kinds[within - 1]) if within else 0.0


def _group_by_width(ballots: Ballots) -> Iterator[_Block]:
    """Group tasks by their number of answers: a single table would be as wide as the task with the most answers."""
    widths = 2 ** np.ceil(np.log2(np.maximum(ballots.answers, 1))).astype(np.int64)
    for width in np.unique(widths).tolist():
        tasks = widths == width
        rows = np.column_stack([ballots.to_table(tasks, ballots.counts, width), ballots.silent[tasks]])
        patterns, which = find_distinct_rows(rows)
        yield _Block(tasks, patterns[:, :-1], patterns[:, -1], which)


def find_distinct_rows(patterns: Ints) -> tuple[Ints, Ints]:
    """Return the distinct rows, and which of them each row is; very many tasks have few patterns of votes."""
    packed = np.ascontiguousarray(patterns, np.uint32)
    keys = [row.tobytes() for row in packed]
    numbers: dict[bytes, int] = {}
    which = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
    first = np.zeros(len(numbers), np.int64)
    first[which[::-1]] = np.arange(len(which))[::-1]
    return patterns[first], which


def _fill_exact(ballots: Ballots, block: _Block, cheap: Bools, k: int, estimate: MajorityEstimate) -> None:
    """Fill in the exact values of the tasks with the cheap patterns."""
    if not cheap.any():
        return
    tasks = block.tasks.copy()
    tasks[block.tasks] = cheap[block.which]
    which = (np.cumsum(cheap) - 1)[block.which[cheap[block.which]]]
    scores = ballots.to_table(tasks, ballots.scores, block.counts.shape[1])
    share = vote_shares(block.counts[cheap], block.silent[cheap], k)[which]
    estimate.values[tasks] = (share[:, :-1] * scores).sum(axis=1) + share[:, -1] * ballots.silent_score[tasks]


def _fill_drawn(ballots: Ballots, tasks: Ints, k: int, seed: int, estimate: MajorityEstimate) -> None:
    """Fill in values from random choices of k of each task's rollouts."""
    rng = np.random.default_rng([k, seed])
    cells = int((ballots.answers[tasks] + 1).sum())
    draws = int(np.clip(DRAWN_COUNTS / max(1, cells), FEWEST_DRAWS, MOST_DRAWS))
    for task in tasks.tolist():
        drawn_values = _draw_values(ballots, task, k, draws, rng)
        estimate.values[task], estimate.variances[task] = drawn_values.mean(), drawn_values.var(ddof=1) / draws


def _draw_values(ballots: Ballots, task: int, k: int, draws: int, rng: np.random.Generator) -> Floats:
    """Return the value of the vote in every draw; only a few draws are in memory at a time."""
    own_answers = slice(ballots.starts[task], ballots.starts[task + 1])
    scores, silent_score = ballots.scores[own_answers], float(ballots.silent_score[task])
    counts = np.append(ballots.counts[own_answers], ballots.silent[task])
    portion_size = max(1, int(DRAWN_AT_ONCE // len(counts)))
    sizes = [min(portion_size, draws - start) for start in range(0, draws, portion_size)]
    drawn = (rng.multivariate_hypergeometric(counts, k, size) for size in sizes)
    return np.concatenate([_value_votes(votes[:, :-1], scores, silent_score) for votes in drawn])


def _value_votes(votes: Ints, scores: Floats, silent_score: float) -> Floats:
    """Return the value of each of many votes."""
    most = votes.max(axis=1, initial=0)
    wins = votes == most[:, None]
    values = (wins * scores).sum(axis=1) / np.maximum(wins.sum(axis=1), 1)
    return np.where(most > 0, values, silent_score)
