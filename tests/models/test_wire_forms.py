"""Our requests beside those of the real clients: the same call gives the same fields and headers on the wire."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rollbook.core import Function, Message, ModelSpec, Sampling, Settings, ToolCall
from rollbook.models.anthropic import AnthropicModel
from rollbook.models.chat import ChatModel
from support.hosted import Anthropic, Azure, HostedServer, NewerOpenAI, OlderServer, Recorded

openai = pytest.importorskip("openai", reason="the openai package is not installed: its wire form is NOT checked")
anthropic = pytest.importorskip("anthropic", reason="the anthropic package is not installed: its form is NOT checked")

ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
CALL = ToolCall("call_1", Function("add", '{"a":12,"b":30}'))
MESSAGES = [
    Message("system", "Be brief."),
    Message("user", [{"type": "text", "text": "What is 12 + 30?"}]),
    Message("assistant", None, tool_calls=[CALL]),
    Message("tool", "42", tool_call_id="call_1"),
]
CHAT_MESSAGES: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "What is 12 + 30?"}]},
    {
        "role": "assistant",
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a":12,"b":30}'}}
        ],
    },
    {"role": "tool", "content": "42", "tool_call_id": "call_1"},
]
OWN_HEADERS = {"host", "content-length", "user-agent", "accept-encoding", "connection", "x-api-key"}
"""Headers in which clients differ anyway."""


def complete(model: ChatModel, sampling: Sampling) -> Any:
    async def main() -> Any:
        await model.open()
        try:
            return await model.complete(MESSAGES, sampling, seed=7, rollout="t#0", tools=[ADD])
        finally:
            await model.close()

    return asyncio.run(main())


def compare(server: HostedServer, ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[Recorded, Recorded]:
    """Make the same call with both clients; path, query and body must be the same, and each of our headers theirs."""
    ours()
    our_call = server.calls[-1]
    theirs()
    their_call = server.calls[-1]
    assert (our_call.path, our_call.query) == (their_call.path, their_call.query)
    assert our_call.body == their_call.body
    for name in set(our_call.headers) - OWN_HEADERS:
        assert our_call.headers[name] == their_call.headers[name], name
    return our_call, their_call


def settings(url: str, **more: Any) -> Settings:
    return Settings(urls=[url], outage_s=2.0, **more)


def call_openai(client: Any, name: str, **limit: int) -> Any:
    return client.chat.completions.create(
        model=name,
        messages=CHAT_MESSAGES,
        tools=[ADD],
        temperature=1.0,
        top_p=1.0,
        seed=7,
        stop=["END"],
        **limit,
    )


@pytest.mark.parametrize(
    ("server", "limit", "names"),
    [
        (NewerOpenAI(name="m"), "max_completion_tokens", {"max_tokens": "max_completion_tokens"}),
        (OlderServer(), "max_tokens", {}),
    ],
)
def test_a_chat_completion_is_what_openais_client_sends(
    server: HostedServer, limit: str, names: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "openai-secret-1")
    name = "m" if limit == "max_completion_tokens" else "older"
    with server:
        model = ChatModel(ModelSpec(name), settings(server.url, wire_names=names))
        client = openai.OpenAI(base_url=server.url, api_key="openai-secret-1", max_retries=0)
        answers: list[Any] = []
        call, _ = compare(
            server,
            lambda: complete(model, Sampling(max_tokens=99, extra={"stop": ["END"]})),
            lambda: answers.append(call_openai(client, name, **{limit: 99})),
        )
    assert call.headers["authorization"] == "Bearer openai-secret-1"
    assert answers[0].choices[0].message.content == "ok"
    assert answers[0].usage.prompt_tokens_details.cached_tokens == 0


def test_omitted_parameters_are_what_openais_client_does_not_send(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    omitted: dict[str, Any] = dict.fromkeys(("temperature", "top_p", "seed", "max_tokens"))
    with OlderServer() as server:
        model = ChatModel(ModelSpec("older"), settings(server.url))
        client = openai.OpenAI(base_url=server.url, api_key="k", max_retries=0)
        compare(
            server,
            lambda: complete(model, Sampling(extra=omitted)),
            lambda: client.chat.completions.create(model="older", messages=CHAT_MESSAGES, tools=[ADD]),
        )


def test_openais_client_reads_the_refusals_of_our_server() -> None:
    with NewerOpenAI(name="m") as server:
        client = openai.OpenAI(base_url=server.url, api_key="k", max_retries=0)
        with pytest.raises(openai.BadRequestError) as caught:
            call_openai(client, "m", max_tokens=99)
    assert (caught.value.param, caught.value.code) == ("max_tokens", "unsupported_parameter")


def test_azures_deployment_is_asked_as_its_client_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZ", "azure-secret-1")
    with Azure() as server:
        names = {"max_tokens": "max_completion_tokens"}
        own = settings(server.deployment_url, headers={"api-key": "AZ"}, wire_names=names)
        model = ChatModel(ModelSpec("my-deployment"), own)
        client = openai.AzureOpenAI(
            azure_endpoint=server.origin, api_version="2024-10-21", api_key="azure-secret-1", max_retries=0
        )
        call, _ = compare(
            server,
            lambda: complete(model, Sampling(max_tokens=99, extra={"stop": ["END"]})),
            lambda: call_openai(client, "my-deployment", max_completion_tokens=99),
        )
    assert call.path == "/openai/deployments/my-deployment/chat/completions"
    assert call.headers["api-key"] == "azure-secret-1"


def open_anthropic(server: HostedServer) -> Any:
    """The real client, with the version of the API that has parameters of sampling: from 2 on it has a later one."""
    version = {"anthropic-version": "2023-06-01"}
    key = "anthropic-secret-1"
    return anthropic.Anthropic(base_url=server.origin, api_key=key, max_retries=0, default_headers=version)


def call_anthropic(client: Any) -> Any:
    return client.messages.create(
        model="claude-9",
        max_tokens=99,
        system="Be brief.",
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "What is 12 + 30?"}]},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "call_1", "name": "add", "input": {"a": 12, "b": 30}}],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "42"}]}
                ],
            },
        ],
        tools=[
            {"name": "add", "description": "Add two numbers.", "input_schema": ADD["function"]["parameters"]},
        ],
        stop_sequences=["END"],
        # the client's newer versions have no names for these, which newer models do not take
        extra_body={"temperature": 0.5, "top_k": 5},
    )


def test_a_message_is_what_anthropics_client_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "anthropic-secret-1")
    sampling = Sampling(temperature=0.5, max_tokens=99, extra={"top_p": None, "stop": "END", "top_k": 5})
    with Anthropic() as server:
        own = settings(server.url, api_key_env="ANTHROPIC_API_KEY")
        model = AnthropicModel(ModelSpec("claude-9", "anthropic"), own)
        client = open_anthropic(server)
        answers: list[Any] = []
        call, theirs = compare(
            server, lambda: complete(model, sampling), lambda: answers.append(call_anthropic(client))
        )
    # its versions from 2 on send the key as a bearer's; the API takes both
    sent = theirs.headers.get("x-api-key") or theirs.headers["authorization"].removeprefix("Bearer ")
    assert call.headers["x-api-key"] == sent
    assert call.headers["anthropic-version"] == "2023-06-01"
    assert (answers[0].stop_reason, answers[0].usage.cache_read_input_tokens) == ("end_turn", 75)
    assert answers[0].content[0].text == "ok"


@pytest.mark.parametrize(
    ("mode", "error"),
    [
        ("overloaded", "APIStatusError"),
        ("rate_limit", "RateLimitError"),
        ("context", "BadRequestError"),
    ],
)
def test_anthropics_client_reads_the_errors_of_our_server(mode: str, error: str) -> None:
    with Anthropic(mode) as server:
        client = open_anthropic(server)
        with pytest.raises(getattr(anthropic, error)) as caught:
            call_anthropic(client)
    assert caught.value.body["error"]["type"] in ("overloaded_error", "rate_limit_error", "invalid_request_error")


def test_anthropics_client_reads_thinking_and_tools_of_our_server() -> None:
    with Anthropic("thinking") as server:
        client = open_anthropic(server)
        assert [block.type for block in call_anthropic(client).content] == ["thinking", "text"]
