"""`rollbook report`, `profile`, `curate`, `compare`, `view`, `export` and `import`: the results of runs.

`report` computes the numbers from the files; a run that is not all scored exits like the run itself. `view` shows runs
in a browser, on this machine alone, or writes one run as one file. `import` makes a book of what NeMo Gym collected.
"""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollbook.cli import options as o
from rollbook.cli.report_tables import (
    Cell,
    describe_model,
    format_cell,
    show_json,
    show_reports,
    show_table,
    strip_control_characters,
)
from rollbook.errors import UsageError

if TYPE_CHECKING:
    from rollbook.reports import ComparedRun, Report, RunComparison, RunData
    from rollbook.stats import Difference


Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...", help="Run directories; several of the same run are read as one.", show_default=False
    ),
]
ReportedRuns = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...",
        help="Run directories; several of the same run are read as one. Or a folder that run --each has made.",
        show_default=False,
    ),
]
Ks = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="K,...",
        help="Report pass@K and the like at these K. [default: powers of two up to the samples]",
    ),
]
Threshold = Annotated[
    float, typer.Option("--threshold", metavar="X", help="The lowest reward with which a rollout passes.")
]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")]
Prefix = Annotated[str, typer.Option("--prefix", metavar="PREFIX", help="A prefix for the names of the metrics.")]
ResamplingSeed = Annotated[int, typer.Option("--seed", metavar="N", help="The seed of random draws.")]


def parse_ks(text: str | None) -> list[int] | None:
    """Parse --at: whole numbers from 1, sorted, each once.

    >>> parse_ks("8,1,2,2")
    [1, 2, 8]
    """
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        raise UsageError(f"--at {text}: write whole numbers from 1, as in --at 1,2,4,8")
    return sorted({int(word) for word in words})


def report_command(
    runs: ReportedRuns, at: Ks = None, threshold: Threshold = 1.0, markdown: Markdown = False, json: o.Json = False
) -> None:
    from rollbook.reports import (
        RunData,
        build_report,
        check_measures,
        group_by_run,
        is_model_folder,
        make_shortfall,
    )

    ks, least = check_measures(parse_ks(at), threshold)
    if len(runs) == 1 and is_model_folder(runs[0]):
        _report_models(runs[0], ks, least, markdown, json)
        return
    reports = []
    for group in group_by_run(_select_runs(runs)):
        data = RunData(group)
        reports.append(build_report(data, ks, least))
        _write_results(data, reports[-1])
    show_reports(reports, json, markdown)
    for report in reports:
        if report.scored < report.requested:
            raise make_shortfall(report)


def _report_models(folder: Path, ks: list[int] | None, threshold: float, markdown: bool, json: bool) -> None:
    """Show the leaderboard of a folder of several models."""
    from rollbook.cli.model_runs import show_leaderboard
    from rollbook.reports import make_incomplete, make_leaderboard

    board = make_leaderboard(folder, ks, threshold)
    show_leaderboard(board, json, markdown)
    if not board.complete:
        raise make_incomplete(board)


def _select_runs(paths: list[Path]) -> list[Path]:
    """Leave out, by name, what `runs/*` matches besides runs; a path that does not exist is a mistake."""
    stray = [path for path in paths if path.exists() and not (path / "run.json").exists()]
    if len(stray) == len(paths):
        return paths
    for path in stray:
        print(f"{path} is {_describe_path(path)} and not a run: left out", file=sys.stderr)
    return [path for path in paths if path not in stray]


def _describe_path(path: Path) -> str:
    if path.is_file():
        return "a file"
    return "a folder of runs" if any(path.glob("*/run.json")) else "a folder"


def _write_results(data: RunData, report: Report) -> None:
    from rollbook.reports import write_report
    from rollbook.viewer import write_report_page

    try:
        files = write_report(report), write_report_page(data, report)
    except OSError as error:  # a read-only copy has numbers too
        print(f"the numbers and the page were not written to {report.path}: {error.strerror}", file=sys.stderr)
        return
    if report.merged:
        print(f"numbers of several directories together: {files[0]} and {files[1]}", file=sys.stderr)


