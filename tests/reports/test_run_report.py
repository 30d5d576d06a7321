"""What a report rests on: several environments, a run in progress, directories of one run."""

from __future__ import annotations

import asyncio
import shutil
from itertools import permutations
from pathlib import Path

import msgspec
import pytest

from rollbook.book import Book, BookDraft, make_presence, write_heartbeat
from rollbook.core import (
    SCHEMA_VERSION,
    EnvironmentSpec,
    Lease,
    Limits,
    Manifest,
    ModelSpec,
    Sampling,
    Task,
    decode,
    encode,
    make_failed_line,
    make_part,
    make_scored_line,
)
from rollbook.engine import reverify
from rollbook.engine.progress import SilentDisplay
from rollbook.errors import BookError, UsageError
from rollbook.reports import report as reports
from rollbook.reports.compare import compare_runs
from rollbook.reports.export import export_rollouts
from rollbook.reports.profile import profile_lines
from rollbook.reports.report import RunData, build_report, make_report
from rollbook.reports.run_columns import group_by_run, open_shards
from support.books import encode_journal_line, failed, make_book, open_round, scored


def mark(book: Book, *keys: tuple[int, int, float], worker: str = "w") -> None:
    lines = [
        encode_journal_line(make_scored_line(scored(book, row, sample, reward), [None])) for row, sample, reward in keys
    ]
    (book.path / "journals" / f"{worker}.1.jsonl").write_bytes(b"".join(lines))


def two_environments(path: Path) -> Book:
    specs = {name: EnvironmentSpec(f"{name}.py:E", f"{name}:E") for name in ("sums", "words")}
    manifest = Manifest(SCHEMA_VERSION, "beef", 1.0, specs, ModelSpec("toy"), Sampling(), 2, 0, Limits(), {})
    with BookDraft(path) as draft:
        count = draft.add_tasks((Task(f"s{i}", "?", answer="1") for i in range(2)), "sums")
        count += draft.add_tasks((Task(f"w{i}", "?", answer="1") for i in range(3)), "words")
        return draft.finish(manifest, [make_part((0, count), (0, 2), 1)])


def test_every_environment_has_its_numbers_and_so_has_the_whole(tmp_path: Path) -> None:
    book = two_environments(tmp_path / "run")
    open_round(book)
    mark(book, (0, 0, 1.0), (0, 1, 0.0), (2, 0, 0.5), (3, 0, 0.5), (4, 0, 0.5))
    made = make_report(book.path, write=False)
    sums, words = made.environments["sums"], made.environments["words"]
    assert (sums.tasks, sums.requested, sums.scored, sums.mean, sums.best_at) == (2, 4, 2, 0.5, {})
    assert (words.tasks, words.requested, words.scored, words.mean, words.best_at[1]) == (3, 6, 3, 0.5, 0.5)
    assert (made.overall.env, made.overall.tasks, made.overall.scored, made.requested) == ("all", 5, 5, 10)


