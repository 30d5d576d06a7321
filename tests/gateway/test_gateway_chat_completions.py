"""Chat completions as requests and answers of ours."""

from __future__ import annotations

import json

import pytest

from rollbook.core import Function, Message, ToolCall, Turn
from rollbook.errors import UsageError
from rollbook.gateway.chat_completions import make_answer, make_error, read_request, stream_answer
from rollbook.gateway.protocol import ErrorReply, ModelRequest
from rollbook.models import Completion

USER = {"role": "user", "content": "hi"}
CALL = ToolCall("c1", Function("add", '{"a": 1}'))
TURN = Turn([1, 2], [3, 4], [-0.5, -0.25], 2, 2, "tool_calls")
SAID = Completion(Message("assistant", "well", "hm", [CALL]), TURN)
ADD = {"type": "function", "function": {"name": "add", "parameters": {}}}


def test_messages_are_read_with_everything_that_a_server_takes() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    request = read_request(
        {
            "model": "m",
            "messages": [
                {"role": "developer", "content": [{"type": "text", "text": "be brief"}]},
                {"role": "user", "content": "hi", "name": "ann"},
                {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]},
                {"role": "tool", "content": "2", "tool_call_id": "c1"},
                {"role": "assistant", "content": None, "refusal": "no"},
            ],
        }
    )
    assert request.messages == [
        Message("system", [{"type": "text", "text": "be brief"}]),
        Message("user", "hi", name="ann"),
        Message("assistant", None, "hm", [CALL]),
        Message("tool", "2", tool_call_id="c1"),
        Message("assistant", "no"),
    ]


def test_sampling_is_what_the_agent_says_and_nothing_else() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
    body = {"messages": [USER], "temperature": 0.5, "top_p": None, "max_completion_tokens": 7, "stop": ["END"]}
    body |= {"seed": 3, "response_format": form, "tools": [ADD], "tool_choice": "auto", "parallel_tool_calls": False}
    body |= {"n": 1, "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "user": "ann"}
    request = read_request(body)
    assert request.tools == [ADD]
    assert request.extra == {
        "temperature": 0.5,
        "max_tokens": 7,
        "stop": ["END"],
        "seed": 3,
        "response_format": form,
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "user": "ann",
    }


VIDEO = {"role": "user", "content": [{"type": "video_url", "video_url": {"url": "https://host/a.mp4"}}]}


def show(url: str) -> dict:
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "messages is missing or empty"),
        ({"messages": "hi"}, "messages is not a list"),
        ({"messages": ["hi"]}, r"messages\[0\] is not an object but 'hi'"),
        ({"messages": [{"role": "function", "content": "x"}]}, r"messages\[0\].role is 'function'"),
        ({"messages": [VIDEO]}, r"messages\[0\].content\[0\]: 'video_url' cannot be recorded exactly here; send text"),
        ({"messages": [show("data:...")]}, r"messages\[0\].content\[0\]: data:.*: write a data URL as data:image/png"),
        (
            {"messages": [show("file:/etc/passwd.png")]},
            "file:/etc/passwd.png: give the data, or a URL",
        ),
        ({"messages": [show("/etc/passwd")]}, "/etc/passwd: give the data, or a URL"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]}, "calls no function"),
        ({"messages": [USER], "n": 2}, "n is 2: every call has one answer here"),
        ({"messages": [USER], "functions": [{}]}, "functions is not supported here: give tools"),
        ({"messages": [USER], "top_logprobs": 5}, "top_logprobs is not supported here"),
        ({"messages": [USER], "kv_transfer_params": {"prompt_token_ids": [1]}}, "kv_transfer_params is not supported"),
        ({"messages": [USER], "tools": [{"type": "custom"}]}, r"tools\[0\] is 'custom': only functions"),
        ({"messages": [USER], "temperature": "hot"}, "temperature is not a number but 'hot'"),
        ({"messages": [USER], "max_tokens": 1.5}, "max_tokens is not a whole number"),
        ({"messages": [USER], "max_tokens": -1}, "max_tokens is -1: give at least 1"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(body: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        read_request(body)
    assert "\n" not in str(caught.value)


def test_an_answer_has_the_tokens_only_for_whoever_asked_for_them() -> None:
    plain = make_answer(ModelRequest([], "m"), SAID)
    assert plain["choices"][0]["message"] == {
        "role": "assistant",
        "refusal": None,
        "content": "well",
        "reasoning": "hm",
        "reasoning_content": "hm",
        "tool_calls": [{"id": "c1", "type": "function", "function": CALL.function}],
    }
    assert plain["usage"] == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
    assert plain["choices"][0]["logprobs"] is None
    assert not {"prompt_token_ids", "token_ids"} & {*plain, *plain["choices"][0]}
    full = make_answer(ModelRequest([], "m", ids=True, logprobs=True), SAID)
    assert (full["prompt_token_ids"], full["choices"][0]["token_ids"]) == ([1, 2], [3, 4])
    rows = full["choices"][0]["logprobs"]["content"]
    assert [(row["token"], row["logprob"]) for row in rows] == [("token_id:3", -0.5), ("token_id:4", -0.25)]


def chunks(request: ModelRequest) -> list[dict]:
    events = b"".join(stream_answer(request, SAID)).decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(each.removeprefix("data: ")) for each in events[:-2]]


def test_a_stream_adds_up_to_the_answer() -> None:
    sent = chunks(ModelRequest([], "m", usage=True))
    deltas = [chunk["choices"][0]["delta"] for chunk in sent if chunk["choices"]]
    assert "".join(delta.get("content", "") for delta in deltas) == "well"
    assert "".join(delta.get("reasoning", "") for delta in deltas) == "hm"
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert calls == [{"index": 0, "id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}]
    assert sent[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert sent[-1]["usage"]["total_tokens"] == 4
    assert len({chunk["id"] for chunk in sent}) == 1
    assert not any("usage" in chunk for chunk in chunks(ModelRequest([], "m")))


def test_an_error_says_whose_fault_it_is() -> None:
    assert make_error(ErrorReply(400, "invalid_request", "no"))["error"]["type"] == "invalid_request_error"
    assert make_error(ErrorReply(503, "model_unavailable", "away"))["error"] == {
        "message": "away",
        "type": "server_error",
        "param": None,
        "code": "model_unavailable",
    }
