"""The charts of a report: how rewards lie, what more tries bring, which tasks are hard, and what length does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rollbook.stats.columns import Columns
from rollbook.stats.estimators import Floats
from rollbook.stats.summary import Metrics
from rollbook.stats.tasks import Tasks
from rollbook.view.svg import Axis, Chart

BINS = 20
DOTS = 1500
"""More dots than that can be neither told apart nor opened quickly: of more, so many are drawn by lot."""

FARTHEST = 1e300
"""Beyond that the width of an axis is no longer a number: what lies there is drawn at the edge."""


def clipped(values: Floats) -> Floats:
    """The values as far as an axis can go."""
    return np.clip(np.nan_to_num(values, nan=0.0), -FARTHEST, FARTHEST)


def far(values: Floats) -> str:
    """How many values lie too far out to be drawn where they are, where there are any."""
    count = int((~(np.abs(values) <= FARTHEST)).sum())
    return f"; {count:,} beyond {FARTHEST:g} drawn at the edge" if count else ""


def reward_histogram(rewards: Floats) -> Chart:
    """How many rollouts got which reward."""
    rewards = clipped(rewards)
    low, high = float(min(rewards.min(), 0.0)), float(max(rewards.max(), 1.0))
    counts, edges = np.histogram(rewards, BINS, (low, high))
    chart = Chart("Reward histogram", Axis("reward", low, high), Axis("rollouts", 0, float(max(counts.max(), 1))))
    for count, left, right in zip(counts.tolist(), edges.tolist(), edges[1:].tolist(), strict=False):
        if count:
            chart.bar(left, right, count, f"{left:g} to {right:g}: {count} rollouts")
    return chart


def pass_curve(metrics: Metrics) -> Chart:
    """pass@k over k with its 95% band, and maj@k beside it."""
    ks = sorted(metrics.pass_at)
    log = ks[-1] > 1
    chart = Chart("pass@k over k", Axis("k", ks[0], ks[-1], log, ks), Axis("mean over tasks", 0, 1))
    band = [(k, *bounds) for k in ks if (bounds := metrics.pass_intervals.get(k))]
    if len(band) > 1:
        chart.band(band)
    chart.line([(k, metrics.pass_at[k]) for k in ks], "first", "pass")
    if votes_drawn(metrics):
        chart.line([(k, value) for k, value in sorted(metrics.maj_at.items()) if value is not None], "second", "maj")
    return chart


def votes_drawn(metrics: Metrics) -> bool:
    """Whether maj@k has a line: it does not where its values are no shares."""
    return bool(metrics.maj_at) and all(value is not None and 0 <= value <= 1 for value in metrics.maj_at.values())


def task_strip(tasks: Tasks, names: Sequence[str]) -> Chart:
    """Every task as a dot at its mean reward; up and down only keeps the dots apart. `names` are by task."""
    means = clipped(tasks.means)
    low, high = float(min(means.min(), 0.0)), float(max(means.max(), 1.0))
    chart = Chart("Tasks by mean reward", Axis("mean reward", low, high), Axis("", 0, 1, ticks=()))
    heights = np.random.default_rng(0).random(len(means))
    places = drawn(len(means))
    chart.dots(
        (float(means[at]), float(heights[at]), f"{names[place]}: {tasks.means[at]:.6g} of {tasks.n[at]}")
        for place, at in enumerate(places.tolist())
    )
    return chart


def length_and_reward(columns: Columns) -> Chart:
    """Every rollout as a dot: how long it was, what it got."""
    places = drawn(len(columns))
    every = clipped(columns.reward)
    tokens, rewards = columns.completion_tokens[places], every[places]
    low, high = float(min(every.min(), 0.0)), float(max(every.max(), 1.0))
    apart = (np.random.default_rng(1).random(len(places)) - 0.5) * 0.06 * (high - low)
    room = 0.05 * (high - low)
    x = Axis("completion tokens", 0, float(max(columns.completion_tokens.max(), 1)))
    chart = Chart("Length against reward", x, Axis("reward", low - room, high + room))
    points = zip(tokens.tolist(), (rewards + apart).tolist(), columns.reward[places].tolist(), strict=True)
    chart.dots((float(size), at, f"{size} tokens: {reward:g}") for size, at, reward in points)
    return chart


def drawn(count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Which of so many are shown: all, or as many as can be, drawn by lot."""
    if count <= DOTS:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, DOTS, replace=False))


def shown(count: int, what: str) -> str:
    """How many of them a chart shows, where it is not all."""
    return f"{min(count, DOTS):,} of {count:,} {what}" if count > DOTS else f"{count:,} {what}"
