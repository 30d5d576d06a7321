"""report.html: a run's numbers and charts in one file that needs no network and runs no script."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

import numpy as np

from rollbook.book.durable import write_whole
from rollbook.collect.report import Reading, Report
from rollbook.stats.estimators import Interval, finite
from rollbook.stats.summary import Metrics
from rollbook.stats.tasks import Tasks
from rollbook.view.charts import (
    drawn,
    far,
    length_and_reward,
    pass_curve,
    reward_histogram,
    shown,
    task_strip,
    votes_drawn,
)
from rollbook.view.svg import Chart

SLOWEST = 10
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
Cell = str | int | float | None


def write_page(read: Reading, report: Report) -> Path:
    """Write the page into the run directory."""
    path = Path(report.path) / ("report.merged.html" if report.merged else "report.html")
    write_whole(path, page(read, report).encode("utf-8", "replace"))
    return path


def page(read: Reading, report: Report) -> str:
    """The whole page."""
    title = escape(f"{Path(report.path).resolve().name}: {report.model}")
    style = Path(__file__).with_name("report.css").read_text()
    sections = [text for env, name in enumerate(read.names) for text in section(read, report, env, name)]
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    body = "".join([*summary(report), *failures(report), *sections])
    return (
        f'<!doctype html><html lang="en"><head>{head}{view}<title>{title}</title><style>{style}</style></head>'
        f"<body><h1>{title}</h1>{body}</body></html>\n"
    )


def summary(report: Report) -> Iterator[str]:
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
    yield _summary_table(rows)
    yield from _rests(rows)


def _rests(rows: Sequence[Metrics]) -> Iterator[str]:
    """What the numbers @k rest on where it is not every task, and what passes where it is not a reward of 1."""
    for one in rows:
        few = [f"@{k} rests on {n} of {one.tasks} tasks" for k, n in one.coverage.items() if n < one.tasks]
        votes = {k: n for k, n in one.maj_coverage.items() if n < one.coverage[k]}
        few += [f"maj@{k} rests on {n} of {one.tasks} tasks (the others report no answers)" for k, n in votes.items()]
        if few:
            yield f"<p>{escape(one.env)}: {', '.join(few)}</p>"
    if rows and rows[0].threshold != 1.0:
        yield f"<p>a rollout passes from a reward of {rows[0].threshold:g}</p>"


def _summary_table(rows: Sequence[Metrics]) -> str:
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
        rewards: list[Cell] = [one.mean, _between(one.mean_interval), one.std]
        at: list[Cell] = [one.pass_at.get(k) for k in ks]
        if 1 in ks:
            at.insert(ks.index(1) + 1, _between(one.pass_interval))
        at += [one.pass_hat.get(k) for k in ks[-1:]]
        more: list[Cell] = [*(one.maj_at.get(k) for k in votes), *(one.best_at.get(k) for k in best)]
        costs: list[Cell] = [one.per_rollout(one.completion_tokens), one.per_rollout(one.turns)]
        ends: list[Cell] = [one.truncated, one.no_answer, one.seconds_p50, one.seconds_p95]
        cells.append([*counts, *rewards, *at, *more, *costs, *ends])
    return table(names, cells)


def failures(report: Report) -> Iterator[str]:
    """Failures by kind, and the first of what is missing."""
    if report.failed:
        yield "<h2>Failures by kind</h2>"
        most = max(report.failed.values())
        rows: list[list[Cell]] = [
            [kind, count, "█" * max(1, round(20 * count / most))] for kind, count in sorted(report.failed.items())
        ]
        yield table(["kind", "rollouts", ""], rows)
    if report.missing:
        yield "<h2>Missing</h2>"
        yield table(["task", "sample", "why"], [list(each) for each in report.missing[:SLOWEST]], wrap=True)


def section(read: Reading, report: Report, env: int, name: str) -> Iterator[str]:
    """One environment."""
    metrics, columns = report.environments[name], read.columns(env)
    yield f"<h2>{escape(name)}</h2>"
    if not len(columns):
        yield '<p class="soft">nothing scored yet</p>'
        return
    if metrics.parts:
        held = metrics.part_coverage
        rows = [[part, value, f"{held[part]}/{metrics.scored}"] for part, value in metrics.parts.items()]
        yield table(["reward part", "mean", "rollouts"], rows)
    tasks = Tasks(columns, metrics.threshold)
    names = [read.book.tasks.task(int(tasks.rows[at])).id for at in drawn(len(tasks))]
    rollouts = shown(len(columns), "rollouts")
    keys = '<span class="first-key">pass@k</span> with its 95% band'
    keys += ', <span class="second-key">maj@k</span>' if votes_drawn(metrics) else ""
    yield '<div class="charts">'
    yield figure(reward_histogram(columns.reward), f"{len(columns):,} rollouts{far(columns.reward)}")
    if metrics.pass_at:
        yield figure(pass_curve(metrics), keys)
    yield figure(task_strip(tasks, names), shown(len(tasks), "tasks") + far(tasks.means))
    yield figure(length_and_reward(columns), rollouts + far(columns.reward))
    yield "</div>"
    yield "<h2>Slowest tasks</h2>"
    yield table(["task", "seconds a rollout", "scored", "mean", "tokens"], list(slowest(read, tasks)), wrap=True)


def slowest(read: Reading, tasks: Tasks) -> Iterator[list[Cell]]:
    """The tasks that took longest, a rollout."""
    seconds, tokens = tasks.sum("seconds") / tasks.n, tasks.sum("completion_tokens") / tasks.n
    for at in np.argsort(-seconds, kind="stable")[:SLOWEST].tolist():
        name = read.book.tasks.task(int(tasks.rows[at])).id
        yield [name, float(seconds[at]), int(tasks.n[at]), finite(tasks.means[at]), float(tokens[at])]


def figure(chart: Chart, said: str) -> str:
    """A chart under its title; `said` is HTML."""
    return f"<figure>{chart.svg()}<figcaption><b>{escape(chart.title)}</b> &middot; {said}</figcaption></figure>"


def table(columns: Iterable[str], rows: Iterable[Sequence[Cell]], *, wrap: bool = False) -> str:
    """A table, everything in it escaped."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    style = ' class="wrap"' if wrap else ""
    lines = ("".join(f"<td{style}>{escape(_text(cell))}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    return _digits(cell) if isinstance(cell, float) else str(cell)


def _digits(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 1e9 else f"{value:.4g}"


def _between(bounds: Interval | None) -> str:
    return "-" if bounds is None else f"{_digits(bounds[0])} to {_digits(bounds[1])}"
