"""The numbers of a run: metrics of an environment with intervals and coverage, and a profile with a row a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count

import msgspec
import numpy as np

from rollbook.core import JSON
from rollbook.stats.columns import NO_ANSWER, PASS_THRESHOLD, Bools, Columns, Ints, TaskStats
from rollbook.stats.estimators import (
    Floats,
    Interval,
    clip_interval,
    clustered_error,
    confidence_interval,
    default_ks,
    finite_or_none,
    mean_or_none,
    sample_std,
)
from rollbook.stats.resampling import bootstrap_interval

METRIC_NAMES = {"pass_at": "pass@{}", "pass_hat": "pass^{}", "maj_at": "maj@{}", "best_at": "best@{}"}
ERROR_NAMES = {"pass_intervals": "pass@{}_interval", "maj_errors": "maj@{}_drawing_error"}


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one environment, or of all of a run's together. Fractions, not percents; None is undefined.

    `mean` and `std` are over scored rollouts, the error clustered by task. The numbers @k average over the tasks with
    at least k scored rollouts; `coverage` says how many those are, `maj_coverage` how many of them vote. Tokens, turns,
    `truncated` and `no_answer` are totals over scored rollouts. A part's mean is over the scored rollouts that have it;
    `part_coverage` says how many those are. Intervals are of 95%.
    """

    env: str
    tasks: int
    requested: int
    scored: int
    failed: dict[str, int]
    pending: int
    threshold: float
    mean: float | None
    mean_error: float | None
    mean_interval: Interval | None
    mean_bootstrap: Interval | None
    std: float | None
    parts: dict[str, float | None]
    part_coverage: dict[str, int]
    pass_at: dict[int, float]
    pass_hat: dict[int, float]
    maj_at: dict[int, float | None]
    best_at: dict[int, float | None]
    coverage: dict[int, int]
    maj_coverage: dict[int, int]
    pass_intervals: dict[int, Interval | None]
    pass_bootstrap: Interval | None
    maj_errors: dict[int, float]
    prompt_tokens: int
    completion_tokens: int
    turns: int
    truncated: int
    no_answer: int
    seconds_p50: float | None
    seconds_p95: float | None

    @property
    def pass_interval(self) -> Interval | None:
        """The interval of pass@1."""
        return self.pass_intervals.get(1)

    def per_rollout(self, total: int) -> float | None:
        """A total as a mean over scored rollouts."""
        return mean_or_none(total, self.scored)

    def json(self) -> dict[str, JSON]:
        """The metrics under the names that people know: `pass@1`, `pass^4`, `maj@4`, `mean`."""
        plain: dict[str, JSON] = msgspec.to_builtins(self, str_keys=True)
        plain["pass@1_bootstrap"] = plain.pop("pass_bootstrap")
        for field, name in (METRIC_NAMES | ERROR_NAMES).items():
            plain |= {name.format(k): value for k, value in plain.pop(field).items()}
        return plain


