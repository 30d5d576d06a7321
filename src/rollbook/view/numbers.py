"""The page of a run: its numbers and what its charts are drawn from."""

from __future__ import annotations

import numpy as np

from rollbook.core.json import JSON
from rollbook.stats.estimators import Floats
from rollbook.view.runs import described
from rollbook.view.snapshot import Snapshot

BINS = 20
SLOTS = 60
FARTHEST = 1e300


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
    """How many rollouts were scored, and how many attempts failed, in each slot of the time the run took."""
    scored = snapshot.located.starts + snapshot.located.columns.seconds
    failed = np.array([each.ended for each in snapshot.tries], np.float64)
    every = np.concatenate([scored, failed])
    every = every[np.isfinite(every)]
    if not len(every):
        return {"edges": [], "scored": [], "failed": []}
    low, high = float(every.min()), float(every.max())
    edges = np.linspace(low, max(high, low + 1.0), SLOTS + 1)
    return {
        "edges": edges.tolist(),
        "scored": np.histogram(scored, edges)[0].tolist(),
        "failed": np.histogram(failed, edges)[0].tolist(),
    }