ProfileOut = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--out",
        metavar="FILE",
        help="A .jsonl, .csv or .parquet file. [default: RUN/profile.jsonl]",
        callback=o.check_path,
    ),
]


def profile_command(
    runs: Runs, out: ProfileOut = None, at: Ks = None, threshold: Threshold = 1.0, prefix: Prefix = ""
) -> None:
    from rollbook.reports import write_profile

    made = write_profile(runs, out, parse_ks(at), threshold, prefix)
    if made.live:
        print("the run is in progress: these are the numbers so far", file=sys.stderr)
    print(f"{made.path}: {made.tasks} tasks, {made.scored}/{made.requested} rollouts scored")


CurateSource = Annotated[
    Path,
    typer.Argument(
        metavar="PROFILE_OR_RUN", help="A profile (.jsonl, .csv, .parquet), or a run directory.", show_default=False
    ),
]
KeepTasks = Annotated[
    str | None, typer.Option("--keep", metavar="EXPR", help='The tasks to keep, such as "0 < mean < 1 and n >= 8".')
]
Sort = Annotated[
    str | None, typer.Option("--sort", metavar="EXPR", help="The order of the tasks; unknown values come last.")
]
Desc = Annotated[bool, typer.Option("--desc", help="Sort the largest first.")]
Bucket = Annotated[
    str | None,
    typer.Option("--bucket", metavar="EXPR:EDGE,...", help="Divide the tasks, as in mean:0,0.25,0.5,0.75,1."),
]
PerBucket = Annotated[
    int | None, typer.Option("--per-bucket", metavar="N", min=0, help="Draw N tasks from each bucket.")
]
CuratedLimit = Annotated[
    int | None, typer.Option("-n", "--limit", metavar="N", min=0, help="Keep only the first N tasks.")
]
NONE_LEFT_EXIT = 3
CuratedOut = Annotated[
    Path, typer.Option("-o", "--out", metavar="FILE", help="A .jsonl file for --data.", callback=o.check_path)
]


def curate_command(
    source: CurateSource,
    out: CuratedOut,
    keep: KeepTasks = None,
    sort: Sort = None,
    desc: Desc = False,
    bucket: Bucket = None,
    per_bucket: PerBucket = None,
    limit: CuratedLimit = None,
    seed: ResamplingSeed = 0,
    at: Ks = None,
    threshold: Threshold = 1.0,
    prefix: Prefix = "",
) -> None:
    from rollbook.reports import write_curated
    from rollbook.stats import CurateOptions

    options = CurateOptions.parse(keep, sort, bucket, descending=desc, per_bucket=per_bucket, limit=limit, seed=seed)
    choice = write_curated(source, out, options, parse_ks(at), threshold, prefix)
    if choice.buckets:
        rows: list[list[Cell]] = [[label, tasks, taken] for label, (tasks, taken) in choice.buckets.items()]
        show_table([f"{bucket}".rpartition(":")[0], "tasks", "taken"], rows)
    outside = f", {choice.outside} outside every bucket" if choice.outside else ""
    counts = f"{len(choice.lines)} of {choice.rows} tasks ({choice.matched} kept{outside})"
    if not choice.lines:
        print(f"rollbook: {counts}: nothing to write, {out} was left as it was", file=sys.stderr)
        raise typer.Exit(NONE_LEFT_EXIT)
    print(f"{out}: {counts}")


RunA = Annotated[
    Path, typer.Argument(metavar="A", help="The run directory that the others are compared with.", show_default=False)
]
RunsB = Annotated[
    list[Path], typer.Argument(metavar="B...", help="One or more other runs of the same tasks.", show_default=False)
]
Common = Annotated[bool, typer.Option("--common", help="Where the tasks differ, compare those that both have.")]
MAX_FLIPPED_SHOWN = 10


