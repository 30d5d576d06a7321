"""Groups of tasks: by environment, and within one by the field that its `report_by` names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollbook.book import Book, BookDraft, TaskGroups
from rollbook.book.task_groups import is_grouped, is_reported_by_field
from rollbook.core import SCHEMA_VERSION, EnvironmentSpec, Limits, Manifest, ModelSpec, Sampling, Task, make_part
from rollbook.errors import BookError
from support.books import edit_record


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


def test_groups_that_chunks_mix_are_those_of_a_field(tmp_path: Path) -> None:
    for name, report_by, tasks, grouped, by_field in [
        ("one", "", {"a": [{}]}, False, False),
        ("field", "level", {"a": [{}]}, True, True),
        ("two", "", {"a": [{}], "b": [{}]}, True, False),
    ]:
        book = make_grouped_book(tmp_path / name, report_by, **tasks)  # type: ignore[arg-type]
        assert (is_grouped(book), is_reported_by_field(book)) == (grouped, by_field)


def test_an_environment_without_tasks_is_a_group_too(tmp_path: Path) -> None:
    book = make_grouped_book(tmp_path / "run", "level", a=[{"level": 1}, {"level": 0}], b=[])
    assert TaskGroups(book).names == ["a/1", "a/0", "b"]
    assert name_groups(book) == ["a/1", "a/0"]


def test_the_groups_of_one_environment_come_before_those_of_the_next(tmp_path: Path) -> None:
    book = make_grouped_book(tmp_path / "run", "level", b=[{"level": 2}], a=[{"level": 1}, {"level": 2}])
    assert TaskGroups(book).names == ["b", "a/1", "a/2"]


def test_a_task_of_an_environment_that_run_json_does_not_have_is_refused(tmp_path: Path) -> None:
    book = make_grouped_book(tmp_path / "run", "", a=[{}], b=[{}])
    environments = json.loads((book.path / "run.json").read_bytes())["environments"]
    edit_record(book.path / "run.json", environments={"a": environments["a"], "c": environments["b"]})
    with pytest.raises(BookError, match=r"run\.json: it has no environment 'b', which task 'b-0' names"):
        TaskGroups(Book(book.path))


def test_the_tasks_of_a_run_without_groups_are_all_of_its_environment(tmp_path: Path) -> None:
    book = make_grouped_book(tmp_path / "run", "", env=[{"level": 1}, {"level": 2}, {}])
    assert (TaskGroups(book).names, name_groups(book)) == (["env"], ["env"] * 3)


def test_a_path_that_leads_through_no_object_has_no_value(tmp_path: Path) -> None:
    book = make_grouped_book(tmp_path / "run", "a.b", env=[{"a": {"b": 0}}, {"a": "b"}, {"b": 0}, {"a": {"b": False}}])
    assert name_groups(book) == ["0", "without a.b", "without a.b", "False"]
