"""A run in Python: its report, tasks, rollouts, groups and failures, its tables and its plot.

Rollouts, groups and failures are read from the files while they are iterated; nothing is kept in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from html import escape
from itertools import tee
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from rollbook.book import Book, FinalFailures, LineIndex, iterate_parts, rollouts
from rollbook.core import Failure, Group, Rollout, Task
from rollbook.errors import UsageError
from rollbook.reports.report import Report, RunData, build_report
from rollbook.reports.run_tables import (
    ReadState,
    TableName,
    describe_state,
    make_pandas_frame,
    make_polars_frame,
    make_table,
)

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow
    from matplotlib.figure import Figure


def load(path: str | PathLike[str]) -> Run:
    """Return a run directory as an object: its numbers, its rollouts, and tables of them.

    What was read once is not read again: load a run that is still working again for newer numbers.
    """
    if not isinstance(path, str | PathLike):
        raise UsageError(f"load({path!r}): give the path of a run directory, or what run returned")
    return Run(Path(path))


class Run:
    """A run directory, finished or not."""

    def __init__(self, path: str | Path) -> None:
        self.book = Book(path)
        self.path = self.book.path

    def __fspath__(self) -> str:
        return str(self.path)

    @cached_property
    def _read(self) -> ReadState:
        return ReadState(describe_state(self.book), RunData([self.path]))

    @property
    def _data(self) -> RunData:
        return self._read.data

    @cached_property
    def report(self) -> Report:
        """The numbers of the run, as `rollbook report` shows them."""
        return build_report(self._data)

    @property
    def model(self) -> str:
        """The name of the model."""
        return self.book.manifest.model.name

    def tasks(self) -> Iterator[Task]:
        """Yield the tasks, in the order of the run."""
        return iter(self.book.tasks)

    def rollouts(self, *, tokens: bool = False) -> Iterator[Rollout]:
        """Yield every scored rollout, in no order; with `tokens`, turns carry their exact ids and logprobs."""
        return rollouts(self.book, tokens=tokens)

    def groups(self) -> Iterator[Group]:
        """Yield the rollouts of each task together, scored and failed ones; a task without any is left out."""
        index = LineIndex(self.book)
        planned = [(rows, samples) for rows, samples, *_ in iterate_parts(self.book)]
        for row, task in enumerate(self.book.tasks):
            samples = sorted(each for rows, samples in planned if row in rows for each in samples)
            found = [rollout for sample in samples if (rollout := index.read(task.id, sample))]
            if found:
                yield Group(task, found)

    def failures(self) -> Iterator[tuple[str, int, Failure]]:
        """Yield task id, sample and failure of every rollout that failed for good."""
        lines, again = tee(FinalFailures(self.book))
        rows = self.book.tasks.rows
        counts = self._data.scored.first_of_unscored((rows[line.task], line.sample) for line in again)
        for line, counted in zip(lines, counts, strict=True):
            if counted:
                yield line.task, line.sample, line.failure

    def to_arrow(self, table: TableName = "rollouts") -> pyarrow.Table:
        """Return a table: rollouts (scored ones), turns, messages or tasks."""
        return make_table(self.book, table, lambda: self._read)

    def to_polars(self, table: TableName = "rollouts") -> polars.DataFrame:
        """Return a table as a Polars data frame."""
        return make_polars_frame(lambda: self.to_arrow(table))

    def to_pandas(self, table: TableName = "rollouts") -> pandas.DataFrame:
        """Return a table as a pandas data frame."""
        return make_pandas_frame(lambda: self.to_arrow(table))

    def plot(self) -> Figure:
        """Draw pass@k with its interval, the rewards and the tokens of an answer."""
        from rollbook.reports.run_plot import draw_run

        return draw_run(self.report, self._data.scored.columns)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}): {self._show(Report.describe)}"

    def _repr_html_(self) -> str:
        return self._show(Report._repr_html_, escape)

    def _show(self, form: Callable[[Report], str], escape: Callable[[str], str] = str) -> str:
        """Return a form of the report; of a run that is damaged or gone, why it cannot be read."""
        try:
            return form(self.report)
        except Exception as error:  # noqa: BLE001 - debuggers and notebooks call repr, which must not raise
            return escape(f"cannot be read: {' '.join(str(error).split())}")
