"""The numbers of a run: metrics of an environment with intervals and coverage, and a profile with one row per task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count

import msgspec
import numpy as np

from rollbook.core import JSON
from rollbook.stats.columns import COST_COLUMNS, NO_ANSWER, PASS_THRESHOLD, Bools, Columns, Ints, TaskStats
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
    at least k scored rollouts; `coverage` is the number of those tasks, `maj_coverage` how many of them vote. Tokens,
    turns, `truncated`, `cut` (the last answer reached its limit of tokens) and `no_answer` are totals over scored
    rollouts. A part's mean is over the scored rollouts that
    have it; `part_coverage` is the number of those. Intervals are of 95%.
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
    cut: int
    no_answer: int
    seconds_p50: float | None
    seconds_p95: float | None

    @property
    def pass_interval(self) -> Interval | None:
        """The interval of pass@1."""
        return self.pass_intervals.get(1)

    def per_rollout(self, total: int) -> float | None:
        """Return a total as a mean over scored rollouts."""
        return mean_or_none(total, self.scored)

    def json(self) -> dict[str, JSON]:
        """Return the metrics under their usual names: `pass@1`, `pass^4`, `maj@4`, `mean`."""
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
    """Compute the numbers of scored rollouts. `tasks`: how many were requested; `names`: of the parts, by number.

    `groups` has the environment of every row, where there are several.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        stats = TaskStats(columns, threshold, groups)
        wanted_ks = default_ks(stats.n) if ks is None else sorted(set(ks))
        failures = {kind: count for kind, count in sorted((failed or {}).items()) if count}
        return Metrics(
            env=env,
            tasks=len(stats) if tasks is None else tasks,
            requested=requested,
            scored=len(columns),
            failed=failures,
            pending=requested - len(columns) - sum(failures.values()),
            threshold=threshold,
            **_part_fields(columns, names),
            **_reward_fields(stats),
            **_at_k_fields(stats, wanted_ks),
            **_cost_fields(columns),
        )


def _reward_fields(stats: TaskStats) -> dict[str, JSON]:
    n = stats.n.astype(np.float64)
    count = int(stats.n.sum())
    scale = float((n * stats.scale).max(initial=0.0))
    average, error = mean_or_none(float(stats.total.sum()), count), clustered_error(n, stats.total, scale)
    bounds = confidence_interval(average, error, len(stats))
    return {
        "mean": average,
        "mean_error": error,
        "mean_interval": clip_interval(bounds, 0.0, 1.0) if stats.binary else bounds,
        "mean_bootstrap": bootstrap_interval(n, stats.total, scale),
        "std": sample_std(stats.rewards),
    }


def _at_k_fields(stats: TaskStats, ks: Sequence[int]) -> dict[str, JSON]:
    covered = {k: int(stats.covered_mask(k).sum()) for k in ks}
    covered_ks = [k for k, tasks in covered.items() if tasks]
    passes = {k: stats.pass_at(k) for k in covered_ks}
    votes = stats.maj_at(covered_ks)
    return {
        "coverage": covered,
        "maj_coverage": {k: len(vote.values) for k, vote in votes.items()},
        "pass_at": {k: float(values.mean()) for k, values in passes.items()},
        "pass_hat": {k: float(stats.pass_hat(k).mean()) for k in covered_ks},
        "pass_intervals": {k: mean_share_interval(values) for k, values in passes.items()},
        "pass_bootstrap": bootstrap_interval(np.ones(len(stats)), stats.passed / stats.n) if len(stats) else None,
        "maj_at": {k: finite_or_none(v.values.mean()) for k, v in votes.items()},
        "maj_errors": {k: v.error for k, v in votes.items() if v.error is not None},
        "best_at": {} if stats.binary else {k: finite_or_none(stats.best_at(k).mean()) for k in covered_ks},
    }


def _cost_fields(columns: Columns) -> dict[str, JSON]:
    p50, p95 = np.quantile(columns.seconds, [0.5, 0.95]).tolist() if len(columns) else (None, None)
    return {
        "prompt_tokens": int(columns.prompt_tokens.sum()),
        "completion_tokens": int(columns.completion_tokens.sum()),
        "turns": int(columns.turns.sum()),
        "truncated": int(columns.truncated.sum()),
        "cut": int(columns.cut.sum()),
        "no_answer": int((columns.answer == NO_ANSWER).sum()),
        "seconds_p50": p50,
        "seconds_p95": p95,
    }


