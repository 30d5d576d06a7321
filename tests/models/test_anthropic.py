"""Anthropic's models: requests and answers of the Messages API, against a server written from its reference."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rollbook.core import Function, Message, ModelSpec, Sampling, Settings, ToolCall, decode, encode
from rollbook.errors import ContextFull, RolloutFailed, UsageError
from rollbook.models import anthropic
from rollbook.models.anthropic import AnthropicAnswer, AnthropicModel, AnthropicUsage, make_body, to_chat_answer
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
    for counts, prompt, cached in (((20, 9), 20, 0), ((20, 9, 5), 25, 0), ((20, 9, None, 7), 27, 7)):
        assert to_chat_answer(AnthropicAnswer([], "end_turn", AnthropicUsage(*counts)))["usage"] == {
            "prompt_tokens": prompt,
            "completion_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


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


def body_of(messages: Sequence[Message] = ASK, tools: Sequence[Any] = (), **extra: Any) -> Any:
    return decode(make_body("claude-9", messages, Sampling(extra=extra), tools, {}))


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", {"type": "auto"}),
        ("required", {"type": "any"}),
        ("none", {"type": "none"}),
        ("sometimes", {"type": "auto"}),
        ({"type": "function", "function": {"name": "add"}}, {"type": "tool", "name": "add"}),
    ],
)
def test_a_choice_of_tools_is_sent_in_the_words_of_the_api(choice: Any, sent: Any) -> None:
    assert body_of(tools=[ADD], tool_choice=choice)["tool_choice"] == sent
    assert "tool_choice" not in body_of(tools=[ADD])
    assert {"tools", "tool_choice"}.isdisjoint(body_of(tool_choice=choice))


def test_a_tool_without_a_description_or_parameters_takes_an_object() -> None:
    (tool,) = body_of(tools=[{"type": "function", "function": {"name": "now"}}])["tools"]
    assert tool == {"name": "now", "input_schema": {"type": "object"}}


def test_only_what_is_given_is_sent() -> None:
    body = body_of(
        [Message("developer", "Be brief."), Message("system", "Be kind."), Message("user", "Hi.")], stop=["A"]
    )
    assert (body["system"], body["stop_sequences"]) == ("Be brief.\n\nBe kind.", ["A"])
    plain = body_of([Message("user", "Hi.")])
    assert set(plain) == {"model", "messages", "temperature", "top_p", "max_tokens"}


def test_answers_that_follow_each_other_are_one_turn() -> None:
    messages = [Message("user", "Hi."), Message("assistant", "A"), Message("assistant", "B"), Message("user", "  ")]
    sent = body_of(messages)["messages"]
    assert [turn["role"] for turn in sent] == ["user", "assistant"]
    assert [block["text"] for block in sent[1]["content"]] == ["A", "B"]
    image = {"type": "image_url", "image_url": "https://host/cat.png"}
    assert body_of([Message("user", [image])])["messages"][0]["content"][0]["source"]["url"] == "https://host/cat.png"
    for kind, shown in (("input_audio", "'input_audio'"), ("x" * 99, "'" + "x" * 39)):
        with pytest.raises(RolloutFailed, match=f"takes no part of type {shown}$"):
            body_of([Message("user", [{"type": kind}])])


@pytest.mark.parametrize("form", ["json", {"type": "json_object"}, {"type": "json_schema", "json_schema": "x"}])
def test_only_a_schema_can_hold_an_answer(form: Any) -> None:
    with pytest.raises(UsageError, match="takes a json_schema only"):
        body_of(response_format=form)


def test_an_output_config_of_the_user_is_kept_beside_the_schema() -> None:
    form = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
    sent = body_of(response_format=form, output_config={"effort": "low"})["output_config"]
    assert sent == {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}}


def test_blocks_of_an_answer_become_one_message() -> None:
    call = {"type": "tool_use", "id": "a", "name": "add"}
    texts = [{"type": "text", "text": "I "}, {"type": "text", "text": "add."}]
    thoughts = [{"type": "thinking", "thinking": "Sum"}, {"type": "thinking", "thinking": "s."}]
    spoken = to_chat_answer(AnthropicAnswer([*thoughts, *texts, call], "tool_use"))["choices"][0]["message"]
    assert (spoken["content"], spoken["reasoning"]) == ("I add.", "Sums.")
    assert spoken["tool_calls"] == [{"id": "a", "function": {"name": "add", "arguments": {}}}]
    silent = to_chat_answer(AnthropicAnswer([call], "tool_use"))["choices"][0]["message"]
    assert silent["content"] is None
    blank = to_chat_answer(AnthropicAnswer([{"type": "text"}, {"type": "thinking"}], "end_turn"))["choices"][0][
        "message"
    ]
    assert (blank["content"], blank["reasoning"]) == ("", "")
    empty = to_chat_answer(AnthropicAnswer([], "end_turn"))
    assert empty == {"choices": [{"message": {"content": ""}, "finish_reason": "stop"}], "usage": None}


def test_thinking_is_remembered_for_the_last_calls_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anthropic, "MAX_KEPT_TURNS", 2)
    model = AnthropicModel(ModelSpec("claude-9", "anthropic"), Settings(urls=["http://host/v1"]))

    def read(*blocks: Any) -> Completion:
        answer = {"content": list(blocks), "stop_reason": "tool_use", "usage": {"input_tokens": 1, "output_tokens": 1}}
        return model._read_completion(encode(answer), 0.0, None, False)

    made = [
        read({"type": kind, "thinking": name}, {"type": "tool_use", "id": name, "name": "add", "input": {}})
        for name, kind in (("a", "thinking"), ("b", "thinking"), ("c", "redacted_thinking"))
    ]
    made.append(read({"type": "tool_use", "id": "d", "name": "add", "input": {}}))
    sent = [
        decode(model._make_body([done.message], Sampling(), 0, (), None, {}))["messages"][0]["content"] for done in made
    ]
    assert [[block["type"] for block in content] for content in sent] == [
        ["tool_use"], ["thinking", "tool_use"], ["redacted_thinking", "tool_use"], ["tool_use"],
    ]  # fmt: skip


def test_a_body_that_is_no_message_is_quoted() -> None:
    model = AnthropicModel(ModelSpec("claude-9", "anthropic"), Settings(urls=["http://host/v1"]))
    with pytest.raises(RolloutFailed, match=f"not a message of the Messages API .*1, {'x' * 195}$"):
        model._read_completion(b"[\n1, " + b"x" * 300, 0.0, None, False)
