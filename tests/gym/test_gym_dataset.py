"""Rows of NeMo Gym as tasks: ids, tools, and mistakes by file and line."""

import json

import pytest

from rollbook.core import ModelSpec
from rollbook.engine import Request, load_run_environments, plan
from rollbook.errors import UsageError
from rollbook.gym.dataset import RowDataset, check_tools, read_row_tools
from support.gym_servers import COUNTING, row, tool, write_rows


def tasks(path, check=check_tools):
    return list(RowDataset(str(path), "http://host:1", check).tasks())


def test_a_row_keeps_its_own_name_or_is_called_after_its_line(tmp_path):
    data = write_rows(
        tmp_path / "rows.jsonl", row("a", id=0), row("b", uuid="u-1"), row("c"), row("d", id=0), row("e", task_id="t")
    )
    read = tasks(data)
    assert [task.id for task in read] == ["0", "u-1", "rows-3", "0@4", "t"]
    assert [task.fields["_ng_task_index"] for task in read] == [0, 1, 2, 3, 4]


def test_a_row_is_kept_whole_beside_what_the_model_is_shown(tmp_path):
    original = row("hello", COUNTING, id=7, expected_answer="x", odd=None)
    original["responses_create_params"]["instructions"] = "Be brief."
    (task,) = tasks(write_rows(tmp_path / "rows.jsonl", original))
    assert [(m.role, m.text) for m in task.messages] == [("system", "Be brief."), ("user", "hello")]
    assert task.answer == "x"
    assert task.fields == {**original, "_ng_task_index": 0}
    assert read_row_tools(task)[0]["function"]["name"] == "increment_counter"


def test_text_alone_is_what_the_user_says(tmp_path):
    (task,) = tasks(write_rows(tmp_path / "rows.jsonl", {"responses_create_params": {"input": "hello"}}))
    assert [(m.role, m.text) for m in task.messages] == [("user", "hello")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[]", "a JSON object is needed"),
        ('{"question": "?"}', "responses_create_params is missing"),
        ('{"responses_create_params": 3}', "responses_create_params is not an object"),
        ('{"responses_create_params": {}}', "responses_create_params.input is missing or empty"),
        ('{"responses_create_params": {"input": 3}}', "input is neither text nor a list"),
        ('{"responses_create_params": {"input": [{"role": "alien", "content": "x"}]}}', "role 'alien'"),
        (json.dumps(row("x", [3])), r"tools\[0\] is not an object"),
        (json.dumps(row("x", [tool("a b")])), "tools names 'a b'"),
        (json.dumps(row("x", [tool("verify")])), "a tool called verify has the name of a route of the server"),
        (json.dumps(row("x", [tool("a"), tool("a")])), "tools names 'a'"),
        (json.dumps(row("x", _ng_task_index="3")), "_ng_task_index is not a whole number"),
    ],
)
def test_a_row_that_cannot_be_asked_is_named_by_file_line_and_reason(tmp_path, line, message):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row("good")) + "\n\n" + line + "\n")
    with pytest.raises(UsageError, match=rf"rows.jsonl:3: .*{message}"):
        tasks(path)


def test_no_rows_at_all_is_a_question():
    with pytest.raises(UsageError, match="give --data"):
        list(RowDataset(None, "http://host:1").tasks())


def test_sampling_of_a_rows_own_is_told_once_and_does_not_count(tmp_path):
    original = row("a")
    original["responses_create_params"] |= {"temperature": 0.2, "max_output_tokens": 9, "reasoning": {"effort": "low"}}
    data = write_rows(tmp_path / "rows.jsonl", original, original)
    request = Request(env="http://127.0.0.1:9", data=data, out=str(tmp_path / "run"))
    notes = []
    plan(request, load_run_environments(request), ModelSpec("m"), say=notes.append)
    assert len(notes) == 2
    assert "--temperature, --max-tokens of this run is used instead" in notes[0]
    assert "ask for reasoning_effort" in notes[1]


def test_an_item_that_no_chat_completion_can_say_is_refused_by_its_line(tmp_path):
    searched = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    path = write_rows(tmp_path / "rows.jsonl", row("a"), {"responses_create_params": {"input": [searched]}})
    with pytest.raises(UsageError, match=r"rows\.jsonl:2: .*a web_search_call cannot be expressed in chat completions"):
        tasks(path)
