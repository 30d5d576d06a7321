"""Groups of tasks: by environment, and within one by the field that its `report_by` names."""

from __future__ import annotations

from pathlib import Path

from rollbook.book import Book, BookDraft, TaskGroups
from rollbook.core import SCHEMA_VERSION, EnvironmentSpec, Limits, Manifest, ModelSpec, Sampling, Task, make_part


def make_grouped_book(path: Path, report_by: str, **tasks: list[dict[str, object]]) -> Book:
    specs = {name: EnvironmentSpec(f"{name}.py", f"{name}:Env", report_by=report_by) for name in tasks}
    manifest = Manifest(SCHEMA_VERSION, "f00d", 1.0, specs, ModelSpec("toy"), Sampling(), 1, 0, Limits(), {})
    with BookDraft(path) as draft:
        for name, rows in tasks.items():
            draft.add_tasks([Task(f"{name}-{at}", "?", **fields) for at, fields in enumerate(rows)], name)
        count = sum(map(len, tasks.values()))
        return draft.finish(manifest, [make_part((0, count), (0, 1), 1)])


def name_groups(book: Book) -> list[str]:
    groups = TaskGroups(book)
    return [groups.name_of(row) for row in range(len(book.tasks))]


def test_values_of_a_nested_field_are_groups_in_the_order_of_the_tasks(tmp_path: Path) -> None:
    rows = [{"by": {"name": "two"}}, {"by": {"name": "one"}}, {"by": {"name": "two"}}, {"by": None}]
    book = make_grouped_book(tmp_path / "run", "by.name", env=rows)
    assert TaskGroups(book).names == ["two", "one", "without by.name"]
    assert name_groups(book) == ["two", "one", "two", "without by.name"]


def test_an_environment_with_one_value_keeps_its_name(tmp_path: Path) -> None:
    book = make_grouped_book(tmp_path / "run", "level", env=[{"level": 3}, {"level": 3}])
    assert name_groups(book) == ["env", "env"]


def test_groups_of_a_blend_are_named_with_their_environment(tmp_path: Path) -> None:
    book = make_grouped_book(tmp_path / "run", "level", a=[{"level": 1}], b=[{"level": 1}, {"level": 2}])
    assert name_groups(book) == ["a", "b/1", "b/2"]
