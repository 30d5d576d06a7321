"""Parameters that an endpoint refuses: the other name of the same one is learned, any other is the user's to omit."""

import asyncio
import json
from typing import Any

import pytest

from rollbook.core import Message, ModelSpec, Sampling, Settings
from rollbook.errors import RolloutFailed, UsageError
from rollbook.models.chat import ChatModel
from rollbook.models.model import Completion
from rollbook.models.server_errors import RefusedParameter, find_refused_parameter
from support.hosted import HostedServer, NewerOpenAI, OlderServer, Recorded, Reply, SeedlessGemini, chat_completion

SENT = ["temperature", "top_p", "max_tokens", "seed", "top_k", "stop", "logit_bias"]
ASK = [Message("user", "What is 12 + 30?")]


def error(message: str, **fields: object) -> bytes:
    return json.dumps({"error": {"message": message, **fields}}).encode()


OPENROUTER = {"raw": '{"error": {"message": "Unsupported parameter: \'top_k\' is not supported with this model."}}'}
REFUSALS = [
    (
        error(
            "Unsupported parameter: 'max_tokens' is not supported with this model. "
            "Use 'max_completion_tokens' instead.",
            type="invalid_request_error",
            param="max_tokens",
            code="unsupported_parameter",
        ),
        "max_tokens",
    ),
    # the same from a proxy, which knows neither param nor code
    (error("Unsupported parameter: 'max_tokens' is not supported with this model.", code="invalid"), "max_tokens"),
    (error("Please use max_completion_tokens with this model"), "max_tokens"),
    (error("Unknown parameter: 'top_k'.", param="top_k", code="unknown_parameter"), "top_k"),
    (error("Unrecognized request argument supplied: top_k"), "top_k"),
    (error("[{'type': 'extra_forbidden', 'loc': ('body', 'seed'), 'msg': 'Extra inputs are not permitted'}]"), "seed"),
    (b'{"detail":[{"type":"extra_forbidden","loc":["body","seed"],"msg":"Extra inputs are not permitted"}]}', "seed"),
    (b'[{"error":{"code":400,"message":"Invalid JSON. Unknown name \\"seed\\": Cannot find field."}}]', "seed"),
    (error("seed: Extra inputs are not permitted", type="invalid_request_error"), "seed"),
    (error("logit_bias is not supported by this model"), "logit_bias"),
    (error("Provider returned error", code=400, metadata=OPENROUTER), "top_k"),
    (error("`temperature` and `top_p` cannot both be specified for this model. Please use only one."), "top_p"),
    (error("`temperature` is deprecated for this model."), "temperature"),
]
NOT_REFUSALS = [
    error("temperature must be non-negative"),
    error("max_tokens is too large: 100000. This model supports at most 16384 completion tokens.", param="max_tokens"),
    error("'max_tokens' or 'max_completion_tokens' is too large. This model's maximum context length is 2048 tokens."),
    error("tool calls are not supported; stop sending them"),
    error("Invalid JSON payload received. Unknown name \"const\" at 'tools[0].parameters': Cannot find field."),
    error("the model is unknown"),
    b"<h1>Bad Request</h1>",
    b"",
]


@pytest.mark.parametrize(("raw", "name"), REFUSALS)
def test_a_refused_parameter_is_recognised_in_every_services_words(raw: bytes, name: str) -> None:
    assert find_refused_parameter(raw, SENT) == RefusedParameter(name)


@pytest.mark.parametrize("raw", NOT_REFUSALS)
def test_other_errors_refuse_no_parameter(raw: bytes) -> None:
    assert find_refused_parameter(raw, SENT) is None


def test_a_refused_value_is_told_from_a_refused_parameter() -> None:
    said = "Unsupported value: 'temperature' does not support 0.5 with this model."
    raw = error(said, param="temperature", code="unsupported_value")
    assert find_refused_parameter(raw, SENT) == RefusedParameter("temperature", value=True)


async def ask(model: ChatModel, **sampling: Any) -> Completion:
    return await model.complete(ASK, Sampling(**sampling), seed=1, rollout="t#0")


def open_and_ask(
    server: HostedServer, times: int = 1, *, at_once: bool = False, notes: list[str] | None = None, **settings: Any
) -> list[str]:
    """Ask an opened model some times; return what it said beside the answers."""
    notes = [] if notes is None else notes

    async def main() -> None:
        model = ChatModel(ModelSpec(""), Settings(urls=[server.url], **settings), say=notes.append)
        await model.open()
        try:
            if at_once:
                await asyncio.gather(*(ask(model) for _ in range(times)))
            else:
                for _ in range(times):
                    assert (await ask(model)).message.text == "The answer is 42."
            notes.append(str(dict(model.wire_names)))
        finally:
            await model.close()

    asyncio.run(main())
    return notes


def test_the_other_name_is_learned_once_and_then_always_sent() -> None:
    with NewerOpenAI() as server:
        notes = open_and_ask(server, 3)
    assert [call.body.get("max_tokens") for call in server.calls] == [1024, None, None, None]
    assert [call.body.get("max_completion_tokens") for call in server.calls] == [None, 1024, 1024, 1024]
    said = f"{server.url} does not take max_tokens: max_completion_tokens is sent instead"
    assert notes == [said, "{'max_tokens': 'max_completion_tokens'}"]