def compare_command(
    a: RunA,
    b: RunsB,
    common: Common = False,
    at: Ks = None,
    threshold: Threshold = 1.0,
    seed: ResamplingSeed = 0,
    json: o.Json = False,
) -> None:
    from rollbook.reports import check_measures, compare_runs

    ks, least = check_measures(parse_ks(at), threshold)
    labels = ["B"] * len(b) if json else [_label_run(number) for number in range(1, len(b) + 1)]
    made = [
        compare_runs(a, each, common=common, ks=ks, threshold=least, seed=seed, label=label)
        for each, label in zip(b, labels, strict=True)
    ]
    if json:
        show_json(made[0].json() if len(made) == 1 else [each.json() for each in made])
        return
    if len(made) > 1:
        _show_overview(made)
    for comparison, label in zip(made, labels, strict=True):
        print(end="\n" if len(made) > 1 else "")
        _show_comparison(comparison, label)


def _label_run(number: int) -> str:
    """Return the letter of a run, counted from 0; with many runs a number follows the last letter."""
    return chr(ord("A") + number) if number < 26 else f"Z{number - 24}"


def _show_overview(made: list[RunComparison]) -> None:
    """Print one row for each run: its numbers, the difference from A in brackets, and the permutation test's p.

    With --common each pair has its own tasks, so that a number of A can differ between pairs; it is left out then.
    """
    metrics = [each.comparison.metrics for each in made]
    names = [name for name in metrics[0] if all(name in each for each in metrics)]
    values = {name: {each[name].a for each in metrics} for name in names}
    first: list[Cell] = [values[name].pop() if len(values[name]) == 1 else None for name in names]
    rows: list[list[Cell]] = [["A", made[0].a.path, *first, None]]
    for number, each in enumerate(made, 1):
        cells = [_format_change(each.comparison.metrics[name]) for name in names]
        rows.append(
            [_label_run(number), each.b.path, *cells, _format_p(each.comparison.permutation_p).removeprefix("= ")]
        )
    show_table(["", "run", *names, "p"], rows)


def _format_change(each: Difference) -> str:
    change = "" if each.difference is None else f" ({each.difference:+.3f})"
    return f"{format_cell(each.b)}{change}"


def _show_comparison(runs: RunComparison, label: str) -> None:
    comparison = runs.comparison
    lines = [_describe_run("A", runs.a), _describe_run(label, runs.b), *runs.notes]
    print("\n".join(map(strip_control_characters, lines)))
    columns = ["A", label, f"{label} - A", "95%", "tasks"]
    show_table(["number", *columns], [_make_difference_row(name, each) for name, each in comparison.metrics.items()])
    show_table(["a rollout", *columns], [_make_difference_row(name, each) for name, each in comparison.costs.items()])
    better, worse = comparison.better, comparison.worse
    print(f"better on {better} tasks, worse on {worse}, even on {comparison.tasks - better - worse}")
    how = f" ({comparison.permutations:,} drawn)" if comparison.permutations else ""
    print(f"permutation test p {_format_p(comparison.permutation_p)}{how}, sign test p {_format_p(comparison.sign_p)}")
    _show_flipped(f"solved only by {label}", comparison.gained)
    _show_flipped("solved only by A", comparison.lost)


def _describe_run(side: str, run: ComparedRun) -> str:
    return f"{side}: {run.path}: {describe_model(run.model, run.scripted)}: {run.scored}/{run.requested} scored"


def _make_difference_row(name: str, each: Difference) -> list[Cell]:
    bounds = " to ".join(map(format_cell, each.interval)) if each.interval else "-"
    return [name, each.a, each.b, each.difference, bounds, each.tasks]


def _format_p(value: float | None) -> str:
    from rollbook.reports import format_p

    text = format_p(value)
    return text if text.startswith("<") else f"= {text}"


def _show_flipped(label: str, tasks: list[str]) -> None:
    more = f" and {len(tasks) - MAX_FLIPPED_SHOWN} more (all: --json)" if len(tasks) > MAX_FLIPPED_SHOWN else ""
    shown = ", ".join(map(strip_control_characters, tasks[:MAX_FLIPPED_SHOWN]))
    print(f"{label}: {len(tasks)}{': ' if tasks else ''}{shown}{more}")


