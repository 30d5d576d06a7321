"""Folders of several models: `run --each`, `resume`, `extend`, `status` and `remove`, and their leaderboard."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import msgspec
import typer

from rollbook.book import Book, RunStatus, is_reported_by_field, read_exact_status, read_status
from rollbook.cli.config_files import LISTED_MODELS
from rollbook.cli.options import print_note
from rollbook.cli.report_tables import Cell, format_markdown, show_json, show_table, strip_control_characters
from rollbook.cli.run_display import make_display, observe
from rollbook.core import JSON, StartOptions
from rollbook.engine import (
    ModelRun,
    Request,
    extend_models,
    finish_models,
    join_folder,
    list_changes,
    name_models,
    read_models,
    remove_models,
    run_model,
    select_models,
    work_through,
    write_models,
)
from rollbook.errors import RollbookError, Stopped, UsageError
from rollbook.reports import NOT_STARTED, Leaderboard, read_model_names


def run_each_model(
    context: typer.Context, out: str, make: Callable[[dict[str, Any]], Request], start: StartOptions, as_json: bool
) -> None:
    """Run the models of a command line or of its file one after another, then show the leaderboard."""
    folder = Path(out)
    targets = list_targets(context)
    requests = [make({**context.params, "out": out, **each}) for each in (dict(each) for _, each in targets)]
    runs = name_models(folder, requests, [name for name, _ in targets])
    every, changes = join_folder(folder, runs), list_changes(folder, runs)
    runs = select_models(every, runs)
    write_models(folder, every)
    _work(folder, runs, changes, None, start, as_json)


def list_targets(context: typer.Context) -> list[tuple[str, dict[str, Any]]]:
    """Return the models of a command by name, which may be empty, each with the options that are its own."""
    listed: list[tuple[str, dict[str, Any]]] | None = context.meta.get(LISTED_MODELS)
    models = context.params["model"] or []
    if listed is not None:
        if models:
            raise UsageError(f"-m {models[0]}: the file of --config has `models`; give one of them")
        return listed
    if len(models) < 2:
        raise UsageError("--each: name at least two models, as in -m openai/a -m openai/b")
    if context.params["model_name"]:
        way = "a file of --config can give every model its own (docs: leaderboard)"
        raise UsageError(f"--model-name {context.params['model_name']}: --each runs several models; {way}")
    return [("", {"model": [model]}) for model in models]


def resume_each_model(
    folder: Path,
    settings: dict[str, JSON],
    retry: list[str] | None,
    place: Mapping[str, Any],
    start: StartOptions,
    as_json: bool,
) -> None:
    """Finish what the models of a folder are missing, then show the leaderboard."""
    _check_common(folder, settings, place)
    runs = read_models(folder)
    _work(folder, runs, {each.name: settings for each in runs}, retry, start, as_json)


def extend_each_model(
    folder: Path,
    samples: int,
    settings: dict[str, JSON],
    place: Mapping[str, Any],
    start: StartOptions,
    as_json: bool,
) -> None:
    """Add samples to every model of a folder, then show the leaderboard."""
    _check_common(folder, settings, place)
    runs = extend_models(folder, samples)
    _work(folder, runs, {each.name: settings for each in runs}, None, start, as_json)


def _check_common(folder: Path, settings: dict[str, JSON], place: Mapping[str, Any]) -> None:
    """Refuse options that cannot be for all models of a folder."""
    if place.get("on") not in (None, "local") or place.get("cluster") is not None:
        raise UsageError(f"{folder}: the runs of --each are continued on this machine; leave the cluster out")
    if settings.get("urls") or settings.get("base_urls"):
        raise UsageError(f"-m: {folder} has several models; resume one of its runs to change its address")


def show_folder_status(folder: Path, exact: bool, as_json: bool) -> None:
    """Print the counts of every model of a folder."""
    found = {name: _read_counts(folder / name, exact) for name in read_model_names(folder)}
    if as_json:
        show_json({"path": str(folder), "models": {name: msgspec.to_builtins(each) for name, each in found.items()}})
        return
    print(strip_control_characters(str(folder)))
    columns = ["model", "state", "requested", "scored", "failed", "pending", "in flight"]
    show_table(columns, [_list_counts(name, each) for name, each in found.items()])


def _read_counts(run: Path, exact: bool) -> RunStatus | None:
    if not (run / "run.json").exists():
        return None
    return read_exact_status(run) if exact or is_reported_by_field(Book(run)) else read_status(run)


def _list_counts(name: str, status: RunStatus | None) -> list[Cell]:
    if status is None:
        return [name, NOT_STARTED, None, None, None, None, None]
    failed = sum(status.failed.values())
    return [name, status.state, status.requested, status.scored, failed, status.pending, status.in_flight]


ModelFolder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="A folder that run --each has made.", show_default=False)
]
ModelNames = Annotated[
    list[str],
    typer.Argument(metavar="MODEL...", help="Models by the names of their run directories.", show_default=False),
]
Delete = Annotated[bool, typer.Option("--delete", help="Delete their run directories too.")]


def remove_command(folder: ModelFolder, models: ModelNames, delete: Delete = False) -> None:
    remove_models(folder, models, delete=delete)
    left = ", ".join(read_model_names(folder))
    kept = "deleted" if delete else "its run directory is kept"
    for name in models:
        print(f"removed {name} from {folder}; {kept}")
    print_note(f"left: {left}")


def _work(
    folder: Path,
    runs: Sequence[ModelRun],
    changes: Mapping[str, dict[str, JSON]],
    retry: list[str] | None,
    start: StartOptions,
    as_json: bool,
) -> None:
    def work(each: ModelRun) -> None:
        print_note(f"model {runs.index(each) + 1} of {len(runs)}: {each.name}")
        display = observe(make_display(), each.path, start.log)
        try:
            result = run_model(each, changes.get(each.name, {}), retry, display, start)
        except RollbookError as error:
            display.note(f"{each.name}: {error}")
            raise
        finally:
            display.stop()
        print_note(f"{each.name}: {result.report.scored}/{result.report.requested} scored")

    try:
        problems = work_through(runs, work)
    except (Stopped, KeyboardInterrupt) as stop:
        why = str(stop).partition(": rollbook resume")[0] or "interrupted"
        raise Stopped(f"{why}; the models that are finished are kept: rollbook resume {quote(str(folder))}") from None
    board, error = finish_models(folder, problems)
    show_leaderboard(board, as_json, False)
    print_note(f"look at it: rollbook view {quote(str(folder))}")
    if error is not None:
        raise error


def show_leaderboard(board: Leaderboard, as_json: bool, as_markdown: bool) -> None:
    """Print a leaderboard, for people or for programs."""
    if as_json:
        show_json(board.json())
        return
    lines = list(map(strip_control_characters, board.describe()))
    columns = board.list_columns()
    rows: list[list[Cell]] = [list(row) for row in board.list_cells()]
    if as_markdown:
        print("\n\n".join(["  \n".join(lines), format_markdown(columns, rows)]))
        return
    print("\n".join(lines))
    show_table(columns, rows)
