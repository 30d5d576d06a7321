"""report.html: a run's numbers and charts in one file that needs no network and runs no script.

The charts are SVG text, coloured by the page's style sheet: they follow the reader's light or dark theme and open from
disk. Whatever draws that in a browser is larger than all of Rollbook.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import numpy as np

from rollbook.book import write_atomically
from rollbook.reports import Report, RunData
from rollbook.stats import Columns, Floats, Interval, Metrics, TaskStats, finite_or_none

WIDTH, HEIGHT = 520, 260
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 12, 44


@dataclass(frozen=True)
class ChartAxis:
    """A range of values with a name; `log` spaces them by their logarithm, `ticks` says where to write numbers."""

    name: str
    low: float
    high: float
    log: bool = False
    ticks: Sequence[float] | None = None

    def share(self, value: float) -> float:
        """How far along the axis a value lies, from 0 to 1."""
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return 0.5 if high == low else (at - low) / (high - low)

    @property
    def marks(self) -> list[float]:
        """Where numbers are written."""
        return list(self.ticks) if self.ticks is not None else choose_ticks(self.low, self.high)


def choose_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """About so many round numbers in a range.

    >>> choose_ticks(0, 1), choose_ticks(3, 1180)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [200.0, 400.0, 600.0, 800.0, 1000.0])
    """
    if not high > low or not math.isfinite(high - low):
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / about))
    step = next(power * nice for nice in (1, 2, 5, 10) if (high - low) / (power * nice) <= about + 1)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


@dataclass
class SvgChart:
    """A chart in the making; things drawn later lie above."""

    title: str
    x: ChartAxis
    y: ChartAxis
    _drawn: list[str] = field(default_factory=list)

    def _x(self, value: float) -> str:
        return f"{LEFT + self.x.share(value) * (WIDTH - LEFT - RIGHT):.1f}"

    def _y(self, value: float) -> str:
        return f"{HEIGHT - BOTTOM - self.y.share(value) * (HEIGHT - TOP - BOTTOM):.1f}"

    def bar(self, low: float, high: float, size: float, label: str) -> None:
        """A bar over a range of x, from the bottom up to `size`."""
        left, right, top, bottom = (float(v) for v in (self._x(low), self._x(high), self._y(size), self._y(self.y.low)))
        place = f'x="{left + 0.5:.1f}" y="{top:.1f}" width="{max(right - left - 1, 1):.1f}" height="{bottom - top:.1f}"'
        self._drawn.append(f'<rect class="mark" {place}><title>{escape(label)}</title></rect>')

    def dots(self, points: Iterable[tuple[float, float, str]]) -> None:
        """A dot at each (x, y), with what to say about it."""
        for x, y, said in points:
            place = f'cx="{self._x(x)}" cy="{self._y(y)}"'
            self._drawn.append(f'<circle class="dot" {place} r="2.5"><title>{escape(said)}</title></circle>')

    def line(self, points: Sequence[tuple[float, float]], style: str, name: str) -> None:
        """A line through points, marked where they are."""
        path = " ".join(f"{self._x(x)},{self._y(y)}" for x, y in points)
        self._drawn.append(f'<polyline class="line {style}" points="{path}"/>')
        for x, y in points:
            said = escape(f"{name}@{x:g} = {y:.3f}")
            self._drawn.append(f'<circle class="point {style}" cx="{self._x(x)}" cy="{self._y(y)}" r="3">')
            self._drawn.append(f"<title>{said}</title></circle>")

    def band(self, points: Sequence[tuple[float, float, float]]) -> None:
        """The area between two lines, from (x, low, high)."""
        upper = [f"{self._x(x)},{self._y(high)}" for x, _, high in points]
        lower = [f"{self._x(x)},{self._y(low)}" for x, low, _ in reversed(points)]
        self._drawn.append(f'<polygon class="band" points="{" ".join(upper + lower)}"/>')

    def svg(self) -> str:
        """The whole chart."""
        frame = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self.title, quote=True)}"'
        return f"<svg {frame}>{''.join([*self._grid(), *self._drawn, *self._names()])}</svg>"

    def _grid(self) -> Iterable[str]:
        right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
        for value in self.y.marks:
            at = self._y(value)
            yield f'<line class="grid" x1="{LEFT}" y1="{at}" x2="{right}" y2="{at}"/>'
            yield f'<text class="tick end" x="{LEFT - 6}" y="{float(at) + 3.5:.1f}">{format_tick(value)}</text>'
        for value in self.x.marks:
            yield f'<text class="tick middle" x="{self._x(value)}" y="{bottom + 15}">{format_tick(value)}</text>'
        yield f'<line class="axis" x1="{LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}"/>'

    def _names(self) -> Iterable[str]:
        middle = (LEFT + WIDTH - RIGHT) / 2
        yield f'<text class="name middle" x="{middle:.0f}" y="{HEIGHT - 8}">{escape(self.x.name)}</text>'
        half = (TOP + HEIGHT - BOTTOM) / 2
        turned = f'transform="rotate(-90 12 {half:.0f})"'
        yield f'<text class="name middle" x="12" y="{half:.0f}" {turned}>{escape(self.y.name)}</text>'


def format_tick(value: float) -> str:
    """A number beside an axis.

    >>> format_tick(0.25), format_tick(20000), format_tick(1.5e6)
    ('0.25', '20k', '1.5M')
    """
    if abs(value) >= 1e12:
        return f"{value:.3g}"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):g}{letter}"
    return f"{value:g}"


HISTOGRAM_BINS = 20
MAX_DOTS = 1500
"""More dots than that can be neither told apart nor opened quickly: of more, so many are drawn by lot."""

MAX_VALUE = 1e300
"""Beyond that the width of an axis is no longer a number: what lies there is drawn at the edge."""


def clip_values(values: Floats) -> Floats:
    """The values as far as an axis can go."""
    return np.clip(np.nan_to_num(values, nan=0.0), -MAX_VALUE, MAX_VALUE)


def describe_clipped(values: Floats) -> str:
    """How many values lie too far out to be drawn where they are, where there are any."""
    count = int((~(np.abs(values) <= MAX_VALUE)).sum())
    return f"; {count:,} beyond {MAX_VALUE:g} drawn at the edge" if count else ""


def draw_reward_histogram(rewards: Floats) -> SvgChart:
    """How many rollouts got which reward."""
    rewards = clip_values(rewards)
    low, high = float(min(rewards.min(), 0.0)), float(max(rewards.max(), 1.0))
    counts, edges = np.histogram(rewards, HISTOGRAM_BINS, (low, high))
    chart = SvgChart(
        "Reward histogram", ChartAxis("reward", low, high), ChartAxis("rollouts", 0, float(max(counts.max(), 1)))
    )
    for count, left, right in zip(counts.tolist(), edges.tolist(), edges[1:].tolist(), strict=False):
        if count:
            chart.bar(left, right, count, f"{left:g} to {right:g}: {count} rollouts")
    return chart


def draw_pass_curve(metrics: Metrics) -> SvgChart:
    """pass@k over k with its 95% band, and maj@k beside it."""
    ks = sorted(metrics.pass_at)
    log = ks[-1] > 1
    chart = SvgChart("pass@k over k", ChartAxis("k", ks[0], ks[-1], log, ks), ChartAxis("mean over tasks", 0, 1))
    band = [(k, *bounds) for k in ks if (bounds := metrics.pass_intervals.get(k))]
    if len(band) > 1:
        chart.band(band)
    chart.line([(k, metrics.pass_at[k]) for k in ks], "first", "pass")
    if has_majority_line(metrics):
        chart.line([(k, value) for k, value in sorted(metrics.maj_at.items()) if value is not None], "second", "maj")
    return chart


def has_majority_line(metrics: Metrics) -> bool:
    """Whether maj@k has a line: it does not where its values are no shares."""
    return bool(metrics.maj_at) and all(value is not None and 0 <= value <= 1 for value in metrics.maj_at.values())


def draw_task_strip(tasks: TaskStats, names: Sequence[str]) -> SvgChart:
    """Every task as a dot at its mean reward; up and down only keeps the dots apart. `names` are by task."""
    means = clip_values(tasks.means)
    low, high = float(min(means.min(), 0.0)), float(max(means.max(), 1.0))
    chart = SvgChart("Tasks by mean reward", ChartAxis("mean reward", low, high), ChartAxis("", 0, 1, ticks=()))
    heights = np.random.default_rng(0).random(len(means))
    places = choose_drawn(len(means))
    chart.dots(
        (float(means[at]), float(heights[at]), f"{names[place]}: {tasks.means[at]:.6g} of {tasks.n[at]}")
        for place, at in enumerate(places.tolist())
    )
    return chart


def draw_length_and_reward(columns: Columns) -> SvgChart:
    """Every rollout as a dot: how long it was, what it got."""
    places = choose_drawn(len(columns))
    every = clip_values(columns.reward)
    tokens, rewards = columns.completion_tokens[places], every[places]
    low, high = float(min(every.min(), 0.0)), float(max(every.max(), 1.0))
    apart = (np.random.default_rng(1).random(len(places)) - 0.5) * 0.06 * (high - low)
    room = 0.05 * (high - low)
    x = ChartAxis("completion tokens", 0, float(max(columns.completion_tokens.max(), 1)))
    chart = SvgChart("Length against reward", x, ChartAxis("reward", low - room, high + room))
    points = zip(tokens.tolist(), (rewards + apart).tolist(), columns.reward[places].tolist(), strict=True)
    chart.dots((float(size), at, f"{size} tokens: {reward:g}") for size, at, reward in points)
    return chart


def choose_drawn(count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Which of so many are shown: all, or as many as can be, drawn by lot."""
    if count <= MAX_DOTS:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, MAX_DOTS, replace=False))


