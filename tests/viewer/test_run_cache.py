import shutil
import time

import pytest

from rollbook.core import add_crc
from rollbook.errors import BookError
from rollbook.viewer import run_cache as module
from rollbook.viewer.run_cache import CachedRun, RunCache, RunFolder
from support.books import make_book
from support.sample_runs import Pen, make, rollout


def test_a_book_is_looked_at_again_only_if_something_was_written(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PAUSE_FACTOR", 0)
    pen = Pen(make(tmp_path / "run", tasks=3, samples=2))
    opened = CachedRun(tmp_path / "run")
    first = opened.take_snapshot()
    assert opened.take_snapshot() is first
    pen.score(rollout(pen.book, 0, 0))
    second = opened.take_snapshot()
    assert (second.version, len(first.located.columns), len(second.located.columns)) == (2, 0, 1)


def test_a_look_is_followed_by_a_rest(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PAUSE_FACTOR", 10_000)
    pen = Pen(make(tmp_path / "run", tasks=3, samples=2))
    opened = CachedRun(tmp_path / "run")
    first = opened.take_snapshot()
    pen.score(rollout(pen.book, 0, 0))
    assert opened.take_snapshot() is first
    assert opened._next > time.monotonic()


def test_tasks_and_samples_that_are_added_are_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PAUSE_FACTOR", 0)
    book = make(tmp_path / "run", tasks=2, samples=1)
    opened = CachedRun(tmp_path / "run")
    assert opened.take_snapshot().samples(0) == [0]
    book.extend(3, 1)
    pen = Pen(book)
    pen.score(rollout(book, 0, 2))
    assert opened.take_snapshot().strip(0, "area-0") == [None, None, 1.0]


def test_only_so_many_books_stay_open(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_OPEN", 2)
    for name in "abc":
        make_book(tmp_path / name)
    shelf = RunCache(RunFolder(tmp_path))
    for name in "abc":
        shelf.take_snapshot(name)
    assert [shelf.find_open(name) is not None for name in "abc"] == [False, True, True]


def test_the_only_run_is_read_before_anyone_asks(tmp_path):
    make_book(tmp_path / "run")
    shelf = RunCache(RunFolder(tmp_path / "run"))
    shelf.warm()
    assert shelf.find_open("run")._snapshot is not None


def test_a_damaged_run_does_not_keep_the_server_from_starting(tmp_path):
    make_book(tmp_path / "run")
    (tmp_path / "run" / "journals" / "w.1.jsonl").write_bytes(add_crc(b'{"n":1}') + b"\n")
    shelf = RunCache(RunFolder(tmp_path / "run"))
    shelf.warm()
    with pytest.raises(BookError, match="malformed"):
        shelf.take_snapshot("run")


def test_a_run_that_was_put_in_its_place_is_another_run(tmp_path):
    """Its manifest, its tasks and its failures are its own, even while what was looked at last rests."""
    pen = Pen(make(tmp_path / "run", tasks=2, samples=2, model="old"))
    pen.fail(rollout(pen.book, 0, 0, failure="model_timeout"), True)
    pen.score(rollout(pen.book, 1, 0))
    opened = CachedRun(tmp_path / "run")
    first = opened.take_snapshot()
    assert (first.book.manifest.model.name, len(first.tries), len(first.located.columns)) == ("old", 1, 1)
    shutil.rmtree(tmp_path / "run")
    make(tmp_path / "run", tasks=3, samples=2, model="new")
    second = opened.take_snapshot()
    assert (second.book.manifest.model.name, len(second.tries), len(second.located.columns)) == ("new", 0, 0)
    assert (len(second.reading.requested), second.version) == (3, 2)


def test_a_run_that_is_being_copied_into_its_place_is_not_taken_for_the_old_one(tmp_path):
    make(tmp_path / "run", tasks=2, samples=2, model="old")
    make(tmp_path / "other", tasks=2, samples=2, model="new")
    opened = CachedRun(tmp_path / "run")
    assert opened.take_snapshot().book.manifest.model.name == "old"
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").mkdir()
    shutil.copy(tmp_path / "other" / "run.json", tmp_path / "run")
    for _ in range(2):
        with pytest.raises(BookError, match=r"tasks\.jsonl is missing"):
            opened.take_snapshot()
    shutil.copytree(tmp_path / "other", tmp_path / "run", dirs_exist_ok=True)
    assert opened.take_snapshot().book.manifest.model.name == "new"