def compute_metrics(
    env: str,
    columns: Columns,
    names: Sequence[str] = (),
    *,
    requested: int,
    failed: Mapping[str, int] | None = None,
    ks: Sequence[int] | None = None,
    tasks: int | None = None,
    threshold: float = PASS_THRESHOLD,
    groups: Ints | None = None,
) -> Metrics:
    """The numbers of scored rollouts. `tasks`: how many were asked; `names`: of the parts, by their numbers.

    `groups` has the environment of every row, where there are several.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        held = TaskStats(columns, threshold, groups)
        wanted = default_ks(held.n) if ks is None else sorted(set(ks))
        failures = {kind: count for kind, count in sorted((failed or {}).items()) if count}
        return Metrics(
            env=env,
            tasks=len(held) if tasks is None else tasks,
            requested=requested,
            scored=len(columns),
            failed=failures,
            pending=requested - len(columns) - sum(failures.values()),
            threshold=threshold,
            **_part_fields(columns, names),
            **_reward_fields(held),
            **_at_k_fields(held, wanted),
            **_cost_fields(columns),
        )


def _reward_fields(held: TaskStats) -> dict[str, JSON]:
    n = held.n.astype(np.float64)
    count = int(held.n.sum())
    scale = float((n * held.scale).max(initial=0.0))
    average, error = mean_or_none(float(held.total.sum()), count), clustered_error(n, held.total, scale)
    bounds = confidence_interval(average, error, len(held))
    return {
        "mean": average,
        "mean_error": error,
        "mean_interval": clip_interval(bounds, 0.0, 1.0) if held.binary else bounds,
        "mean_bootstrap": bootstrap_interval(n, held.total, scale),
        "std": sample_std(held.rewards),
    }


def _at_k_fields(held: TaskStats, ks: Sequence[int]) -> dict[str, JSON]:
    covered = {k: int(held.covered_mask(k).sum()) for k in ks}
    some = [k for k, tasks in covered.items() if tasks]
    passes = {k: held.pass_at(k) for k in some}
    votes = held.maj_at(some)
    return {
        "coverage": covered,
        "maj_coverage": {k: len(vote.values) for k, vote in votes.items()},
        "pass_at": {k: float(values.mean()) for k, values in passes.items()},
        "pass_hat": {k: float(held.pass_hat(k).mean()) for k in some},
        "pass_intervals": {k: mean_share_interval(values) for k, values in passes.items()},
        "pass_bootstrap": bootstrap_interval(np.ones(len(held)), held.passed / held.n) if len(held) else None,
        "maj_at": {k: finite_or_none(v.values.mean()) for k, v in votes.items()},
        "maj_errors": {k: v.error for k, v in votes.items() if v.error is not None},
        "best_at": {} if held.binary else {k: finite_or_none(held.best_at(k).mean()) for k in some},
    }


def _cost_fields(columns: Columns) -> dict[str, JSON]:
    halfway, late = np.quantile(columns.seconds, [0.5, 0.95]).tolist() if len(columns) else (None, None)
    return {
        "prompt_tokens": int(columns.prompt_tokens.sum()),
        "completion_tokens": int(columns.completion_tokens.sum()),
        "turns": int(columns.turns.sum()),
        "truncated": int(columns.truncated.sum()),
        "no_answer": int((columns.answer == NO_ANSWER).sum()),
        "seconds_p50": halfway,
        "seconds_p95": late,
    }


def _part_fields(columns: Columns, names: Sequence[str]) -> dict[str, JSON]:
    """Of every reward part how many rollouts have it, and its mean over those; None where it overflows."""
    parts = columns.parts
    counts = np.bincount(parts.name, minlength=len(names))
    sums = np.bincount(parts.name, parts.value, minlength=len(names))
    there = [(name, at) for name, at in sorted(zip(names, count(), strict=False)) if counts[at]]
    return {
        "parts": {name: finite_or_none(sums[at] / counts[at]) for name, at in there},
        "part_coverage": {name: int(counts[at]) for name, at in there},
    }


def mean_share_interval(values: Floats) -> Interval | None:
    """The 95% interval of a mean of shares, tasks being the draws, cut to what a share can be."""
    if not len(values):
        return None
    error = clustered_error(np.ones(len(values)), values)
    return clip_interval(confidence_interval(float(values.mean()), error, len(values)), 0.0, 1.0)


class TaskProfile:
    """The numbers of every task by its row in tasks.jsonl; `groups` are the environments of the rows, if several."""

    def __init__(
        self,
        columns: Columns,
        answers: Sequence[str],
        ks: Sequence[int] | None = None,
        threshold: float = PASS_THRESHOLD,
        groups: Ints | None = None,
    ) -> None:
        self._tasks = held = TaskStats(columns, threshold, groups)
        self._answers = answers
        self.ks = default_ks(held.n) if ks is None else sorted(set(ks))
        self._at_k: dict[str, tuple[Bools, Floats]] = {}
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is null
            votes = held.maj_at(self.ks)
            self._add("pass@{}", {k: held.pass_at(k) for k in self.ks})
            self._add("pass^{}", {k: held.pass_hat(k) for k in self.ks if k > 1})
            self._add("maj@{}", {k: vote.values for k, vote in votes.items()}, held.voting_mask)
            errors = {k: np.sqrt(vote.variances) for k, vote in votes.items() if vote.drawn.any()}
            self._add("maj@{}_drawing_error", errors, held.voting_mask)
            self._add("best@{}", {} if held.binary else {k: held.best_at(k) for k in self.ks})

    def _add(self, name: str, values: Mapping[int, Floats], held: Callable[[int], Bools] | None = None) -> None:
        has = held or self._tasks.covered_mask
        self._at_k |= {name.format(k): (has(k), each) for k, each in values.items()}

    @property
    def names(self) -> list[str]:
        """The columns that a profile adds to a row."""
        fixed = ["n", "failed", "mean", "std", "min", "max"]
        return [*fixed, *self._at_k, "majority", "majority_share", *MEAN_COLUMNS]

    def rows(self, failed: Mapping[int, int], wanted: Sequence[int]) -> Iterator[tuple[int, dict[str, JSON]]]:
        """(row, numbers) of the wanted rows; one without a score has nulls."""
        names, columns = self.names, self._columns()
        found = dict(zip(self._tasks.rows.tolist(), zip(*(columns[name] for name in names), strict=True), strict=True))
        unscored = (0, *(None for _ in names[1:]))
        for row in wanted:
            numbers = dict(zip(names, found.get(row, unscored), strict=True))
            numbers["failed"] = failed.get(row, 0)
            yield row, numbers

    def _columns(self) -> dict[str, list[JSON]]:
        """Every column as a list of plain values."""
        held = self._tasks
        chosen, share = held.majority_answers
        fixed = {
            "n": held.n.tolist(),
            "failed": [0] * len(held),
            "mean": _to_plain_values(held.means),
            "std": [
                None if n < 2 else std for n, std in zip(held.n.tolist(), _to_plain_values(held.stds), strict=True)
            ],
            "min": held.low.tolist(),
            "max": held.high.tolist(),
        }
        at = {name: _fill_uncovered(covered, values) for name, (covered, values) in self._at_k.items()}
        answers = [None if number == NO_ANSWER else self._answers[number] for number in chosen.tolist()]
        shares = _fill_uncovered(chosen != NO_ANSWER, share[chosen != NO_ANSWER])
        means = {name: _to_plain_values(held.sum_column(column) / held.n) for name, column in MEAN_COLUMNS.items()}
        return fixed | at | {"majority": answers, "majority_share": shares} | means


MEAN_COLUMNS = {
    "prompt_tokens": "prompt_tokens",
    "completion_tokens": "completion_tokens",
    "turns": "turns",
    "truncated": "truncated",
    "seconds": "seconds",
}
"""What a row has as a mean over the task's scored rollouts."""


def _to_plain_values(values: Floats) -> list[float | None]:
    """Numbers as plain values, what overflowed as None."""
    found: list[float | None] = values.tolist()
    return found if np.isfinite(values).all() else [None if value is None else finite_or_none(value) for value in found]


def _fill_uncovered(covered: Bools, values: Floats) -> list[float | None]:
    """The values of the covered tasks in their places, None elsewhere."""
    given = iter(_to_plain_values(values))
    return list(given) if covered.all() else [next(given) if held else None for held in covered.tolist()]
