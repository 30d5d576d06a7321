"""From a request to a run directory: mistakes are one line, and leave nothing behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rollbook.book import Book, verify_run
from rollbook.core import ModelSpec, Settings, Task
from rollbook.engine import planning
from rollbook.engine.blends import load_run_environments
from rollbook.engine.planning import (
    change_settings,
    check_unchanged,
    choose_tool_format,
    find_media_roots,
    package_versions,
    pick_tasks,
    plan,
    resolve_planned_model,
    resolve_run_model,
)
from rollbook.engine.request import Request
from rollbook.environments import load_environment
from rollbook.errors import UsageError
from rollbook.models import REMOTE_MODEL_SPEC
from support.books import make_book
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


def test_a_judge_is_given_once(tmp_path: Path) -> None:
    manifest, twice = Book(planned(tmp_path)).manifest, {"judge": {"model": "http://a/v1"}}
    with pytest.raises(UsageError, match="--role judge=http://a/v1: --judge http://b/v1 is the same role"):
        change_settings(manifest, Settings(), {"roles": twice, "judge_urls": ["http://b/v1"]})


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
    spec = book.manifest.environments["Sums"]
    for refuse in (lambda: check_unchanged(book), lambda: load_environment(spec, book.path)):
        with pytest.raises(UsageError) as caught:
            refuse()
        assert str(caught.value) == (
            f"{book.path / 'source'} was edited since the run began, so scores would change: restore it from a copy"
        )
    assert [damage.path for damage in verify_run(book.path).damage] == [str(book.path / "source")]
    copied.write_text(SUMS)
    assert verify_run(book.path).damage == []


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


def test_a_place_in_the_folder_of_the_environment_is_named_for_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("own", "lib"):
        (tmp_path / name).mkdir()
    (tmp_path / "lib" / "helper_of_sums.py").write_text("def count():\n    raise OSError('no data')\n")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    source = SUMS.replace(
        "for i in range(self.count)", "import helper_of_sums\n        for i in helper_of_sums.count()"
    )
    with pytest.raises(UsageError, match=r"^Sums\.tasks\(\) raised OSError: no data \(\S*own/sums_env\.py:11\)$"):
        planned(tmp_path / "own", source)


def test_an_installed_environment_that_changed_is_refused_with_the_versions_that_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = make_book(tmp_path / "run")  # nothing of its source is stored
    monkeypatch.setattr(planning, "require_unedited", lambda spec, run: None)
    monkeypatch.setattr(planning, "find_changed_file", lambda spec, run: "sums.py")
    for now, detail in (
        ({"rollbook": "0"}, ""),
        ({"rollbook": "1", "python": "3"}, " (rollbook: 0 then, 1 now)"),
        ({}, " (rollbook: 0 then, absent now)"),
    ):
        monkeypatch.setattr(planning, "package_versions", lambda now=now: now)
        with pytest.raises(UsageError) as caught:
            check_unchanged(book)
        planned_with = f"Sums: sums.py is not what {book.path} was planned with"
        assert str(caught.value) == f"{planned_with}{detail}; start a new run"


def test_another_judge_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-openai")
    manifest = msgspec.structs.replace(Book(planned(tmp_path)).manifest, judge=ModelSpec("critic"))
    base = Settings(judge_urls=["http://a/v1"], judge_wire_names={"seed": "s"}, judge_headers={"x": "Y"})
    with pytest.raises(UsageError) as caught:
        change_settings(manifest, base, {"judge_urls": ["openai/other"]})
    assert str(caught.value) == "--judge openai/other: this run was planned with critic: start a new run"
    moved = change_settings(manifest, base, {"judge_urls": ["http://b/v1"]})
    assert (moved.judge_urls, moved.judge_wire_names, moved.judge_headers) == (["http://b/v1"], {}, {"x": "Y"})
    hosted = change_settings(manifest, base, {"judge_urls": ["openai/critic"]})
    assert (hosted.judge_headers, hosted.judge_key_env) == ({}, "OPENAI_API_KEY")
    assert "seed" not in hosted.judge_wire_names


def test_a_provider_brings_its_own_key_and_a_url_keeps_that_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-openai")
    manifest = Book(planned(tmp_path)).manifest
    base = Settings(urls=["http://a/v1"], api_key_env="MY_KEY", headers={"x": "Y"})
    kept = change_settings(manifest, base, {"urls": ["http://b/v1"]})
    assert (kept.api_key_env, kept.headers) == ("MY_KEY", {"x": "Y"})
    hosted = change_settings(manifest, base, {"urls": ["openai/toy"]})
    assert (hosted.api_key_env, hosted.headers) == ("OPENAI_API_KEY", {})
    both = change_settings(manifest, base, {"urls": ["openai/toy"], "headers": {"x": "Z"}})
    assert both.headers == {"x": "Z"}


def test_where_the_model_has_no_seed_none_is_sent_and_that_is_said(tmp_path: Path) -> None:
    request, said = Request(env=write_sums(tmp_path), out=str(tmp_path / "run")), list[str]()
    book = plan(request, load_run_environments(request), ModelSpec("toy", "anthropic"), say=said.append)
    assert book.manifest.sampling.extra == {"seed": None}
    assert said == ["no seed is sent: the same run gives different answers next time"]
    other = Request(env=write_sums(tmp_path), out=str(tmp_path / "other"))
    assert plan(other, load_run_environments(other), MODEL, say=said.append).manifest.sampling.extra == {}
    assert len(said) == 1


@pytest.mark.parametrize(
    ("asked", "kind", "chosen"),
    [
        ("auto", "chat", "native"),
        ("auto", "embedded", "schema"),
        ("native", "chat", "native"),
        ("text", "embedded", "text"),
        ("native", "embedded", None),
    ],
)
def test_how_tools_are_called_is_as_asked_or_as_the_model_can(asked: Any, kind: str, chosen: str | None) -> None:
    request = Request(env="sums.py", out="", tool_format=asked)
    if chosen is None:
        with pytest.raises(UsageError, match="--tool-format native: the embedded model parses no tool calls"):
            choose_tool_format(request, ModelSpec("m", kind))
    else:
        assert choose_tool_format(request, ModelSpec("m", kind)) == chosen


def test_files_of_tasks_lie_beside_the_environment_or_its_data(tmp_path: Path) -> None:
    request = Request(env=write_sums(tmp_path), out="")
    (member,) = load_run_environments(request)
    assert find_media_roots(member.loaded) == [tmp_path]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.jsonl").touch()
    assert find_media_roots(member.loaded, str(tmp_path / "data" / "rows.jsonl")) == [tmp_path, tmp_path / "data"]
    assert find_media_roots(member.loaded, "hub:rows") == [tmp_path]


def test_tasks_are_picked_in_their_own_order_and_no_further_than_needed() -> None:
    drawn: list[str] = []

    def tasks() -> Iterator[Task]:
        for name in "abcd":
            drawn.append(name)
            yield Task(name, "?")

    assert [task.id for task in pick_tasks(tasks(), ["c", "a"])] == ["a", "c"]
    assert drawn == ["a", "b", "c"]
    with pytest.raises(UsageError, match="--task x: the environment has no task of that id"):
        list(pick_tasks(tasks(), ["y", "a", "x"]))


def test_the_versions_of_what_can_change_a_number_are_recorded() -> None:
    versions = package_versions()
    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"rollbook", "msgspec", "aiohttp"} <= versions.keys()
    assert "verifiers" not in versions or versions["verifiers"]
