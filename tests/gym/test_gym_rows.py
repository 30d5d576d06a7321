"""Rows of a dataset: a task survives the round trip, and rows of others are read or refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.core import Message, Sampling, Task
from rollbook.errors import UsageError
from rollbook.gym.rows import make_row, read_sample_index, read_task
from rollbook.models import make_create_params, read_create_params

FLAT = {"name": "add", "description": "", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FLAT}
WORDS = st.text(min_size=1, max_size=8)
FIELDS = st.dictionaries(
    st.sampled_from(["level", "response", "id", "answer", "_ng_x", "reward", "tests"]), st.integers(), max_size=4
)
ANSWERS = st.one_of(st.none(), st.text(max_size=4), st.integers(), st.booleans(), st.lists(st.integers(), max_size=2))


def task_with(id: str, prompt: str, answer: object, fields: dict[str, int]) -> Task:
    task = Task(id, prompt, answer=answer)
    task.fields = dict(fields)
    return task


@given(st.builds(task_with, WORDS, WORDS, ANSWERS, FIELDS))
def test_a_task_comes_back_as_it_was(task: Task) -> None:
    assert read_task(make_row(task, [TOOL], "agent")) == task


def test_a_row_of_ours() -> None:
    row = make_row(Task("sum-1", "1 + 1?", answer="2", level=3), [TOOL], "sums_agent")
    assert row == {
        "id": "sum-1",
        "responses_create_params": {
            "input": [{"type": "message", "role": "user", "content": "1 + 1?"}],
            "tools": [{**FLAT, "type": "function", "strict": False}],
        },
        "expected_answer": "2",
        "verifier_metadata": {"level": 3},
        "agent_ref": {"type": "responses_api_agents", "name": "sums_agent"},
    }


def test_a_row_of_others() -> None:
    row = {
        "responses_create_params": {"input": "which?"},
        "uuid": "3c26",
        "options": ["a", "b"],
        "expected_answer": "B",
        "verifier_metadata": {"grading": "strict"},
        "agent_ref": {"name": "x"},
        "_ng_task_index": 4,
        "_ng_rollout_index": 2,
    }
    task = read_task(row)
    assert (task.id, task.prompt, task.answer) == ("3c26", "which?", "B")
    assert task.fields == {"uuid": "3c26", "options": ["a", "b"], "grading": "strict"}
    assert read_sample_index(row) == 2


def test_a_row_without_a_name_is_called_after_what_it_asks() -> None:
    one, same, other = ({"responses_create_params": {"input": text}} for text in ("a", "a", "b"))
    assert read_task(one).id == read_task(same).id != read_task(other).id


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "responses_create_params is missing"),
        ({"responses_create_params": []}, "responses_create_params is not an object"),
        ({"responses_create_params": {}}, "responses_create_params.input is missing"),
        ({"responses_create_params": {"input": [3]}}, r"responses_create_params.input\[0\] is not an object"),
        ({"responses_create_params": {"input": "x", "tools": {}}, "verifier_metadata": 3}, "verifier_metadata is not"),
        ({"responses_create_params": {"input": "x", "tools": "f"}}, "responses_create_params.tools is not a list"),
        ({"responses_create_params": {"input": "x", "temperature": "hot"}}, "temperature is not a number"),
        (
            {"responses_create_params": {"input": "x", "max_output_tokens": 1.5}},
            "max_output_tokens is not a whole number",
        ),
        ({"responses_create_params": {"input": "x", "stream": True}}, "stream is not supported"),
        ({"responses_create_params": {"input": "x", "metadata": {"extra_body": "{"}}}, "extra_body is not JSON"),
        ({"responses_create_params": {"input": "x", "metadata": {"extra_body": "[]"}}}, "extra_body is not an object"),
    ],
)
def test_a_wrong_row_is_named(row: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_task(row)


@given(st.builds(Sampling, st.floats(0, 2), st.floats(0, 1), st.integers(1, 99)))
def test_messages_tools_and_sampling_come_back_as_they_were(sampling: Sampling) -> None:
    messages = [Message("system", "be brief"), Message("user", "hi")]
    params = read_create_params(make_create_params(messages, [TOOL], sampling))
    assert (params.messages, params.tools, params.sampling(Sampling())) == (messages, [TOOL], sampling)


def test_what_is_not_asked_for_is_as_usual_here() -> None:
    usual = Sampling(0.5, 0.9, 7, {"top_k": 3})
    assert read_create_params({"input": "x"}).sampling(usual) == usual


def test_instructions_come_first_in_one_message_with_those_of_the_input() -> None:
    items = [{"role": "developer", "content": "two"}, {"role": "user", "content": "x"}]
    params = read_create_params({"input": items, "instructions": "one"})
    assert params.messages == [Message("system", "one\n\ntwo"), Message("user", "x")]


def test_the_rest_goes_by_the_names_of_chat_completions() -> None:
    flat = {"type": "function", "name": "add", "parameters": None, "strict": False}
    params = read_create_params(
        {
            "input": "x",
            "tools": [flat],
            "tool_choice": {"type": "function", "name": "add"},
            "parallel_tool_calls": False,
            "reasoning": {"effort": "low"},
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
            "metadata": {"extra_body": '{"seed": 5, "top_k": 2}', "chat_template_kwargs": '{"think": false}'},
        }
    )
    assert params.seed == 5
    assert params.extra == {
        "tool_choice": {"type": "function", "function": {"name": "add"}},
        "parallel_tool_calls": False,
        "reasoning_effort": "low",
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
        "chat_template_kwargs": {"think": False},
        "top_k": 2,
    }


def test_a_choice_of_tools_without_tools_is_none() -> None:
    assert read_create_params({"input": "x", "tool_choice": "none", "parallel_tool_calls": False}).extra == {}
