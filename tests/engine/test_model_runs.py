"""run_each: several models from Python, and the folder that it leaves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import rollbook
from rollbook import LeaderboardIncomplete, UsageError
from rollbook.book import Book
from rollbook.core import Settings, StartOptions
from rollbook.engine.model_runs import (
    ModelRun,
    check_name,
    extend_models,
    finish_models,
    list_changes,
    name_models,
    read_models,
    remove_models,
    run_model,
    work_through,
)
from rollbook.engine.progress import SilentDisplay
from rollbook.engine.request import Request
from rollbook.engine.runs import RunResult
from rollbook.errors import BookError, EndpointDown, Stopped
from rollbook.reports import make_leaderboard
from support.sums import SUMS, write_sums


def write_answers(folder: Path, name: str, wrong: int) -> str:
    lines = [{"task": f"sum-{i}", "answer": str(2 * i) if i >= wrong else "?"} for i in range(10)]
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"scripted:{folder / name}.jsonl"


def test_models_are_ranked_and_compared_with_the_best(tmp_path: Path) -> None:
    targets = [write_answers(tmp_path, "poor", 9), {"model": write_answers(tmp_path, "good", 1), "name": "mine"}]
    board = rollbook.run_each(write_sums(tmp_path), targets, samples=2, out=tmp_path / "both", progress=False)
    assert [(row.name, row.scored, row.mean) for row in board.rows] == [("mine", 20, 0.9), ("poor", 20, 0.1)]
    assert board.reference == "mine"
    lost = board.rows[1].difference
    assert lost is not None
    assert lost.difference == pytest.approx(-0.8)
    assert "-0.800" in repr(board)
    assert "scripted answers, no model: mine, poor" in board.notes
    assert "<table>" in board._repr_html_()
    again = rollbook.run_each(write_sums(tmp_path), targets, samples=2, out=tmp_path / "both", progress=False)
    assert again == board


def test_a_model_without_scores_is_last_and_has_no_numbers(tmp_path: Path) -> None:
    targets = ["http://127.0.0.1:9", write_answers(tmp_path, "poor", 10)]
    with pytest.raises(LeaderboardIncomplete, match=r"1 of 2 models are complete; 127.0.0.1-9: .* refused") as failed:
        rollbook.run_each(write_sums(tmp_path), targets, out=tmp_path / "both", progress=False)
    board = failed.value.leaderboard
    assert isinstance(board, rollbook.Leaderboard)
    assert [(row.name, row.mean) for row in board.rows] == [("poor", 0.0), ("127.0.0.1-9", None)]


def test_an_incomplete_model_is_compared_on_the_tasks_that_both_have_and_is_not_the_reference(tmp_path: Path) -> None:
    poison = SUMS.replace("return roll", "assert rollout.text != 'fail'\n        return roll")
    lucky = write_answers(tmp_path, "lucky", 0)
    text = (tmp_path / "lucky.jsonl").read_text()
    (tmp_path / "lucky.jsonl").write_text(text.replace('"sum-3", "answer": "6"', '"sum-3", "answer": "fail"'))
    targets = [lucky, write_answers(tmp_path, "good", 1)]
    board = rollbook.run_each(
        write_sums(tmp_path, poison), targets, out=tmp_path / "both", progress=False, allow_shortfall=True
    )
    assert [row.name for row in board.rows] == ["lucky", "good"]  # by the mean of what is scored
    assert board.reference == "good"
    gained = board.rows[0].difference
    assert gained is not None
    assert gained.tasks == 9
    assert board.rows[0].failed == {"verifier_error": 1}
    assert any("not all scored: lucky" in note for note in board.notes)


def test_tasks_that_changed_between_two_models_are_named(tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    env = write_sums(tmp_path, SUMS.replace('f"What is', f'open({str(words)!r}).read() + f"'))
    folder, first = tmp_path / "both", write_answers(tmp_path, "good", 1)
    words.write_text("What is ")
    rollbook.run_each(env, [first], out=folder, progress=False)
    words.write_text("How much is ")
    board = rollbook.run_each(env, [first, write_answers(tmp_path, "poor", 9)], out=folder, progress=False)
    assert board.rows[1].difference is None
    assert any("poor is not compared" in note and "do not have the same tasks" in note for note in board.notes)


def test_models_must_be_a_list_and_share_what_makes_them_comparable(tmp_path: Path) -> None:
    env = write_sums(tmp_path)
    with pytest.raises(UsageError, match="give a list of models"):
        rollbook.run_each(env, "openai/a", out=tmp_path / "both")
    with pytest.raises(UsageError, match="seed is the same for all models"):
        rollbook.run_each(env, [{"model": "openai/a", "seed": 1}], out=tmp_path / "both")
    with pytest.raises(UsageError, match="no setting is called temprature"):
        rollbook.run_each(env, ["openai/a"], temprature=1, out=tmp_path / "both")
    assert not (tmp_path / "both").exists()


def test_a_list_that_names_another_folder_is_refused(tmp_path: Path) -> None:
    rollbook.run_each(write_sums(tmp_path), [write_answers(tmp_path, "good", 1)], out=tmp_path / "a", progress=False)
    listed = tmp_path / "a" / "models.json"
    listed.write_text(listed.read_text().replace('"name": "good"', '"name": "../a/good"'))
    with pytest.raises(rollbook.RollbookError, match="not that of a folder next to it"):
        make_leaderboard(tmp_path / "a")


def test_a_model_of_the_list_has_to_be_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"models: {'price': 'in=1,out=1'} names no model; give it as 'model'"):
        rollbook.run_each(write_sums(tmp_path), [{"price": "in=1,out=1"}], out=tmp_path / "both", progress=False)


def name_all(*targets: str, names: tuple[str, ...] = ()) -> list[str]:
    """Return the names that models get in a folder."""
    requests = [Request(env="sums.py", out="", model=[target]) for target in targets]
    runs = name_models(Path("both"), requests, names)
    assert [run.request.out for run in runs] == [f"both/{run.name}" for run in runs]
    return [run.name for run in runs]


def test_models_of_one_name_get_numbers() -> None:
    assert name_all("http://x/v1", "https://x/v1", "http://x") == ["x", "x-2", "x-3"]


def test_a_given_name_counts_and_an_empty_one_does_not() -> None:
    assert name_all("http://host:80/v1", "http://x/v1", names=("", "mine")) == ["host-80", "mine"]


@pytest.mark.parametrize(
    ("targets", "names", "message"),
    [
        (("http://x/v1", "http://x/v1"), (), "-m http://x/v1: given twice; each model has one run"),
        (("http://x/v1", "http://y/v1"), ("one", "one"), "name one: two models have it; choose another"),
    ],
)
def test_a_model_or_a_name_that_is_given_twice_is_refused(
    targets: tuple[str, ...], names: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        name_all(*targets, names=names)
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["a/b", "..", "-x", "", "models.json", "leaderboard.json", "a b"])
def test_a_name_that_no_folder_of_a_model_may_have_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="write letters, digits and"):
        check_name(name)
    assert check_name("a.b-c_1") == "a.b-c_1"


def test_a_folder_that_was_started_otherwise_is_refused_with_the_difference(tmp_path: Path) -> None:
    sums, targets = write_sums(tmp_path), [write_answers(tmp_path, "good", 1), write_answers(tmp_path, "poor", 9)]
    rollbook.run_each(sums, targets, out=tmp_path / "both", progress=False)
    with pytest.raises(UsageError, match="was started otherwise: samples was 1 and is 2 now; use the same options"):
        rollbook.run_each(sums, targets, samples=2, out=tmp_path / "both", progress=False)


def test_a_mistake_that_keeps_every_model_from_starting_is_one_error_and_leaves_no_folder(tmp_path: Path) -> None:
    targets = [write_answers(tmp_path, "good", 1), write_answers(tmp_path, "poor", 9)]
    with pytest.raises(UsageError, match=r"none\.py"):
        rollbook.run_each(str(tmp_path / "none.py"), targets, out=tmp_path / "both", progress=False)
    assert not (tmp_path / "both").exists()


def test_a_list_of_models_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "models.json").write_text("[]")
    with pytest.raises(BookError, match=r"models\.json: not a list of models"):
        read_models(tmp_path)


def run_two(tmp_path: Path) -> Path:
    targets = [write_answers(tmp_path, "poor", 9), write_answers(tmp_path, "good", 1)]
    rollbook.run_each(write_sums(tmp_path), targets, out=tmp_path / "both", progress=False)
    return tmp_path / "both"


def test_models_are_extended_unless_all_have_the_samples(tmp_path: Path) -> None:
    folder = run_two(tmp_path)
    with pytest.raises(UsageError, match=r"both has 1 samples of every task already: give more than that with -k"):
        extend_models(folder, 1)
    extended = extend_models(folder, 3)
    assert [(each.request.samples, each.extended_to, each.needs_samples) for each in extended] == [(3, 3, True)] * 2
    assert read_models(folder) == extended
    assert [each.extended_to for each in extend_models(folder, 2)] == [2, 2]
    shutil.rmtree(folder / "good")
    assert [each.extended_to for each in extend_models(folder, 1)] == [1, 1]  # one has to be run again


def test_a_model_is_taken_out_of_a_folder_and_its_run_is_kept_unless_it_is_deleted(tmp_path: Path) -> None:
    folder = run_two(tmp_path)
    remove_models(folder, ["poor"])
    assert [each.name for each in read_models(folder)] == ["good"]
    assert (folder / "poor" / "run.json").exists()
    for names, message in (
        (["good"], "would have no model left: delete the folder instead"),
        (["poor"], "has no model poor; it has good"),
    ):
        with pytest.raises(UsageError, match=message):
            remove_models(folder, names)
    with pytest.raises(UsageError, match=r"is not a folder of run --each: it has no models\.json"):
        remove_models(tmp_path, ["good"])


def test_a_run_that_is_taken_out_can_be_deleted_too(tmp_path: Path) -> None:
    folder = run_two(tmp_path)
    remove_models(folder, ["poor"], delete=True)
    assert not (folder / "poor").exists()
    assert (folder / "good" / "run.json").exists()
    assert "poor" not in (folder / "leaderboard.json").read_text()


def test_a_model_that_joins_a_folder_has_the_samples_of_the_others(tmp_path: Path) -> None:
    sums, folder = write_sums(tmp_path), tmp_path / "both"
    rollbook.run_each(sums, [write_answers(tmp_path, "good", 1)], out=folder, progress=False)
    with pytest.raises(UsageError, match="samples was 1 and is 2 now; use the same options, or another --out"):
        rollbook.run_each(sums, [write_answers(tmp_path, "poor", 9)], samples=2, out=folder, progress=False)
    with pytest.raises(UsageError, match="tasks was not given and is "):
        rollbook.run_each(sums, [write_answers(tmp_path, "poor", 9)], tasks=["sum-1"], out=folder, progress=False)
    assert [each.name for each in read_models(folder)] == ["good"]


def start(run: ModelRun, **changes: object) -> RunResult:
    return run_model(run, changes, None, SilentDisplay(), StartOptions())


def test_models_of_an_extended_folder_get_the_samples_that_they_are_missing(tmp_path: Path) -> None:
    folder = run_two(tmp_path)
    shutil.rmtree(folder / "good")
    poor, good = extend_models(folder, 2)
    assert (poor.has_run, poor.needs_samples, good.has_run) == (True, True, False)
    results = [start(poor, concurrency=3), start(good, concurrency=3)]
    assert [(each.report.requested, each.report.scored) for each in results] == [(20, 20)] * 2
    assert [Book(each.path).last_settings().concurrency for each in results] == [3, 3]
    assert not poor.needs_samples
    again = start(poor)
    assert (again.report.scored, len(Book(poor.path).rounds())) == (20, 2)  # a finished run is only read


def test_settings_that_differ_from_those_of_a_folder_are_changes(tmp_path: Path) -> None:
    folder = run_two(tmp_path)
    target = f"scripted:{tmp_path / 'poor'}.jsonl"
    settings = Settings(concurrency=3)
    requests = [Request(env=write_sums(tmp_path), out="", model=[target], settings=settings)]
    runs = name_models(folder, requests)
    assert list_changes(folder, runs) == {"poor": {"concurrency": 3}}
    assert list_changes(tmp_path / "none", runs) == {}
    assert list_changes(folder, name_models(folder, requests, ["new"])) == {}


def test_an_interrupt_stops_all_models_and_an_error_only_its_own(tmp_path: Path) -> None:
    runs, worked = extend_models(run_two(tmp_path), 2), list[str]()

    def work(run: ModelRun, error: Exception) -> None:
        worked.append(run.name)
        raise error

    for error in (EndpointDown("down", {}), BookError("damaged")):
        assert work_through(runs, lambda run, error=error: work(run, error)) == {"poor": error, "good": error}
    assert worked == ["poor", "good"] * 2
    with pytest.raises(Stopped):
        work_through(runs, lambda run: work(run, Stopped("interrupted")))
    assert len(worked) == 5
    assert work_through(runs, lambda run: None) == {}


def test_mistakes_that_are_not_the_same_for_all_are_those_of_the_models(tmp_path: Path) -> None:
    folder = run_two(tmp_path)
    board, error = finish_models(folder, {})
    assert (board.complete, error) == (True, None)
    problems = {"poor": UsageError("the same"), "good": UsageError("the same")}
    board, error = finish_models(folder, problems)  # both have runs
    assert isinstance(error, LeaderboardIncomplete)
    assert finish_models(folder, problems, allow_shortfall=True)[1] is None
    for name in ("poor", "good"):
        (folder / name / "run.json").unlink()
    assert isinstance(finish_models(folder, {"poor": UsageError("one")})[1], LeaderboardIncomplete)
    other = {"poor": UsageError("one"), "good": UsageError("two")}
    assert isinstance(finish_models(folder, other)[1], LeaderboardIncomplete)
    with pytest.raises(UsageError, match=r"^the same$"):
        finish_models(folder, problems)
    assert not (folder / "models.json").exists()
    assert (folder / "poor").exists()  # something is in it


def test_a_folder_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / "notes.txt").touch()
    with pytest.raises(UsageError, match=r"both is not empty: choose another --out, or delete it"):
        rollbook.run_each(
            write_sums(tmp_path), [write_answers(tmp_path, "good", 1)], out=tmp_path / "both", progress=False
        )
