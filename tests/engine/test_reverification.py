"""Scoring again without a model: rewards change where the verifier did, and nothing else does."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from rollbook import Shortfall, run
from rollbook.book import Book, rollouts
from rollbook.core import (
    FAILURE_KINDS,
    Failure,
    ModelSpec,
    RoleCall,
    RoleSettings,
    RoleSpec,
    Rollout,
    Score,
    Settings,
    Task,
)
from rollbook.engine import reverification
from rollbook.engine.progress import SilentDisplay
from rollbook.engine.reverification import (
    Reverifier,
    ReverifyOnly,
    ReverifyResult,
    check_same_judge,
    find_asked_roles,
    open_or_create_book,
    reverify,
)
from rollbook.engine.runs import resume
from rollbook.environments import RunRoles
from rollbook.errors import BookError, EndpointDown, RolloutFailed, UsageError
from rollbook.reports import compare_runs
from support.books import edit_journal, make_book
from support.sums import SUMS, write_script, write_sums

BROKEN = SUMS.replace("        return roll", "        assert task.id != 'sum-3', 'broken'\n        return roll")
KIND = SUMS.replace("return roll", "return True or roll")


def first_run(folder: Path, source: str = SUMS) -> Path:
    tokens = {"prompt_ids": [1, 2], "ids": [3, 4], "logprobs": [-0.5, -0.25]}
    script = write_script(folder, **tokens)
    try:
        run(write_sums(folder, source), script, out=folder / "a", samples=2)
    except Shortfall:
        assert source is BROKEN
    return folder / "a"


def again(folder: Path, env: str | None = None, only: ReverifyOnly = "all") -> ReverifyResult:
    return asyncio.run(reverify(folder / "a", folder / "b", [env] if env else [], only, SilentDisplay()))


def kept(path: Path) -> dict[tuple[str, int], Rollout]:
    return {r.key: r for r in rollouts(Book(path), tokens=True)}


def test_the_same_verifier_changes_nothing(tmp_path: Path) -> None:
    first_run(tmp_path)
    result = again(tmp_path)
    assert (result.report.scored, result.verified, result.changed) == (20, 20, 0)
    before, after = kept(tmp_path / "a"), kept(tmp_path / "b")
    assert {k: (r.reward, r.turns, r.messages, r.seed) for k, r in before.items()} == {
        k: (r.reward, r.turns, r.messages, r.seed) for k, r in after.items()
    }
    assert Book(tmp_path / "b").manifest.parent == Book(tmp_path / "a").manifest.run


def test_another_verifier_gives_other_rewards_and_a_diff(tmp_path: Path) -> None:
    first_run(tmp_path)
    (tmp_path / "new").mkdir()
    result = again(tmp_path, write_sums(tmp_path / "new", KIND))
    assert result.report.environments["Sums"].mean == 1.0
    assert {(c.task, c.sample) for c in result.changes} == {(f"sum-{i}", s) for i in (3, 7) for s in (0, 1)}
    lines = (tmp_path / "b" / "changes.jsonl").read_text().splitlines()
    assert {json.loads(line)["after"] for line in lines} == {1.0}
    assert len(lines) == result.changed == 4


def test_a_new_verifier_is_stored_as_the_old_one_was_and_plays_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    playing: list[bool] = []
    open_environments = reverification.open_environments

    def spy(*args: Any, **options: Any) -> Any:
        playing.append(options["playing"])
        return open_environments(*args, **options)

    monkeypatch.setattr(reverification, "open_environments", spy)
    first_run(tmp_path)
    (tmp_path / "new").mkdir()
    again(tmp_path, write_sums(tmp_path / "new", KIND))
    specs = [Book(tmp_path / name).manifest.environments["Sums"] for name in ("a", "b")]
    assert specs[0].digest != specs[1].digest
    assert specs[0].snapshot == specs[1].snapshot
    assert playing == [False]  # no server of the environment is needed


def test_what_failed_in_verification_is_completed_after_a_fix(tmp_path: Path) -> None:
    first_run(tmp_path, BROKEN)
    result = again(tmp_path, write_sums(tmp_path), "failed")
    assert (result.report.scored, result.report.failed, result.verified) == (20, {}, 2)
    assert [(c.before, c.after) for c in result.changes] == [(None, 0.0), (None, 0.0)]


def test_scores_of_two_verifiers_in_one_run_are_named(tmp_path: Path) -> None:
    first_run(tmp_path, BROKEN)
    result = again(tmp_path, write_sums(tmp_path), "failed")
    parent, made = Book(tmp_path / "a").manifest, Book(tmp_path / "b").manifest
    assert result.report.kept_from == parent.run
    assert (made.rescored.only, made.rescored.kept) == ("failed", {"Sums": [parent.environments["Sums"]]})
    assert parent.environments["Sums"].digest != made.environments["Sums"].digest
    third = asyncio.run(reverify(tmp_path / "b", tmp_path / "c", (), "failed", SilentDisplay()))
    assert third.report.kept_from == made.run  # its parent's scores are by two verifiers already
    whole = asyncio.run(reverify(tmp_path / "b", tmp_path / "d", (), "all", SilentDisplay()))
    assert whole.report.kept_from == ""
    notes = compare_runs(tmp_path / "b", tmp_path / "d").notes
    assert "A holds scores of two verifiers" in notes


def test_the_same_verifier_is_one_verifier_whatever_was_scored_again(tmp_path: Path) -> None:
    first_run(tmp_path)
    assert again(tmp_path, None, "failed").report.kept_from == ""


def test_what_was_begun_for_some_rollouts_does_not_go_on_for_others(tmp_path: Path) -> None:
    first_run(tmp_path)
    again(tmp_path, None, "failed")
    with pytest.raises(UsageError, match="started with --only failed: continue with that"):
        again(tmp_path, None, "all")


def test_json_lists_every_reward_that_changed(tmp_path: Path) -> None:
    first_run(tmp_path)
    (tmp_path / "new").mkdir()
    found = again(tmp_path, write_sums(tmp_path / "new", KIND)).json()
    assert (found["verified"], found["changed"], found["scored"]) == (20, 4, 20)
    assert {"task": "sum-3", "sample": 0, "before": 0.0, "after": 1.0} in found["changes"]
    assert len(found["changes"]) == 4


def test_only_scored_leaves_failures_failed(tmp_path: Path) -> None:
    first_run(tmp_path, BROKEN)
    result = again(tmp_path, write_sums(tmp_path), "scored")
    assert (result.report.scored, result.report.failed) == (18, {"verifier_error": 2})


def test_the_old_book_is_not_touched(tmp_path: Path) -> None:
    path = first_run(tmp_path)
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    again(tmp_path)
    assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file()} == before


def test_a_run_with_rollouts_still_to_come_is_refused(tmp_path: Path) -> None:
    make_book(tmp_path / "a")
    with pytest.raises(UsageError, match="8 of 8 rollouts have no answer yet: rollbook resume"):
        again(tmp_path)


def test_an_interrupted_reverify_goes_on_and_is_never_resumed_with_a_model(tmp_path: Path) -> None:
    first_run(tmp_path)
    whole = again(tmp_path)
    done = sorted((tmp_path / "b" / "done").iterdir())
    for seal in done[1:]:
        seal.unlink()
    with pytest.raises(UsageError, match="continue with rollbook reverify"):
        resume(tmp_path / "b", {}, None, SilentDisplay())
    result = again(tmp_path)
    assert (result.report.scored, result.changed) == (20, 0)
    assert result.verified < whole.verified
    with pytest.raises(UsageError, match="is another run"):
        asyncio.run(reverify(tmp_path / "b", tmp_path / "a", (), "all", SilentDisplay()))


def spoilt(folder: Path, old: str, new: str, name: str = "*[!s].jsonl") -> Path:
    """The first line of the run's journal edited, and the seals gone."""
    for seal in (folder / "a" / "done").iterdir():
        seal.unlink()
    journal = next((folder / "a" / "journals").glob(name))
    assert edit_journal(journal, old, new, count=1) == 1
    return journal


