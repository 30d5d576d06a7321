"""Compare two runs on disk: the same environment, and the same tasks or an agreed intersection."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from rollbook.book import Book
from rollbook.core import JSON, JSON_ERRORS, EnvironmentSpec, encode
from rollbook.errors import BookError, UsageError
from rollbook.reports.report import RunData
from rollbook.reports.run_tables import import_arrow, make_html_table, make_pandas_frame, make_polars_frame
from rollbook.stats import PASS_THRESHOLD, Comparison, Difference, Ints, PairedRun, compare_columns

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


class ComparedRun(msgspec.Struct, frozen=True):
    """One of the two runs: what it is and how complete."""

    run: str
    path: str
    model: str
    scripted: bool
    requested: int
    scored: int
    live: bool


COMPARISON_COLUMNS = ("number", "a", "b", "difference", "low", "high", "tasks")


class RunComparison(msgspec.Struct, frozen=True):
    """Two runs and their comparison. `notes` lists what a reader has to take into account.

    Its table has a row for each number, those of the scores first, then those of a rollout's tokens and time:
    `number a b difference low high tasks`, where `low` and `high` bound the paired 95% interval of the difference.
    """

    a: ComparedRun
    b: ComparedRun
    notes: list[str]
    comparison: Comparison

    def rows(self) -> list[dict[str, str | float | int | None]]:
        """Return the rows of the table."""
        numbers = {**self.comparison.metrics, **self.comparison.costs}
        return [_make_row(name, each) for name, each in numbers.items()]

    def to_polars(self) -> polars.DataFrame:
        """Return the table as a Polars data frame."""
        return make_polars_frame(self._make_table)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the table as a pandas data frame."""
        return make_pandas_frame(self._make_table)

    def _make_table(self) -> pyarrow.Table:
        arrow = import_arrow()
        kinds = {"number": arrow.string(), "tasks": arrow.int64()}
        schema = arrow.schema({name: kinds.get(name, arrow.float64()) for name in COMPARISON_COLUMNS})
        table: pyarrow.Table = arrow.Table.from_pylist(self.rows(), schema)
        return table

    def __repr__(self) -> str:
        table = [COMPARISON_COLUMNS, *(tuple(map(_format_cell, row.values())) for row in self.rows())]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ("  ".join(map(str.rjust, row, widths)) for row in table)
        return "\n".join([*self._describe(), *lines])

    def _repr_html_(self) -> str:
        cells = [[_format_cell(cell) for cell in row.values()] for row in self.rows()]
        return make_html_table(self._describe(), COMPARISON_COLUMNS, cells)

    def _describe(self) -> list[str]:
        sides = [f"{name}: {run.path}: {run.model}" for name, run in (("a", self.a), ("b", self.b))]
        p = self.comparison.permutation_p
        tested = "" if p is None else f", permutation test p = {p:.4f}"
        counts = f"b is better on {self.comparison.better} tasks, worse on {self.comparison.worse}{tested}"
        return [*sides, *self.notes, counts]

    def json(self) -> dict[str, JSON]:
        """Return the comparison as plain JSON."""
        plain: dict[str, JSON] = msgspec.to_builtins(self)
        return plain


def _make_row(name: str, each: Difference) -> dict[str, str | float | int | None]:
    low, high = each.interval or (None, None)
    return dict(zip(COMPARISON_COLUMNS, (name, each.a, each.b, each.difference, low, high, each.tasks), strict=True))


def _format_cell(cell: str | float | int | None) -> str:
    if cell is None:
        return "-"
    return f"{cell:.3f}" if isinstance(cell, float) else str(cell)


