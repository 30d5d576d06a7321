"""A response contains what a rollout does: usage, tokens and how it ended."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.core import Message, Turn, Usage
from rollbook.errors import UsageError
from rollbook.gym.responses import ResponseContent, read_ended, read_finish_reason, read_response, read_usage
from rollbook.models import make_response
from rollbook.models.responses_api import make_status_fields, make_usage


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
    ("value", "message"), [(None, "response is not an object"), ({}, "response.output is not a list of items")]
)
def test_a_wrong_response_is_named(value: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_response(value)
