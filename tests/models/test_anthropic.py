"""Anthropic's models: requests and answers of the Messages API, against a server written from its reference."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rollbook.core import Function, Message, ModelSpec, Sampling, Settings, ToolCall
from rollbook.errors import ContextFull, RolloutFailed, UsageError
from rollbook.models.anthropic import AnthropicAnswer, AnthropicModel, AnthropicUsage, to_chat_answer
from rollbook.models.model import Completion
from support.hosted import Anthropic

ASK = [Message("system", "Be brief."), Message("user", "What is 12 + 30?")]
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
ONE = {"top_p": None}
"""Newer models take temperature or top_p, not both."""


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "anthropic-secret-1")


def complete(
    server: Anthropic, messages: Sequence[Message] = ASK, tools: Sequence[Any] = (), **sampling: Any
) -> list[Completion]:
    """Ask; where tools are called, answer them with 42 and ask again."""
    extra = ONE | sampling.pop("extra", {})

    async def main() -> list[Completion]:
        settings = Settings(urls=[server.url], api_key_env="ANTHROPIC_API_KEY", outage_s=2.0)
        model = AnthropicModel(ModelSpec("claude-9", "anthropic"), settings)
        await model.open()
        try:
            options: Any = {"seed": 1, "rollout": "t#0", "tools": tools}
            done = [await model.complete(messages, Sampling(extra=extra, **sampling), **options)]
            for call in done[0].message.tool_calls or ():
                result = Message("tool", "42", tool_call_id=call.id)
                again = [*messages, done[0].message, result]
                done.append(await model.complete(again, Sampling(extra=extra, **sampling), **options))
            return done
        finally:
            await model.close()

    return asyncio.run(main())


def test_a_request_has_the_fields_and_headers_of_the_messages_api() -> None:
    with Anthropic() as server:
        (done,) = complete(server, max_tokens=99, temperature=0.5, extra={"stop": "END", "top_k": 5})
    assert done.message == Message("assistant", "The answer is 42.")
    (call,) = server.calls
    assert call.path == "/v1/messages"
    assert (call.headers["x-api-key"], call.headers["anthropic-version"]) == ("anthropic-secret-1", "2023-06-01")
    assert "authorization" not in call.headers
    assert call.body == {
        "model": "claude-9",
        "temperature": 0.5,
        "max_tokens": 99,
        "top_k": 5,
        "stop_sequences": ["END"],
        "system": "Be brief.",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "What is 12 + 30?"}]}],
    }


def test_tools_go_both_ways_with_the_thinking_of_their_turn() -> None:
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    with Anthropic("tool") as server:
        first, second = complete(server, tools=[ADD], extra=thinking)
    assert first.turn.finish_reason == "tool_calls"
    assert first.message.tool_calls == [ToolCall("toolu_1", Function("add", '{"a":12,"b":30}'))]
    assert first.message.reasoning == "A tool."
    assert server.calls[0].body["tools"] == [
        {"name": "add", "description": "Add two numbers.", "input_schema": ADD["function"]["parameters"]}
    ]
    assert server.calls[1].body["messages"][1:] == [
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "A tool.", "signature": "sig-2"},
                {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 12, "b": 30}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "42"}]}],
        },
    ]
    assert second.turn.finish_reason == "stop"


def test_thinking_is_reasoning() -> None:
    with Anthropic("thinking") as server:
        (done,) = complete(server)
    assert (done.message.reasoning, done.message.text) == ("I add.", "The answer is 42.")


def test_a_count_that_cannot_be_true_is_not_hidden_by_a_sum() -> None:
    usage = AnthropicUsage(input_tokens=100, output_tokens=5, cache_creation_input_tokens=-90)
    assert to_chat_answer(AnthropicAnswer([], "end_turn", usage))["usage"] is None


def test_tokens_of_the_cache_are_tokens_of_the_prompt() -> None:
    with Anthropic() as server:
        (done,) = complete(server)
    assert (done.turn.prompt_tokens, done.turn.completion_tokens) == (100, 9)
    chat = to_chat_answer(AnthropicAnswer([], "end_turn", AnthropicUsage(20, 9, 5, 75)))
    assert chat["usage"]["prompt_tokens_details"] == {"cached_tokens": 75}


@pytest.mark.parametrize(
    ("mode", "reason"), [("ok", "stop"), ("cut", "length"), ("window", "length"), ("refusal", "content_filter")]
)
def test_every_stop_reason_has_ours(mode: str, reason: str) -> None:
    with Anthropic(mode) as server:
        (done,) = complete(server)
    assert done.turn.finish_reason == reason
    assert done.turn.truncated == (reason == "length")


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("overloaded", "model_unavailable"),
        ("rate_limit", "model_unavailable"),
        ("invalid", "model_rejected"),
        ("pause", "bad_completion"),
    ],
)
def test_every_error_is_one_of_our_failures(mode: str, kind: str) -> None:
    with Anthropic(mode) as server:
        server.retry_after = "7"
        with pytest.raises(RolloutFailed) as caught:
            complete(server)
    assert caught.value.kind == kind
    assert caught.value.retry_after_s == (7.0 if kind == "model_unavailable" else None)


def test_a_prompt_that_is_too_long_is_the_policys_doing() -> None:
    with Anthropic("context") as server, pytest.raises(ContextFull, match="prompt is too long"):
        complete(server)


def test_temperature_and_top_p_together_are_the_users_to_decide() -> None:
    with Anthropic() as server, pytest.raises(UsageError, match=r"refuses top_p.*pass --sampling top_p=null"):
        complete(server, extra={"top_p": 1.0})


def test_a_wrong_key_is_named_by_its_variable_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "wrong-secret")
    with Anthropic() as server, pytest.raises(UsageError, match="the key in ANTHROPIC_API_KEY was not") as caught:
        complete(server)
    assert "wrong-secret" not in str(caught.value)


def test_images_and_empty_answers_are_sent_as_the_api_takes_them() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages = [
        Message("user", [{"type": "text", "text": "What is this?"}, picture]),
        Message("assistant", ""),
        Message("user", "And 1 + 1?"),
        Message("assistant", "2"),
        Message("user", [{"type": "image_url", "image_url": {"url": "https://host/cat.png"}}]),
    ]
    with Anthropic() as server:
        complete(server, messages)
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    assert server.calls[0].body["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                image,
                {"type": "text", "text": "And 1 + 1?"},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "2"}]},
        {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "https://host/cat.png"}}]},
    ]


def test_an_answer_can_be_held_to_a_schema() -> None:
    schema = {"type": "object", "properties": {"answer": {"type": "integer"}}}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    with Anthropic() as server:
        complete(server, extra={"response_format": form})
    assert server.calls[0].body["output_config"] == {"format": {"type": "json_schema", "schema": schema}}


def test_the_newer_version_of_the_api_has_no_parameters_of_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_VERSION", "2026-10-21")

    async def main(extra: dict[str, Any]) -> Completion:
        own = {"api_key_env": "ANTHROPIC_API_KEY", "headers": {"anthropic-version": "API_VERSION"}}
        model = AnthropicModel(ModelSpec("claude-9", "anthropic"), Settings(urls=[server.url], **own))
        await model.open()
        try:
            return await model.complete(ASK, Sampling(extra=extra), seed=1, rollout="t#0")
        finally:
            await model.close()

    with Anthropic() as server:
        with pytest.raises(UsageError, match="pass --sampling temperature=null"):
            asyncio.run(main({}))
        done = asyncio.run(main({"temperature": None, "top_p": None}))
        assert done.message.text == "The answer is 42."


def test_max_tokens_cannot_be_omitted() -> None:
    with Anthropic() as server, pytest.raises(UsageError, match="requires max_tokens"):
        complete(server, extra={"max_tokens": None})