class TaskPairing(msgspec.Struct, frozen=True):
    """The tasks that two books share, by id and content. `pairs` maps a row to the number of its pair, or -1."""

    names: list[str]
    pairs: tuple[Ints, Ints]
    only_a: list[str]
    only_b: list[str]
    changed: list[str]
    label: str = "B"

    def groups(self, a: RunData) -> Ints | None:
        """The environment of every pair, where there are several."""
        if a.groups is None:
            return None
        held = np.zeros(len(self.names), np.int64)
        rows = np.flatnonzero(self.pairs[0] >= 0)
        held[self.pairs[0][rows]] = a.groups[rows]
        return held

    @property
    def differs(self) -> str:
        """Describe how the task sets differ; empty if they do not."""
        said = [
            f"{len(ids)} {words} (first: {ids[0]})"
            for ids, words in (
                (self.only_a, "only in A"),
                (self.only_b, f"only in {self.label}"),
                (self.changed, "with the same id but another prompt or answer"),
            )
            if ids
        ]
        return ", ".join(said)


def compare_runs(
    a: str | Path,
    b: str | Path,
    *,
    common: bool = False,
    ks: Sequence[int] | None = None,
    threshold: float = PASS_THRESHOLD,
    seed: int = 0,
    label: str = "B",
) -> RunComparison:
    """Compare two runs; raise a UsageError where that has no meaning. `common`: use the tasks that both have.

    `label` is what notes call the second run.
    """
    books = Book(a), Book(b)
    for book in books:
        book.check_tasks()
    pairing, notes = check_and_pair(*books, common=common, label=label)
    return compare_run_data(RunData([a]), RunData([b]), pairing, notes, ks, threshold, seed)


def check_and_pair(a: Book, b: Book, *, common: bool, label: str = "B") -> tuple[TaskPairing, list[str]]:
    """Return the tasks of two books that are compared, and notes about the others."""
    differing = check_environments(a, b, label)
    pairing = msgspec.structs.replace(pair_tasks(a, b), label=label)
    notes: list[str] = []
    if pairing.differs:
        shared = f"{len(pairing.names)} in common"
        if not common or not pairing.names:
            way = "; compare those with --common" if pairing.names else ""
            raise UsageError(f"{a.path} and {b.path} do not have the same tasks: {pairing.differs}; {shared}{way}")
        notes.append(f"task sets differ: {pairing.differs}; {shared} compared")
    return pairing, notes + differing


def compare_run_data(
    one: RunData,
    two: RunData,
    pairing: TaskPairing,
    notes: Sequence[str],
    ks: Sequence[int] | None = None,
    threshold: float = PASS_THRESHOLD,
    seed: int = 0,
) -> RunComparison:
    """Compare two runs whose data was read."""
    notes = list(notes)
    groups = pairing.groups(one)
    left, right = (PairedRun(read.scored.columns, p, groups) for read, p in zip((one, two), pairing.pairs, strict=True))
    made = compare_columns(left, right, pairing.names, ks, threshold, seed)
    if made.tasks < len(pairing.names):
        notes.append(f"{len(pairing.names) - made.tasks} tasks without a score in A or in {pairing.label} left out")
    for side, read in (("A", one), (pairing.label, two)):
        notes += [f"{side} is still running"] if read.live else []
        notes += [f"{side} holds scores of two verifiers"] if read.book.manifest.mixed else []
    if threshold != PASS_THRESHOLD:
        notes.append(f"a rollout passes with a reward of at least {threshold:g}")
    return RunComparison(describe_run(one), describe_run(two), notes, made)


def describe_run(run: RunData) -> ComparedRun:
    """Return what a run is and how complete."""
    manifest = run.book.manifest
    requested, scored = int(run.requested.sum()), len(run.scored.columns)
    scripted = manifest.model.kind == "scripted"
    return ComparedRun(manifest.run, str(run.book.path), manifest.model.name, scripted, requested, scored, run.live)


