import os

import pytest

from rollbook.errors import BookError, UsageError
from rollbook.viewer.run_cache import RunFolder
from support.books import make_book

OUTSIDE = [
    "..",
    "../a",
    "a/..",
    "a/../a",
    "/etc",
    "//",
    "",
    ".",
    "./a",
    "a/",
    "a\\b",
    "a\0b",
    ".hidden",
    "x" * 5000,
    "a/b/c/d/e",
]


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "runs"
    for name in ("a", "deep/b"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        make_book(root / name)
    make_book(tmp_path / "secret")
    return root


def test_runs_are_found_by_where_they_lie(folder):
    assert list(RunFolder(folder).names()) == ["a", "deep/b"]
    assert RunFolder(folder).path("deep/b") == folder / "deep" / "b"


def test_a_run_is_a_folder_of_one(folder):
    single = RunFolder(folder / "a")
    assert (single.single, list(single.names())) == (True, ["a"])
    assert single.path("a") == folder / "a"
    with pytest.raises(UsageError):
        single.path("b")


@pytest.mark.parametrize("name", OUTSIDE)
def test_no_name_leads_out_of_the_folder(folder, name):
    with pytest.raises(UsageError, match="no run is called"):
        RunFolder(folder).path(name)


def test_links_to_runs_are_neither_listed_nor_opened(folder, tmp_path):
    (folder / "link").symlink_to(tmp_path / "secret")
    assert list(RunFolder(folder).names()) == ["a", "deep/b"]
    with pytest.raises(UsageError):
        RunFolder(folder).path("link")


@pytest.mark.parametrize("place", ["journals/x.1.jsonl", "done/00000.json", "index/x.sheet", "metrics.json"])
def test_a_file_of_a_run_that_leads_out_is_refused(folder, tmp_path, place):
    (folder / "a" / place).parent.mkdir(exist_ok=True)
    (folder / "a" / place).symlink_to(tmp_path / "secret" / "run.json")
    with pytest.raises(BookError, match="leads out of the folder"):
        RunFolder(folder).path("a")


def test_a_link_within_the_folder_is_followed(folder):
    os.symlink(folder / "deep" / "b" / "tasks.jsonl", folder / "a" / "journals" / "note.txt")
    assert RunFolder(folder).path("a") == folder / "a"


def test_a_folder_without_runs_is_one_clear_line(tmp_path):
    with pytest.raises(UsageError, match="holds no run"):
        RunFolder(tmp_path)
    with pytest.raises(UsageError, match="is not a folder"):
        RunFolder(tmp_path / "nothing")