def describe_shown(count: int, what: str) -> str:
    """How many of them a chart shows, where it is not all."""
    return f"{min(count, MAX_DOTS):,} of {count:,} {what}" if count > MAX_DOTS else f"{count:,} {what}"


MAX_SLOWEST = 10
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
Cell = str | int | float | None


def write_report_page(read: RunData, report: Report) -> Path:
    """Write the page into the run directory."""
    path = Path(report.path) / ("report.merged.html" if report.merged else "report.html")
    write_atomically(path, make_report_page(read, report).encode("utf-8", "replace"))
    return path


def make_report_page(read: RunData, report: Report) -> str:
    """The whole page."""
    title = escape(f"{Path(report.path).resolve().name}: {report.model}")
    style = Path(__file__).with_name("report.css").read_text()
    sections = [text for env, name in enumerate(read.names) for text in make_section(read, report, env, name)]
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    body = "".join([*make_summary(report), *make_failures(report), *sections])
    return (
        f'<!doctype html><html lang="en"><head>{head}{view}<title>{title}</title><style>{style}</style></head>'
        f"<body><h1>{title}</h1>{body}</body></html>\n"
    )


def make_summary(report: Report) -> Iterator[str]:
    """Whose numbers these are, what they rest on, and the numbers."""
    made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    yield f'<p class="soft">run {escape(report.run)} &middot; written {made}</p>'
    failed = sum(report.failed.values())
    counts = f"{report.scored}/{report.requested} scored, {failed} failed, {report.pending} pending"
    yield f"<p>{counts}{f', {report.dropped} doubled and dropped' if report.dropped else ''}</p>"
    if report.scripted:
        yield '<p class="warn">scripted answers, no model</p>'
    if report.live:
        yield '<p class="warn">the run was going on: these are the numbers so far</p>'
    if report.kept_from:
        yield f'<p class="warn">two verifiers: what run {escape(report.kept_from)} scored keeps its scores</p>'
    if report.merged:
        yield f"<p>read together with {escape(', '.join(report.merged))}</p>"
    if report.disagreeing:
        yield f'<p class="warn">{escape(report.disagreement)}</p>'
    rows = list(report.environments.values())
    rows = rows if len(rows) == 1 else [*rows, report.overall]
    yield _make_summary_table(rows)
    yield from _list_coverage_notes(rows)


