"""Anthropic's messages as requests and answers of ours."""

from __future__ import annotations

import json

import pytest

from rollbook.core import Function, Message, ToolCall, Turn
from rollbook.errors import UsageError
from rollbook.gateway.anthropic import make_answer, make_blocks, make_error, read_request, stream_answer
from rollbook.gateway.protocol import ErrorReply, ModelRequest
from rollbook.models import Completion

TURN = Turn([1, 2], [3, 4], [-0.5, -0.25], 2, 2, "tool_calls")
SAID = Completion(Message("assistant", "well", "hm", [ToolCall("c1", Function("add", '{"a": 1}'))]), TURN)


def test_blocks_become_messages_and_results_come_before_what_the_user_says() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    use = {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "2"}]}
    request = read_request(
        {
            "model": "m",
            "max_tokens": 9,
            "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": [thought, {"type": "text", "text": "I add."}, use]},
                {"role": "user", "content": [{"type": "text", "text": "and?"}, result]},
                {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, use]},
                {"role": "user", "content": [{**result, "content": "3", "is_error": True}]},
            ],
        }
    )
    call = ToolCall("c1", Function("add", '{"a":1}'))
    assert request.messages == [
        Message("system", "be brief"),
        Message("user", "hi"),
        Message("assistant", "I add.", "hm", [call]),
        Message("tool", "2", tool_call_id="c1"),
        Message("user", "and?"),
        Message("assistant", None, None, [call]),
        Message("tool", "3", tool_call_id="c1"),
    ]
    assert request.extra == {"max_tokens": 9}


def test_tools_and_sampling_have_other_names() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    body = {"messages": [{"role": "user", "content": "hi"}], "stop_sequences": ["END"], "top_k": 5, "temperature": 0.5}
    body |= {"tools": [{"name": "add", "description": "adds", "input_schema": schema}], "thinking": {"type": "enabled"}}
    request = read_request({**body, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}})
    function = {"name": "add", "parameters": schema, "description": "adds"}
    assert request.tools == [{"type": "function", "function": function}]
    assert request.extra == {
        "stop": ["END"],
        "top_k": 5,
        "temperature": 0.5,
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }
    forced = read_request({**body, "tool_choice": {"type": "tool", "name": "add"}})
    assert forced.extra["tool_choice"] == {"type": "function", "function": {"name": "add"}}


HI = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "messages is missing or empty"),
        ({"messages": [{"role": "robot", "content": "x"}]}, r"messages\[0\].role is 'robot'"),
        ({"messages": [{"role": "user", "content": 3}]}, r"messages\[0\].content is not a list"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "an image needs a source of the type",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "'video' cannot be recorded exactly here"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id is not text"),
        ({**HI, "tools": [{"type": "web_search_20250305", "name": "web_search"}]}, r"tools\[0\] is 'web_search_2025"),
        ({**HI, "tool_choice": {"type": "all"}}, "tool_choice.type is 'all'"),
        ({**HI, "mcp_servers": [{}]}, "mcp_servers is not supported here"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(body: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_request(body)


def test_an_answer_is_made_of_blocks() -> None:
    reply = make_answer(ModelRequest([], "m"), SAID)
    assert reply["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "well"},
        {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
    ]
    assert (reply["stop_reason"], reply["usage"]["input_tokens"], reply["usage"]["output_tokens"]) == (
        "tool_use",
        2,
        2,
    )
    assert "token_ids" not in reply
    assert make_answer(ModelRequest([], "m", ids=True), SAID)["token_ids"] == [3, 4]


@pytest.mark.parametrize(("finish", "stop"), [("stop", "end_turn"), ("length", "max_tokens"), ("odd", "end_turn")])
def test_how_it_ended_has_other_names(finish: str, stop: str) -> None:
    reply = make_answer(ModelRequest([], "m"), Completion(Message("assistant", ""), Turn(finish_reason=finish)))
    assert (reply["stop_reason"], reply["content"]) == (stop, [{"type": "text", "text": ""}])


def test_arguments_that_are_no_object_are_told_inside_of_one() -> None:
    broken = Message("assistant", None, None, [ToolCall("c", Function("add", '{"a": 1'))])
    assert make_blocks(broken)[0]["input"] == {"unreadable": '{"a": 1'}


def test_a_stream_adds_up_to_the_answer() -> None:
    events = b"".join(stream_answer(ModelRequest([], "m"), SAID)).decode().strip().split("\n\n")
    rows = [json.loads(each.partition("data: ")[2]) for each in events]
    assert [each.partition("\n")[0] for each in events] == [f"event: {row['type']}" for row in rows]
    deltas = [row["delta"] for row in rows if row["type"] == "content_block_delta"]
    assert [d for d in deltas if d["type"] == "text_delta"] == [{"type": "text_delta", "text": "well"}]
    assert json.loads("".join(d.get("partial_json", "") for d in deltas)) == {"a": 1}
    assert (rows[0]["type"], rows[-1]["type"]) == ("message_start", "message_stop")
    assert rows[-2]["delta"]["stop_reason"] == "tool_use"


def test_an_error_is_one_of_theirs() -> None:
    reply = make_error(ErrorReply(400, "context_length_exceeded", "3000 of 2048"))
    assert reply["error"]["type"] == "invalid_request_error"
    assert reply["error"]["message"] == "prompt is too long: 3000 of 2048"
    assert make_error(ErrorReply(503, "model_unavailable", ""))["error"]["type"] == "overloaded_error"
