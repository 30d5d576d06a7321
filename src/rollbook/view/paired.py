"""The page that sets two runs against each other: the paired numbers, and the tasks, those that flipped first."""

from __future__ import annotations

from rollbook.collect.comparing import compare_readings, paired
from rollbook.core.json import JSON
from rollbook.view.snapshot import Snapshot


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
    return {
        "id": task,
        "prompt": a.task(left).prompt[:240],
        "flip": flip,
        "a": {"strip": a.strip(left, task), "mean": _mean(a, task), "samples": a.samples(left)},
        "b": {"strip": b.strip(right, task), "mean": _mean(b, task), "samples": b.samples(right)},
    }


def _mean(snapshot: Snapshot, task: str) -> float | None:
    mean: float | None = snapshot.table.columns["mean"][snapshot.row(task)]
    return mean


def _moved(a: Snapshot, b: Snapshot, task: str) -> float:
    """How far a task's mean has moved; what has none in either run has not moved, and comes last."""
    one, two = _mean(a, task), _mean(b, task)
    return -1.0 if one is None or two is None else two - one if one != two else 0.0
