"""What a report rests on: several environments, a run that goes on, directories of one run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rollbook.book.book import Book, Draft
from rollbook.book.presence import new_presence, write_presence
from rollbook.collect.comparing import compare_runs
from rollbook.collect.report import Reading, report, report_of
from rollbook.collect.shards import by_run, open_shards
from rollbook.core.json import to_line
from rollbook.core.line import SCHEMA, scored_line
from rollbook.core.manifest import EnvironmentSpec, Limits, Manifest, ModelSpec, Sampling
from rollbook.core.plan import part
from rollbook.core.task import Task
from rollbook.errors import BookError, UsageError
from support.books import make_book, open_round, scored


def mark(book: Book, *keys: tuple[int, int, float], worker: str = "w") -> None:
    lines = [to_line(scored_line(scored(book, row, sample, reward), [None])) for row, sample, reward in keys]
    (book.path / "journals" / f"{worker}.1.jsonl").write_bytes(b"".join(lines))


def two_environments(path: Path) -> Book:
    specs = {name: EnvironmentSpec(f"{name}.py:E", f"{name}:E") for name in ("sums", "words")}
    manifest = Manifest(SCHEMA, "beef", 1.0, specs, ModelSpec("toy"), Sampling(), 2, 0, Limits(), {})
    with Draft(path) as draft:
        count = draft.add_tasks((Task(f"s{i}", "?", answer="1") for i in range(2)), "sums")
        count += draft.add_tasks((Task(f"w{i}", "?", answer="1") for i in range(3)), "words")
        return draft.finish(manifest, [part((0, count), (0, 2), 1)])


def test_every_environment_has_its_numbers_and_so_has_the_whole(tmp_path: Path) -> None:
    book = two_environments(tmp_path / "run")
    open_round(book)
    mark(book, (0, 0, 1.0), (0, 1, 0.0), (2, 0, 0.5), (3, 0, 0.5), (4, 0, 0.5))
    made = report(book.path, write=False)
    sums, words = made.environments["sums"], made.environments["words"]
    assert (sums.tasks, sums.requested, sums.scored, sums.mean, sums.best_at) == (2, 4, 2, 0.5, {})
    assert (words.tasks, words.requested, words.scored, words.mean, words.best_at[1]) == (3, 6, 3, 0.5, 0.5)
    assert (made.overall.env, made.overall.tasks, made.overall.scored, made.requested) == ("all", 5, 5, 10)


def test_a_run_that_goes_on_is_said_to(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    open_round(book)
    mark(book, (0, 0, 1.0))
    assert not report(book.path, write=False).live
    presence = new_presence(1)
    write_presence(book.path, presence)
    made = report(book.path, write=False)
    assert (made.live, made.scored, made.pending) == (True, 1, 7)


def test_directories_of_one_run_are_one_run_and_a_key_counts_once(tmp_path: Path) -> None:
    one = make_book(tmp_path / "one")
    open_round(one)
    shutil.copytree(one.path, tmp_path / "two")
    two = Book(tmp_path / "two")
    mark(one, (0, 0, 1.0), (0, 1, 1.0))
    mark(two, (0, 1, 0.0), (1, 0, 0.5), worker="v")
    assert by_run([one.path, two.path, one.path]) == [[one.path, two.path]]
    made = report_of(Reading([one.path, two.path]))
    assert (made.scored, made.dropped, made.pending) == (3, 1, 5)
    assert made.overall.mean == pytest.approx(2.5 / 3)


def test_a_directory_that_was_extended_says_what_was_asked(tmp_path: Path) -> None:
    one = make_book(tmp_path / "one", samples=1)
    shutil.copytree(one.path, tmp_path / "two")
    two = Book(tmp_path / "two")
    two.extend(3, 1)
    assert [book.path for book in open_shards([one.path, two.path])] == [two.path, one.path]
    mark(one, (0, 0, 1.0))
    mark(two, (0, 2, 0.0), worker="v")
    made = report_of(Reading([one.path, two.path]))
    assert (made.requested, made.scored) == (12, 2)


def test_other_runs_and_other_tasks_are_not_merged(tmp_path: Path) -> None:
    one, two = make_book(tmp_path / "one"), two_environments(tmp_path / "two")
    with pytest.raises(UsageError, match="different runs"):
        open_shards([one.path, two.path])
    other = make_book(tmp_path / "other")
    tasks = (other.path / "tasks.jsonl").read_text()
    (other.path / "tasks.jsonl").write_text(tasks.replace("What is 1", "What was 1"))
    with pytest.raises(UsageError, match="other tasks"):
        open_shards([one.path, other.path])


def test_a_task_that_asks_something_else_is_not_the_same_task(tmp_path: Path) -> None:
    one, two = make_book(tmp_path / "one"), make_book(tmp_path / "two")
    for book in (one, two):
        mark(book, *((row, 0, 1.0) for row in range(4)))
    tasks = (two.path / "tasks.jsonl").read_text()
    (two.path / "tasks.jsonl").write_text(tasks.replace('"What is 1', '"What was 1'))
    with pytest.raises(UsageError, match="1 with the same id but another prompt or answer"):
        compare_runs(one.path, two.path)
    found = compare_runs(one.path, two.path, common=True)
    assert (found.comparison.tasks, len(found.notes)) == (3, 1)


def test_tasks_without_scores_are_noted_when_runs_are_compared(tmp_path: Path) -> None:
    one, two = make_book(tmp_path / "one"), make_book(tmp_path / "two")
    mark(one, *((row, 0, 1.0) for row in range(4)))
    mark(two, (0, 0, 0.0))
    assert compare_runs(one.path, two.path).notes == ["3 tasks without a score in A or in B left out"]


def test_one_directory_is_read_once_however_it_is_called(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    mark(book, (0, 0, 1.0))
    (tmp_path / "link").symlink_to(tmp_path / "run")
    ways = [book.path, tmp_path / "run" / ".." / "run", tmp_path / "link"]
    assert by_run(ways) == [[book.path]]
    made = report_of(Reading(ways))
    assert (made.scored, made.dropped, made.merged) == (1, 0, [])


@pytest.mark.parametrize("content", ["[]", "{}", '{"run": 3}', "null"])
def test_a_run_json_that_describes_no_run_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(BookError, match=r"run\.json does not describe a run: restore it"):
        by_run([tmp_path])
