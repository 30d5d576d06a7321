"""A run in Python: its report, tasks, rollouts, groups and failures, its tables and its plot.

Rollouts, groups and failures are read from the files while they are iterated; nothing is kept in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from html import escape
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollbook.book import Book, FinalFailures, LineIndex, iterate_parts, rollouts
from rollbook.core import Failure, Group, Rollout, Task
from rollbook.errors import UsageError
from rollbook.reports.report import Report, RunData, build_report
from rollbook.reports.run_tables import ReadState, TableName, describe_state, make_table

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow
    from matplotlib.figure import Figure

    from rollbook.stats import Metrics


def load(path: str | Path) -> Run:
    """Return a run directory as an object: its numbers, its rollouts, and tables of them.

    What was read once is not read again: load a run that is still working again for newer numbers.
    """
    return Run(path)


class Run:
    """A run directory, finished or not."""

    def __init__(self, path: str | Path) -> None:
        self.book = Book(path)
        self.path = self.book.path

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
        for row, task in enumerate(self.book.tasks):
            samples = sorted(each for rows, parts, *_ in iterate_parts(self.book) if row in rows for each in parts)
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
        try:
            import polars
        except ImportError:
            raise UsageError("to_polars needs Polars: pip install 'rollbook[dataframes]'") from None
        frame = polars.from_arrow(self.to_arrow(table))
        assert isinstance(frame, polars.DataFrame)
        return frame

    def to_pandas(self, table: TableName = "rollouts") -> pandas.DataFrame:
        """Return a table as a pandas data frame."""
        try:
            import pandas  # noqa: F401
        except ImportError:
            raise UsageError("to_pandas needs pandas: pip install 'rollbook[dataframes]'") from None
        return self.to_arrow(table).to_pandas()

    def plot(self) -> Figure:
        """Draw pass@k with its interval, the rewards and the tokens of an answer."""
        from rollbook.reports.run_plot import draw_run

        return draw_run(self.report, self._data.scored.columns)

    def __repr__(self) -> str:
        report = self.report
        first = f"Run({str(self.path)!r}): {self.model} on {', '.join(report.environments)}"
        return f"{first}\n{_describe_counts(report)}"

    def _repr_html_(self) -> str:
        header = "".join(f"<th>{escape(name)}</th>" for name in _table_row(self.report.overall))
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(str(value))}</td>" for value in _table_row(metrics).values()) + "</tr>"
            for metrics in self.report.environments.values()
        )
        caption = f"{escape(str(self.path))}: {escape(self.model)}<br>{escape(_describe_counts(self.report))}"
        return f"<p>{caption}</p><table><thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table>"


def _describe_counts(report: Report) -> str:
    failed = sum(report.failed.values())
    mean = "-" if report.overall.mean is None else f"{report.overall.mean:.3f}"
    passed = "-" if 1 not in report.overall.pass_at else f"{report.overall.pass_at[1]:.3f}"
    counts = f"{report.scored} of {report.requested} scored, {failed} failed, {report.pending} pending"
    return f"{counts}; mean reward {mean}, pass@1 {passed}"


def _table_row(metrics: Metrics) -> dict[str, Any]:
    numbers = {"mean": metrics.mean} | {f"pass@{k}": value for k, value in metrics.pass_at.items()}
    named = {name: "-" if value is None else f"{value:.3f}" for name, value in numbers.items()}
    return {
        "environment": metrics.env,
        "tasks": metrics.tasks,
        "scored": f"{metrics.scored}/{metrics.requested}",
    } | named
