"""A collection of Gym as a book: scored, failed and pending, and nothing invented."""

import asyncio
import json

import pytest

from rollbook import UsageError
from rollbook.book import Book, rollouts
from rollbook.gym.client.import_run import import_gym, plan_parts
from rollbook.reports import make_report
from support.commands import Commands
from support.gym_servers import response, row


def line(task, sample, reward=1.0, agent="mine", **more):
    indices = {"_ng_task_index": task, "_ng_rollout_index": sample, "agent_ref": {"name": agent}}
    return {**row(f"ask {task}"), "response": response("42"), "reward": reward, **indices, **more}


def input_row(task, sample, agent="mine", **more):
    report = line(task, sample, agent=agent, **more)
    return {key: value for key, value in report.items() if key not in ("response", "reward")}


def write(path, *rows, end=""):
    path.write_text("".join(json.dumps(one) + "\n" for one in rows) + end)
    return path


def import_file(folder, path):
    notes = []
    report = asyncio.run(import_gym(path, folder / "book", notes.append))
    return report, notes


def test_what_was_asked_for_and_is_not_there_is_pending(tmp_path):
    write(tmp_path / "run_materialized_inputs.jsonl", *(input_row(t, s) for t in range(3) for s in range(2)))
    failed = {**line(1, 0), "_ng_failure_class": "judge_failed", "_ng_failure_judge_error": "away", "reward": 0.0}
    write(tmp_path / "run_failures.jsonl", failed, failed)
    path = write(tmp_path / "run.jsonl", line(0, 0), line(0, 1, 0.0), line(2, 1, extracted_answer="42"))
    report, notes = import_file(tmp_path, path)
    assert (report.requested, report.scored, report.failed, report.pending) == (6, 3, {"judge_error": 1}, 2)
    assert notes == []
    assert make_report(tmp_path / "book").scored == 3
    by_key = {r.key: r for r in rollouts(Book(tmp_path / "book"))}
    assert (by_key["task-2", 1].score.answer, by_key["task-2", 1].text) == ("42", "42")
    assert by_key["task-0", 0].usage.prompt_tokens == 30


def test_a_rollout_that_failed_first_and_then_came_counts_as_scored(tmp_path):
    write(tmp_path / "run_failures.jsonl", {**line(0, 0), "_ng_failure_class": "transient", "reward": 0.0})
    report, _ = import_file(tmp_path, write(tmp_path / "run.jsonl", line(0, 0)))
    assert (report.scored, report.failed) == (1, {})


def test_a_torn_last_line_is_left_out_and_told(tmp_path):
    report, notes = import_file(tmp_path, write(tmp_path / "run.jsonl", line(0, 0), end='{"reward": 1.0, "_ng'))
    assert report.requested == 1
    assert notes == [f"{tmp_path / 'run.jsonl'}: its last line is cut off, and was left out"]


def test_lines_that_are_there_twice_are_told_and_the_first_counts(tmp_path):
    report, notes = import_file(tmp_path, write(tmp_path / "run.jsonl", line(0, 0, 1.0), line(0, 0, 0.0)))
    assert report.overall.mean == 1.0
    assert "1 rollouts occur more than once" in notes[0]


def test_a_reward_that_is_none_is_a_failure(tmp_path):
    rows = [line(0, 0, None), line(1, 0, "1.0"), line(2, 0), {**line(3, 0), "response": None}]
    del rows[2]["reward"]
    report, _ = import_file(tmp_path, write(tmp_path / "run.jsonl", *rows))
    assert (report.scored, report.failed) == (0, {"invalid_reward": 3, "agent_error": 1})


def test_the_reward_counts_whatever_stands_beside_it(tmp_path):
    whole = {"score": {"reward": 1.0, "parts": {"form": 0.5}, "answer": "7", "info": {}}, "outcome": None}
    rows = [line(number, 0, rollbook=whole) for number in range(4)]
    rows[1]["reward"], rows[2]["reward"] = 0.0, "1"
    del rows[3]["reward"]
    report, _ = import_file(tmp_path, write(tmp_path / "run.jsonl", *rows))
    assert (report.scored, report.failed, report.overall.mean) == (1, {"invalid_reward": 3}, 1.0)


def test_lines_without_numbers_are_counted_as_gym_counts_them(tmp_path):
    rows = [line(0, 0), line(1, 0), line(0, 1)]
    for one in rows:
        del one["_ng_task_index"], one["_ng_rollout_index"], one["agent_ref"]
    import_file(tmp_path, write(tmp_path / "run.jsonl", *rows))
    assert {r.key for r in rollouts(Book(tmp_path / "book"))} == {("task-0", 0), ("task-0", 1), ("task-1", 0)}


def test_tasks_keep_their_names_and_agents_are_environments(tmp_path):
    rows = [line(0, 0, uuid="u", agent="a"), line(1, 0, uuid="u", agent="a"), line(2, 0, id=7, agent="b")]
    report, _ = import_file(tmp_path, write(tmp_path / "run.jsonl", *rows))
    assert set(report.environments) == {"a", "b"}
    assert {r.task.id for r in rollouts(Book(tmp_path / "book"))} == {"u", "u@1", "7"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": \n{}\n', r"run\.jsonl:1: not JSON"),
        ("[]\n", r"run\.jsonl:1: a JSON object is needed"),
        ("", "holds no rollouts"),
        ('{"_ng_task_index": -1, "_ng_rollout_index": 0}\n', "whole numbers are needed"),
        ('{"_ng_task_index": 0, "_ng_rollout_index": 0}\n', "responses_create_params is missing"),
    ],
)
def test_a_file_that_is_none_is_one_line(tmp_path, text, message):
    path = tmp_path / "run.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        import_file(tmp_path, path)


def test_a_rollout_that_nobody_asked_for_is_refused(tmp_path):
    write(tmp_path / "run_materialized_inputs.jsonl", input_row(0, 0))
    with pytest.raises(UsageError, match="_ng_task_index 0, _ng_rollout_index 1 was never requested"):
        import_file(tmp_path, write(tmp_path / "run.jsonl", line(0, 1)))


def test_neighbours_of_whom_the_same_is_asked_are_one_part():
    report = plan_parts([{0, 1}, {0, 1}, {0, 2}], 5)
    assert [(p.tasks, p.samples) for p in report] == [((5, 7), (0, 2)), ((7, 8), (0, 1)), ((7, 8), (2, 3))]


def test_an_imported_run_is_shown_and_does_not_go_on(tmp_path):
    path = write(tmp_path / "run.jsonl", line(0, 0))
    write(tmp_path / "run_materialized_inputs.jsonl", input_row(0, 0), input_row(0, 1))
    commands = Commands(tmp_path)
    shown = commands.run("import", path, "-o", "book")
    assert shown.code == 3
    assert "1/2 scored, 0 failed, 1 pending" in shown.stdout
    gone_on = commands.run("resume", "book")
    assert gone_on.code == 3
    assert "nothing is left to do" in gone_on.stderr
    again = commands.run("reverify", "book", "--only", "scored", "-o", "again")
    assert again.code == 2
    assert "this run was imported: it cannot be continued here" in again.complaint


def test_a_reward_that_is_written_as_nan_fails_alone(tmp_path):
    path = write(tmp_path / "run.jsonl", line(0, 0, 1.0), line(1, 0, "NaN"))
    path.write_text(path.read_text().replace('"NaN"', "NaN"))
    report, _ = import_file(tmp_path, path)
    assert (report.scored, report.failed) == (1, {"invalid_reward": 1})
