"""The Responses API as requests and answers of ours."""

from __future__ import annotations

import json

import pytest

from rollbook.core import Function, Message, ToolCall, Turn
from rollbook.errors import UsageError
from rollbook.gateway.protocol import ModelRequest
from rollbook.gateway.responses import make_answer, read_request, stream_answer
from rollbook.models import Completion

CALL = ToolCall("c1", Function("add", '{"a": 1}'))
TURN = Turn([1, 2], [3, 4], [-0.5, -0.25], 2, 2, "tool_calls")
SAID = Completion(Message("assistant", "well", "hm", [CALL]), TURN)


def test_items_become_messages() -> None:
    request = read_request(
        {
            "model": "m",
            "instructions": "be brief",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
                {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
                {"type": "function_call_output", "call_id": "c1", "output": "2"},
                {"role": "developer", "content": "now"},
            ],
        }
    )
    assert request.messages == [
        Message("system", "be brief"),
        Message("user", [{"type": "text", "text": "hi"}]),
        Message("assistant", None, "hm", [CALL]),
        Message("tool", "2", tool_call_id="c1"),
        Message("system", "now"),
    ]


def test_tools_and_sampling_have_other_names() -> None:
    body = {"input": "hi", "max_output_tokens": 9, "temperature": 0.5, "tool_choice": "required", "seed": 4}
    body |= {"tools": [{"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": True}]}
    body |= {"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}, "store": False, "include": []}
    request = read_request(body)
    assert request.messages == [Message("user", "hi")]
    function = {"name": "add", "parameters": {"type": "object"}, "strict": True}
    assert request.tools == [{"type": "function", "function": function}]
    assert request.extra == {
        "max_tokens": 9,
        "temperature": 0.5,
        "tool_choice": "required",
        "seed": 4,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}},
    }


IMAGE = {"role": "user", "content": [{"type": "input_image", "image_url": "data:..."}]}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "request.input is missing or empty"),
        ({"input": "hi", "previous_response_id": "r"}, "previous_response_id is not supported here: send the whole"),
        ({"input": "hi", "conversation": "c"}, "conversation is not supported here: send the whole"),
        ({"input": "hi", "background": True}, "background is not supported here"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "items of type 'item_reference' are not supported here"),
        ({"input": [IMAGE]}, "input: message 0: data:.*: write a data URL as data:image/png"),
        ({"input": "hi", "tools": [{"type": "web_search"}]}, r"tools\[0\] is 'web_search': only functions"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(body: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_request(body)


def test_an_answer_has_the_tokens_only_for_whoever_asked_for_them() -> None:
    reply = make_answer(ModelRequest([], "m"), SAID)
    assert [item["type"] for item in reply["output"]] == ["reasoning", "message", "function_call"]
    assert (reply["status"], reply["usage"]["total_tokens"]) == ("completed", 4)
    assert not any("generation_token_ids" in item for item in reply["output"])
    assert make_answer(ModelRequest([], "m", ids=True), SAID)["output"][-1]["generation_token_ids"] == [3, 4]


def rows(completion: Completion) -> list[dict]:
    events = b"".join(stream_answer(ModelRequest([], "m"), completion)).decode().strip().split("\n\n")
    return [json.loads(each.partition("data: ")[2]) for each in events]


def test_a_stream_adds_up_to_the_answer() -> None:
    reply = rows(SAID)
    assert [row["sequence_number"] for row in reply] == list(range(len(reply)))
    assert (reply[0]["type"], reply[-1]["type"]) == ("response.created", "response.completed")
    assert [row["item"] for row in reply if row["type"] == "response.output_item.done"] == reply[-1]["response"][
        "output"
    ]
    assert [row["delta"] for row in reply if row["type"].endswith(".delta")] == ["hm", "well", '{"a": 1}']


def test_a_stream_that_was_cut_says_so() -> None:
    cut = Completion(Message("assistant", "we"), Turn(finish_reason="length"))
    last = rows(cut)[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"]["reason"] == "max_output_tokens"