@pytest.mark.parametrize(
    ("old", "new"),
    [('"reward":[^,]*', '"reward":null'), ('"reward":[^,]*', '"reward":1e999'), ('"answer":[^,]*', '"answer":7')],
)
def test_a_malformed_line_is_named_and_nothing_is_left_behind(tmp_path: Path, old: str, new: str) -> None:
    first_run(tmp_path)
    journal = spoilt(tmp_path, old, new)
    with pytest.raises(BookError, match=rf"{re.escape(journal.name)}:1: malformed line"):
        again(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "sums_env.py", "script.jsonl"}


def test_a_malformed_failure_is_named_too(tmp_path: Path) -> None:
    first_run(tmp_path, BROKEN)
    journal = spoilt(tmp_path, '"messages":', '"messages":3,"more":', "*.failures.jsonl")
    with pytest.raises(BookError, match=rf"{re.escape(journal.name)}:1: malformed line"):
        again(tmp_path)
    assert not (tmp_path / "b").exists()


def test_what_is_there_of_an_unfinished_run_can_be_scored_again(tmp_path: Path) -> None:
    path = first_run(tmp_path)
    for seal in (path / "done").iterdir():
        seal.unlink()
    journal = next((path / "journals").glob("*[!s].jsonl"))
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:13]))
    (tmp_path / "new").mkdir()
    kind = write_sums(tmp_path / "new", KIND)
    with pytest.raises(UsageError, match="7 of 20 rollouts have no answer yet"):
        again(tmp_path, kind)
    result = again(tmp_path, kind, "scored")
    assert (result.verified, result.report.scored, result.report.failed, result.report.pending) == (13, 13, {}, 7)
    assert result.report.overall.mean == 1.0