def test_a_run_that_goes_on_is_said_to(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    open_round(book)
    mark(book, (0, 0, 1.0))
    assert not make_report(book.path, write=False).live
    presence = make_presence(1)
    write_heartbeat(book.path, presence)
    made = make_report(book.path, write=False)
    assert (made.live, made.scored, made.pending) == (True, 1, 7)


def test_directories_of_one_run_are_one_run_and_a_key_counts_once(tmp_path: Path) -> None:
    one = make_book(tmp_path / "one")
    open_round(one)
    shutil.copytree(one.path, tmp_path / "two")
    two = Book(tmp_path / "two")
    mark(one, (0, 0, 1.0), (0, 1, 1.0))
    mark(two, (0, 1, 0.0), (1, 0, 0.5), worker="v")
    assert group_by_run([one.path, two.path, one.path]) == [[one.path, two.path]]
    made = build_report(RunData([one.path, two.path]))
    assert (made.scored, made.dropped, made.pending, made.disagreeing) == (3, 1, 5, 1)
    assert made.overall.mean == pytest.approx(1.5 / 3)  # v's line, for v comes before w


def test_directories_that_disagree_give_one_result_in_any_order_and_it_is_said(tmp_path: Path) -> None:
    one = make_book(tmp_path / "one", tasks=8)
    open_round(one)
    books = [one]
    for name in ("two", "three"):
        shutil.copytree(one.path, tmp_path / name)
        books.append(Book(tmp_path / name))
    for book, (worker, rewards) in zip(books, {"v": (1, 0, 1), "w": (0, 0, 1), "u": (0.5, 0, 1)}.items(), strict=True):
        mark(book, *((row, 0, reward) for row, reward in enumerate(rewards)), worker=worker)
    ways = [build_report(RunData([book.path for book in order])) for order in permutations(books)]
    assert {(made.overall.mean, made.scored, made.dropped, made.disagreeing) for made in ways} == {(0.5, 3, 6, 1)}
    assert ways[0].json()["disagreeing"] == 1


def test_of_directories_that_disagree_the_lowest_attempt_counts(tmp_path: Path) -> None:
    one = make_book(tmp_path / "one")
    open_round(one)
    shutil.copytree(one.path, tmp_path / "two")
    for name, worker, attempt in (("one", "a", 3), ("two", "b", 2)):
        rollout = scored(one, 0, 0, attempt / 10)
        rollout.attempt = attempt
        (tmp_path / name / "journals" / f"{worker}.1.jsonl").write_bytes(
            encode_journal_line(make_scored_line(rollout, [None]))
        )
    for order in (["one", "two"], ["two", "one"]):
        assert build_report(RunData([tmp_path / name for name in order])).overall.mean == 0.2


def test_of_directories_that_disagree_the_lowest_epoch_counts(tmp_path: Path) -> None:
    one = make_book(tmp_path / "one")
    open_round(one)
    shutil.copytree(one.path, tmp_path / "two")
    for name, worker, epoch in (("one", "a", 2), ("two", "b", 1)):
        for owner, at in (("a", 2), ("b", 1)) if epoch == 2 else (("b", 1),):
            (tmp_path / name / "leases" / f"00000.{at}").write_bytes(encode(Lease(owner, 1)))
        mark(Book(tmp_path / name), (0, 0, epoch / 10), worker=worker)
    for order in (["one", "two"], ["two", "one"]):
        made = build_report(RunData([tmp_path / each for each in order]))
        assert (made.overall.mean, made.disagreeing) == (0.1, 1)


def test_a_copy_with_one_line_edited_is_told_from_the_other_by_what_it_says(tmp_path: Path) -> None:
    one = make_book(tmp_path / "one")
    open_round(one)
    mark(one, (0, 0, 1.0), (0, 1, 1.0))
    shutil.copytree(one.path, tmp_path / "two")
    mark(Book(tmp_path / "two"), (0, 0, 0.0), (0, 1, 1.0))
    ways = [build_report(RunData([tmp_path / name for name in order])) for order in (["one", "two"], ["two", "one"])]
    assert {(made.overall.mean, made.dropped, made.disagreeing) for made in ways} == {(0.5, 2, 1)}


def test_why_a_rollout_failed_does_not_depend_on_the_order_either(tmp_path: Path) -> None:
    one = make_book(tmp_path / "one")
    open_round(one, [])
    shutil.copytree(one.path, tmp_path / "two")
    for name, kind in (("one", "model_timeout"), ("two", "verifier_error")):
        line = encode_journal_line(make_failed_line(failed(one, 0, 0, kind), [None], True))
        (tmp_path / name / "journals" / "w.1.failures.jsonl").write_bytes(line)
    ways = [build_report(RunData([tmp_path / name for name in order])) for order in (["one", "two"], ["two", "one"])]
    assert [made.failed for made in ways] == [{"model_timeout": 1}] * 2


def test_all_environments_together_vote_only_where_answers_are_reported(tmp_path: Path) -> None:
    book = two_environments(tmp_path / "run")
    open_round(book)
    rollouts = [scored(book, row, sample, float(sample == 0)) for row in range(5) for sample in range(2)]
    for rollout in rollouts:
        said = str(rollout.sample) if rollout.task.env == "sums" else None
        rollout.score = msgspec.structs.replace(rollout.score, answer=said)
    lines = b"".join(encode_journal_line(make_scored_line(rollout, [None])) for rollout in rollouts)
    (book.path / "journals" / "w.1.jsonl").write_bytes(lines)
    made = make_report(book.path, write=False)
    assert made.environments["words"].maj_at == {}
    assert (made.overall.maj_at, made.overall.maj_coverage, made.overall.coverage[2]) == (
        {1: 0.5, 2: 0.5},
        {1: 2, 2: 2},
        5,
    )
    rows = [decode(line) for line in profile_lines(book.path)]
    assert [row["maj@2"] for row in rows] == [0.5, 0.5, None, None, None]
    votes = compare_runs(book.path, book.path).comparison.metrics["maj@2"]
    assert (votes.a, votes.tasks) == (0.5, 2)


def test_a_directory_that_was_extended_says_what_was_asked(tmp_path: Path) -> None:
    one = make_book(tmp_path / "one", samples=1)
    shutil.copytree(one.path, tmp_path / "two")
    two = Book(tmp_path / "two")
    two.extend(3, 1)
    assert [book.path for book in open_shards([one.path, two.path])] == [two.path, one.path]
    mark(one, (0, 0, 1.0))
    mark(two, (0, 2, 0.0), worker="v")
    made = build_report(RunData([one.path, two.path]))
    assert (made.requested, made.scored) == (12, 2)


def test_other_runs_and_other_tasks_are_not_merged(tmp_path: Path) -> None:
    one, two = make_book(tmp_path / "one"), two_environments(tmp_path / "two")
    with pytest.raises(UsageError, match="different runs"):
        open_shards([one.path, two.path])
    other = make_book(tmp_path / "other")
    tasks = (other.path / "tasks.jsonl").read_text()
    (other.path / "tasks.jsonl").write_text(tasks.replace("What is 1", "What was 1"))
    with pytest.raises(UsageError, match="different tasks"):
        open_shards([one.path, other.path])


def test_a_task_that_asks_something_else_is_not_the_same_task(tmp_path: Path) -> None:
    one, two = make_book(tmp_path / "one"), make_book(tmp_path / "two", asking="What was {i} + {i}?", odd=1)
    for book in (one, two):
        mark(book, *((row, 0, 1.0) for row in range(4)))
    with pytest.raises(UsageError, match="1 with the same id but another prompt or answer"):
        compare_runs(one.path, two.path)
    found = compare_runs(one.path, two.path, common=True)
    assert found.comparison.tasks == 3
    assert "task sets differ" in found.notes[0]


def edit_tasks(book: Book) -> None:
    tasks = (book.path / "tasks.jsonl").read_text()
    (book.path / "tasks.jsonl").write_text(tasks.replace('"answer":"2"', '"answer":"3"'))


def test_tasks_that_were_edited_are_refused_by_whatever_reads_them(tmp_path: Path) -> None:
    book, other = make_book(tmp_path / "run", samples=1), make_book(tmp_path / "other", samples=1)
    for each in (book, other):
        mark(each, *((row, 0, 1.0) for row in range(4)))
    edit_tasks(book)
    ways = [
        lambda: make_report(book.path, write=False),
        lambda: list(profile_lines(book.path)),
        lambda: compare_runs(other.path, book.path),
        lambda: asyncio.run(reverify(book.path, tmp_path / "new", (), "all", SilentDisplay())),
        lambda: export_rollouts(book.path, "jsonl", tmp_path / "out.jsonl"),
    ]
    for way in ways:
        with pytest.raises(BookError, match=r"tasks\.jsonl was edited since the run began: restore it from a copy"):
            way()
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "out.jsonl").exists()


