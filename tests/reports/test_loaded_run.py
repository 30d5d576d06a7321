"""A run in Python: iterators against the files, tables against the iterators, the cache of a big table."""

import json
import math
import os
import shutil
import tracemalloc

import polars
import pytest

import rollbook
from rollbook import UsageError
from rollbook.book import rollouts
from rollbook.reports import run_tables
from rollbook.reports.run_tables import CACHE_FILE
from support.sample_runs import Pen, fill, make, rollout

MB = 1 << 20


@pytest.fixture
def run(tmp_path):
    fill(make(tmp_path / "run", tasks=20, samples=4), pending=5, seed=1)
    return rollbook.load(tmp_path / "run")


def _by_key(rows):
    return sorted(rows, key=lambda row: (row["task"], row["sample"]))


def _expected_rows(run):
    for each in rollouts(run.book):
        yield {
            "task": each.task.id,
            "sample": each.sample,
            "env": each.task.env,
            "reward": each.reward,
            "answer": each.score.answer,
            "prompt_tokens": each.usage.prompt_tokens,
            "completion_tokens": each.usage.completion_tokens,
            "turns": len(each.turns),
            "truncated": each.truncated,
            "seconds": each.timing.seconds,
            "parts.right": each.score.parts["right"],
            "parts.brief": each.score.parts["brief"],
        }


def test_the_table_of_rollouts_has_every_scored_rollout_with_its_values(run):
    expected = _by_key(_expected_rows(run))
    assert len(expected) == run.report.scored > 20
    assert _by_key(run.to_arrow().to_pylist()) == expected
    assert _by_key(run.to_polars().to_dicts()) == expected
    assert _by_key(run.to_pandas().to_dict("records")) == expected


def test_parts_and_answers_that_a_rollout_lacks_are_null(tmp_path):
    pen = Pen(make(tmp_path / "run", tasks=2, samples=1))
    plain, other = rollout(pen.book, 0, 0), rollout(pen.book, 1, 0)
    plain.score, other.score = rollbook.Score(0.5), rollbook.Score(1.0, {"style": 0.25}, "7")
    pen.score(plain)
    pen.score(other)
    rows = _by_key(rollbook.load(tmp_path / "run").to_arrow().to_pylist())
    assert [(row["answer"], row["parts.style"]) for row in rows] == [(None, None), ("7", 0.25)]


def test_turns_and_messages_have_a_row_for_each(run):
    stored = {each.key: each for each in run.rollouts()}
    turns = run.to_polars("turns")
    assert len(turns) == sum(len(each.turns) for each in stored.values())
    first = turns.row(0, named=True)
    turn = stored[first["task"], first["sample"]].turns[first["turn"]]
    assert (first["completion_tokens"], first["finish_reason"]) == (turn.completion_tokens, turn.finish_reason)
    messages = run.to_polars("messages")
    assert len(messages) == sum(len(each.messages) for each in stored.values())
    called = messages.filter(polars.col("tool_calls").is_not_null()).row(0, named=True)
    message = stored[called["task"], called["sample"]].messages[called["message"]]
    assert json.loads(called["tool_calls"])[0]["function"]["name"] == message.tool_calls[0].function.name


def test_the_table_of_tasks_counts_what_became_of_each(run):
    tasks = run.to_polars("tasks")
    assert tasks["task"].to_list() == [task.id for task in run.tasks()]
    assert tasks["scored"].sum() == run.report.scored
    assert tasks["failed"].sum() == sum(run.report.failed.values()) > 0
    assert tasks["requested"].sum() == run.report.requested
    mean = (tasks["mean_reward"].fill_null(0) * tasks["scored"]).sum() / run.report.scored
    assert math.isclose(mean, run.report.overall.mean)
    assert json.loads(tasks["fields"][1]) == {"level": 1, "hint": "x^3"}


