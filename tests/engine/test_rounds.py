"""The next round of a run: what it would have to work on, which settings it has, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollbook import Run, run
from rollbook.book import Book
from rollbook.book.heartbeats import make_presence, write_heartbeat
from rollbook.core import JSON, ModelSpec, Settings, Task
from rollbook.engine import runs
from rollbook.engine.progress import SilentDisplay
from rollbook.engine.request import Request
from rollbook.engine.runs import (
    StartOptions,
    check_run_model,
    count_open_chunks,
    count_samples,
    extend_samples,
    plan_request,
    prepare_round,
    resume,
    take_learned_names,
)
from rollbook.errors import Shortfall, UsageError
from support.books import edit_record, make_book, open_round
from support.sums import SUMS, write_script, write_sums

JUDGED = SUMS + "\n    async def appeal(self, task, rollout, score, judge):\n        return score\n"
BROKEN = SUMS.replace("        return roll", "        assert task.id != 'sum-3'\n        return roll")


class Notes(SilentDisplay):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


def make_run(folder: Path, source: str = SUMS, **more: Any) -> Book:
    run(write_sums(folder, source), write_script(folder), out=folder / "run", allow_shortfall=True, **more)
    return Book(folder / "run")


def test_chunks_that_a_round_would_open_again_are_counted(tmp_path: Path) -> None:
    book = make_run(tmp_path, BROKEN)
    assert count_open_chunks(book) == 0
    for retry, count in ((["infra"], 0), (["verifier_error"], 1), (["all"], 1)):
        assert count_open_chunks(book, Settings(retry=retry)) == count
    planned = make_book(tmp_path / "planned", tasks=4, samples=2)
    open_round(planned)
    assert count_open_chunks(planned) == count_open_chunks(planned, Settings()) == len(planned.chunks)


def test_samples_are_those_that_every_task_has(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=3, samples=2)
    assert count_samples(book) == 2
    book.extend(5, 1)
    assert count_samples(book) == 5
    book.request_samples([Task(id="new", prompt="x")], "Other", 1)
    assert count_samples(book) == 1


def test_names_that_workers_of_the_last_round_learned_are_kept(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    open_round(book)
    for number, names in ((1, {"max_tokens": "n"}), (2, {})):
        presence = make_presence(number)
        presence.wire_names = names
        write_heartbeat(book.path, presence)
    own = Settings(wire_names={"seed": "s"})
    assert take_learned_names(book, own).wire_names == {"max_tokens": "n"}
    open_round(book)
    assert take_learned_names(book, own) == own


def test_a_round_is_prepared_with_its_changes_and_opens_nothing(tmp_path: Path) -> None:
    book, said = make_run(tmp_path, BROKEN), list[str]()
    (tmp_path / "sums_env.py").write_text(SUMS)
    changes: dict[str, JSON] = {"concurrency": 3}
    found = prepare_round(book, changes, None, said.append)
    assert (found.settings.concurrency, found.settings.retry, found.open_chunks) == (3, ["infra"], 0)
    assert prepare_round(book, {}, ["verifier_error"], said.append).open_chunks == 1
    assert len(book.rounds()) == 1
    assert len(said) == 2
    assert "was edited since; this run continues with its own copy" in said[0]


def test_a_run_that_has_the_samples_already_is_not_extended(tmp_path: Path) -> None:
    book = make_run(tmp_path, samples=2)
    with pytest.raises(UsageError) as caught:
        extend_samples(book, 2, {})
    assert str(caught.value) == f"{book.path} has 2 samples of every task already: give more than that with -k"
    extend_samples(book, 3, {}, workers=5)
    assert Book(book.path).plan.parts[-1].samples == (2, 3)


def test_another_model_and_a_run_without_one_are_refused(tmp_path: Path) -> None:
    book = make_run(tmp_path)
    settings = book.last_settings()
    assert check_run_model(book, settings) == book.manifest.model
    assert check_run_model(book, Settings(), served=True) == book.manifest.model
    (tmp_path / "script.jsonl").write_text('{"answer": "7"}\n')
    with pytest.raises(
        UsageError, match=r"was planned with the model scripted .*; its file was edited since: start a new"
    ):
        check_run_model(book, settings)
    edit_record(book.path / "run.json", parent="f00d")
    with pytest.raises(UsageError) as caught:
        check_run_model(Book(book.path), settings)
    assert str(caught.value) == (
        f"{book.path} scores another run again, without a model: continue with rollbook reverify RUN -o {book.path}"
    )


def test_nothing_left_is_said_and_only_another_price_is_a_round(tmp_path: Path) -> None:
    book, display = make_run(tmp_path), Notes()
    result = resume(book.path, {}, None, display)
    assert (result.report.scored, display.lines, len(book.rounds())) == (10, ["nothing is left to do"], 1)
    resume(book.path, {"price": "in=1,out=2"}, None, display)
    assert [each.settings.price for each in book.rounds()] == [None, "in=1,out=2"]


def test_a_shortfall_of_a_resumed_run_is_an_error_unless_it_is_allowed(tmp_path: Path) -> None:
    book = make_run(tmp_path, BROKEN)
    with pytest.raises(Shortfall):
        resume(book.path, {}, ["verifier_error"], SilentDisplay())
    assert len(book.rounds()) == 2
    assert Run(book.path).report.failed == {"verifier_error": 1}


def test_planning_needs_no_key_of_the_model_or_the_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers run elsewhere, where the keys are."""
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    path = plan_request(
        Request(
            env=write_sums(tmp_path, JUDGED),
            model=["openai/gpt-5-mini"],
            judge=["anthropic/claude"],
            out=str(tmp_path / "run"),
        )
    )
    manifest = Book(path).manifest
    assert (manifest.model.name, manifest.judge and manifest.judge.name) == ("gpt-5-mini", "claude")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"model": ["http://host/v1"]}, "plan calls no model, so it cannot learn its name: give --model-name"),
        ({"model": ["http://host/v1"], "model_name": "m", "judge": ["http://host/v1"]}, "plan calls no judge, so it"),
        (
            {"model": ["http://host/v1"], "model_name": "m", "judge": ["http://host/v1"], "judge_name": "j"},
            "--judge: Sums uses no judge",
        ),
    ],
)
def test_a_plan_needs_names_and_a_use_for_each(tmp_path: Path, given: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        plan_request(Request(env=write_sums(tmp_path), out=str(tmp_path / "run"), **given))
    assert not (tmp_path / "run").exists()


def test_only_endpoints_are_probed_and_only_if_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def probe(*given: Any, **_: Any) -> Any:
        asked.append(given[0].kind)
        raise UsageError("asked")

    monkeypatch.setattr(runs, "probe_endpoint", probe)
    book = make_run(tmp_path)  # a script is not probed
    assert asked == []
    with pytest.raises(UsageError, match=r"^asked$"):
        run(write_sums(tmp_path), "http://127.0.0.1:9/v1", model_name="m", out=tmp_path / "other")
    assert (asked, (tmp_path / "other").exists(), StartOptions().probe) == (["chat"], False, True)
    assert book.rounds()


def test_a_resumed_run_is_probed_only_if_something_is_left_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probed: list[str] = []

    async def probe(spec: ModelSpec, meaning: Any, settings: Settings, *_: Any) -> tuple[ModelSpec, Settings]:
        probed.append(spec.name)
        return spec, settings

    book = make_run(tmp_path, BROKEN)
    monkeypatch.setattr(runs, "probe_models", probe)
    for retry, count in ((["none"], 0), (["verifier_error"], 1)):
        with pytest.raises(Shortfall):
            resume(book.path, {}, retry, SilentDisplay())
        assert len(probed) == count
