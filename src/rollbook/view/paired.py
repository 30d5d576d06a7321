"""The page that sets two runs against each other: the paired numbers, and the tasks, those that flipped first."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from rollbook.collect.comparing import compare_readings, paired
from rollbook.core.json import JSON
from rollbook.view.snapshot import Mark, Snapshot


def compare_page(a: Snapshot, b: Snapshot, common: bool, offset: int, limit: int) -> dict[str, JSON]:
    """The comparison and one page of its pairs."""
    pairing, notes = paired(a.book, b.book, common=common)
    made = compare_readings(a.reading, b.reading, pairing, notes).json()
    summary = made["comparison"]
    flips = dict.fromkeys(summary.pop("gained"), "gained") | dict.fromkeys(summary.pop("lost"), "lost")
    ordered = sorted(pairing.names, key=lambda task: (task not in flips, -abs(_moved(a, b, task))))
    return {
        **made,
        "gained": sum(flip == "gained" for flip in flips.values()),
        "lost": sum(flip == "lost" for flip in flips.values()),
        "scale": (min(a.scale[0], b.scale[0]), max(a.scale[1], b.scale[1])),
        "pairs": len(ordered),
        "offset": offset,
        "rows": [_pair(a, b, task, flips.get(task)) for task in ordered[offset : offset + limit]],
    }


def _pair(a: Snapshot, b: Snapshot, task: str, flip: str | None) -> dict[str, JSON]:
    left, right = a.row(task), b.row(task)
    one: dict[str, JSON] = {"strip": a.strip(left, task), "mean": _mean(a, task), "samples": a.samples(left)}
    two: dict[str, JSON] = {"strip": b.strip(right, task), "mean": _mean(b, task), "samples": b.samples(right)}
    gained = _moved(a, b, task) >= 0
    places = unlike(one["strip"], two["strip"]) if gained else unlike(two["strip"], one["strip"])[::-1]
    opened = [side["samples"][at] for side, at in zip((one, two), places, strict=True)]
    return {"id": task, "prompt": a.task(left).prompt[:240], "flip": flip, "a": one, "b": two, "open": opened}


def unlike(worse: Sequence[Mark], better: Sequence[Mark]) -> tuple[int, int]:
    """The places of two samples that got unlike rewards, as far apart as there are; of the first where none differ.

    >>> unlike([1.0, 0.0, None], [1.0, 0.5])
    (1, 0)
    """
    low = [(mark, at) for at, mark in enumerate(worse) if isinstance(mark, float)]
    high = [(mark, at) for at, mark in enumerate(better) if isinstance(mark, float)]
    if not low or not high:
        return 0, 0
    by_mark = itemgetter(0)
    for one, two in ((min(low, key=by_mark), max(high, key=by_mark)), (max(low, key=by_mark), min(high, key=by_mark))):
        if one[0] != two[0]:
            return one[1], two[1]
    return low[0][1], high[0][1]


def _mean(snapshot: Snapshot, task: str) -> float | None:
    mean: float | None = snapshot.table.columns["mean"][snapshot.row(task)]
    return mean


def _moved(a: Snapshot, b: Snapshot, task: str) -> float:
    """How far a task's mean has moved; what has none in either run has not moved, and comes last."""
    one, two = _mean(a, task), _mean(b, task)
    return -1.0 if one is None or two is None else two - one if one != two else 0.0