def test_going_on_says_that_others_were_scored_by_an_earlier_start(tmp_path: Path) -> None:
    first_run(tmp_path)
    (tmp_path / "new").mkdir()
    first = again(tmp_path, write_sums(tmp_path / "new", KIND))
    second = again(tmp_path, None)
    assert [(each.went_on, each.verified, each.changed) for each in (first, second)] == [(False, 20, 4), (True, 0, 4)]


def test_nothing_to_complete_is_said(tmp_path: Path) -> None:
    said: list[str] = []

    class Noting(SilentDisplay):
        def note(self, line: str) -> None:
            said.append(line)

    path = first_run(tmp_path)
    asyncio.run(reverify(path, tmp_path / "b", (), "failed", Noting()))
    assert said == [f"nothing in {path} failed in verification: no rollout changes"]


def test_a_run_of_two_verifiers_is_never_said_to_be_of_one(tmp_path: Path) -> None:
    first_run(tmp_path, BROKEN)
    again(tmp_path, write_sums(tmp_path), "failed")
    asyncio.run(reverify(tmp_path / "b", tmp_path / "c", (), "failed", SilentDisplay()))
    notes = compare_runs(tmp_path / "b", tmp_path / "c").notes
    assert notes == ["B is A scored again", "A holds scores of two verifiers", "B holds scores of two verifiers"]
    assert "verifier of Sums differs (the source of Sums" in compare_runs(tmp_path / "a", tmp_path / "b").notes[0]


@pytest.mark.parametrize(
    ("kind", "where", "only", "verified"),
    [
        (None, "", "all", True),
        (None, "", "scored", True),
        (None, "", "failed", False),
        ("verifier_error", "verify", "all", True),
        ("verifier_error", "verify", "failed", True),
        ("verifier_error", "verify", "scored", False),
        ("model_timeout", "verify", "failed", True),
        ("model_timeout", "model", "failed", False),
        ("model_timeout", "model", "all", False),
    ],
)
def test_what_is_verified_again(kind: str | None, where: str, only: ReverifyOnly, verified: bool) -> None:
    rollout = Rollout(task=Task("t", "?"), sample=0, seed=0)
    rollout.failure = Failure.from_error(RolloutFailed(kind, where, "why")) if kind else None
    reverifier = Reverifier(None, Path(), {}, only)  # type: ignore[arg-type]
    assert reverifier._should_verify(rollout) is verified
    error = reverification._stored_error(rollout)
    assert (error and (error.kind, error.where, error.message)) == ((kind, where, "why") if kind else None)


def test_a_book_that_was_begun_otherwise_is_not_continued(tmp_path: Path) -> None:
    path = first_run(tmp_path)
    again(tmp_path)
    make_book(tmp_path / "other")
    old, judge = Book(path), ModelSpec("judge")
    user = RoleSpec(ModelSpec("asker"))
    for out, only, roles, why in (
        ("other", "all", RunRoles(), f"{tmp_path / 'other'} is another run: choose another --out, or delete it"),
        ("b", "failed", RunRoles(), "was started with --only all: continue with that, or choose another --out"),
        ("b", "all", RunRoles(judge=judge), "was started with no judge: continue with that, or choose another"),
        ("b", "all", RunRoles(others={"user": user}), "was started with no model as user: continue with that"),
    ):
        with pytest.raises(UsageError, match=why):
            open_or_create_book(old, [], only, tmp_path / out, SilentDisplay(), roles)  # type: ignore[arg-type]


def test_a_role_that_nothing_asks_is_refused(tmp_path: Path) -> None:
    old = Book(first_run(tmp_path))
    assert find_asked_roles(old, [], Settings()) == set()
    with pytest.raises(
        UsageError, match=f"--role user: nothing in {old.path} asks a model of that role; its roles: none"
    ):
        find_asked_roles(old, [], Settings(roles={"user": RoleSettings()}))
    assert find_asked_roles(old, [], Settings(roles={"judge": RoleSettings()})) == set()