RunOrFolder = Annotated[Path, typer.Argument(metavar="RUN|FOLDER", help="A run, or a folder of runs.")]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Print the address without opening a browser.")]
Tokenizer = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer", metavar="FILE", help="The tokenizer.json of the model, to show the text of its tokens."
    ),
]
ExportFile = Annotated[
    Path | None,
    typer.Option("-o", "--out", metavar="FILE.html", help="Write the run to one file instead.", callback=o.check_path),
]


DEFAULT_FOLDER = Path("runs")


def view_command(
    where: RunOrFolder = DEFAULT_FOLDER,
    port: o.Port = 0,
    no_browser: NoBrowser = False,
    tokenizer: Tokenizer = None,
    out: ExportFile = None,
) -> None:
    from rollbook.viewer import RunFolder, Vocabulary

    if where == DEFAULT_FOLDER and not where.exists():
        raise UsageError(
            "runs/, which is shown by default, does not exist here yet; make a run with "
            "`rollbook run gsm8k -n 20`, or name another folder"
        )
    folder = RunFolder(where)
    vocabulary = None if tokenizer is None else Vocabulary(tokenizer)
    if out is not None:
        from rollbook.viewer import export_run

        print(export_run(folder, out, vocabulary))
        return
    from rollbook.viewer import RunCache, view

    view(RunCache(folder, vocabulary), port, lambda address: _announce_address(address, not no_browser))


def _announce_address(address: str, show: bool) -> None:
    print(address, flush=True)
    print("the address works on this machine until the viewer stops; Ctrl-C stops it", file=sys.stderr, flush=True)
    if show:
        webbrowser.open(address)


ExportFormat = Annotated[
    str, typer.Option("--format", metavar="jsonl|parquet|csv|gym|sft", help="The format of the rows.")
]
KeepRollouts = Annotated[
    str | None,
    typer.Option(
        "--keep",
        metavar="EXPR",
        help='The rollouts to export, such as "reward >= 1 and turns < 9". [default: all that are scored; with sft '
        '"reward >= 1"]',
    ),
]
ExportOut = Annotated[
    Path | None,
    typer.Option("-o", "--out", metavar="FILE", help="The file, which must be new.", callback=o.check_path),
]
ExportTo = Annotated[
    str | None,
    typer.Option(
        "--to", metavar="hf://ORG/NAME", help="Upload Parquet files and a dataset card to the Hugging Face Hub instead."
    ),
]
License = Annotated[
    str | None, typer.Option("--license", metavar="ID", help="The license on the dataset card. [default: unknown]")
]


def export_command(
    run: o.Run,
    out: ExportOut = None,
    format: ExportFormat = "jsonl",
    keep: KeepRollouts = None,
    to: ExportTo = None,
    license: License = None,
) -> None:
    from rollbook.commands import export
    from rollbook.reports import PASSING_FILTER

    made = export(run, out, format=format, keep=keep, to=to, license=license)
    counts = made.counts
    reasons = ((counts.unscored, "without a score"), (counts.filtered, f"not kept by {keep or PASSING_FILTER!r}"))
    left = ", ".join(f"{count} {why}" for count, why in reasons if count)
    print(f"{counts.written} rollouts: {made.place}{f' (not exported: {left})' if left else ''}", file=sys.stderr)


CollectedFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="The rollouts that `gym eval run` wrote; inputs and failures are read from the same folder.",
        show_default=False,
    ),
]


def import_command(file: CollectedFile, out: o.Out = None, json: o.Json = False) -> None:
    from rollbook.engine import claim_run_folder
    from rollbook.gym.client import import_gym
    from rollbook.processes import run_event_loop
    from rollbook.reports import make_shortfall

    folder = out or str(claim_run_folder(file.stem))
    report = run_event_loop(lambda: import_gym(file, folder, lambda note: print(note, file=sys.stderr)))
    show_reports([report], json, False)
    if report.scored < report.requested:
        raise make_shortfall(report)
