"""Requests of the Responses API: read into our types, written from them, refused where they cannot be met."""

from __future__ import annotations

import pytest

from rollbook.core import JSON, Message, Sampling, Turn
from rollbook.errors import UsageError
from rollbook.models.responses_api import (
    make_create_params,
    make_response,
    make_status_fields,
    read_create_params,
)

ASK: list[JSON] = [{"role": "user", "content": "What is 1 + 2?"}]
FLAT: list[JSON] = [{"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}]
NESTED: list[JSON] = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def test_what_was_written_is_read_back() -> None:
    messages = [Message("system", "Be brief."), Message("user", "Hi")]
    written = make_create_params(messages, NESTED, Sampling(temperature=0.5, top_p=0.9, max_tokens=7))
    read = read_create_params(written)
    assert (read.messages, read.tools) == (messages, NESTED)
    assert (read.temperature, read.top_p, read.max_tokens, read.seed, read.extra) == (0.5, 0.9, 7, None, {})


def test_without_tools_or_sampling_nothing_is_written_of_them() -> None:
    assert set(make_create_params([Message("user", "Hi")])) == {"input"}


def test_what_is_omitted_from_calls_is_not_written() -> None:
    written = make_create_params([Message("user", "Hi")], sampling=Sampling(extra={"top_p": None}))
    assert set(written) == {"input", "temperature", "max_output_tokens"}


def test_a_request_overrides_the_sampling_it_names() -> None:
    base = Sampling(temperature=0.1, top_p=0.2, max_tokens=3)
    assert read_create_params({"input": "Hi"}).sampling(base) == base
    asked = {"input": "Hi", "temperature": 0, "max_output_tokens": 9, "reasoning": {"effort": "low"}}
    found = read_create_params(asked).sampling(base)
    assert (found.temperature, found.top_p, found.max_tokens) == (0.0, 0.2, 9)
    assert found.extra == {"reasoning_effort": "low"}


@pytest.mark.parametrize(
    ("given", "extra"),
    [
        ({}, {}),
        ({"tool_choice": "auto", "parallel_tool_calls": True}, {}),
        ({"tool_choice": "required"}, {"tool_choice": "required"}),
        (
            {"tool_choice": {"type": "function", "name": "add"}},
            {"tool_choice": {"type": "function", "function": {"name": "add"}}},
        ),
        ({"tool_choice": {"type": "web_search"}}, {"tool_choice": {"type": "web_search"}}),
        ({"tool_choice": {"type": "function"}}, {"tool_choice": {"type": "function"}}),
        ({"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
        ({"tools": [], "tool_choice": "required", "parallel_tool_calls": False}, {}),
        ({"reasoning": {"effort": "high"}}, {"reasoning_effort": "high"}),
        ({"reasoning": None, "text": None, "metadata": None}, {}),
        ({"text": {"format": {"type": "text"}}}, {}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}},
        ),
        ({"metadata": {"chat_template_kwargs": '{"think": false}'}}, {"chat_template_kwargs": {"think": False}}),
        ({"metadata": {"extra_body": {"top_k": 5}}}, {"top_k": 5}),
    ],
)
def test_options_get_their_names_of_chat_completions(given: dict[str, JSON], extra: dict[str, JSON]) -> None:
    found = read_create_params({"input": ASK, "tools": FLAT, **given})
    assert found.extra == extra


def test_a_seed_of_the_extra_body_is_the_requests_own() -> None:
    found = read_create_params({"input": ASK, "metadata": {"extra_body": '{"seed": 7, "top_k": 5}'}})
    assert (found.seed, found.extra) == (7, {"top_k": 5})


@pytest.mark.parametrize(
    ("given", "roles", "first"),
    [
        ([{"role": "user", "content": "Hi"}], ["system", "user"], "Be brief."),
        (
            [
                {"role": "system", "content": "a"},
                {"role": "developer", "content": "b"},
                {"role": "user", "content": "Hi"},
            ],
            ["system", "user"],
            "Be brief.\n\na\n\nb",
        ),
        (
            [{"role": "user", "content": "Hi"}, {"role": "system", "content": "a"}],
            ["system", "user", "system"],
            "Be brief.",
        ),
        ([{"role": "system", "content": "a"}], ["system"], "Be brief.\n\na"),
    ],
)
def test_instructions_come_first_in_one_message_with_leading_system_messages(
    given: list[JSON], roles: list[str], first: str
) -> None:
    found = read_create_params({"input": given, "instructions": "Be brief."}).messages
    assert ([message.role for message in found], found[0].text) == (roles, first)


def test_without_instructions_system_messages_stay_apart() -> None:
    given = [{"role": "system", "content": "a"}, {"role": "system", "content": "b"}, *ASK]
    assert [message.text for message in read_create_params({"input": given}).messages][:2] == ["a", "b"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "here is missing"),
        ([], "here is not an object"),
        ({}, "here.input is missing or empty"),
        ({"input": []}, "here.input is missing or empty"),
        ({"input": ASK, "stream": True}, "here.stream is not supported here"),
        ({"input": ASK, "previous_response_id": "resp_1"}, "here.previous_response_id is not supported here"),
        ({"input": ASK, "tools": {}}, "here.tools is not a list"),
        ({"input": ASK, "metadata": []}, "here.metadata is not an object"),
        ({"input": ASK, "instructions": ["a"]}, "here.instructions is not text"),
        ({"input": ASK, "temperature": "hot"}, "here.temperature is not a number but 'hot'"),
        ({"input": ASK, "top_p": True}, "here.top_p is not a number but True"),
        ({"input": ASK, "max_output_tokens": 1.5}, "here.max_output_tokens is not a whole number but 1.5"),
        ({"input": ASK, "max_output_tokens": True}, "here.max_output_tokens is not a whole number but True"),
        ({"input": ASK, "metadata": {"extra_body": {"seed": "x"}}}, "here.metadata.extra_body.seed is not a whole"),
        ({"input": ASK, "metadata": {"extra_body": "{"}}, "here.metadata.extra_body is not JSON: "),
        ({"input": ASK, "metadata": {"extra_body": "[]"}}, "here.metadata.extra_body is not an object"),
        (
            {"input": ASK, "metadata": {"chat_template_kwargs": 1}},
            "here.metadata.chat_template_kwargs is not an object",
        ),
    ],
)
def test_a_request_that_cannot_be_met_is_refused_with_the_field(value: JSON, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_create_params(value, "here")
    assert str(caught.value).startswith(message)


def test_fields_that_ask_for_nothing_are_accepted() -> None:
    found = read_create_params({"input": ASK, "stream": False, "previous_response_id": None, "tools": None})
    assert (found.tools, found.temperature, found.max_tokens) == ([], None, None)


@pytest.mark.parametrize(
    ("finish_reason", "ended", "details"),
    [
        ("stop", "", None),
        ("tool_calls", "", None),
        ("length", "", {"reason": "max_output_tokens"}),
        ("content_filter", "", {"reason": "content_filter"}),
        ("context_length", "", {"reason": "max_output_tokens", "finish_reason": "context_length"}),
        ("abort", "", {"reason": None, "finish_reason": "abort"}),
        ("stop", "max_turns", {"reason": None, "finish_reason": "stop", "ended": "max_turns"}),
        ("length", "max_turns", {"reason": "max_output_tokens", "ended": "max_turns"}),
    ],
)
def test_the_status_tells_whether_and_why_an_answer_is_incomplete(
    finish_reason: str, ended: str, details: JSON
) -> None:
    status = "incomplete" if details else "completed"
    assert make_status_fields(finish_reason, ended) == {"status": status, "incomplete_details": details}


@pytest.mark.parametrize("uncounted", [None, 0])
def test_a_response_sums_the_tokens_of_its_turns(uncounted: int | None) -> None:
    turns = [Turn(None, None, None, 3, 2), Turn(None, None, None, 10, 4, finish_reason="length")]
    messages = [Message("assistant", "One"), Message("user", "More"), Message("assistant", "Two")]
    found = make_response(messages, turns, name="t0", model="mock", tools=NESTED, uncounted=uncounted)
    assert found["usage"] == {
        "input_tokens": 13,
        "input_tokens_details": {"cached_tokens": uncounted},
        "output_tokens": 6,
        "output_tokens_details": {"reasoning_tokens": uncounted},
        "total_tokens": 19,
    }
    assert (found["id"], found["model"], found["tools"]) == ("resp_t0", "mock", FLAT)
    assert (found["status"], found["parallel_tool_calls"]) == ("incomplete", True)
    assert len(found["output"]) == 3


def test_a_response_without_turns_is_complete() -> None:
    assert make_response([], [], name="t0", model="mock")["status"] == "completed"


@pytest.mark.parametrize(
    "field", [{"temperature": "x" * 200}, {"max_output_tokens": "x" * 200}, {"tools": ["x" * 200]}]
)
def test_what_an_error_quotes_of_a_request_is_cut(field: dict[str, JSON]) -> None:
    with pytest.raises(UsageError) as caught:
        read_create_params({"input": ASK, **field})
    assert str(caught.value).endswith(" but '" + "x" * 79)
