"""The text format: read leniently, answered precisely, held to a schema as an independent validator reads it."""

from __future__ import annotations

import json
import time

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.agents.tool_formats import (
    describe_broken_call,
    make_answer_schema,
    read_calls,
    render_messages,
    write_instructions,
)
from rollbook.core import JSON, Function, Message, ToolCall
from rollbook.environments import tool
from rollbook.environments.tools import tool_schemas

ADD = '{"name": "add", "arguments": {"a": 1, "b": 2}}'


def calls_in(text: str) -> list[tuple[str, JSON]]:
    message = read_calls(Message("assistant", text), 0)
    assert message.written in (None, text)
    calls = message.tool_calls or []
    return [(c.function.name, json.loads(c.function.arguments) if c.function.name else None) for c in calls]


@pytest.mark.parametrize(
    "text",
    [
        f'{{"calls": [{ADD}]}}',
        ADD,
        f"I will add.\n```json\n{ADD}\n```\nThen we see.",
        f"<tool_call>\n{ADD}\n</tool_call>",
        f'{{"thought": "adding {{x}}", "calls": [{ADD}]}}',
        f"The set {{1, 2}} and {{}} and {{'a'}}: {ADD}",
        '{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": 2}"}',
    ],
)
def test_a_call_is_found_whatever_stands_around_it(text: str) -> None:
    assert calls_in(text) == [("add", {"a": 1, "b": 2})]


def test_a_call_is_read_after_the_thoughts_and_not_in_them() -> None:
    assert calls_in(f'<think>{ADD} or {{"calls": [</think>\n{ADD}') == [("add", {"a": 1, "b": 2})]


def test_several_calls_are_read_in_their_order() -> None:
    look = '{"name": "look", "arguments": {"at": {"deep": {"er": "}{"}}}}'
    expected = [("add", {"a": 1, "b": 2}), ("look", {"at": {"deep": {"er": "}{"}}})]
    assert calls_in(f'{{"calls": [{ADD}, {look}]}}') == expected
    assert calls_in(f"{ADD}\n{look}") == expected


@pytest.mark.parametrize("text", ["", "The answer is 3.", '{"name": "Bob"}', '{"a": 1}', "{", "{{{", "[]"])
def test_a_text_without_a_call_is_an_answer_as_it_stands(text: str) -> None:
    assert read_calls(Message("assistant", text), 0) == Message("assistant", text)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ('{"answer": "42"}', "42"),
        (' {"answer": "a \\"b\\""}\n', 'a "b"'),
        ('```json\n{"answer": "42"}\n```', "42"),
        ('{"answer": 42}', "42"),
        ('{"answer": "42", "calls": []}', "42"),
        ('{"calls": null, "answer": "42"}', "42"),
        (f'<think>Say {ADD}?</think>\n{{"answer": "42"}}', "42"),
        (f'Say {ADD}?</think>{{"answer": "42"}}', "42"),
        (f"<think>Say {ADD}?</think>It is 42.", None),
        (f"<think>Say {ADD}? Or", None),
        ('So {"answer": "42"}', None),
        ('{"answer": "42", "why": ""}', None),
    ],
)
def test_an_answer_is_taken_out_of_its_object_and_what_was_written_is_kept(text: str, answer: str | None) -> None:
    message = read_calls(Message("assistant", text), 0)
    assert (message.content, message.written) == ((text, None) if answer is None else (answer, text))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"calls": [{"name": "add", "arguments": {"a": 1,}}]}', "not valid JSON at line 1 column 49"),
        ('{"name": "add", "arguments": {"a": 1}', "not valid JSON at line 1 column 38: Expecting ',' delimiter"),
        ("{'name': 'add', 'arguments': {}}", "line 1 column 2: Expecting property name enclosed in double quotes"),
        ('{"calls": [{"name": "add"}]}', "a call needs a name and arguments"),
        ('{"calls": [7]}', "a call needs a name and arguments"),
        ('{"calls": []}', "`calls` must be a list of one call or more"),
        ('{"calls": "add"}', "`calls` must be a list of one call or more"),
        ('{"calls": "add", "answer": "3"}', "`calls` must be a list of one call or more"),
        ('<think>{"calls": []</think>{"calls": {}}', "`calls` must be a list of one call or more"),
    ],
)
def test_a_broken_call_is_answered_with_the_place_where_it_broke(text: str, reason: str) -> None:
    calls = read_calls(Message("assistant", text), 0).tool_calls
    assert calls is not None
    assert calls[-1].function.name == ""
    assert reason in describe_broken_call(calls[-1].function.arguments)


