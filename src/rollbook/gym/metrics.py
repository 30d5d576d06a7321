"""The statistics that Gym's collector requests at the end, under its names and by its formulas. No I/O.

Every number at the top level of a row, and of its usage, is described for each task and over all tasks: mean, max, min,
median and sample standard deviation. Rewards are also counted as accuracies, in percent: pass@k, pass@1[avg-of-k],
majority@k and their spread. These are Gym's definitions, including ties and the order of rollouts; our own, in
`rollbook.stats`, differ.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, median, stdev

from rollbook.core import JSON, encode
from rollbook.errors import UsageError
from rollbook.gym.rows import AGENT_REF, EXTRACTED_ANSWER, ROLLOUT_INDEX, TASK_INDEX

Row = Mapping[str, JSON]

_STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {"mean": fmean, "max": max, "min": min, "median": median}
_INDICES = (TASK_INDEX, ROLLOUT_INDEX)


def aggregate_metrics(rows: Sequence[Row]) -> dict[str, JSON]:
    """Return the reply of `/aggregate_metrics` for verified rows; two rows of the same rollout are refused."""
    if not rows:
        return {"group_level_metrics": [], "agent_metrics": {}, "key_metrics": {}}
    groups = group_by_task(rows)
    metrics: dict[str, JSON] = {**describe_rows(rows), **compute_pass_metrics(list(groups.values()))}
    return {
        "group_level_metrics": [_group_metrics(index, group) for index, group in groups.items()],
        "agent_metrics": metrics,
        "key_metrics": select_key_metrics(metrics),
    }


def group_by_task(rows: Sequence[Row]) -> dict[int, list[Row]]:
    """Return the rows of each task in index order; refuse a row without a reward and a second row of a rollout."""
    by_key: dict[tuple[int, int], Row] = {}
    for row in rows:
        key = (row.get(TASK_INDEX, 0), row.get(ROLLOUT_INDEX, 0))
        if not isinstance(row.get("reward"), int | float):
            raise UsageError(f"the row of {TASK_INDEX} {key[0]}, {ROLLOUT_INDEX} {key[1]} has no reward")
        if key in by_key:
            raise UsageError(f"two rows are of {TASK_INDEX} {key[0]}, {ROLLOUT_INDEX} {key[1]}")
        by_key[key] = row
    groups: dict[int, list[Row]] = {}
    for task, rollout in sorted(by_key):
        groups.setdefault(task, []).append(by_key[task, rollout])
    return groups


def describe_rows(rows: Sequence[Row]) -> dict[str, float]:
    """Return `mean/reward` and so on over rows; a field without any number is left out."""
    columns = _number_columns(rows)
    statistics = {
        f"{name}/{key}": float(of(values)) for name, of in _STATISTICS.items() for key, values in columns.items()
    }
    return {**statistics, **_standard_deviations(columns, len(rows))}


def _standard_deviations(columns: Mapping[str, Sequence[float]], rows: int) -> dict[str, float]:
    """Return sample deviations; if no field has two values, zero for the fields that every row has."""
    if all(len(values) < 2 for values in columns.values()):
        return {f"std/{key}": 0.0 for key, values in columns.items() if len(values) == rows}
    return {f"std/{key}": stdev(values) for key, values in columns.items() if len(values) > 1}


def _number_columns(rows: Sequence[Row]) -> dict[str, list[float]]:
    columns: dict[str, list[float]] = {}
    for row in rows:
        for key, value in _read_numbers(row).items():
            if key not in _INDICES and not math.isnan(value):
                columns.setdefault(key, []).append(value)
    return columns


def _read_numbers(row: Row) -> dict[str, float]:
    values = {**row, **_read_usage(row)}
    return {key: value + 0 for key, value in values.items() if isinstance(value, int | float)}


def _read_usage(row: Row) -> Mapping[str, JSON]:
    response = row.get("response")
    usage = response.get("usage") if isinstance(response, dict) else None
    return usage if isinstance(usage, dict) else {}


def _group_metrics(index: int, rows: Sequence[Row]) -> dict[str, JSON]:
    return {
        TASK_INDEX: index,
        **describe_rows(rows),
        "sample": {AGENT_REF: {"name": "agent"}},
        "num_rollouts": len(rows),
        "expected_num_rollouts": len(rows),
        "missing_num_rollouts": 0,
        "reward_profile_completion_pct": 100.0,
        "rollout_infos": [_rollout_info(row) for row in rows],
    }


def _rollout_info(row: Row) -> dict[str, JSON]:
    task, rollout = (row.get(name, 0) for name in _INDICES)
    return {"rollout_id": f"{task}:{rollout}", TASK_INDEX: task, ROLLOUT_INDEX: rollout, **_read_numbers(row)}


Scores = list[list[dict[str, float]]]


def compute_pass_metrics(tasks: Sequence[Sequence[Row]]) -> dict[str, JSON]:
    """Return all pass metrics. Only if some row has an answer are there majorities and `no_answer`."""
    answered = any(row.get(EXTRACTED_ANSWER) is not None for rows in tasks for row in rows)
    scores = [[_row_scores(row, answered) for row in rows] for rows in tasks]
    names = sorted({name for rows in scores for row in rows for name in row})
    max_k = max((len(rows) for rows in tasks), default=0)
    metrics: dict[str, JSON] = {}
    for k in range(1, max_k + 1):
        for name in names:
            values = [[row[name] for row in rows] for rows in scores]
            metrics |= _mean_percent(f"pass@{k}/{name}", [_pass_at_k(v, k) for v in values if len(v) >= k])
            metrics |= _mean_percent(f"pass@1[avg-of-{k}]/{name}", [fmean(v[:k]) for v in values if v])
            if answered:
                metrics |= _mean_percent(f"majority@{k}/{name}", list(_majority_rewards(tasks, values, k)))
    runs = {name: _accuracy_by_run(scores, name, max_k) for name in names}
    metrics["per_sample_aggregate"] = runs
    for k in range(2, max_k + 1):
        for name in names:
            metrics |= _spread_across_runs(f"pass@1[avg-of-{k}]/{name}", runs[name][:k])
    return metrics


def _row_scores(row: Row, has_answers: bool) -> dict[str, float]:
    accuracy = {"accuracy": float(row["reward"])}
    return {**accuracy, "no_answer": float(row.get(EXTRACTED_ANSWER) is None)} if has_answers else accuracy


def _mean_percent(key: str, values: Sequence[float]) -> dict[str, float]:
    return {key: 100.0 * fmean(values)} if values else {}


def _pass_at_k(values: Sequence[float], k: int) -> float:
    """Return the chance that one of k is right; for rewards other than 0 and 1, the best of the first k."""
    if any(value not in (0, 1) for value in values):
        return max(values[:k])
    wrong = sum(not value for value in values)
    return 1.0 - math.comb(wrong, k) / math.comb(len(values), k)


def _majority_rewards(tasks: Sequence[Sequence[Row]], values: Sequence[Sequence[float]], k: int) -> Iterator[float]:
    """Yield the reward of the most frequent of the first k answers; ties are averaged, and no answer is zero."""
    for rows, scores in zip(tasks, values, strict=True):
        pairs = zip(rows[:k], scores[:k], strict=True)
        counts = Counter(
            (encode(row[EXTRACTED_ANSWER]), score) for row, score in pairs if row.get(EXTRACTED_ANSWER) is not None
        )
        highest = max(counts.values(), default=0)
        yield fmean([score for (_, score), count in counts.items() if count == highest] or [0.0])


def _accuracy_by_run(scores: Scores, name: str, runs: int) -> list[float]:
    """Return the accuracy of each rollout index over all tasks."""
    return [100.0 * fmean([rows[i][name] for rows in scores if i < len(rows)]) for i in range(runs)]


def _spread_across_runs(key: str, runs: Sequence[float]) -> dict[str, float]:
    deviation = stdev(runs)
    return {f"{key}/std_dev_across_runs": deviation, f"{key}/std_err_across_runs": deviation / math.sqrt(len(runs))}


def select_key_metrics(metrics: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return the few metrics that are shown first."""
    key = {name: metrics[name] for name in ("mean/reward",) if name in metrics}
    key |= _with_highest_k(metrics, r"pass@1\[avg-of-(\d+)\]/(accuracy|no_answer)")
    key |= _with_highest_k(metrics, r"pass@(\d+)/no_answer")
    key |= _with_highest_k(metrics, r"majority@(\d+)/accuracy")
    return key | {name: metrics[name] for name in ("pass@1/accuracy",) if name in metrics}


def _with_highest_k(metrics: Mapping[str, JSON], pattern: str) -> dict[str, JSON]:
    match: Callable[[str], re.Match[str] | None] = re.compile(pattern).fullmatch
    candidates = [(int(at[1]), key) for key in metrics if (at := match(key))]
    highest = max((k for k, _ in candidates), default=0)
    return {key: metrics[key] for k, key in candidates if k == highest}