def test_groups_hold_all_rollouts_of_a_task_in_order(run):
    groups = list(run.groups())
    assert sum(len(group.scored) for group in groups) == run.report.scored
    assert sum(len(group.failed) for group in groups) == sum(run.report.failed.values())
    for group in groups:
        assert {each.task.id for each in group.rollouts} == {group.task.id}
        assert [each.sample for each in group.rollouts] == sorted(each.sample for each in group.rollouts)


def test_failures_are_those_of_the_report(run):
    kinds = [failure.kind for _, _, failure in run.failures()]
    assert kinds
    assert {kind: kinds.count(kind) for kind in set(kinds)} == run.report.failed
    missing = {(task, sample) for task, sample, why in run.report.missing if why != "pending"}
    assert {(task, sample) for task, sample, _ in run.failures()} == missing


@pytest.mark.parametrize(
    ("iterate", "count"),
    [(lambda run: run.rollouts(), 900), (lambda run: run.groups(), 250), (lambda run: run.failures(), 100)],
    ids=["rollouts", "groups", "failures"],
)
def test_a_big_run_is_read_while_it_is_iterated(wordy, iterate, count):
    tracemalloc.start()
    try:
        found = iterate(rollbook.load(wordy))
        first = next(found)
        assert first
        assert sum(1 for _ in found) == count - 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    journals = sum(path.stat().st_size for path in (wordy / "journals").iterdir())
    assert journals > 40 * MB
    assert peak < 16 * MB


@pytest.fixture(scope="module")
def wordy(tmp_path_factory):
    """A run of 250 tasks x 4 with 50 KB of text in each rollout, a tenth of which failed."""
    path = tmp_path_factory.mktemp("wordy") / "run"
    pen = Pen(make(path, tasks=250, samples=4))
    for row in range(250):
        for sample in range(4):
            failed = (4 * row + sample) % 10 == 0
            each = rollout(pen.book, row, sample, failure="verifier_error" if failed else "")
            each.messages = [*each.messages, rollbook.Message("user", "x" * 50_000)]
            pen.fail(each, final=True) if failed else pen.score(each)
    return path


def test_a_failure_of_a_key_that_was_scored_later_is_none(tmp_path):
    pen = Pen(make(tmp_path / "run", tasks=2, samples=1))
    pen.fail(rollout(pen.book, 0, 0, failure="model_timeout"), final=True)
    pen.fail(rollout(pen.book, 1, 0, failure="model_timeout"), final=True)
    pen.score(rollout(pen.book, 0, 0, attempt=2))
    assert [(task, sample) for task, sample, _ in rollbook.load(tmp_path / "run").failures()] == [("area-1", 0)]


def test_its_repr_has_two_lines_and_its_html_no_markup_of_others(tmp_path):
    fill(make(tmp_path / "<b>run", tasks=3, samples=2, model="<script>x</script>"))
    loaded = rollbook.load(tmp_path / "<b>run")
    assert len(repr(loaded).splitlines()) == 2
    assert "6 scored" in repr(loaded) or "of 6 scored" in repr(loaded)
    html = loaded._repr_html_()
    assert "<script>" not in html
    assert "<b>" not in html
    assert "pass@1" in html