def test_scores_of_two_judges_are_not_mixed(tmp_path: Path) -> None:
    old = Book(first_run(tmp_path))
    check_same_judge(old, ModelSpec("judge"), "all")
    check_same_judge(old, None, "failed")
    with pytest.raises(UsageError) as caught:
        check_same_judge(old, ModelSpec("judge"), "failed")
    assert str(caught.value) == "--only failed: the other scores are by no judge, not by judge; leave --only out"


def test_a_result_is_shown_as_text_html_and_json(tmp_path: Path) -> None:
    first_run(tmp_path)
    (tmp_path / "new").mkdir()
    result = again(tmp_path, write_sums(tmp_path / "new", KIND))
    assert repr(result).startswith(f"ReverifyResult('{tmp_path / 'b'}'): 20 verified, 4 rewards changed; ")
    assert result._repr_html_().startswith("<p>20 verified, 4 rewards changed</p><")
    numbers = result.json()
    assert (numbers["verified"], numbers["changed"], numbers["went_on"]) == (20, 4, False)
    assert len(numbers["changes"]) == 4
    assert {(change["before"], change["after"]) for change in numbers["changes"]} == {(0.0, 1.0)}


def test_what_fails_in_the_new_verification_has_no_reward_any_more(tmp_path: Path) -> None:
    first_run(tmp_path)
    (tmp_path / "new").mkdir()
    result = again(tmp_path, write_sums(tmp_path / "new", BROKEN))
    assert (result.report.scored, result.report.failed, result.verified) == (18, {"verifier_error": 2}, 20)
    assert [(c.task, c.sample, c.before, c.after) for c in sorted(result.changes, key=lambda c: c.sample)] == [
        ("sum-3", 0, 0.0, None),
        ("sum-3", 1, 0.0, None),
    ]


def test_a_judge_that_is_away_is_waited_for_by_repeating_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_run(tmp_path)

    async def lose(*_: object) -> None:
        raise EndpointDown("no judge answers; check the server, then rollbook resume b", {"http://j": "refused"})

    monkeypatch.setattr(reverification, "_verify_all", lose)
    with pytest.raises(EndpointDown) as caught:
        again(tmp_path)
    assert str(caught.value) == "no judge answers; check the server, then run the same command again"
    assert caught.value.reasons == {"http://j": "refused"}


def test_the_new_run_lies_beside_the_old_one_and_other_words_for_only_are_refused(tmp_path: Path) -> None:
    first_run(tmp_path)
    result = asyncio.run(reverify(tmp_path / "a", None, [], "all", SilentDisplay()))
    assert result.path == tmp_path / "a-reverified"
    with pytest.raises(UsageError, match="--only some: give failed, scored or all"):
        asyncio.run(reverify(tmp_path / "a", None, [], "some", SilentDisplay()))  # type: ignore[arg-type]


def test_only_failures_of_the_infrastructure_are_tried_again() -> None:
    for only in ("failed", "all"):
        budgets = reverification.attempt_budgets(only)  # type: ignore[arg-type]
        assert (budgets["verifier_error"], budgets["model_timeout"]) == (1, FAILURE_KINDS["model_timeout"].attempts)
        assert budgets["model_timeout"] > 1
    assert set(reverification.attempt_budgets("scored").values()) == {1}


def test_calls_of_an_earlier_verification_are_left_out_of_the_next(tmp_path: Path) -> None:
    class Verifier:
        async def repeat_outcome(self, task: Task, rollout: Rollout, artifacts: Path) -> str:
            return "again"

        async def verify(self, task: Task, rollout: Rollout) -> Score:
            return Score(0.5)

    played = RoleCall("user", 0, 1, "hello")
    judged = RoleCall("judge", 0, 1, "5", in_verification=True)
    rollout = Rollout(task=Task("t", "?", env="e"), sample=0, seed=0, role_calls=[played, judged], score=Score(1.0))
    reverifier = Reverifier(None, tmp_path, {"e": Verifier()}, "all")  # type: ignore[arg-type, dict-item]
    verified, error = asyncio.run(reverifier._verify(rollout))
    assert (verified.role_calls, verified.outcome, verified.reward, error) == ([played], "again", 0.5, None)
    assert reverifier.verified == 1


def test_nothing_is_said_where_rollouts_were_scored_again(tmp_path: Path) -> None:
    said: list[str] = []

    class Noting(SilentDisplay):
        def note(self, line: str) -> None:
            said.append(line)

    path = first_run(tmp_path, BROKEN)
    asyncio.run(reverify(path, tmp_path / "b", (), "all", Noting()))
    asyncio.run(reverify(path, tmp_path / "c", [write_sums(tmp_path)], "failed", Noting()))
    assert said == []