def test_tasks_without_scores_are_noted_when_runs_are_compared(tmp_path: Path) -> None:
    one, two = make_book(tmp_path / "one"), make_book(tmp_path / "two")
    mark(one, *((row, 0, 1.0) for row in range(4)))
    mark(two, (0, 0, 0.0))
    assert compare_runs(one.path, two.path).notes == [
        "A and B are of the same run: they differ only in what each directory holds",
        "3 tasks without a score in A or in B left out",
    ]


def test_one_directory_is_read_once_however_it_is_called(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    mark(book, (0, 0, 1.0))
    (tmp_path / "link").symlink_to(tmp_path / "run")
    ways = [book.path, tmp_path / "run" / ".." / "run", tmp_path / "link"]
    assert group_by_run(ways) == [[book.path]]
    made = build_report(RunData(ways))
    assert (made.scored, made.dropped, made.merged) == (1, 0, [])


@pytest.mark.parametrize("content", ["[]", "{}", '{"run": 3}', "null"])
def test_a_run_json_that_describes_no_run_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(BookError, match=r"run\.json does not describe a run: restore it"):
        group_by_run([tmp_path])


def test_a_run_that_asks_for_more_while_it_is_read_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Collector's book grows: a line may be read whose task the plan did not have when that was read."""
    made = make_book(tmp_path / "run", tasks=1, samples=1)

    def opened_and_grown(runs: list[str]) -> list[Book]:
        monkeypatch.setattr(reports, "open_shards", open_shards)
        books = open_shards(runs)
        made.request_samples([Task(id="new", prompt="x", answer="1")], "Sums", 1)
        mark(made, (0, 0, 1.0), (1, 0, 0.0))
        return books

    monkeypatch.setattr(reports, "open_shards", opened_and_grown)
    found = make_report(tmp_path / "run")
    assert (found.requested, found.scored, found.pending) == (2, 2, 0)
