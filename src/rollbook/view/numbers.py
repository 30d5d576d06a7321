"""The page of a run: its numbers and what its charts are drawn from."""

from __future__ import annotations

import math

import numpy as np

from rollbook.core.json import JSON
from rollbook.stats.estimators import Floats
from rollbook.view.runs import described
from rollbook.view.snapshot import Snapshot

BINS = 20
SLOTS = 60
KNOWN = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 21600.0, 86400.0)
FARTHEST = 1e300
LATEST = 1e11


def run_page(name: str, snapshot: Snapshot) -> dict[str, JSON]:
    """Everything above the table of tasks."""
    manifest = snapshot.book.manifest
    report = snapshot.numbers["report"]
    state = snapshot.state
    return {
        **described(name, manifest, snapshot.book.plan),
        "version": snapshot.version,
        "state": state,
        "live": state == "running",
        "sampling": manifest.sampling,
        "seed": manifest.seed,
        "rounds": len(snapshot.book.rounds()),
        "report": report,
        "curve": curve(report["overall"]),
        "histogram": histogram(snapshot.located.columns.reward),
        "timeline": timeline(snapshot),
    }


def curve(overall: dict[str, JSON]) -> list[dict[str, JSON]]:
    """pass@k with its band, and maj@k beside it."""
    ks = sorted(int(name.removeprefix("pass@")) for name in overall if name.removeprefix("pass@").isdigit())
    points = []
    for k in ks:
        low, high = overall.get(f"pass@{k}_interval") or (None, None)
        maj = overall.get(f"maj@{k}")
        points.append({"k": k, "pass": overall[f"pass@{k}"], "low": low, "high": high, "maj": maj})
    return points


def histogram(rewards: Floats) -> dict[str, JSON]:
    """How many rollouts got which reward."""
    if not len(rewards):
        return {"edges": [0.0, 1.0], "counts": [0]}
    drawn = np.clip(rewards, -FARTHEST, FARTHEST)
    low, high = float(min(drawn.min(), 0.0)), float(max(drawn.max(), 1.0))
    counts, edges = np.histogram(drawn, BINS, (low, high))
    return {"edges": edges.tolist(), "counts": counts.tolist()}


def timeline(snapshot: Snapshot) -> dict[str, JSON]:
    """Rollouts scored and attempts failed a second, or a minute, in each slot of the time the run took."""
    scored = _plausible(snapshot.located.starts + snapshot.located.columns.seconds)
    failed = _plausible(np.array([each.ended for each in snapshot.tries], np.float64))
    every = np.concatenate([scored, failed])
    if not len(every):
        return {"edges": [], "scored": [], "failed": [], "counts": [0, 0], "unit": "second"}
    low, high = float(every.min()), float(every.max())
    width = slot_of(high - low)
    edges = low + width * np.arange(int((high - low) / width) + 2)
    counts = [np.histogram(each, edges)[0] for each in (scored, failed)]
    unit, length = ("second", 1.0) if len(every) >= high - low else ("minute", 60.0)
    rates = [(each * (length / width)).tolist() for each in counts]
    return {
        "edges": edges.tolist(),
        "scored": rates[0],
        "failed": rates[1],
        "counts": [int(each.sum()) for each in counts],
        "unit": unit,
    }


def _plausible(times: Floats) -> Floats:
    """Times that a clock can show; what a run directory holds need not be one."""
    return times[np.abs(times) < LATEST]


def slot_of(seconds: float) -> float:
    """A width of slots that people know, of which no more than SLOTS are needed.

    >>> slot_of(0.2), slot_of(50), slot_of(4000)
    (1.0, 1.0, 120.0)
    """
    wide = next((size for size in KNOWN if seconds / size < SLOTS), None)
    return wide or KNOWN[-1] * math.ceil(seconds / SLOTS / KNOWN[-1])
