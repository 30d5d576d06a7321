import pytest

from rollbook.errors import UsageError
from rollbook.view import search as module
from rollbook.view.opened import Opened
from rollbook.view.search import Search
from support.showcase import Pen, make, rollout


@pytest.fixture
def said(tmp_path):
    pen = Pen(make(tmp_path / "run", tasks=3, samples=2))
    texts = {(0, 0): 'He said "Grüße"\nand left', (1, 1): "Back\\slash and a TAB\there", (2, 0): "nothing"}
    for (row, sample), text in texts.items():
        pen.score(rollout(pen.book, row, sample, text=text))
    return Opened(tmp_path / "run").look()


def found(snapshot, text):
    return [(hit["task"], hit["sample"]) for step in Search(snapshot, text).steps() for hit in step.found]


@pytest.mark.parametrize("text", ['"grüße"\nAND', "Grüße", "HE SAID"])
def test_text_is_found_as_it_was_said(said, text):
    assert found(said, text) == [("area-0", 0)]


def test_escapes_in_the_file_do_not_matter(said):
    assert found(said, "back\\slash") == [("area-1", 1)]
    assert found(said, "tab\there") == [("area-1", 1)]
    assert found(said, "\\u00") == []


def test_how_the_line_is_written_is_not_what_was_said(said):
    assert found(said, "completion_tokens") == []
    assert found(said, '"role"') == []


def test_progress_ends_at_the_whole(said, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 1)
    steps = list(Search(said, "nothing").steps())
    assert len(steps) == 3
    assert steps[-1].done == steps[-1].size
    assert [len(step.found) for step in steps] == [0, 0, 1]


def test_enough_is_enough(said, monkeypatch):
    monkeypatch.setattr(module, "MOST", 2)
    assert len(found(said, "area")) == 2


@pytest.mark.parametrize("text", ["", "  ", "x" * 2000])
def test_what_cannot_be_searched_for_is_refused(said, text):
    with pytest.raises(UsageError):
        Search(said, text)


def test_bytes_that_are_no_text_find_nothing(said):
    assert found(said, "\udcff") == []
