"""The table of tasks: one row a task, sorted and filtered here, so that a page holds only what it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import msgspec

from rollbook.book.tasks import TaskFile
from rollbook.core.json import JSON
from rollbook.errors import UsageError
from rollbook.stats.expression import Expression, name_of

OWN = ("id", "env", "answer")
"""What a row has of its task, beside the task's own fields."""


class _Asked(msgspec.Struct):
    id: str
    env: str = ""
    answer: JSON = None
    fields: dict[str, JSON] = {}


_asked = msgspec.json.Decoder(_Asked)


class Table:
    """The numbers of every task by row.

    `more` gives further columns (those @k). They, and the tasks' own fields, are got when they are first asked for.
    """

    def __init__(
        self, tasks: TaskFile, columns: dict[str, list[JSON]], more: Callable[[], dict[str, list[JSON]]]
    ) -> None:
        self._tasks, self._more = tasks, more
        self.columns = columns
        self._ready = {name_of(name): values for name, values in columns.items()}

    def __len__(self) -> int:
        return len(self.columns["n"])

    @cached_property
    def _numbers(self) -> dict[str, list[JSON]]:
        return {name_of(name): values for name, values in self._more().items()} | self._ready

    @cached_property
    def _fields(self) -> dict[str, list[JSON]]:
        """What the tasks brought along, by name; numbers of the same name come first."""
        asked = [_asked.decode(self._tasks.raw(row)) for row in range(len(self))]
        found: dict[str, list[JSON]] = {name: [getattr(each, name) for each in asked] for name in OWN}
        names = sorted({name for each in asked for name in each.fields} - set(OWN) - set(self._numbers))
        return found | {name: [each.fields.get(name) for each in asked] for name in names}

    def column(self, name: str) -> Sequence[JSON]:
        """A column by the name it has in expressions."""
        if name in self._ready:
            return self._ready[name]
        if name in self._numbers:
            return self._numbers[name]
        if name in self._fields:
            return self._fields[name]
        raise UsageError(f"no column is called {name[:80]!r}; known: {', '.join(self.names())}")

    def names(self) -> list[str]:
        """Every column, by its name in expressions."""
        return [*self._numbers, *self._fields]

    def kept(self, keep: str) -> list[int]:
        """The rows of which an expression of `curate` is true; all, where none is given."""
        if not keep.strip():
            return list(range(len(self)))
        wish = Expression(keep)
        if not wish.names <= set(self._ready):
            wish.check(self.names())
        names = sorted(wish.names)
        columns = [self.column(name) for name in names]
        rows = zip(*columns, strict=True) if names else iter([()] * len(self))
        return [row for row, values in enumerate(rows) if wish.keeps(dict(zip(names, values, strict=True)))]

    def ordered(self, rows: Sequence[int], sort: str, descending: bool) -> Sequence[int]:
        """Rows by a column; what is unknown comes last either way, and equals stay in the order of the tasks."""
        if not sort:
            return rows[::-1] if descending else rows
        values = self.column(sort)
        known = [row for row in rows if values[row] is not None]
        unknown = [row for row in rows if values[row] is None]
        return [*sorted(known, key=lambda row: _rank(values[row]), reverse=descending), *unknown]

    def values(self, row: int, names: Iterable[str]) -> dict[str, JSON]:
        """Some numbers of one row."""
        return {name: self.columns[name][row] for name in names if name in self.columns}


def _rank(value: JSON) -> tuple[int, float, str]:
    """Numbers before text before the rest, so that whatever tasks bring along has an order."""
    if isinstance(value, bool | int | float):
        return 0, float(value) if abs(value) < 1 << 1000 else float("inf"), ""
    return (1, 0.0, value) if isinstance(value, str) else (2, 0.0, msgspec.json.encode(value).decode())