def test_many_calls_at_once_learn_it_once() -> None:
    with NewerOpenAI() as server:
        assert len(open_and_ask(server, 8, at_once=True)) == 2


def test_what_a_run_has_learned_before_is_sent_from_the_first_call_on() -> None:
    with NewerOpenAI() as server:
        open_and_ask(server, wire_names={"max_tokens": "max_completion_tokens"})
        assert len(server.calls) == 1


def test_the_older_name_is_learned_too() -> None:
    with OlderServer() as server:
        notes = open_and_ask(server, 2, wire_names={"max_tokens": "max_completion_tokens"})
        assert [("max_tokens" in call.body) for call in server.calls] == [False, True, True]
    said = f"{server.url} does not take max_completion_tokens: max_tokens is sent instead"
    assert notes == [said, "{'max_tokens': 'max_tokens'}"]


class TakesNeither(HostedServer):
    def reply(self, request: Recorded) -> Reply:
        if request.method == "GET":
            return 200, {"data": [{"id": "m"}]}
        limit = "max_tokens" if "max_tokens" in request.body else "max_completion_tokens"
        return (400, {"error": {"message": f"unknown field {limit}"}}) if limit in request.body else (500, {})


def test_an_endpoint_that_takes_neither_name_is_not_asked_for_ever() -> None:
    with TakesNeither() as server:
        notes: list[str] = []
        with pytest.raises(UsageError, match="--sampling max_tokens=null"):
            open_and_ask(server, notes=notes)
        assert len(server.calls) == 2
        assert notes == []


class TakesTheOtherName(HostedServer):
    """Takes max_completion_tokens, and then answers with a status that says something else."""

    status = 500

    def reply(self, request: Recorded) -> Reply:
        if request.method == "GET":
            return 200, {"data": [{"id": "m"}]}
        if "max_tokens" in request.body:
            return 400, {"error": {"message": "unknown field max_tokens"}}
        return self.status, {"error": {"message": "oops"}}


@pytest.mark.parametrize(
    ("status", "learned"),
    [(400, True), (413, True), (422, True), (401, False), (414, False), (429, False), (500, False)],
)
def test_the_other_name_is_learned_wherever_the_server_has_read_it(status: int, learned: bool) -> None:
    with TakesTheOtherName() as server:
        server.status, notes = status, list[str]()
        with pytest.raises((RolloutFailed, UsageError)):
            open_and_ask(server, notes=notes)
    assert len(notes) == learned


def test_replicas_that_want_different_names_each_keep_theirs() -> None:
    notes: list[str] = []

    async def main(urls: list[str]) -> None:
        model = ChatModel(ModelSpec("newer-1"), Settings(urls=urls), say=notes.append)
        await model.open()
        for number in range(8):  # at once, so that they go to both
            await asyncio.gather(
                *(model.complete(ASK, Sampling(), seed=1, rollout=f"t#{number}-{i}") for i in range(4))
            )
        assert model.wire_names == {"max_tokens": "max_completion_tokens"}
        await model.close()

    class Older(OlderServer):
        def reply(self, request: Recorded) -> Reply:
            return (404, {}) if request.method == "GET" else super().reply(request)

    with NewerOpenAI() as newer, Older() as older:
        asyncio.run(main([newer.url, older.url]))
    assert notes == [f"{newer.url} does not take max_tokens: max_completion_tokens is sent instead"]
    assert {"max_completion_tokens" in call.body for call in older.calls} == {False}
    assert sum("max_tokens" in call.body for call in newer.calls) <= 4, "only the first calls, which came at once"
    assert len(newer.calls) > 8


def test_a_refused_parameter_of_sampling_is_never_dropped() -> None:
    with SeedlessGemini() as server:
        with pytest.raises(UsageError, match=r"refuses seed: .*pass --sampling seed=null to omit it"):
            open_and_ask(server)
        assert all("seed" in call.body for call in server.calls)


class RefusesLater(HostedServer):
    def reply(self, request: Recorded) -> Reply:
        if request.method == "GET":
            return 200, {"data": [{"id": "m"}]}
        if len(self.calls) > 1:
            return 400, {"error": {"message": "seed is not supported"}}
        return chat_completion(request.body)


def test_after_an_answer_a_refused_parameter_fails_one_rollout_with_the_same_advice() -> None:
    with RefusesLater() as server, pytest.raises(RolloutFailed, match="--sampling seed=null") as caught:
        open_and_ask(server, 2)
    assert caught.value.kind == "model_rejected"


@pytest.mark.parametrize("name", ["temperature", "top_p", "max_tokens", "seed", "top_k"])
def test_any_parameter_can_be_omitted(name: str) -> None:
    async def main() -> None:
        model = ChatModel(ModelSpec(""), Settings(urls=[server.url]))
        await model.open()
        await ask(model, extra={"top_k": 5, name: None})
        await model.close()

    with OlderServer() as server:
        asyncio.run(main())
    assert {"temperature", "top_p", "max_tokens", "seed", "top_k"} - set(server.calls[0].body) == {name}
