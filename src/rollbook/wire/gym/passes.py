"""Gym's accuracies over groups of rollouts, in percent: pass@k, pass@1[avg-of-k], majority@k and how they spread.

These are its definitions, ties and order of rollouts included; our own, in `rollbook.stats`, are other ones.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, stdev

from rollbook.core.json import JSON, encode

Row = Mapping[str, JSON]
Scores = list[list[dict[str, float]]]

ANSWER = "extracted_answer"
_SPREAD = ("std_dev_across_runs", "std_err_across_runs")


def pass_metrics(tasks: Sequence[Sequence[Row]]) -> dict[str, JSON]:
    """All of it. Answers count where any row has one: without, there is neither a majority nor a lack of answers."""
    answered = any(row.get(ANSWER) is not None for rows in tasks for row in rows)
    scores = [[_scores(row, answered) for row in rows] for rows in tasks]
    names = sorted({name for rows in scores for row in rows for name in row})
    most = max((len(rows) for rows in tasks), default=0)
    metrics: dict[str, JSON] = {}
    for k in range(1, most + 1):
        for name in names:
            values = [[row[name] for row in rows] for rows in scores]
            metrics |= _percent(f"pass@{k}/{name}", [_pass(v, k) for v in values if len(v) >= k])
            metrics |= _percent(f"pass@1[avg-of-{k}]/{name}", [fmean(v[:k]) for v in values if v])
            if answered:
                metrics |= _percent(f"majority@{k}/{name}", list(_majorities(tasks, values, k)))
    runs = {name: _runs(scores, name, most) for name in names}
    metrics["per_sample_aggregate"] = runs
    for k in range(2, most + 1):
        for name in names:
            metrics |= _spread(f"pass@1[avg-of-{k}]/{name}", runs[name][:k])
    return metrics


def _scores(row: Row, answered: bool) -> dict[str, float]:
    accuracy = {"accuracy": float(row["reward"])}
    return {**accuracy, "no_answer": float(row.get(ANSWER) is None)} if answered else accuracy


def _percent(key: str, values: Sequence[float]) -> dict[str, float]:
    return {key: 100.0 * fmean(values)} if values else {}


def _pass(values: Sequence[float], k: int) -> float:
    """The chance that one of k is right; of what is not only right or wrong, the best of the first k."""
    if any(value not in (0, 1) for value in values):
        return max(values[:k])
    wrong = sum(not value for value in values)
    return 1.0 - math.comb(wrong, k) / math.comb(len(values), k)


def _majorities(tasks: Sequence[Sequence[Row]], values: Sequence[Sequence[float]], k: int) -> Iterator[float]:
    """What the most frequent answer of the first k is worth; those that tie are averaged, and no answer is nought."""
    for rows, scores in zip(tasks, values, strict=True):
        pairs = zip(rows[:k], scores[:k], strict=True)
        given = Counter((encode(row[ANSWER]), score) for row, score in pairs if row.get(ANSWER) is not None)
        most = max(given.values(), default=0)
        yield fmean([score for (_, score), count in given.items() if count == most] or [0.0])


def _runs(scores: Scores, name: str, most: int) -> list[float]:
    """The accuracy of each rollout in turn, over all tasks."""
    return [100.0 * fmean([rows[i][name] for rows in scores if i < len(rows)]) for i in range(most)]


def _spread(key: str, runs: Sequence[float]) -> dict[str, float]:
    deviation = stdev(runs)
    return dict(zip((f"{key}/{name}" for name in _SPREAD), (deviation, deviation / math.sqrt(len(runs))), strict=True))


def key_metrics(metrics: Mapping[str, JSON]) -> dict[str, JSON]:
    """The few that are shown first."""
    key = {name: metrics[name] for name in ("mean/reward",) if name in metrics}
    key |= _highest(metrics, r"pass@1\[avg-of-(\d+)\]/(accuracy|no_answer)")
    key |= _highest(metrics, r"pass@(\d+)/no_answer")
    key |= _highest(metrics, r"majority@(\d+)/accuracy")
    return key | {name: metrics[name] for name in ("pass@1/accuracy",) if name in metrics}


def _highest(metrics: Mapping[str, JSON], pattern: str) -> dict[str, JSON]:
    match: Callable[[str], re.Match[str] | None] = re.compile(pattern).fullmatch
    found = [(int(at[1]), key) for key in metrics if (at := match(key))]
    most = max((k for k, _ in found), default=0)
    return {key: metrics[key] for k, key in found if k == most}
