"""From a request to a run directory: mistakes are one line, and leave nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollbook.book import Book
from rollbook.core import ModelSpec, Settings
from rollbook.engine.blends import load_run_environments
from rollbook.engine.planning import (
    change_settings,
    check_unchanged,
    plan,
    resolve_planned_model,
    resolve_run_model,
)
from rollbook.engine.request import Request
from rollbook.errors import UsageError
from rollbook.models import REMOTE_MODEL_SPEC
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


def resolve(folder: Path, agent: str, source: str = SUMS, **more: Any) -> tuple[ModelSpec, Settings]:
    request = Request(env=write_sums(folder, source), out=str(folder / "run"), agent=agent, **more)
    return resolve_run_model([each.loaded for each in load_run_environments(request)], request)


@pytest.mark.parametrize(
    ("more", "given"),
    [
        ({"model": ["http://host/v1"]}, "-m http://host/v1"),
        ({"settings": Settings(base_urls=["http://host/v1"])}, "--base-url http://host/v1"),
        ({"model_name": "toy"}, "--model-name toy"),
    ],
)
def test_a_model_that_nothing_calls_is_refused(tmp_path: Path, more: dict[str, Any], given: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(tmp_path, "oracle", **more)
    assert str(caught.value) == f"{given}: --agent oracle asks no model; leave it out"
    remote = SUMS.replace("class Sums(Environment):", "class Sums(Environment):\n    needs_model = False")
    (tmp_path / "other").mkdir()
    with pytest.raises(
        UsageError, match=rf"{given}: .*sums_env\.py.* runs its rollouts with its own model; leave it out"
    ):
        resolve(tmp_path / "other", "chat", remote, **more)


def test_a_run_without_a_model_has_no_urls(tmp_path: Path) -> None:
    spec, settings = resolve(tmp_path, "oracle", settings=Settings(urls=["http://left"]))
    assert (spec, settings.urls) == (REMOTE_MODEL_SPEC, [])


def test_a_run_whose_rollouts_happen_elsewhere_takes_no_model() -> None:
    assert resolve_planned_model(REMOTE_MODEL_SPEC, []) == REMOTE_MODEL_SPEC
    with pytest.raises(UsageError, match="-m http://host/v1: the rollouts of this run happen elsewhere"):
        resolve_planned_model(REMOTE_MODEL_SPEC, ["http://host/v1"])
    assert resolve_planned_model(MODEL, ["http://host/v1"]).name == "toy"


def test_the_name_of_a_judge_cannot_be_changed(tmp_path: Path) -> None:
    manifest = Book(planned(tmp_path)).manifest
    with pytest.raises(UsageError) as caught:
        change_settings(manifest, Settings(), {"roles": {"judge": {"name": "other"}}})
    assert str(caught.value) == (
        "--role judge.name=other: the name of the judge is part of what this run means; start a new run"
    )


def test_names_that_an_endpoint_takes_are_forgotten_with_it(tmp_path: Path) -> None:
    manifest = Book(planned(tmp_path)).manifest
    base = Settings(urls=["http://a/v1"], wire_names={"max_tokens": "max_completion_tokens"}, concurrency=7)
    changed = change_settings(manifest, base, {"urls": ["http://b/v1"]})
    assert (changed.urls, changed.wire_names, changed.concurrency) == (["http://b/v1"], {}, 7)
    kept = change_settings(manifest, base, {"concurrency": 8})
    assert (kept.urls, kept.wire_names, kept.concurrency) == (base.urls, base.wire_names, 8)


def test_a_source_that_was_edited_is_noted_and_an_edited_copy_refused(tmp_path: Path) -> None:
    book = Book(planned(tmp_path))
    assert check_unchanged(book) == []
    (tmp_path / "sums_env.py").write_text(SUMS + "# edited")
    (note,) = check_unchanged(book)
    assert note.endswith(
        f"sums_env.py was edited since; this run continues with its own copy in {book.path / 'source'}"
    )
    (copied,) = (book.path / "source").rglob("sums_env.py")
    copied.write_text(SUMS + "# edited")
    with pytest.raises(UsageError) as caught:
        check_unchanged(book)
    assert str(caught.value) == (
        f"Sums: {book.path / 'source'} was edited, so scores would change: restore it from a copy"
    )


def test_one_sample_or_all_are_requested(tmp_path: Path) -> None:
    for given, chunk_samples in (({"samples": 3}, (0, 3)), ({"sample": 4, "tasks": ["sum-1"]}, (4, 5))):
        (tmp_path / str(chunk_samples)).mkdir()
        (part,) = Book(planned(tmp_path / str(chunk_samples), **given)).plan.parts
        assert part.samples == chunk_samples


def test_notes_of_an_environment_are_reported(tmp_path: Path) -> None:
    noted = SUMS.replace("class Sums(Environment):", "class Sums(Environment):\n    notes = ('mind the gap',)")
    request = Request(env=write_sums(tmp_path, noted), out=str(tmp_path / "run"))
    said: list[str] = []
    plan(request, load_run_environments(request), MODEL, say=said.append)
    assert "Sums: mind the gap" in said
