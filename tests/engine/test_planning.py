"""From a request to a run directory: mistakes are one line, and leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollbook.book import Book
from rollbook.core import ModelSpec, Settings
from rollbook.engine.blends import load_run_environments
from rollbook.engine.planning import change_settings, plan
from rollbook.engine.request import Request
from rollbook.errors import UsageError
from support.sums import SUMS, write_sums

MODEL = ModelSpec("toy")
TOOL = """
    from rollbook import tool

    @tool
    def {}:
        pass
"""


def planned(folder: Path, source: str = SUMS, **more: object) -> Path:
    request = Request(env=write_sums(folder, source), out=str(folder / "run"), **more)  # type: ignore[arg-type]
    return plan(request, load_run_environments(request), MODEL).path


def test_a_limit_and_a_choice_of_tasks(tmp_path: Path) -> None:
    run = planned(tmp_path, limit=3)
    assert (run / "tasks.jsonl").read_text().count("\n") == 3


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (SUMS.replace("for i in range(self.count)", "for i in range(0)"), "Sums has no tasks"),
        (SUMS.replace('id=f"sum-{i}"', 'id="same"'), "two tasks have the id 'same'"),
        (
            SUMS.replace("for i in range(self.count):", "raise OSError('no data')\n        for i in []:"),
            "OSError: no data",
        ),
        (SUMS.replace("yield Task(", "yield dict("), "gave a dict, not a Task"),
        (SUMS + TOOL.format("look(self, word)"), "tool Sums.look: parameter 'word' has no type; annotate it"),
        (SUMS + TOOL.format("tasks(self)"), "tool Sums.tasks shadows the method of every environment"),
        (SUMS + TOOL.format("look(self)") * 2, "tool Sums.look: there is one of that name above; rename one"),
        (SUMS + TOOL.format("süß(self)"), "tool Sums.süß: models take names of up to 64 ASCII letters"),
    ],
)
def test_an_environment_that_cannot_be_planned_is_one_line(tmp_path: Path, source: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        planned(tmp_path, source)
    assert [p.name for p in tmp_path.iterdir() if p.name != "__pycache__"] == ["sums_env.py"]


def test_an_unknown_task_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--task sum-99"):
        planned(tmp_path, tasks=["sum-1", "sum-99"])


@pytest.mark.parametrize(
    ("more", "words"), [({"samples": 0}, "samples 0"), ({"limit": -1}, "limit -1"), ({"sample": 1}, "--task")]
)
def test_nonsense_is_refused(tmp_path: Path, more: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        planned(tmp_path, **more)  # type: ignore[arg-type]


def test_another_api_of_the_same_name_is_refused_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key-of-anthropic")
    manifest = Book(planned(tmp_path)).manifest
    with pytest.raises(UsageError, match=r"planned with toy through another API \(chat, not anthropic\)"):
        change_settings(manifest, Settings(), {"urls": ["anthropic/toy"]})
    with pytest.raises(UsageError, match="this run was planned with toy: start a new run"):
        change_settings(manifest, Settings(), {"urls": ["anthropic/other"]})
