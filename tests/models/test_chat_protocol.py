import json

import pytest

from rollbook.core import Function, Message, Sampling, ToolCall
from rollbook.errors import RolloutFailed, UsageError
from rollbook.models.chat_protocol import (
    AnswerPromptDetails,
    AnswerUsage,
    ChatAnswer,
    TextAnswer,
    chat_body,
    check_extra,
    make_message,
    prepare_messages,
    read_answer,
    text_body,
    without_reasoning,
)


def test_the_body_holds_all_sampling_and_extra_has_the_last_word() -> None:
    sampling = Sampling(0.5, 0.9, 64, {"top_k": 20, "temperature": 0.7})
    body = json.loads(chat_body("m", [Message("user", "hi")], sampling, 7, [{"type": "function"}], True))
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": 64,
        "seed": 7,
        "top_k": 20,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "tools": [{"type": "function"}],
        "logprobs": True,
        "return_token_ids": True,
    }


def test_a_text_completion_continues_ids_and_reports_its_own() -> None:
    sampling = Sampling(extra={"max_completion_tokens": 5, "top_p": None})
    assert json.loads(text_body("m", [1, 2], sampling, 7)) == {
        "model": "m",
        "prompt": [1, 2],
        "temperature": 1.0,
        "max_completion_tokens": 5,
        "seed": 7,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "logprobs": 1,
        "return_token_ids": True,
    }


@pytest.mark.parametrize(
    ("usage", "counts", "cached"),
    [
        (AnswerUsage(3, 2, AnswerPromptDetails(1)), (3, 2), 1),
        (AnswerUsage(3.0, 0), (3, 0), None),
        (AnswerUsage(-3, 2, AnswerPromptDetails(-1)), (None, None), None),
        (AnswerUsage(3, -2), (None, None), None),
        (AnswerUsage(2.5, 2, AnswerPromptDetails(0.5)), (None, None), None),
        (AnswerUsage(None, None, AnswerPromptDetails(None)), (None, None), None),
    ],
)
def test_counts_that_cannot_be_true_are_unknown(usage: AnswerUsage, counts: object, cached: int | None) -> None:
    assert (usage.read_counts(), usage.read_cached()) == (counts, cached)


def test_what_cannot_be_read_is_quoted_and_a_page_points_to_the_url() -> None:
    with pytest.raises(RolloutFailed, match=r"an HTML page.*, not a chat completion: check the path of the URL"):
        read_answer(b"<!DOCTYPE html><html><head><title>Hi</title></head></html>")
    with pytest.raises(RolloutFailed, match=f"not a chat completion .*: x {'y' * 198}$"):
        read_answer(b"x\n" + b"y" * 300)


def test_a_text_completion_without_a_choice_has_none_as_a_chat_either() -> None:
    assert TextAnswer([]).to_chat_answer() == ChatAnswer()


def test_nothing_unasked_is_sent_to_a_plain_endpoint() -> None:
    body = json.loads(chat_body("m", [], Sampling(), 7, (), False))
    assert set(body) == {"model", "messages", "temperature", "top_p", "max_tokens", "seed"}


@pytest.mark.parametrize("field", ["n", "stream", "messages", "return_token_ids"])
def test_sampling_cannot_change_what_an_answer_is(field: str) -> None:
    with pytest.raises(UsageError, match=field):
        check_extra(Sampling(extra={field: 2}))


def test_reasoning_is_not_sent_back_and_the_rest_is_untouched() -> None:
    call = ToolCall("1", Function("f", "{}"))
    thought = Message("assistant", "yes", "hm", [call])
    assert without_reasoning([thought]) == [Message("assistant", "yes", None, [call])]
    plain = [Message("user", "hi")]
    assert without_reasoning(plain) is plain


def answer(**changes: object) -> bytes:
    choice = {"message": {"content": "hi"}, "finish_reason": "stop", **changes}
    return json.dumps({"choices": [choice]}).encode()


def assistant(**fields: object) -> Message:
    choice = read_answer(answer(message=fields))[1]
    assert choice.message is not None
    return make_message(choice.message)


def test_messages_are_read_in_all_their_dialects() -> None:
    assert assistant(content="hi", reasoning="a") == Message("assistant", "hi", "a")
    assert assistant(content="hi", reasoning_content="b") == Message("assistant", "hi", "b")
    assert assistant(content=None) == Message("assistant", "")
    calls = [
        {"id": "x", "function": {"name": "f", "arguments": "{"}},
        {"function": {"name": "g", "arguments": {"a": 1}}},
    ]
    assert assistant(content=None, tool_calls=calls) == Message(
        "assistant", None, None, [ToolCall("x", Function("f", "{")), ToolCall("call_1", Function("g", '{"a":1}'))]
    )


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"{}",
        b"[]",
        b'{"choices": []}',
        b'{"choices": [{}]}',
        b'{"choices": 3}',
        b"\xff",
        answer()[:-5],
        answer(finish_reason=None),
        answer(finish_reason="abort"),
        answer(finish_reason="error"),
        answer(message=None),
        answer(message={"content": 3}),
    ],
)
def test_what_is_no_answer_is_a_bad_completion(raw: bytes) -> None:
    with pytest.raises(RolloutFailed) as caught:
        read_answer(raw)
    assert caught.value.kind == "bad_completion"


def test_a_logprob_written_as_nan_is_named() -> None:
    with pytest.raises(RolloutFailed) as caught:
        read_answer(answer(logprobs={"content": [{"logprob": float("nan")}]}))
    assert caught.value.kind == "nonfinite_logprobs"


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ("", "{}"),
        ("  ", "{}"),
        ('{"a": 1', '{"unreadable":"{\\"a\\": 1"}'),
        ("[1]", '{"unreadable":"[1]"}'),
        ("[" * 5000, f'{{"unreadable":"{"[" * 5000}"}}'),
    ],
)
def test_arguments_go_back_as_a_json_object_whatever_was_written(written: str, sent: str) -> None:
    message = Message("assistant", None, tool_calls=[ToolCall("c", Function("f", written))])
    (back,) = prepare_messages([message])
    assert back.tool_calls == [ToolCall("c", Function("f", sent))]
    assert message.tool_calls == [ToolCall("c", Function("f", written))]


def test_a_conversation_without_calls_is_sent_as_it_is() -> None:
    messages = [Message("user", "hi"), Message("assistant", "ho")]
    assert prepare_messages(messages) is messages
