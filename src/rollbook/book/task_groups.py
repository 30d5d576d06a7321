"""The groups of tasks for which numbers are reported: the environments of a run, and within one of them the values of
the field that its `report_by` names, such as the agents of NeMo Gym that its rows are for.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping

from rollbook.book.book import Book
from rollbook.core import JSON, Task
from rollbook.errors import BookError

Label = tuple[str, str]
"""The environment of a task, and its value of `report_by`."""


class TaskGroups:
    """The group of every task: `names[numbers[row]]`. An environment whose tasks all have one value is one group."""

    def __init__(self, book: Book) -> None:
        self._book, self._fields = book, {n: spec.report_by for n, spec in book.manifest.environments.items()}
        if not is_grouped(book):
            self.names, self.numbers = list(self._fields), array("q", [0]) * len(book.tasks)
            return
        labels = [self._label(task) for task in book.tasks]
        environments = list(self._fields)
        order = sorted(dict.fromkeys(labels), key=lambda label: environments.index(label[0]))  # stable: as they come
        order += [(name, "") for name in environments if all(label[0] != name for label in order)]
        numbers = {label: number for number, label in enumerate(order)}
        self.names = [self._name(label, order) for label in order]
        self.numbers = array("q", map(numbers.__getitem__, labels))

    def _label(self, task: Task) -> Label:
        if task.env not in self._fields:
            why = f"it has no environment {task.env!r}, which task {task.id!r} names"
            raise BookError(f"{self._book.path / 'run.json'}: {why}; restore it from a copy of the run")
        path = self._fields[task.env]
        return task.env, _read_value(task.fields, path) if path else ""

    def _name(self, label: Label, order: list[Label]) -> str:
        """Return the environment's name, where it has several groups with the value; the value alone in a run of one
        environment."""
        env, value = label
        if sum(other == env for other, _ in order) == 1:
            return env
        shown = value or f"without {self._fields[env]}"
        return shown if len(self._fields) == 1 else f"{env}/{shown}"

    def name_of(self, row: int) -> str:
        """Return the group of a task."""
        return self.names[self.numbers[row]]


def is_grouped(book: Book) -> bool:
    """Return whether the tasks of a run may be in several groups."""
    specs = book.manifest.environments.values()
    return len(specs) > 1 or any(spec.report_by for spec in specs)


def is_reported_by_field(book: Book) -> bool:
    """Return whether the groups are only known from the tasks: chunks mix them."""
    return any(spec.report_by for spec in book.manifest.environments.values())


def _read_value(fields: Mapping[str, JSON], path: str) -> str:
    """Return the value at a dotted path as text; empty where there is none.

    >>> _read_value({"agent_ref": {"name": "one"}, "level": 3}, "agent_ref.name")
    'one'
    """
    value: JSON = fields
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return "" if value is None else str(value)
