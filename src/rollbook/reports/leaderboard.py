"""Several models on the same tasks: one row each, the best first, with the paired differences from the best.

The runs are in one folder, whose models.json lists them in the order in which they were given.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from rollbook.book import write_atomically
from rollbook.core import JSON, JSON_ERRORS, encode_pretty, format_cost
from rollbook.errors import BookError, LeaderboardIncomplete, RollbookError, UsageError
from rollbook.reports.compare import check_and_pair, compare_run_data
from rollbook.reports.report import Report, RunData, build_report
from rollbook.reports.run_tables import make_html_table
from rollbook.stats import PASS_THRESHOLD, Difference, Interval

MODELS_FILE = "models.json"
LEADERBOARD_FILE = "leaderboard.json"
NOT_STARTED = "not started"


class LeaderboardRow(msgspec.Struct, frozen=True, kw_only=True):
    """One model. Numbers are over its scored rollouts; tokens are totals of them, and `cost` is of all attempts.

    `differences` are this model's numbers less those of the reference, over the tasks that both have scored, with
    paired 95% intervals; `p` is of the permutation test of the mean. `problem` says why it has no run.
    """

    name: str
    path: str
    model: str = ""
    scripted: bool = False
    live: bool = False
    requested: int = 0
    scored: int = 0
    failed: dict[str, int] = {}
    pending: int = 0
    mean: float | None = None
    mean_interval: Interval | None = None
    pass_rate: float | None = None
    pass_interval: Interval | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None
    differences: dict[str, Difference] = {}
    p: float | None = None
    problem: str = ""

    @property
    def complete(self) -> bool:
        """Whether every requested rollout has a score."""
        return 0 < self.requested == self.scored

    @property
    def difference(self) -> Difference | None:
        """The difference of the mean reward from that of the reference; None for the reference itself."""
        return self.differences.get("mean")


class Leaderboard(msgspec.Struct, frozen=True):
    """The models of a folder, by mean reward, the highest first; those without a score are last.

    `reference` is the row that the others are compared with: the best of the complete ones, else the best.
    """

    path: str
    threshold: float
    reference: str
    rows: list[LeaderboardRow]
    notes: list[str]

    @property
    def complete(self) -> bool:
        """Whether every model has a score for every rollout."""
        return all(row.complete for row in self.rows)

    def json(self) -> dict[str, JSON]:
        """Return the leaderboard as plain JSON."""
        plain: dict[str, JSON] = msgspec.to_builtins(self)
        return plain

    def list_columns(self) -> list[str]:
        """Return the names of the columns; the mean is left out where it is pass@1, and the cost without a price."""
        mean = ["mean", "95%"] if self._is_graded else []
        cost = ["cost"] if any(row.cost is not None for row in self.rows) else []
        return ["model", "run", "scored", *mean, "pass@1", "95%", "difference", "95%", "p", "tokens", *cost, "failed"]

    def list_cells(self) -> list[list[str | int | float | None]]:
        """Return the rows of the table, a cell for each column."""
        columns = self.list_columns()
        return [self._make_cells(row, columns) for row in self.rows]

    def _make_cells(self, row: LeaderboardRow, columns: Sequence[str]) -> list[str | int | float | None]:
        each = row.difference
        mean = [row.mean, format_bounds(row.mean_interval)] if "mean" in columns else []
        cost = [None if row.cost is None else format_cost(row.cost)] if "cost" in columns else []
        return [
            row.model or None,
            row.name,
            f"{row.scored}/{row.requested}",
            *mean,
            row.pass_rate,
            format_bounds(row.pass_interval),
            None if each is None or each.difference is None else f"{each.difference:+.3f}",
            format_bounds(each.interval if each else None),
            format_p(row.p),
            row.prompt_tokens + row.completion_tokens,
            *cost,
            sum(row.failed.values()),
        ]

    @property
    def _is_graded(self) -> bool:
        return any(row.mean != row.pass_rate for row in self.rows)

    def describe(self) -> list[str]:
        """Return the lines above the table."""
        against = f"differences are from {self.reference}, paired by task; p by permutation test"
        return [self.path, *([against] if len(self.rows) > 1 and self.reference else []), *self.notes]

    def __repr__(self) -> str:
        table = [self.list_columns(), *([_format_cell(cell) for cell in row] for row in self.list_cells())]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in table)
        return "\n".join([*self.describe(), *lines])

    def _repr_html_(self) -> str:
        cells = [[_format_cell(cell) for cell in row] for row in self.list_cells()]
        return make_html_table(self.describe(), self.list_columns(), cells)


def _format_cell(cell: str | float | int | None) -> str:
    if cell is None:
        return "-"
    return f"{cell:.3f}" if isinstance(cell, float) else str(cell)


def format_bounds(bounds: Interval | None) -> str:
    """Return an interval as text.

    >>> format_bounds((0.25, 0.5)), format_bounds(None)
    ('0.250 to 0.500', '-')
    """
    return "-" if bounds is None else " to ".join(f"{bound:.3f}" for bound in bounds)


def format_p(value: float | None) -> str:
    """Return a p value as text; a very small one as a bound.

    >>> format_p(0.04123), format_p(0.00001), format_p(None)
    ('0.0412', '< 0.0001', '-')
    """
    if value is None:
        return "-"
    return f"{value:.4f}" if value >= 0.0001 else "< 0.0001"


class _ListedModel(msgspec.Struct, frozen=True):
    name: str


class _ModelList(msgspec.Struct, frozen=True):
    models: list[_ListedModel]


def is_model_folder(path: str | Path) -> bool:
    """Return whether a folder holds the runs of several models."""
    return (Path(path) / MODELS_FILE).is_file()


def read_model_names(folder: str | Path) -> list[str]:
    """Return the folders of the models' runs, in the order in which the models were given."""
    path = Path(folder) / MODELS_FILE
    try:
        names = [each.name for each in msgspec.json.decode(path.read_bytes(), type=_ModelList).models]
    except JSON_ERRORS as error:
        raise BookError(f"{path}: not a list of models: {error}") from None
    if any(name != Path(name).name or name.startswith(".") for name in names):  # nothing outside the folder is opened
        raise BookError(f"{path}: a name in it is not that of a folder next to it")
    return names