def test_the_plot_draws_pass_at_k_rewards_and_tokens(run, tmp_path):
    figure = run.plot()
    assert [axes.get_xlabel() for axes in figure.axes] == ["k", "reward", "sampled tokens"]
    (line,) = figure.axes[0].lines
    assert list(line.get_ydata()) == [run.report.overall.pass_at[k] for k in sorted(run.report.overall.pass_at)]
    figure.savefig(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_a_notebook_can_show_the_plot(run):
    assert run.plot()._repr_png_().startswith(b"\x89PNG")


def test_results_and_reports_show_two_short_lines_and_a_table(run):
    result = rollbook.RunResult(run.path, run.report)
    assert repr(result) == f"RunResult({str(run.path)!r}): {run.report.describe()}"
    for shown in (result, run.report):
        assert len(repr(shown).splitlines()) == 2
        assert f"{run.report.scored} of 80 scored" in repr(shown)
        assert "<table>" in shown._repr_html_()


def test_the_repr_of_a_run_that_is_gone_or_damaged_says_so_and_does_not_raise(run, tmp_path):
    damaged = tmp_path / "damaged"
    shutil.copytree(run.path, damaged)
    loaded = rollbook.load(damaged)
    (damaged / "tasks.jsonl").write_text("<b>no tasks</b>\n")
    shutil.rmtree(run.path)
    for each in (run, loaded):
        assert repr(each).startswith(f"Run({str(each.path)!r}): cannot be read: ")
        assert len(repr(each).splitlines()) == 1
        assert "cannot be read" in each._repr_html_()
        assert "<b>" not in each._repr_html_()


def test_an_unknown_table_is_named_with_those_that_exist(run):
    with pytest.raises(UsageError, match="no table is called 'turn': the tables are rollouts, turns, messages, tasks"):
        run.to_arrow("turn")


def test_what_is_not_a_run_directory_is_refused(tmp_path):
    with pytest.raises(UsageError, match="is not a run directory"):
        rollbook.load(tmp_path)


@pytest.fixture
def cached(run, monkeypatch):
    monkeypatch.setattr(run_tables, "MIN_CACHED_ROWS", 1)
    run.to_arrow()
    assert (run.path / CACHE_FILE).exists()
    return run.path


def _forbid_reading(monkeypatch):
    def refuse(_):
        raise AssertionError("the journals were read")

    monkeypatch.setattr(run_tables, "make_rollout_table", refuse)


def test_the_table_of_an_unchanged_run_comes_from_the_cache(cached, monkeypatch):
    expected = _by_key(rollbook.load(cached).to_arrow().to_pylist())
    _forbid_reading(monkeypatch)
    assert _by_key(rollbook.load(cached).to_arrow().to_pylist()) == expected


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_cache_is_not_used(cached, damage):
    expected = _by_key(_expected_rows(rollbook.load(cached)))
    path = cached / CACHE_FILE
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes({"flip": bytes(data), "cut": bytes(data[:-40]), "empty": b""}[damage])
    assert _by_key(rollbook.load(cached).to_arrow().to_pylist()) == expected


def test_a_line_that_is_appended_after_the_cache_is_in_the_next_table(cached):
    before = len(rollbook.load(cached).to_arrow())
    loaded = rollbook.load(cached)
    row, sample = list(loaded._data.scored.missing_keys())[-1]
    Pen(loaded.book, "desk-2-00000000").score(rollout(loaded.book, row, sample))
    assert len(rollbook.load(cached).to_arrow()) == before + 1


@pytest.mark.parametrize("folder", ["leases", "done"])
def test_another_lease_or_seal_makes_the_cache_stale(cached, folder):
    before = run_tables.describe_state(rollbook.load(cached).book)
    (cached / folder / "00099.json").write_text("{}")
    assert run_tables.describe_state(rollbook.load(cached).book) != before


def test_a_line_that_is_appended_while_the_run_is_read_does_not_spoil_the_cache(run, monkeypatch):
    monkeypatch.setattr(run_tables, "MIN_CACHED_ROWS", 1)
    row, sample = list(run._data.scored.missing_keys())[-1]
    Pen(run.book, "desk-2-00000000").score(rollout(run.book, row, sample))
    stale = len(run.to_arrow())
    assert len(rollbook.load(run.path).to_arrow()) == stale + 1


def test_a_copy_of_a_run_that_cannot_be_written_is_read_all_the_same(run, monkeypatch, tmp_path):
    monkeypatch.setattr(run_tables, "MIN_CACHED_ROWS", 1)
    copy = shutil.copytree(run.path, tmp_path / "copy")
    (copy / "index").unlink() if (copy / "index").is_symlink() else shutil.rmtree(copy / "index", ignore_errors=True)
    os.symlink("/proc/no-such-folder", copy / "index")
    assert len(rollbook.load(copy).to_arrow()) == run.report.scored
