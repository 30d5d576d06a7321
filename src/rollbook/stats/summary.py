"""What a run came to in one environment: every number with what it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

import msgspec
import numpy as np

from rollbook.core.json import JSON
from rollbook.stats.columns import SILENT, Columns, Ints
from rollbook.stats.estimators import (
    Floats,
    Interval,
    clustered_error,
    default_ks,
    finite,
    interval,
    mean,
    sample_std,
    within,
)
from rollbook.stats.resampling import bootstrap
from rollbook.stats.tasks import PASS, Tasks

SHOWN_AS = {"pass_at": "pass@{}", "pass_hat": "pass^{}", "maj_at": "maj@{}", "best_at": "best@{}"}
ERRORS_AS = {"pass_intervals": "pass@{}_interval", "maj_errors": "maj@{}_drawing_error"}


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
        return mean(total, self.scored)

    def json(self) -> dict[str, JSON]:
        """The metrics under the names that people know: `pass@1`, `pass^4`, `maj@4`, `mean`."""
        plain: dict[str, JSON] = msgspec.to_builtins(self, str_keys=True)
        plain["pass@1_bootstrap"] = plain.pop("pass_bootstrap")
        for field, name in (SHOWN_AS | ERRORS_AS).items():
            plain |= {name.format(k): value for k, value in plain.pop(field).items()}
        return plain


def metrics(
    env: str,
    columns: Columns,
    names: Sequence[str] = (),
    *,
    requested: int,
    failed: Mapping[str, int] | None = None,
    ks: Sequence[int] | None = None,
    tasks: int | None = None,
    threshold: float = PASS,
    groups: Ints | None = None,
) -> Metrics:
    """The numbers of scored rollouts. `tasks`: how many were asked; `names`: of the parts, by their numbers.

    `groups` has the environment of every row, where there are several.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        held = Tasks(columns, threshold, groups)
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
            **_parts(columns, names),
            **_rewards(held),
            **_at(held, wanted),
            **_costs(columns),
        )


def _rewards(held: Tasks) -> dict[str, JSON]:
    n = held.n.astype(np.float64)
    count = int(held.n.sum())
    scale = float((n * held.scale).max(initial=0.0))
    average, error = mean(float(held.total.sum()), count), clustered_error(n, held.total, scale)
    bounds = interval(average, error, len(held))
    return {
        "mean": average,
        "mean_error": error,
        "mean_interval": within(bounds, 0.0, 1.0) if held.binary else bounds,
        "mean_bootstrap": bootstrap(n, held.total, scale),
        "std": sample_std(held.rewards),
    }


def _at(held: Tasks, ks: Sequence[int]) -> dict[str, JSON]:
    covered = {k: int(held.covered(k).sum()) for k in ks}
    some = [k for k, tasks in covered.items() if tasks]
    passes = {k: held.pass_at(k) for k in some}
    votes = held.maj_at(some)
    return {
        "coverage": covered,
        "maj_coverage": {k: len(vote.values) for k, vote in votes.items()},
        "pass_at": {k: float(values.mean()) for k, values in passes.items()},
        "pass_hat": {k: float(held.pass_hat(k).mean()) for k in some},
        "pass_intervals": {k: share_interval(values) for k, values in passes.items()},
        "pass_bootstrap": bootstrap(np.ones(len(held)), held.passed / held.n) if len(held) else None,
        "maj_at": {k: finite(v.values.mean()) for k, v in votes.items()},
        "maj_errors": {k: v.error for k, v in votes.items() if v.error is not None},
        "best_at": {} if held.binary else {k: finite(held.best_at(k).mean()) for k in some},
    }


def _costs(columns: Columns) -> dict[str, JSON]:
    halfway, late = np.quantile(columns.seconds, [0.5, 0.95]).tolist() if len(columns) else (None, None)
    return {
        "prompt_tokens": int(columns.prompt_tokens.sum()),
        "completion_tokens": int(columns.completion_tokens.sum()),
        "turns": int(columns.turns.sum()),
        "truncated": int(columns.truncated.sum()),
        "no_answer": int((columns.answer == SILENT).sum()),
        "seconds_p50": halfway,
        "seconds_p95": late,
    }


def _parts(columns: Columns, names: Sequence[str]) -> dict[str, JSON]:
    """Of every reward part how many rollouts have it, and its mean over those; None where it overflows."""
    parts = columns.parts
    counts = np.bincount(parts.name, minlength=len(names))
    sums = np.bincount(parts.name, parts.value, minlength=len(names))
    there = [(name, at) for name, at in sorted(zip(names, count(), strict=False)) if counts[at]]
    return {
        "parts": {name: finite(sums[at] / counts[at]) for name, at in there},
        "part_coverage": {name: int(counts[at]) for name, at in there},
    }


def share_interval(values: Floats) -> Interval | None:
    """The 95% interval of a mean of shares, tasks being the draws, cut to what a share can be."""
    if not len(values):
        return None
    error = clustered_error(np.ones(len(values)), values)
    return within(interval(float(values.mean()), error, len(values)), 0.0, 1.0)