def make_leaderboard(
    folder: str | Path,
    ks: Sequence[int] | None = None,
    threshold: float = PASS_THRESHOLD,
    seed: int = 0,
    *,
    problems: dict[str, str] | None = None,
    write: bool = True,
) -> Leaderboard:
    """Compute the leaderboard of a folder; `write` stores it as leaderboard.json.

    `problems` says for models without a run what went wrong.
    """
    folder, runs = Path(folder), {}
    missing = dict(problems or {})
    for name in read_model_names(folder):
        if (folder / name / "run.json").exists():
            runs[name] = RunData([folder / name])
            missing.pop(name, None)
        else:
            missing.setdefault(name, NOT_STARTED)
    made = rank_models(folder, runs, missing, ks, threshold, seed)
    if write:
        write_atomically(folder / LEADERBOARD_FILE, encode_pretty(made.json()))
    return made


def rank_models(
    folder: Path,
    runs: dict[str, RunData],
    missing: dict[str, str],
    ks: Sequence[int] | None = None,
    threshold: float = PASS_THRESHOLD,
    seed: int = 0,
) -> Leaderboard:
    """Return the leaderboard of runs whose data was read, and of models without a run, each with its problem."""
    reports = {name: build_report(run, ks, threshold, forks=False) for name, run in runs.items()}
    rows = [_make_row(name, report) for name, report in reports.items()]
    rows.sort(key=lambda row: (row.mean is None, -(row.mean or 0.0)))
    scored = [row for row in rows if row.mean is not None]
    reference = next((row.name for row in scored if row.complete), scored[0].name if scored else "")
    notes: list[str] = []
    compared = [_compare_row(row, reference, runs, notes, ks, threshold, seed) for row in rows]
    compared += [LeaderboardRow(name=name, path=str(folder / name), problem=why) for name, why in missing.items()]
    notes += [f"{name} has no results: {why}" for name, why in missing.items()]
    partial = [row.name for row in compared if 0 < row.scored < row.requested]
    scripted = [row.name for row in compared if row.scripted]
    if scripted:
        notes.append(f"scripted answers, no model: {', '.join(scripted)}")
    if partial:
        notes.append(f"not all scored: {', '.join(partial)}; differences are over the tasks that both have scored")
    if threshold != PASS_THRESHOLD:
        notes.append(f"a rollout passes with a reward of at least {threshold:g}")
    return Leaderboard(str(folder), threshold, reference, compared, notes)


def _make_row(name: str, report: Report) -> LeaderboardRow:
    overall = report.overall
    return LeaderboardRow(
        name=name,
        path=report.path,
        model=report.model,
        scripted=report.scripted,
        live=report.live,
        requested=report.requested,
        scored=report.scored,
        failed=report.failed,
        pending=report.pending,
        mean=overall.mean,
        mean_interval=overall.mean_interval,
        pass_rate=overall.pass_at.get(1),
        pass_interval=overall.pass_interval,
        prompt_tokens=overall.prompt_tokens,
        completion_tokens=overall.completion_tokens,
        cost=report.cost,
    )


def _compare_row(
    row: LeaderboardRow,
    reference: str,
    runs: dict[str, RunData],
    notes: list[str],
    ks: Sequence[int] | None,
    threshold: float,
    seed: int,
) -> LeaderboardRow:
    """Return a row with its differences from the reference; what a reader has to know is added to `notes`."""
    if row.name == reference or row.mean is None:
        return row
    one, two = runs[reference], runs[row.name]
    try:
        pairing, about = check_and_pair(one.book, two.book, common=True, label=row.name)
    except UsageError as error:
        notes.append(f"{row.name} is not compared: {error}")
        return row
    made = compare_run_data(one, two, pairing, [], ks, threshold, seed).comparison
    notes += [f"{row.name}: {note}" for note in about]
    return msgspec.structs.replace(row, differences=made.metrics, p=made.permutation_p)


def make_incomplete(board: Leaderboard, problems: dict[str, RollbookError] | None = None) -> LeaderboardIncomplete:
    """Return the error for a leaderboard with missing scores: one line that says which models, and why."""
    found = problems or {}
    left = [row for row in board.rows if not row.complete or row.name in found]
    reasons = [f"{row.name}: {found.get(row.name) or _describe_missing(row)}" for row in left]
    done = f"{len(board.rows) - len(left)} of {len(board.rows)} models are complete"
    return LeaderboardIncomplete(f"{done}; {'; '.join(reasons)}; try again: rollbook resume {board.path}", board)


def _describe_missing(row: LeaderboardRow) -> str:
    return row.problem or f"{row.scored} of {row.requested} rollouts were scored"
