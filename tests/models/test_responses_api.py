"""A response contains what a rollout does: tools, usage, tokens and how it ended."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.core import Message, Turn, Usage
from rollbook.errors import UsageError
from rollbook.models.responses_api import (
    ResponseContent,
    make_response,
    make_status_fields,
    make_usage,
    read_ended,
    read_finish_reason,
    read_response,
    read_usage,
    to_chat_tools,
    to_response_tools,
)

JSONS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=5), inner, max_size=2)),
    max_leaves=4,
)
FUNCTIONS = st.fixed_dictionaries(
    {"name": st.text(max_size=5)},
    optional={
        "description": st.text(max_size=5),
        "parameters": st.dictionaries(st.text(max_size=5), JSONS, max_size=3),
        "strict": st.just(True),
    },
)
TOOLS = st.lists(
    st.one_of(FUNCTIONS.map(lambda f: {"type": "function", "function": f}), st.just({"type": "web_search"})), max_size=3
)


@given(TOOLS)
def test_tools_come_back_as_they_were(tools: list[dict[str, object]]) -> None:
    assert to_chat_tools(to_response_tools(tools)) == tools


def test_a_flat_tool_says_all_that_gym_requires() -> None:
    assert to_response_tools([{"type": "function", "function": {"name": "f"}}]) == [
        {"type": "function", "name": "f", "parameters": None, "strict": False}
    ]


@pytest.mark.parametrize("tool", ["f", {"type": "function"}])
def test_a_wrong_tool_is_named(tool: object) -> None:
    with pytest.raises(UsageError, match=r"tools\[0\]"):
        to_chat_tools([tool])


@given(st.builds(Usage, st.integers(0, 99), st.integers(0, 99)))
def test_usage_comes_back_as_it_was(usage: Usage) -> None:
    assert read_usage(make_usage(usage)) == usage


@pytest.mark.parametrize("value", ["many", {"input_tokens": -1}, {"output_tokens": "3"}])
def test_wrong_usage_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="usage"):
        read_usage(value)


@given(
    st.sampled_from(["stop", "tool_calls", "length", "content_filter", "context_length", "abort"]),
    st.sampled_from(["", "max_turns", "repeats"]),
)
def test_an_ending_comes_back_as_it_was(reason: str, ended: str) -> None:
    fields = make_status_fields(reason, ended)
    assert (read_finish_reason(fields, calls=reason == "tool_calls"), read_ended(fields)) == (reason, ended)
    assert fields["status"] == ("completed" if reason in ("stop", "tool_calls") and not ended else "incomplete")


EXACT = Turn([1, 2], [3, 4], [-0.5, -0.25], 2, 2, "stop")


@pytest.mark.parametrize(
    ("turns", "ended"),
    [
        ([EXACT], ""),
        ([Turn(prompt_tokens=7, completion_tokens=2)], ""),
        ([Turn(prompt_tokens=7, completion_tokens=2, finish_reason="length")], ""),
        ([EXACT, Turn(finish_reason="context_length")], "context_length"),
        ([EXACT], "max_turns"),
    ],
)
def test_a_response_says_what_was_said(turns: list[Turn], ended: str) -> None:
    messages = [Message("assistant", "four", "2 and 2")]
    response = make_response(messages, turns, name="t_0", model="m", ended=ended)
    assert read_response(response) == ResponseContent(messages, turns, ended)


def test_a_prompt_that_did_not_fit_has_no_message() -> None:
    turns = [Turn(finish_reason="context_length")]
    response = make_response([], turns, name="t_0", model="m", ended="context_length")
    assert response["incomplete_details"]["reason"] == "max_output_tokens"
    assert read_response(response) == ResponseContent([], turns, "context_length")


def test_uncounted_turns_share_one_sum() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "1"}
    answer = {"type": "message", "role": "assistant", "content": "1"}
    content = read_response({"output": [call, result, answer], "usage": {"input_tokens": 9, "output_tokens": 4}})
    assert [turn.prompt_tokens for turn in content.turns] == [0, 9]
    assert [turn.finish_reason for turn in content.turns] == ["tool_calls", "stop"]


@pytest.mark.parametrize(
    ("value", "message"), [(None, "response is no object"), ({}, "response.output is no list of items")]
)
def test_a_wrong_response_is_named(value: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_response(value)
