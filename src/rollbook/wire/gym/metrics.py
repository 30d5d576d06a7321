"""The statistics that Gym's collector asks for at the end, under its names and by its formulas.

Every number at the top of a row, and of its usage, is described for each task and over all: mean, max, min, median and
sample deviation. Rewards are also counted as accuracies, in percent: see `passes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median, stdev

from rollbook.core.json import JSON
from rollbook.errors import UsageError
from rollbook.wire.gym.passes import key_metrics, pass_metrics
from rollbook.wire.gym.row import ROLLOUT_INDEX, TASK_INDEX

Row = Mapping[str, JSON]

_STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": fmean,
    "max": max,
    "min": min,
    "median": median,
}
_INDICES = (TASK_INDEX, ROLLOUT_INDEX)


def aggregate(rows: Sequence[Row]) -> dict[str, JSON]:
    """What `/aggregate_metrics` says of verified rows; two of the same rollout are refused."""
    if not rows:
        return {"group_level_metrics": [], "agent_metrics": {}, "key_metrics": {}}
    groups = grouped(rows)
    metrics: dict[str, JSON] = {**described(rows), **pass_metrics(list(groups.values()))}
    return {
        "group_level_metrics": [_group(index, group) for index, group in groups.items()],
        "agent_metrics": metrics,
        "key_metrics": key_metrics(metrics),
    }


def grouped(rows: Sequence[Row]) -> dict[int, list[Row]]:
    """The rows of each task, in the order of their indices; a row without a reward is none, and so is a second one."""
    found: dict[tuple[int, int], Row] = {}
    for row in rows:
        key = (row.get(TASK_INDEX, 0), row.get(ROLLOUT_INDEX, 0))
        if not isinstance(row.get("reward"), int | float):
            raise UsageError(f"the row of {TASK_INDEX} {key[0]}, {ROLLOUT_INDEX} {key[1]} has no reward")
        if key in found:
            raise UsageError(f"two rows are of {TASK_INDEX} {key[0]}, {ROLLOUT_INDEX} {key[1]}")
        found[key] = row
    groups: dict[int, list[Row]] = {}
    for task, rollout in sorted(found):
        groups.setdefault(task, []).append(found[task, rollout])
    return groups


def described(rows: Sequence[Row]) -> dict[str, float]:
    """`mean/reward` and so on, over rows; a number that is nowhere known has none."""
    columns = _columns(rows)
    found = {f"{name}/{key}": float(of(values)) for name, of in _STATISTICS.items() for key, values in columns.items()}
    return {**found, **_deviations(columns, len(rows))}


def _deviations(columns: Mapping[str, Sequence[float]], rows: int) -> dict[str, float]:
    """Sample deviations; nought for numbers that every row has, where no number has two values."""
    if all(len(values) < 2 for values in columns.values()):
        return {f"std/{key}": 0.0 for key, values in columns.items() if len(values) == rows}
    return {f"std/{key}": stdev(values) for key, values in columns.items() if len(values) > 1}


def _columns(rows: Sequence[Row]) -> dict[str, list[float]]:
    columns: dict[str, list[float]] = {}
    for row in rows:
        for key, value in _numbers(row).items():
            if key not in _INDICES and not math.isnan(value):
                columns.setdefault(key, []).append(value)
    return columns


def _numbers(row: Row) -> dict[str, float]:
    values = {**row, **_usage(row)}
    return {key: value + 0 for key, value in values.items() if isinstance(value, int | float)}


def _usage(row: Row) -> Mapping[str, JSON]:
    response = row.get("response")
    usage = response.get("usage") if isinstance(response, dict) else None
    return usage if isinstance(usage, dict) else {}


def _group(index: int, rows: Sequence[Row]) -> dict[str, JSON]:
    return {
        TASK_INDEX: index,
        **described(rows),
        "sample": {"agent_ref": {"name": "agent"}},
        "num_rollouts": len(rows),
        "expected_num_rollouts": len(rows),
        "missing_num_rollouts": 0,
        "reward_profile_completion_pct": 100.0,
        "rollout_infos": [_info(row) for row in rows],
    }


def _info(row: Row) -> dict[str, JSON]:
    task, rollout = (row.get(name, 0) for name in _INDICES)
    return {"rollout_id": f"{task}:{rollout}", TASK_INDEX: task, ROLLOUT_INDEX: rollout, **_numbers(row)}
