"""The numbers of a run: one row an environment, scored / requested beside them, then what is missing and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollbook.cli.tables import Cell, between, harmless, show_json, show_numbers_table, show_table

if TYPE_CHECKING:
    from rollbook.collect.report import Report
    from rollbook.stats.summary import Metrics

MISSING_SHOWN = 10


def show_numbers(report: Report, as_json: bool) -> None:
    """Print a report, for people or for programs."""
    if as_json:
        show_json(report.json())
        return
    print("\n".join(map(harmless, [headline(report), *verifiers(report)])))
    metrics = list(report.environments.values())
    ks = sorted({k for one in metrics for k in one.pass_at})
    show_numbers_table(columns(ks), [row(one, ks) for one in metrics])
    if report.failed:
        show_table(["failure", "rollouts"], sorted(report.failed.items()))
    if report.missing:
        show_missing(report)


def headline(report: Report) -> str:
    """Whose numbers these are, and whether they are all there."""
    failed = sum(report.failed.values())
    dropped = f", {report.dropped} doubled and dropped" if report.dropped else ""
    counts = f"{report.scored}/{report.requested} scored, {failed} failed, {report.pending} pending"
    return f"{report.path}: {who(report.model, report.scripted)}: {counts}{dropped}"


def who(model: str, scripted: bool) -> str:
    """Who answered, and whether that was a model at all."""
    return f"{model} (scripted answers, no model)" if scripted else model


def verifiers(report: Report) -> list[str]:
    """That the scores are not all by the same verifier, where that is so."""
    if not report.kept_from:
        return []
    kept = f"what run {report.kept_from} scored keeps its scores"
    return [f"two verifiers: {kept}, and only what failed there was scored by this run's (run.json: rescored)"]


def columns(ks: list[int]) -> list[str]:
    """The names over the columns; of pass^k only the longest, since it is pass@1 for k = 1."""
    passes = [f"pass@{k}" for k in ks]
    streak = [f"pass^{ks[-1]}"] if ks and ks[-1] > 1 else []
    first, rest = passes[:1], passes[1:]
    bounds = ["95%"] if first else []
    return ["environment", "tasks", "scored", "mean", *first, *bounds, *rest, *streak, "truncated", "p50 s"]


def row(metrics: Metrics, ks: list[int]) -> list[Cell]:
    """One environment."""
    passes: list[Cell] = [metrics.pass_at.get(k) for k in ks]
    streak: list[Cell] = [metrics.pass_hat.get(ks[-1])] if ks and ks[-1] > 1 else []
    bounds: list[Cell] = [between(metrics.pass_interval)] if ks else []
    counts: list[Cell] = [metrics.env, metrics.tasks, f"{metrics.scored}/{metrics.requested}", metrics.mean]
    ends: list[Cell] = [metrics.truncated, metrics.seconds_p50]
    return [*counts, *passes[:1], *bounds, *passes[1:], *streak, *ends]


def show_missing(report: Report) -> None:
    """The first of the rollouts without a score, and why."""
    rows: list[list[Cell]] = [[task, sample, why] for task, sample, why in report.missing[:MISSING_SHOWN]]
    show_table(["missing", "sample", "why"], rows)
    more = report.requested - report.scored - len(rows)
    if more:
        print(f"and {more} more")