def _part_fields(columns: Columns, names: Sequence[str]) -> dict[str, JSON]:
    """Return for every reward part how many rollouts have it, and its mean over those; None where it overflows."""
    parts = columns.parts
    counts = np.bincount(parts.name, minlength=len(names))
    sums = np.bincount(parts.name, parts.value, minlength=len(names))
    present = [(name, number) for name, number in sorted(zip(names, count(), strict=False)) if counts[number]]
    return {
        "parts": {name: finite_or_none(sums[number] / counts[number]) for name, number in present},
        "part_coverage": {name: int(counts[number]) for name, number in present},
    }


def mean_share_interval(values: Floats) -> Interval | None:
    """Return the 95% interval of a mean of shares, with tasks as the draws, clipped to the range of a share."""
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
        self._tasks = stats = TaskStats(columns, threshold, groups)
        self._answers = answers
        self.ks = default_ks(stats.n) if ks is None else sorted(set(ks))
        self._at_k: dict[str, tuple[Bools, Floats]] = {}
        with np.errstate(over="ignore", invalid="ignore"):  # a number that overflows is null
            votes = stats.maj_at(self.ks)
            self._add("pass@{}", {k: stats.pass_at(k) for k in self.ks})
            self._add("pass^{}", {k: stats.pass_hat(k) for k in self.ks if k > 1})
            self._add("maj@{}", {k: vote.values for k, vote in votes.items()}, stats.voting_mask)
            errors = {k: np.sqrt(vote.variances) for k, vote in votes.items() if vote.drawn.any()}
            self._add("maj@{}_drawing_error", errors, stats.voting_mask)
            self._add("best@{}", {} if stats.binary else {k: stats.best_at(k) for k in self.ks})

    def _add(self, name: str, values: Mapping[int, Floats], mask: Callable[[int], Bools] | None = None) -> None:
        has_value = mask or self._tasks.covered_mask
        self._at_k |= {name.format(k): (has_value(k), numbers) for k, numbers in values.items()}

    @property
    def names(self) -> list[str]:
        """The columns that a profile adds to a row."""
        fixed = ["n", "failed", "mean", "std", "min", "max"]
        return [*fixed, *self._at_k, "majority", "majority_share", *COST_COLUMNS]

    def rows(self, failed: Mapping[int, int], wanted: Sequence[int]) -> Iterator[tuple[int, dict[str, JSON]]]:
        """Yield (row, numbers) of the wanted rows; a row without a score has nulls."""
        names, columns = self.names, self._columns()
        scored = dict(zip(self._tasks.rows.tolist(), zip(*(columns[name] for name in names), strict=True), strict=True))
        unscored = (0, *(None for _ in names[1:]))
        for row in wanted:
            numbers = dict(zip(names, scored.get(row, unscored), strict=True))
            numbers["failed"] = failed.get(row, 0)
            yield row, numbers

    def _columns(self) -> dict[str, list[JSON]]:
        """Return every column as a list of plain values."""
        stats = self._tasks
        chosen, share = stats.majority_answers
        fixed = {
            "n": stats.n.tolist(),
            "failed": [0] * len(stats),
            "mean": _to_plain_values(stats.means),
            "std": [
                None if n < 2 else std for n, std in zip(stats.n.tolist(), _to_plain_values(stats.stds), strict=True)
            ],
            "min": stats.low.tolist(),
            "max": stats.high.tolist(),
        }
        at_k = {name: _fill_uncovered(covered, values) for name, (covered, values) in self._at_k.items()}
        answers = [None if number == NO_ANSWER else self._answers[number] for number in chosen.tolist()]
        shares = _fill_uncovered(chosen != NO_ANSWER, share[chosen != NO_ANSWER])
        means = {name: _to_plain_values(stats.sum_column(name) / stats.n) for name in COST_COLUMNS}
        return fixed | at_k | {"majority": answers, "majority_share": shares} | means


def _to_plain_values(values: Floats) -> list[float | None]:
    """Return numbers as plain values; None for those that overflowed."""
    plain: list[float | None] = values.tolist()
    return plain if np.isfinite(values).all() else [None if value is None else finite_or_none(value) for value in plain]


def _fill_uncovered(covered: Bools, values: Floats) -> list[float | None]:
    """Return the values of the covered tasks in their positions, None elsewhere."""
    plain = iter(_to_plain_values(values))
    return list(plain) if covered.all() else [next(plain) if is_covered else None for is_covered in covered.tolist()]
