from dataclasses import fields

import numpy as np
import pytest

from rollbook.book import read_whole_lines
from rollbook.core import SCHEMA_VERSION, add_crc
from rollbook.errors import BookError
from rollbook.reports import make_report, read_journal_columns
from rollbook.viewer import journal_index
from rollbook.viewer.journal_index import FailureFollower, JournalFollower, concatenate_columns
from rollbook.viewer.run_cache import CachedRun
from support.sample_runs import Pen, make, rollout


@pytest.fixture
def pen(tmp_path):
    return Pen(make(tmp_path / "run", tasks=6, samples=4))


def same(one, two):
    for field in fields(one.columns):
        if field.name != "parts":
            np.testing.assert_array_equal(getattr(one.columns, field.name), getattr(two.columns, field.name))
    for name in ("sample", "attempt", "starts", "ends"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    assert (one.answers, one.parts) == (two.answers, two.parts)
    np.testing.assert_array_equal(one.columns.parts.value, two.columns.parts.value)


def test_a_sheet_read_in_pieces_is_the_sheet_read_at_once(pen):
    rows = pen.book.tasks.rows
    pen.score(rollout(pen.book, 0, 0))
    held = read_journal_columns(pen.scored_file, SCHEMA_VERSION, rows)
    for row in range(1, 6):
        pen.score(rollout(pen.book, row, row % 4, right=row % 2 == 0))
        held = concatenate_columns(
            held, read_journal_columns(pen.scored_file, SCHEMA_VERSION, rows, start=int(held.ends[-1]))
        )
    same(held, read_journal_columns(pen.scored_file, SCHEMA_VERSION, rows))


def test_only_what_was_appended_is_read(pen, monkeypatch):
    starts = []
    monkeypatch.setattr(
        journal_index,
        "read_journal_columns",
        lambda *a, start=0: starts.append(start) or read_journal_columns(*a, start=start),
    )
    pen.score(rollout(pen.book, 0, 0))
    followed, book = JournalFollower(), pen.book
    files = {pen.scored_file: set()}
    list(followed.read(book, files))
    size = pen.scored_file.stat().st_size
    list(followed.read(book, files))
    assert starts == []
    pen.score(rollout(pen.book, 1, 0))
    (sheet,) = followed.read(book, files)
    assert starts == [size]
    assert len(sheet.ends) == 2


def test_a_line_in_the_making_is_not_yet_read(pen):
    pen.score(rollout(pen.book, 0, 0))
    opened = CachedRun(pen.book.path)
    with open(pen.scored_file, "ab") as file:
        file.write(b'{"status":"sco')
    assert len(opened.take_snapshot().located.columns) == 1


def test_a_file_that_was_replaced_is_read_again(pen, tmp_path):
    for sample in (0, 1):
        pen.score(rollout(pen.book, 0, sample))
    followed, files = JournalFollower(), {pen.scored_file: set()}
    list(followed.read(pen.book, files))
    first = pen.scored_file.read_bytes().splitlines(keepends=True)[0]
    pen.scored_file.unlink()
    pen.scored_file.write_bytes(first)
    (sheet,) = followed.read(pen.book, files)
    assert len(sheet.ends) == 1


def test_failures_are_read_once_and_by_their_place(pen):
    followed = FailureFollower(SCHEMA_VERSION)
    pen.fail(rollout(pen.book, 0, 0, failure="model_timeout"), False)
    followed.refresh(pen.book.path)
    pen.fail(rollout(pen.book, 0, 0, attempt=2, failure="model_timeout"), True)
    followed.refresh(pen.book.path)
    followed.refresh(pen.book.path)
    assert [each.line.attempt for each in followed.tries] == [1, 2]
    assert followed.tries[1].begin == followed.tries[0].end + 1
    assert [mark.attempt for mark in followed.list_final(pen.book)] == [2]


def test_a_malformed_failure_is_named_by_its_file(pen):
    pen.failed_file.write_bytes(add_crc(b'{"n":1}') + b"\n")
    with pytest.raises(BookError, match=r"failures\.jsonl:1: malformed"):
        FailureFollower(SCHEMA_VERSION).refresh(pen.book.path)


def test_a_damaged_failure_counts_as_a_line_and_is_read_once(pen):
    followed = FailureFollower(SCHEMA_VERSION)
    pen.fail(rollout(pen.book, 0, 0, failure="model_timeout"), False)
    for damaged in (b'{"cut":', b'{"n":2'):  # the second at the end of what is read
        with open(pen.failed_file, "ab") as file:
            file.write(damaged + b"\n")
        followed.refresh(pen.book.path)
        followed.refresh(pen.book.path)
    assert [line.number for line in followed._reader.damaged] == [2, 3]
    with open(pen.failed_file, "ab") as file:
        file.write(add_crc(b'{"n":4}') + b"\n")
    with pytest.raises(BookError, match=r"failures\.jsonl:4: malformed"):
        followed.refresh(pen.book.path)


def test_a_failure_of_a_key_that_is_not_planned_is_named_by_its_line(pen):
    pen.fail(rollout(pen.book, 0, 0, failure="model_timeout"), True)
    stray = rollout(pen.book, 0, 1, failure="model_timeout")
    stray.sample = 99
    pen.fail(stray, True)
    followed, named = FailureFollower(SCHEMA_VERSION), r"failures\.jsonl:2: task '.*' sample 99 is not in the plan"
    followed.refresh(pen.book.path)
    with pytest.raises(BookError, match=named):
        list(followed.list_final(pen.book))
    with pytest.raises(BookError, match=named):
        make_report(pen.book.path)


def test_what_is_torn_is_not_given(tmp_path):
    (tmp_path / "f").write_bytes(b"one\ntwo\n\0\0three")
    assert list(read_whole_lines(tmp_path / "f")) == [(4, b"one"), (8, b"two")]
    assert list(read_whole_lines(tmp_path / "f", 4)) == [(8, b"two")]
