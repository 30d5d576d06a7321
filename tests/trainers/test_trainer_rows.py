"""Rows of a trainer as tasks: read by the environment itself, or lines of tasks.jsonl as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollbook.core import Task, decode, encode
from rollbook.engine import Entry
from rollbook.errors import Shortfall, UsageError
from rollbook.trainers.rows import (
    MissingReason,
    RowsMissing,
    find_group_side,
    read_environment_name,
    read_prompt,
    read_row,
    read_tasks,
)
from support.sums import write_sums

GYM = {
    "responses_create_params": {"input": [{"role": "user", "content": "What is 1 + 1?"}]},
    "expected_answer": "2",
    "agent_ref": {"type": "responses_api_agents", "name": "math_agent"},
    "level": 3,
}


def test_rows_are_read_by_the_environment_they_are_for(tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_bytes(encode(GYM) + b"\n")
    first, second = read_tasks(Entry(env="math", data=str(data)), [GYM, {**GYM, "expected_answer": "3", "id": "b"}])
    assert (first.prompt, first.answer, first.level, second.answer, second.id) == ("What is 1 + 1?", "2", 3, "3", "b")


def test_a_row_that_cannot_be_read_is_named_by_its_place_among_all_rows() -> None:
    with pytest.raises(UsageError, match=r"^row 9: "):
        read_tasks(Entry(env="gsm8k"), [GYM, {"nothing": 1}], [4, 9])


def test_a_line_of_tasks_jsonl_is_its_task_whatever_the_environment(tmp_path: Path) -> None:
    task = Task("sum-1", "What is 1 + 1?", answer="2", env="Sums", level=4)
    (back,) = read_tasks(Entry(env=write_sums(tmp_path)), [decode(encode(task.line()))])
    assert (back.id, back.prompt, back.answer, back.level) == ("sum-1", "What is 1 + 1?", "2", 4)


def test_an_environment_that_reads_no_rows_says_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="rollbook plan"):
        read_tasks(Entry(env=write_sums(tmp_path)), [GYM])


def test_who_plays_a_row_and_what_it_shows() -> None:
    assert read_environment_name(GYM) == "math_agent"
    assert read_environment_name({"agent_ref": "math_agent"}) == "math_agent"
    assert read_environment_name({"id": "a", "env": "Sums", "messages": []}) == "Sums"
    assert read_environment_name({"question": "?"}) is None
    assert read_prompt(GYM) == [{"role": "user", "content": "What is 1 + 1?"}]
    assert read_prompt({"responses_create_params": {"input": "Hi"}}) == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize("text", ["[1]", "{"])
def test_what_is_no_row_is_named_by_its_place(text: str) -> None:
    with pytest.raises(UsageError, match=r"rows.jsonl at byte 7"):
        read_row(text, "rows.jsonl at byte 7")


def test_the_side_of_a_group_is_that_of_its_rows_also_where_no_rollout_of_them_ended() -> None:
    assert find_group_side(RowsMissing(2, {0: MissingReason("data", "the token ids contradict each other")})) == "data"
    assert find_group_side(RowsMissing(2, {0: MissingReason("infra", "no endpoint answered")})) == "infra"
    assert find_group_side(Shortfall(requested=2, scored=1, failed={"model_timeout": 1})) == "infra"
    assert find_group_side(Shortfall(requested=2, scored=0, failed={"model_timeout": 1, "verifier_error": 1})) == "data"
