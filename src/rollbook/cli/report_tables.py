"""Print results: tables for people, aligned plain text for pipes, Markdown to paste, JSON for programs.

A report has one row for each environment, with scored / requested next to the numbers, then what is missing and why.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from unicodedata import category

from msgspec import to_builtins

from rollbook.core import describe_cached, encode_pretty, format_cost

if TYPE_CHECKING:
    from rollbook.reports import Report
    from rollbook.stats import Metrics


Cell = str | int | float | None
"""A value in a table; None is shown as a dash."""
TableData = tuple[list[str], list[list[Cell]]]
"""The columns and rows of a table."""

HUGE = 1e9
MAX_MISSING_SHOWN = 10
UNPRINTABLE_CATEGORIES = ("Cc", "Cf", "Cs")
"""Characters that control a terminal, change the writing direction, or are not text at all."""


def show_json(value: object) -> None:
    """Print a value as JSON."""
    sys.stdout.write(encode_pretty(value).decode())


def show_table(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Print a table, numbers to the right."""
    cells = list(rows)
    if sys.stdout.isatty():
        _show_rich(columns, cells)
    else:
        print("\n".join(format_plain_table(columns, cells)))


def show_numbers_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table of many columns of numbers; on a terminal too narrow for them, each column becomes a line."""
    widest = max(map(len, format_plain_table(columns, rows)))
    narrow = sys.stdout.isatty() and widest + 2 * len(columns) > shutil.get_terminal_size().columns
    show_table(*(transpose_table(columns, rows) if narrow else (columns, rows)))


def transpose_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> tuple[list[str], list[list[Cell]]]:
    """Return a table with a row for each column, its name first.

    >>> transpose_table(["env", "mean"], [["gsm8k", 0.25], ["sums", 0.5]])
    (['env', 'gsm8k', 'sums'], [['mean', 0.25, 0.5]])
    """
    sides = [[name, *cells] for name, *cells in zip(columns, *rows, strict=True)]
    return [format_cell(cell) for cell in sides[0]], sides[1:]


def format_plain_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[str]:
    """Return the lines of a table without markup.

    >>> format_plain_table(["env", "mean"], [["gsm8k", 0.25]])
    ['env     mean', 'gsm8k  0.250']
    """
    texts = [
        [strip_control_characters(name) for name in columns],
        *([format_cell(cell) for cell in row] for row in rows),
    ]
    widths = [max(len(text) for text in column) for column in zip(*texts, strict=True)]
    right = _find_numeric_columns(columns, rows)
    return [
        "  ".join(
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in texts
    ]


def format_cell(cell: Cell) -> str:
    """Return the text of a cell: fractions with three digits, text on one line."""
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.3f}" if abs(cell) < HUGE else f"{cell:.4g}"
    return strip_control_characters(str(cell))


def format_interval(bounds: tuple[float, float] | None) -> str:
    """Return the text of an interval; next to a negative bound, a dash would be read as its sign.

    >>> format_interval((0.25, 0.5)), format_interval((-0.25, 0.5))
    ('0.250-0.500', '-0.250 to 0.500')
    """
    if bounds is None:
        return "-"
    low, high = map(format_cell, bounds)
    return f"{low} to {high}" if low.startswith("-") else f"{low}-{high}"


def strip_control_characters(text: str) -> str:
    """Return text that is safe on a terminal: white space as spaces, without control characters.

    >>> strip_control_characters("a\\tb\\x1b[31mc\\x9b")
    'a b[31mc'
    """
    if text.isprintable():
        return text
    return "".join(" " if c.isspace() else c for c in text if c.isspace() or category(c) not in UNPRINTABLE_CATEGORIES)


def _find_numeric_columns(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[bool]:
    return [bool(rows) and all(not isinstance(row[at], str) for row in rows) for at in range(len(columns))]


def _show_rich(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, to_right in zip(columns, _find_numeric_columns(columns, rows), strict=True):
        table.add_column(Text(strip_control_characters(name)), justify="right" if to_right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(format_cell(cell)) for cell in row))
    Console().print(table)


def show_numbers(report: Report, as_json: bool) -> None:
    """Print a report, for people or for programs."""
    if as_json:
        show_json(report.json())
        return
    notes = [*describe_verifiers(report), *report.warnings, *_list_damage(report), *describe_roles(report)]
    print("\n".join(map(strip_control_characters, [make_headline(report), *notes])))
    metrics = list(report.environments.values())
    ks = sorted({k for one in metrics for k in one.pass_at})
    show_numbers_table(list_summary_columns(ks), [make_summary_row(one, ks) for one in metrics])
    if report.failed:
        show_table(["failure", "rollouts"], sorted(report.failed.items()))
    if report.missing:
        show_missing(report)


def make_headline(report: Report) -> str:
    """Return the run, its model and its counts."""
    failed = sum(report.failed.values())
    dropped = f", {report.dropped} duplicates dropped" if report.dropped else ""
    counts = f"{report.scored}/{report.requested} scored, {failed} failed, {report.pending} pending"
    cost = "" if report.cost is None else f", cost {format_cost(report.cost)}"
    cache = report.cache
    cached = "" if cache is None else f", {describe_cached(cache.cached_tokens, cache.prompt_tokens)}"
    return f"{report.path}: {describe_model(report.model, report.scripted)}: {counts}{dropped}{cost}{cached}"


def describe_model(model: str, scripted: bool) -> str:
    """Return the name of the model, marked where the answers are scripted."""
    return f"{model} (scripted answers, no model)" if scripted else model


def describe_verifiers(report: Report) -> list[str]:
    """Return a note where the scores are by two verifiers."""
    if not report.kept_from:
        return []
    kept = f"scores of run {report.kept_from} are kept"
    return [f"two verifiers: {kept}, and only its failed rollouts were scored by this run's (run.json: rescored)"]


def describe_roles(report: Report) -> list[str]:
    """Return a line for each role that was asked, and how far a judge agrees with people."""
    lines = [use.describe(role) for role, use in sorted(report.roles.items())]
    return [*lines, *(f"{name}: {each.describe()}" for name, each in report.calibration.items())]


def _list_damage(report: Report) -> list[str]:
    from rollbook.reports import describe_damage

    return [describe_damage(report.damaged, report.path)] if report.damaged else []


def _list_tail(report: Report) -> list[str]:
    from rollbook.reports import describe_tail

    line = describe_tail(to_builtins(report.tail)) if report.tail else ""
    return [line] if line else []


def list_summary_columns(ks: list[int]) -> list[str]:
    """Return the columns of the summary; of pass^k only the largest k, since it is pass@1 for k = 1."""
    passes = [f"pass@{k}" for k in ks]
    streak = [f"pass^{ks[-1]}"] if ks and ks[-1] > 1 else []
    first, rest = passes[:1], passes[1:]
    bounds = ["95%"] if first else []
    return ["environment", "tasks", "scored", "mean", *first, *bounds, *rest, *streak, "truncated", "p50 s"]


def make_summary_row(metrics: Metrics, ks: list[int]) -> list[Cell]:
    """Return the row of one environment in the summary."""
    passes: list[Cell] = [metrics.pass_at.get(k) for k in ks]
    streak: list[Cell] = [metrics.pass_hat.get(ks[-1])] if ks and ks[-1] > 1 else []
    bounds: list[Cell] = [format_interval(metrics.pass_interval)] if ks else []
    counts: list[Cell] = [metrics.env, metrics.tasks, f"{metrics.scored}/{metrics.requested}", metrics.mean]
    ends: list[Cell] = [metrics.truncated, metrics.seconds_p50]
    return [*counts, *passes[:1], *bounds, *passes[1:], *streak, *ends]


def show_missing(report: Report) -> None:
    """Print the first rollouts without a score, and why they have none."""
    rows: list[list[Cell]] = [[task, sample, why] for task, sample, why in report.missing[:MAX_MISSING_SHOWN]]
    show_table(["missing", "sample", "why"], rows)
    more = report.requested - report.scored - len(rows)
    if more:
        print(f"and {more} more")


def show_reports(reports: Sequence[Report], as_json: bool, as_markdown: bool) -> None:
    """Print reports; of several runs JSON is a list under `runs`."""
    if as_json:
        show_json(reports[0].json() if len(reports) == 1 else {"runs": [report.json() for report in reports]})
        return
    lines = [line for report in reports for line in (make_headline(report), *list_notes(report))]
    tables = [
        table
        for table in (
            make_rates(reports),
            make_costs(reports),
            make_parts(reports),
            make_forks(reports),
            make_failures(reports),
        )
        if table[1]
    ]
    if as_markdown:
        print(
            "\n\n".join(
                ["  \n".join(map(strip_control_characters, lines)), *(format_markdown(*table) for table in tables)]
            )
        )
        return
    print("\n".join(map(strip_control_characters, lines)))
    for table in tables:
        show_table(*table)
    for report in reports:
        if report.missing:
            show_missing(report)


def list_notes(report: Report) -> list[str]:
    """Return notes on the numbers: a run that continues, merged runs, two verifiers, missing tasks, estimates."""
    notes = ["the run is in progress: these are the numbers so far"] if report.live else []
    notes += describe_verifiers(report)
    notes += report.warnings
    notes += _list_damage(report)
    notes += _list_tail(report)
    notes += describe_roles(report)
    if report.merged:
        notes.append(f"read together with {', '.join(report.merged)}")
    if report.disagreeing:
        notes.append(f"warning: {report.disagreement}")
    for one in _list_metrics(report):
        notes += [
            f"{one.env}: @{k} is computed from {n} of {one.tasks} tasks"
            for k, n in one.coverage.items()
            if n < one.tasks
        ]
        # Where not every environment reports answers, fewer tasks vote.
        few = {k: n for k, n in one.maj_coverage.items() if n < one.coverage[k]}
        why = "the others report no answers"
        notes += [f"{one.env}: maj@{k} is computed from {n} of {one.tasks} tasks ({why})" for k, n in few.items()]
        notes += [f"{one.env}: maj@{k} was drawn, +- {error:.4f}" for k, error in one.maj_errors.items()]
    notes += [
        f"{env}: {one.forks} of {one.turns} later turns begin a new sequence (break rate {one.break_rate:.3f})"
        for env, one in report.continuity.items()
    ]
    if report.overall.threshold != 1.0:
        notes.append(f"a rollout passes with a reward of at least {report.overall.threshold:g}")
    return notes


def _list_metrics(report: Report) -> list[Metrics]:
    """Return the metrics of each environment, and of all together where there are several."""
    each = list(report.environments.values())
    return each if len(each) == 1 else [*each, report.overall]


def _label_metrics(reports: Sequence[Report]) -> list[tuple[list[Cell], Metrics]]:
    """Return the metrics with the first cells of their rows: the run, where there are several, and the environment."""
    several = len(reports) > 1
    return [
        ([*([report.path] if several else []), one.env], one) for report in reports for one in _list_metrics(report)
    ]


def _list_head_columns(reports: Sequence[Report]) -> list[str]:
    return [*(["run"] if len(reports) > 1 else []), "environment"]


def make_rates(reports: Sequence[Report]) -> TableData:
    """Return the rates. Of pass^k, maj@k and best@k only those with k > 1: the others are pass@1 and the mean."""
    rows = _label_metrics(reports)
    ks = sorted({k for _, one in rows for k in one.coverage})
    more = [k for k in ks if k > 1]
    maj = [k for k in more if any(k in one.maj_at for _, one in rows)]
    best = [k for k in more if any(k in one.best_at for _, one in rows)]
    first = ["pass@1", "95%"] if 1 in ks else []
    columns = [*_list_head_columns(reports), "tasks", "scored", "mean", "95%", "std", *first]
    columns += [f"pass@{k}" for k in more] + [f"pass^{k}" for k in more[-1:]]
    columns += [f"maj@{k}" for k in maj] + [f"best@{k}" for k in best]
    cells: list[list[Cell]] = []
    for label, one in rows:
        counts: list[Cell] = [
            one.tasks,
            f"{one.scored}/{one.requested}",
            one.mean,
            format_interval(one.mean_interval),
            one.std,
        ]
        lead: list[Cell] = [one.pass_at.get(1), format_interval(one.pass_interval)] if first else []
        at: list[Cell] = [*(one.pass_at.get(k) for k in more), *(one.pass_hat.get(k) for k in more[-1:])]
        rest: list[Cell] = [*(one.maj_at.get(k) for k in maj), *(one.best_at.get(k) for k in best)]
        cells.append([*label, *counts, *lead, *at, *rest])
    return columns, cells


def make_costs(reports: Sequence[Report]) -> TableData:
    """Return the costs for each scored rollout."""
    columns = [*_list_head_columns(reports), "scored", "prompt tokens", "completion tokens", "turns"]
    columns += ["truncated", "no answer", "p50 s", "p95 s"]
    cells: list[list[Cell]] = []
    for label, one in _label_metrics(reports):
        each = [one.per_rollout(total) for total in (one.prompt_tokens, one.completion_tokens, one.turns)]
        means: list[Cell] = [None if value is None else f"{value:.1f}" for value in each]
        ends: list[Cell] = [one.truncated, one.no_answer, one.seconds_p50, one.seconds_p95]
        cells.append([*label, f"{one.scored}/{one.requested}", *means, *ends])
    return columns, cells


def make_parts(reports: Sequence[Report]) -> TableData:
    """Return the mean of every reward part, and how many of the scored rollouts have it."""
    rows: list[list[Cell]] = [
        [*label, name, value, f"{one.part_coverage[name]}/{one.scored}"]
        for label, one in _label_metrics(reports)
        for name, value in one.parts.items()
    ]
    return [*_list_head_columns(reports), "reward part", "mean", "rollouts"], rows


def make_forks(reports: Sequence[Report]) -> TableData:
    """Return why token sequences forked, and how often."""
    several = len(reports) > 1
    rows: list[list[Cell]] = [
        [*([report.path] if several else []), env, reason, count, f"{count}/{one.turns}"]
        for report in reports
        for env, one in report.continuity.items()
        for reason, count in one.reasons.items()
    ]
    return [*_list_head_columns(reports), "fork", "turns", "of"], rows


def make_failures(reports: Sequence[Report]) -> TableData:
    """Return how many rollouts failed, by kind."""
    rows: list[list[Cell]] = [
        [*label, kind, count, f"{count}/{one.requested}"]
        for label, one in _label_metrics(reports)
        for kind, count in one.failed.items()
    ]
    return [*_list_head_columns(reports), "failure", "rollouts", "of"], rows


def format_markdown(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a table as Markdown.

    >>> print(format_markdown(["env", "mean"], [["a|b", 0.25]]))
    | env | mean |
    | --- | --- |
    | a\\|b | 0.250 |
    """
    lines = [list(columns), ["---"] * len(columns), *([format_cell(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(_escape_cell(text) for text in line)} |" for line in lines)


def _escape_cell(text: str) -> str:
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").split())
