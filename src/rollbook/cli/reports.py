"""Reports on the screen: every number with what it rests on, as tables, as Markdown or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rollbook.cli.numbers import headline, show_missing, verifiers
from rollbook.cli.tables import Cell, between, cell_text, harmless, show_json, show_table

if TYPE_CHECKING:
    from rollbook.collect.report import Report
    from rollbook.stats.summary import Metrics

Table = tuple[list[str], list[list[Cell]]]


def show_reports(reports: Sequence[Report], as_json: bool, as_markdown: bool) -> None:
    """Print reports; of several runs JSON is a list under `runs`."""
    if as_json:
        show_json(reports[0].json() if len(reports) == 1 else {"runs": [report.json() for report in reports]})
        return
    lines = [line for report in reports for line in (headline(report), *notes(report))]
    tables = [
        table
        for table in (rates(reports), costs(reports), parts(reports), forks(reports), failures(reports))
        if table[1]
    ]
    if as_markdown:
        print("\n\n".join(["  \n".join(map(harmless, lines)), *(markdown(*table) for table in tables)]))
        return
    print("\n".join(map(harmless, lines)))
    for table in tables:
        show_table(*table)
    for report in reports:
        if report.missing:
            show_missing(report)


def notes(report: Report) -> list[str]:
    """What has to be borne in mind: a run that goes on, shards, two verifiers, tasks left out, numbers drawn."""
    said = ["the run is going on: these are the numbers so far"] if report.live else []
    said += verifiers(report)
    if report.merged:
        said.append(f"read together with {', '.join(report.merged)}")
    if report.disagreeing:
        said.append(f"warning: {report.disagreement}")
    for one in _rows(report):
        said += [f"{one.env}: @{k} rests on {n} of {one.tasks} tasks" for k, n in one.coverage.items() if n < one.tasks]
        said += votes_rest(one)
        said += [f"{one.env}: maj@{k} was drawn, +- {error:.4f}" for k, error in one.maj_errors.items()]
    said += [
        f"{env}: {one.forks} of {one.turns} later turns begin a new sequence (break rate {one.break_rate:.3f})"
        for env, one in report.continuity.items()
    ]
    if report.overall.threshold != 1.0:
        said.append(f"a rollout passes from a reward of {report.overall.threshold:g}")
    return said


def votes_rest(one: Metrics) -> list[str]:
    """On how many tasks maj@k rests, where not every environment reports answers."""
    few = {k: n for k, n in one.maj_coverage.items() if n < one.coverage[k]}
    why = "the others report no answers"
    return [f"{one.env}: maj@{k} rests on {n} of {one.tasks} tasks ({why})" for k, n in few.items()]


def _rows(report: Report) -> list[Metrics]:
    """One row an environment, and one for all where there are several."""
    each = list(report.environments.values())
    return each if len(each) == 1 else [*each, report.overall]


def _labelled(reports: Sequence[Report]) -> list[tuple[list[Cell], Metrics]]:
    """Every row with its first cells: which run, where there are several, and which environment."""
    several = len(reports) > 1
    return [([*([report.path] if several else []), one.env], one) for report in reports for one in _rows(report)]


def _head(reports: Sequence[Report]) -> list[str]:
    return [*(["run"] if len(reports) > 1 else []), "environment"]


def rates(reports: Sequence[Report]) -> Table:
    """What was achieved. Of pass^k, maj@k and best@k only those with k > 1: the others are pass@1 and the mean."""
    rows = _labelled(reports)
    ks = sorted({k for _, one in rows for k in one.coverage})
    more = [k for k in ks if k > 1]
    maj = [k for k in more if any(k in one.maj_at for _, one in rows)]
    best = [k for k in more if any(k in one.best_at for _, one in rows)]
    first = ["pass@1", "95%"] if 1 in ks else []
    columns = [*_head(reports), "tasks", "scored", "mean", "95%", "std", *first]
    columns += [f"pass@{k}" for k in more] + [f"pass^{k}" for k in more[-1:]]
    columns += [f"maj@{k}" for k in maj] + [f"best@{k}" for k in best]
    cells: list[list[Cell]] = []
    for label, one in rows:
        counts: list[Cell] = [one.tasks, f"{one.scored}/{one.requested}", one.mean, between(one.mean_interval), one.std]
        lead: list[Cell] = [one.pass_at.get(1), between(one.pass_interval)] if first else []
        at: list[Cell] = [*(one.pass_at.get(k) for k in more), *(one.pass_hat.get(k) for k in more[-1:])]
        rest: list[Cell] = [*(one.maj_at.get(k) for k in maj), *(one.best_at.get(k) for k in best)]
        cells.append([*label, *counts, *lead, *at, *rest])
    return columns, cells


def costs(reports: Sequence[Report]) -> Table:
    """What it took, a scored rollout."""
    columns = [*_head(reports), "scored", "prompt tokens", "completion tokens", "turns"]
    columns += ["truncated", "no answer", "p50 s", "p95 s"]
    cells: list[list[Cell]] = []
    for label, one in _labelled(reports):
        each = [one.per_rollout(total) for total in (one.prompt_tokens, one.completion_tokens, one.turns)]
        means: list[Cell] = [None if value is None else f"{value:.1f}" for value in each]
        ends: list[Cell] = [one.truncated, one.no_answer, one.seconds_p50, one.seconds_p95]
        cells.append([*label, f"{one.scored}/{one.requested}", *means, *ends])
    return columns, cells


def parts(reports: Sequence[Report]) -> Table:
    """The mean of every reward part, and of how many of the scored rollouts."""
    rows: list[list[Cell]] = [
        [*label, name, value, f"{one.part_coverage[name]}/{one.scored}"]
        for label, one in _labelled(reports)
        for name, value in one.parts.items()
    ]
    return [*_head(reports), "reward part", "mean", "rollouts"], rows


def forks(reports: Sequence[Report]) -> Table:
    """Why sequences of tokens began anew, and how often."""
    several = len(reports) > 1
    rows: list[list[Cell]] = [
        [*([report.path] if several else []), env, reason, count, f"{count}/{one.turns}"]
        for report in reports
        for env, one in report.continuity.items()
        for reason, count in one.reasons.items()
    ]
    return [*_head(reports), "fork", "turns", "of"], rows


def failures(reports: Sequence[Report]) -> Table:
    """How many rollouts failed, by kind."""
    rows: list[list[Cell]] = [
        [*label, kind, count, f"{count}/{one.requested}"]
        for label, one in _labelled(reports)
        for kind, count in one.failed.items()
    ]
    return [*_head(reports), "failure", "rollouts", "of"], rows


def markdown(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """A table to paste.

    >>> print(markdown(["env", "mean"], [["a|b", 0.25]]))
    | env | mean |
    | --- | --- |
    | a\\|b | 0.250 |
    """
    lines = [list(columns), ["---"] * len(columns), *([cell_text(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(_escaped(text) for text in line)} |" for line in lines)


def _escaped(text: str) -> str:
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").split())
