import json

import pytest

from rollbook.core import Function, Message, ToolCall
from rollbook.errors import UsageError
from rollbook.viewer import search as module
from rollbook.viewer.run_cache import CachedRun
from rollbook.viewer.search import TextSearch
from support.sample_runs import Pen, make, rollout


@pytest.fixture
def said(tmp_path):
    pen = Pen(make(tmp_path / "run", tasks=3, samples=2))
    texts = {(0, 0): 'He said "Grüße"\nand left', (1, 1): "Back\\slash and a TAB\there", (2, 0): "nothing"}
    for (row, sample), text in texts.items():
        pen.score(rollout(pen.book, row, sample, text=text))
    return CachedRun(tmp_path / "run").take_snapshot()


def found(snapshot, text):
    return [(hit["task"], hit["sample"]) for step in TextSearch(snapshot, text).steps() for hit in step.found]


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
    monkeypatch.setattr(module, "BLOCK_BYTES", 1)
    steps = list(TextSearch(said, "nothing").steps())
    assert len(steps) == 3
    assert steps[-1].done == steps[-1].size
    assert [len(step.found) for step in steps] == [0, 0, 1]


def test_enough_is_enough(said, monkeypatch):
    monkeypatch.setattr(module, "MAX_HITS", 2)
    assert len(found(said, "area")) == 2


@pytest.mark.parametrize("text", ["", "  ", "x" * 2000])
def test_what_cannot_be_searched_for_is_refused(said, text):
    with pytest.raises(UsageError):
        TextSearch(said, text)


def test_bytes_that_are_no_text_find_nothing(said):
    assert found(said, "\udcff") == []


def called(tmp_path, arguments, result="ok"):
    """A run one of whose rollouts calls a tool."""
    pen = Pen(make(tmp_path / "run", tasks=1, samples=1))
    played = rollout(pen.book, 0, 0)
    call = ToolCall("c", Function("run", arguments))
    played.messages += [Message("assistant", None, tool_calls=[call]), Message("tool", result, tool_call_id="c")]
    pen.score(played)
    return CachedRun(tmp_path / "run").take_snapshot()


@pytest.mark.parametrize("text", ['print("hi")', "run(", 'say("Grüße")', "Grüße", '"depth": 2', '"code"'])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_what_is_shown_of_a_tool_call_is_found(tmp_path, text, ascii_only):
    written = json.dumps({"code": 'print("hi")\nsay("Grüße")', "depth": 2}, ensure_ascii=ascii_only)
    assert found(called(tmp_path, written), text) == [("area-0", 0)]


def test_what_is_shown_of_a_tools_result_is_found(tmp_path):
    snapshot = called(tmp_path, "not json", '{"rows":[{"name":"Ümit \\"U\\""}]}')
    assert found(snapshot, '"rows": [') == found(snapshot, "run(not json") == [("area-0", 0)]
    assert found(snapshot, '"') == [("area-0", 0)]
    assert found(snapshot, "nowhere(") == []
