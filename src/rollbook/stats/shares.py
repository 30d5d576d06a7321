"""Who wins a vote of k, counted over every choice of k: the share of the win that each answer can expect.

A generating function in z counts the rollouts chosen; y marks every other answer with as many votes. Sharing a tie
among t + 1 is the integral of y^t from 0 to 1, which Gauss's rule gives exactly with (t + 1) / 2 nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, comb, lgamma, log

import numpy as np
from numpy.typing import NDArray

from rollbook.stats.estimators import Floats

Ints = NDArray[np.integer]

MOST_CELLS = 1e7
"""How many numbers one pattern of votes may need at once."""

LARGEST = log(1e300)
"""Beyond that the number of choices no longer fits a float."""


def steps(counts: Ints, silent: Ints, top: int) -> Floats:
    """About how many multiplications the shares of each pattern take up to k = `top`; infinite where that is too much.

    A pattern is a row: how many rollouts gave each answer, and how many gave none.
    """
    n = counts.sum(axis=1) + silent
    nodes = np.cumsum([0, *(ceil(min(top // votes, counts.shape[1]) / 2) for votes in range(1, top + 1))])
    cost = nodes[np.minimum(counts.max(axis=1, initial=0), top)] * (np.minimum(counts, top) + 1).sum(axis=1)
    fits = {int(size): _fits(int(size), top) for size in np.unique(n)}
    able = np.array([fits[int(size)] for size in n], np.bool_) & bool(counts.shape[1] * nodes[1] * top <= MOST_CELLS)
    return np.where(able, 2.0 * top * cost, np.inf)


def _fits(n: int, top: int) -> bool:
    chosen = min(top, n // 2)
    return lgamma(n + 1) - lgamma(chosen + 1) - lgamma(n - chosen + 1) < LARGEST


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
    ways = choices(np.column_stack([counts, silent]), top)
    subsets = np.maximum(choices(counts.sum(axis=1) + silent, top), 1.0)
    shares = {k: np.zeros((tasks, answers + 1)) for k in ks}
    for votes in range(1, min(top, int(counts.max(initial=0))) + 1):
        for at, won in _winning(counts, ways, votes, top):
            for k in ks:
                if k >= votes:
                    shares[k][:, at] += won[:, k - votes] / subsets[:, k]
    for k in ks:
        shares[k][:, -1] = ways[:, -1, k] / subsets[:, k]
    return shares


def _winning(counts: Ints, ways: Floats, votes: int, top: int) -> Iterator[tuple[int, Floats]]:
    """For each answer: in how many choices of `votes` + s rollouts it wins with so many votes, ties shared, by s."""
    room = top - votes
    answers = counts.shape[1]
    y, weights = unit_nodes(ceil(min(top // votes, answers) / 2))
    most = counts.max(axis=0)
    factors = [_factor(ways[:, at], min(votes, int(most[at]), room), votes, y) for at in range(answers)]
    behind = [np.ones((len(counts), 1, 1))]
    for factor in reversed(factors[1:]):
        behind.append(times(behind[-1], factor, room))
    before = ways[:, -1, None, : room + 1]
    for at in range(int((most >= votes).sum())):
        rest = times(before, behind[answers - 1 - at], room)
        won = np.einsum("tgs,g->ts", np.broadcast_to(rest, (len(counts), len(y), rest.shape[2])), weights)
        yield at, ways[:, at, votes, None] * _padded(won, room + 1)
        before = times(before, factors[at], room)


def _factor(ways: Floats, most: int, votes: int, y: Floats) -> Floats:
    """How many ways an answer has to get 0, 1, ... `most` votes; as many as the winner's are marked by y."""
    factor = np.repeat(ways[:, None, : most + 1], len(y), axis=1)
    if most == votes:
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
    """C(n, k) for every n and, on a further axis, every k up to `top`.

    >>> choices(np.array([4]), 5).tolist()
    [[1.0, 4.0, 6.0, 4.0, 1.0, 0.0]]
    """
    sizes, which = np.unique(n, return_inverse=True)
    table = np.array([[float(comb(int(size), k)) for k in range(top + 1)] for size in sizes]).reshape(-1, top + 1)
    return table[which].reshape(*n.shape, top + 1)


def unit_nodes(count: int) -> tuple[Floats, Floats]:
    """Gauss's nodes and weights on the unit interval: exact for polynomials of degree 2 x count - 1."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return (nodes + 1) / 2, weights / 2