def test_calls_before_a_broken_one_are_kept() -> None:
    assert calls_in(f'{ADD} {{"name": "add", "arguments": ') == [("add", {"a": 1, "b": 2}), ("", None)]


@given(st.text(), st.text())
def test_nothing_that_is_said_breaks_the_reader(before: str, after: str) -> None:
    read = read_calls(Message("assistant", f"{before}{ADD}{after}"), 0)
    assert read.text or read.tool_calls or not (before + after)


@pytest.mark.parametrize(
    "text", ['{"a":' * 20_000, "{" * 200_000, '{"name": [' * 20_000], ids=["nested", "open", "call"]
)
def test_nonsense_of_any_depth_is_read_in_no_time(text: str) -> None:
    started = time.monotonic()
    read = read_calls(Message("assistant", text), 0)
    for call in read.tool_calls or []:
        assert describe_broken_call(call.function.arguments)
    assert time.monotonic() - started < 2


class Desk:
    @tool
    def add(self, a: int, b: int = 0) -> int:
        """Add two numbers."""

    @tool
    def stop(self) -> None:
        """End it."""


def test_the_schema_takes_what_the_format_says_and_nothing_else() -> None:
    validator = jsonschema.Draft202012Validator(make_answer_schema(tool_schemas(Desk)))
    right: list[JSON] = [
        {"answer": "3"},
        {"calls": [{"name": "add", "arguments": {"a": 1}}, {"name": "stop", "arguments": {}}]},
    ]
    wrong: list[JSON] = [
        {},
        {"answer": 3},
        {"calls": []},
        {"calls": [{"name": "sub", "arguments": {}}]},
        {"calls": [{"name": "add", "arguments": {"a": "1"}}]},
        {"calls": [{"name": "stop", "arguments": {"a": 1}}]},
        {"calls": [{"name": "stop"}]},
        {"calls": [{"name": "stop", "arguments": {}}], "answer": ""},
    ]
    assert all(validator.is_valid(value) for value in right)
    assert not any(validator.is_valid(value) for value in wrong)


def test_definitions_of_two_tools_do_not_meet() -> None:
    def offered(name: str, kind: str) -> JSON:
        parameters = {
            "type": "object",
            "properties": {"at": {"$ref": "#/$defs/Point"}},
            "required": ["at"],
            "$defs": {"Point": {"type": kind}},
        }
        return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}

    validator = jsonschema.Draft202012Validator(
        make_answer_schema([offered("go", "integer"), offered("say", "string")])
    )
    assert validator.is_valid(
        {"calls": [{"name": "go", "arguments": {"at": 1}}, {"name": "say", "arguments": {"at": "x"}}]}
    )
    assert not validator.is_valid({"calls": [{"name": "go", "arguments": {"at": "x"}}]})


def test_a_conversation_is_sent_as_it_was_written_with_its_results_in_one_message() -> None:
    calls = [ToolCall("c0", Function("add", "{}")), ToolCall("c1", Function("", "{"))]
    conversation = [
        Message("user", "q"),
        Message("assistant", None, "hm", calls, written="raw"),
        Message("tool", "3", tool_call_id="c0"),
        Message("tool", "Error: no", tool_call_id="c1"),
        Message("assistant", "three", written='{"answer": "three"}'),
        Message("user", "sure?"),
    ]
    assert render_messages(conversation, "words") == [
        Message("system", "words"),
        Message("user", "q"),
        Message("assistant", "raw", "hm"),
        Message("user", "Result of add:\n3\n\nResult:\nError: no"),
        Message("assistant", '{"answer": "three"}'),
        Message("user", "sure?"),
    ]


def test_a_system_message_of_the_task_keeps_its_place() -> None:
    conversation = [Message("system", "Be brief."), Message("user", "q")]
    assert render_messages(conversation, "words") == [Message("system", "Be brief.\n\nwords"), Message("user", "q")]


def test_a_model_is_told_of_every_tool_and_of_the_format() -> None:
    reason = write_instructions(tool_schemas(Desk))
    assert '{"name":"add","description":"Add two numbers."' in reason
    assert '{"calls": [{"name": "TOOL", "arguments": {...}}]}' in reason
    assert '{"answer": "..."}' in reason