def _list_coverage_notes(rows: Sequence[Metrics]) -> Iterator[str]:
    """What the numbers @k rest on where it is not every task, and what passes where it is not a reward of 1."""
    for one in rows:
        few = [f"@{k} rests on {n} of {one.tasks} tasks" for k, n in one.coverage.items() if n < one.tasks]
        votes = {k: n for k, n in one.maj_coverage.items() if n < one.coverage[k]}
        few += [f"maj@{k} rests on {n} of {one.tasks} tasks (the others report no answers)" for k, n in votes.items()]
        if few:
            yield f"<p>{escape(one.env)}: {', '.join(few)}</p>"
    if rows and rows[0].threshold != 1.0:
        yield f"<p>a rollout passes from a reward of {rows[0].threshold:g}</p>"


def _make_summary_table(rows: Sequence[Metrics]) -> str:
    ks = sorted({k for one in rows for k in one.pass_at})
    votes = sorted({k for one in rows for k in one.maj_at if k > 1})
    best = sorted({k for one in rows for k in one.best_at if k > 1})
    names = ["environment", "tasks", "scored", "mean", "95%", "std"]
    names += [name for k in ks for name in ([f"pass@{k}", "95%"] if k == 1 else [f"pass@{k}"])]
    names += [f"pass^{k}" for k in ks[-1:]] + [f"maj@{k}" for k in votes] + [f"best@{k}" for k in best]
    names += ["tokens", "turns", "truncated", "no answer", "p50 s", "p95 s"]
    cells: list[list[Cell]] = []
    for one in rows:
        counts: list[Cell] = [one.env, one.tasks, f"{one.scored}/{one.requested}"]
        rewards: list[Cell] = [one.mean, _format_interval(one.mean_interval), one.std]
        at: list[Cell] = [one.pass_at.get(k) for k in ks]
        if 1 in ks:
            at.insert(ks.index(1) + 1, _format_interval(one.pass_interval))
        at += [one.pass_hat.get(k) for k in ks[-1:]]
        more: list[Cell] = [*(one.maj_at.get(k) for k in votes), *(one.best_at.get(k) for k in best)]
        costs: list[Cell] = [one.per_rollout(one.completion_tokens), one.per_rollout(one.turns)]
        ends: list[Cell] = [one.truncated, one.no_answer, one.seconds_p50, one.seconds_p95]
        cells.append([*counts, *rewards, *at, *more, *costs, *ends])
    return make_table(names, cells)