def check_environments(a: Book, b: Book, label: str = "B") -> list[str]:
    """Refuse environments of different names; note where source, arguments or judge are not the same in both."""
    one, two = a.manifest.environments, b.manifest.environments
    if set(one) != set(two):
        words = " and ".join(f"{book.path} is of {', '.join(sorted(book.manifest.environments))}" for book in (a, b))
        raise UsageError(f"different environments cannot be compared: {words}")
    if a.manifest.run == b.manifest.run:
        return [f"A and {label} are of the same run: they differ only in what each directory holds"]
    differ = {name: how for name in one if (how := _environment_difference(name, one[name], two[name]))}
    judges = [book.manifest.judge.name if book.manifest.judge else "no judge" for book in (a, b)]
    judged = [f"A has {judges[0]}, {label} {judges[1]}"] if a.manifest.judge != b.manifest.judge else []
    for role in sorted({*a.manifest.roles, *b.manifest.roles}):
        specs = [book.manifest.roles.get(role) for book in (a, b)]
        if specs[0] != specs[1]:
            names = [spec.model.name if spec else "no model" for spec in specs]
            judged.append(f"in the role {role} A has {names[0]}, {label} {names[1]}")
    if again := _rescored_note(a, b, label):
        return [f"{again}{_verifier_note(name, a, b, differ)}" for name in one] + judged
    return [f"the {how}" for how in differ.values()] + judged


def _verifier_note(name: str, a: Book, b: Book, differ: dict[str, str]) -> str:
    """Return which verifier scored a run again; empty where a run has scores of two verifiers."""
    if name in differ:
        return f": the verifier of {name} differs (the {differ[name]})"
    mixed = a.manifest.mixed or b.manifest.mixed or a.manifest.judge != b.manifest.judge
    return "" if mixed else ": by the same verifier"


def _environment_difference(name: str, one: EnvironmentSpec, two: EnvironmentSpec) -> str:
    """Return how two environments of one name differ; empty if they do not."""
    said = []
    if (one.target, one.digest) != (two.target, two.digest):
        moved = "" if one.target == two.target else f" ({one.target} and {two.target})"
        said.append(f"source of {name} is not the same in both{moved}")
    pairs = {key: (_show_argument(one, key), _show_argument(two, key)) for key in sorted({*one.args, *two.args})}
    if changed := [f"{key}: {left} and {right}" for key, (left, right) in pairs.items() if left != right]:
        words = ", ".join(changed)
        said.append(f"arguments of {name} are not the same in both ({words})")
    return ", the ".join(said)


def _show_argument(spec: EnvironmentSpec, key: str) -> str:
    return encode(spec.args[key]).decode() if key in spec.args else "not given"


def _rescored_note(a: Book, b: Book, label: str) -> str:
    """Return a note if one run is the other with its rollouts scored again."""
    if b.manifest.parent == a.manifest.run:
        return f"{label} is A scored again"
    return f"A is {label} scored again" if a.manifest.parent == b.manifest.run else ""


def pair_tasks(a: Book, b: Book) -> TaskPairing:
    """Match tasks by id; one with another prompt or another answer is not the same task."""
    one, two = a.tasks.rows, b.tasks.rows
    shared = [task for task in one if task in two]
    try:
        changed = [
            task for task in shared if not _is_same_task(a.tasks.read_raw(one[task]), b.tasks.read_raw(two[task]))
        ]
    except JSON_ERRORS as error:
        raise BookError(f"{a.path} and {b.path}: a line of tasks.jsonl is not a task: {error}") from None
    names = [task for task in shared if task not in set(changed)] if changed else shared
    pairs = np.full(len(a.tasks), -1), np.full(len(b.tasks), -1)
    for number, task in enumerate(names):
        pairs[0][one[task]] = pairs[1][two[task]] = number
    return TaskPairing(names, pairs, [t for t in one if t not in two], [t for t in two if t not in one], changed)


class _TaskContent(msgspec.Struct):
    """The fields that identify a task. Others may differ: a profile adds some."""

    env: str
    messages: JSON
    answer: JSON = None


_content_decoder = msgspec.json.Decoder(_TaskContent)


def _is_same_task(a: bytes, b: bytes) -> bool:
    return a == b or _content_decoder.decode(a) == _content_decoder.decode(b)
