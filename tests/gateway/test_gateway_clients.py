"""The real clients of OpenAI and Anthropic, through the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

anthropic = pytest.importorskip("anthropic")
openai = pytest.importorskip("openai")

from rollbook.gateway.recorder import Record  # noqa: E402
from rollbook.tokens import merge  # noqa: E402
from support.endpoint import Endpoint, logprob_of, prompt_ids  # noqa: E402
from support.gateways import Gate, Place  # noqa: E402

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
ADD = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
QUESTION = "What is 20 + 22?"


def played(agent: Callable[[Place], Awaitable[None]], mode: str = "ok") -> tuple[Record, Endpoint]:
    """What the gateway recorded of an agent, in front of an endpoint that is always right."""

    async def main() -> tuple[Record, Endpoint]:
        async with Endpoint(vllm=True, right=1.0) as endpoint, Gate(endpoint.url) as gateway:
            place = await gateway.open()
            if mode != "ok":
                await endpoint.switch(mode, models="ok")
            await agent(place)
            return await gateway.record(place, "DELETE"), endpoint

    return asyncio.run(main())


def client(place: Place) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=place.openai_base_url, api_key="none", max_retries=0)


def claude(place: Place) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=place.anthropic_base_url, api_key="none", max_retries=0)


def assert_one_sequence(record: Record) -> None:
    """Two turns that continue each other, token for token."""
    (branch,) = record.branches
    assert [message.role for message in branch.messages] == ["user", "assistant", "tool", "assistant"]
    assert branch.messages[-1].text == "The answer is 42."
    assert record.failure is None
    (sequence,) = merge(record.turns)
    assert sequence.prompt_ids == prompt_ids([{"role": "user", "content": QUESTION}])
    sampled = [i for i, trained in zip(sequence.response_ids, sequence.mask, strict=True) if trained]
    assert sampled == [*record.turns[0].ids, *record.turns[1].ids]
    assert record.turns[1].logprobs == [logprob_of(i) for i in record.turns[1].ids]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_loop_over_chat_completions_is_one_sequence(streamed: bool) -> None:
    async def agent(place: Place) -> None:
        async with client(place) as ai:
            messages = [{"role": "user", "content": QUESTION}]
            first = await answered(ai, messages, streamed)
            (call,) = first["tool_calls"]
            assert call["function"]["name"] == "add"
            messages += [first, {"role": "tool", "tool_call_id": call["id"], "content": "42"}]
            last = await answered(ai, messages, streamed)
            assert last["content"] == "The answer is 42."

    async def answered(ai: openai.AsyncOpenAI, messages: list, streamed: bool) -> dict:
        if not streamed:
            completion = await ai.chat.completions.create(model="any", messages=messages, tools=[ADD], seed=3)
            assert completion.choices[0].logprobs is None
            assert "token_ids" not in completion.choices[0].to_dict()
            return completion.choices[0].message.model_dump(exclude_none=True)
        async with ai.chat.completions.stream(model="any", messages=messages, tools=[ADD]) as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_completion()
            return final.choices[0].message.model_dump(exclude_none=True, exclude={"parsed"})

    record, endpoint = played(agent)
    assert_one_sequence(record)
    assert all(body["return_token_ids"] and body["logprobs"] and "stream" not in body for body in endpoint.bodies)


def test_a_stream_counts_its_tokens_where_that_was_asked_for() -> None:
    async def agent(place: Place) -> None:
        async with client(place) as ai:
            options = {"stream": True, "stream_options": {"include_usage": True}}
            stream = await ai.chat.completions.create(
                model="any", messages=[{"role": "user", "content": "hi"}], **options
            )
            chunks = [chunk async for chunk in stream]
            assert chunks[-1].usage.completion_tokens == 3
            assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "ok"

    record, _ = played(agent)
    assert len(record.turns) == 1


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_loop_over_responses_is_one_sequence(streamed: bool) -> None:
    tools = [{"type": "function", "name": "add", "parameters": SCHEMA, "strict": False}]

    async def answered(ai: openai.AsyncOpenAI, items: list) -> object:
        if not streamed:
            return await ai.responses.create(model="any", input=items, tools=tools, store=False)
        async with ai.responses.stream(model="any", input=items, tools=tools, store=False) as stream:
            async for _ in stream:
                pass
            return await stream.get_final_response()

    async def agent(place: Place) -> None:
        async with client(place) as ai:
            items: list = [{"role": "user", "content": QUESTION}]
            first = await answered(ai, items)
            (call,) = first.output
            items += [call.to_dict(), {"type": "function_call_output", "call_id": call.call_id, "output": "42"}]
            last = await answered(ai, items)
            assert (last.status, last.output_text) == ("completed", "The answer is 42.")

    assert_one_sequence(played(agent)[0])


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_loop_over_anthropics_messages_is_one_sequence(streamed: bool) -> None:
    asking = {"model": "any", "max_tokens": 200, "tools": [{"name": "add", "input_schema": SCHEMA}]}

    async def answered(ai: anthropic.AsyncAnthropic, messages: list) -> anthropic.types.Message:
        if not streamed:
            return await ai.messages.create(messages=messages, **asking)
        async with ai.messages.stream(messages=messages, **asking) as stream:
            return await stream.get_final_message()

    async def agent(place: Place) -> None:
        async with claude(place) as ai:
            messages: list = [{"role": "user", "content": QUESTION}]
            first = await answered(ai, messages)
            (use,) = first.content
            assert (first.stop_reason, use.name, use.input) == ("tool_use", "add", {"a": 20, "b": 22})
            result = {"type": "tool_result", "tool_use_id": use.id, "content": "42"}
            used = {"type": "tool_use", "id": use.id, "name": use.name, "input": use.input}
            messages += [{"role": "assistant", "content": [used]}, {"role": "user", "content": [result]}]
            last = await answered(ai, messages)
            assert (last.stop_reason, last.content[0].text) == ("end_turn", "The answer is 42.")

    assert_one_sequence(played(agent)[0])


def test_errors_are_what_the_clients_know() -> None:
    async def agent(place: Place) -> None:
        hi = [{"role": "user", "content": "hi"}]
        async with client(place) as ai, claude(place) as other:
            with pytest.raises(openai.InternalServerError, match="HTTP 500"):
                await ai.chat.completions.create(model="any", messages=hi)
            with pytest.raises(openai.InternalServerError, match="HTTP 500"):
                await ai.responses.create(model="any", input="hi", stream=True)
            with pytest.raises(anthropic.InternalServerError, match="HTTP 500"):
                await other.messages.create(model="any", messages=hi, max_tokens=9)
            with pytest.raises(openai.BadRequestError, match="n is 3"):
                await ai.chat.completions.create(model="any", messages=hi, n=3)
            with pytest.raises(anthropic.NotFoundError, match="is not served here"):
                await other.messages.count_tokens(model="any", messages=hi)

    record, _ = played(agent, "500")
    assert record.failure.kind == "model_unavailable"
    assert record.branches == []


def test_a_prompt_that_is_too_long_is_known_by_its_code() -> None:
    async def agent(place: Place) -> None:
        async with client(place) as ai:
            with pytest.raises(openai.BadRequestError) as caught:
                await ai.chat.completions.create(model="any", messages=[{"role": "user", "content": "hi"}])
            assert caught.value.code == "context_length_exceeded"

    record, _ = played(agent, "context")
    assert (record.ended, record.failure) == ("context_length", None)


def test_models_are_listed_for_both() -> None:
    async def agent(place: Place) -> None:
        async with client(place) as ai, claude(place) as other:
            assert [model.id async for model in await ai.models.list()] == ["mock"]
            assert [model.id async for model in await other.models.list()] == ["mock"]

    record, _ = played(agent)
    assert record.failure.message == "the rollout ended without calling the model"


@pytest.mark.model
def test_the_embedded_model_answers_all_three_with_exact_tokens() -> None:
    async def main() -> Record:
        async with Gate() as gateway:
            place = await gateway.open(seed=1)
            async with client(place) as ai, claude(place) as other:
                prompt = [{"role": "user", "content": "Say one word."}]
                completion = await ai.chat.completions.create(model="any", messages=prompt, max_tokens=8, temperature=0)
                answer = completion.choices[0].message.content
                more = [
                    *prompt,
                    {"role": "assistant", "content": answer},
                    {"role": "user", "content": "Another."},
                ]
                options = {"max_tokens": 8, "temperature": 0, "stream": True}
                stream = await ai.chat.completions.create(model="any", messages=more, **options)
                assert [chunk async for chunk in stream]
                assert (await ai.responses.create(model="any", input="Hello!", max_output_tokens=8)).output_text
                assert (await other.messages.create(model="any", max_tokens=8, messages=prompt)).content[0].text
            return await gateway.record(place, "DELETE")

    record = asyncio.run(main())
    assert record.failure is None
    assert [len(branch.turns) for branch in record.branches] == [2, 1, 1]
    for turn in record.turns:
        assert turn.prompt_ids
        assert 0 < len(turn.ids) == len(turn.logprobs) <= 8
    assert sum(sequence.trained for sequence in merge(record.turns)) == sum(len(turn.ids) for turn in record.turns)