def make_failures(report: Report) -> Iterator[str]:
    """Failures by kind, and the first of what is missing."""
    if report.failed:
        yield "<h2>Failures by kind</h2>"
        most = max(report.failed.values())
        rows: list[list[Cell]] = [
            [kind, count, "█" * max(1, round(20 * count / most))] for kind, count in sorted(report.failed.items())
        ]
        yield make_table(["kind", "rollouts", ""], rows)
    if report.missing:
        yield "<h2>Missing</h2>"
        yield make_table(["task", "sample", "why"], [list(each) for each in report.missing[:MAX_SLOWEST]], wrap=True)


def make_section(read: RunData, report: Report, env: int, name: str) -> Iterator[str]:
    """One environment."""
    metrics, columns = report.environments[name], read.columns(env)
    yield f"<h2>{escape(name)}</h2>"
    if not len(columns):
        yield '<p class="soft">nothing scored yet</p>'
        return
    if metrics.parts:
        held = metrics.part_coverage
        rows = [[part, value, f"{held[part]}/{metrics.scored}"] for part, value in metrics.parts.items()]
        yield make_table(["reward part", "mean", "rollouts"], rows)
    tasks = TaskStats(columns, metrics.threshold)
    names = [read.book.tasks.read(int(tasks.rows[at])).id for at in choose_drawn(len(tasks))]
    rollouts = describe_shown(len(columns), "rollouts")
    keys = '<span class="first-key">pass@k</span> with its 95% band'
    keys += ', <span class="second-key">maj@k</span>' if has_majority_line(metrics) else ""
    yield '<div class="charts">'
    yield make_figure(
        draw_reward_histogram(columns.reward), f"{len(columns):,} rollouts{describe_clipped(columns.reward)}"
    )
    if metrics.pass_at:
        yield make_figure(draw_pass_curve(metrics), keys)
    yield make_figure(
        draw_task_strip(tasks, names), describe_shown(len(tasks), "tasks") + describe_clipped(tasks.means)
    )
    yield make_figure(draw_length_and_reward(columns), rollouts + describe_clipped(columns.reward))
    yield "</div>"
    yield "<h2>Slowest tasks</h2>"
    yield make_table(
        ["task", "seconds a rollout", "scored", "mean", "tokens"], list(list_slowest(read, tasks)), wrap=True
    )


def list_slowest(read: RunData, tasks: TaskStats) -> Iterator[list[Cell]]:
    """The tasks that took longest, a rollout."""
    seconds, tokens = tasks.sum_column("seconds") / tasks.n, tasks.sum_column("completion_tokens") / tasks.n
    for at in np.argsort(-seconds, kind="stable")[:MAX_SLOWEST].tolist():
        name = read.book.tasks.read(int(tasks.rows[at])).id
        yield [name, float(seconds[at]), int(tasks.n[at]), finite_or_none(tasks.means[at]), float(tokens[at])]


def make_figure(chart: SvgChart, caption: str) -> str:
    """A chart under its title; `said` is HTML."""
    return f"<figure>{chart.svg()}<figcaption><b>{escape(chart.title)}</b> &middot; {caption}</figcaption></figure>"


def make_table(columns: Iterable[str], rows: Iterable[Sequence[Cell]], *, wrap: bool = False) -> str:
    """A table, everything in it escaped."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    style = ' class="wrap"' if wrap else ""
    lines = ("".join(f"<td{style}>{escape(_format_cell(cell))}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _format_cell(cell: Cell) -> str:
    if cell is None:
        return "-"
    return _format_number(cell) if isinstance(cell, float) else str(cell)


def _format_number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 1e9 else f"{value:.4g}"


def _format_interval(bounds: Interval | None) -> str:
    return "-" if bounds is None else f"{_format_number(bounds[0])} to {_format_number(bounds[1])}"
