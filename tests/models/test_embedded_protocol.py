"""What the embedded model sends to its server and makes of the replies; the server is a stand-in with its protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from rollbook.core import Message, ModelSpec, Sampling, Settings
from rollbook.errors import RolloutFailed
from rollbook.models import Completion
from rollbook.models.embedded import MAX_MISSING_LOGPROBS, EmbeddedModel

EOS = 2
ASK = [Message("user", "Hi")]
LOGPROB = -0.5


class StandIn:
    """Takes the calls of llama.cpp's server; a token is a character, and the end of a message is EOS."""

    def __init__(self) -> None:
        self.url = ""
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.answers: list[str] = []
        self.stop_type = "eos"
        self.unreported: set[str] = set()
        self.candidates: dict[int, float] = {}
        self.spoilt: dict[str, str] = {}

    async def handle(self, request: web.Request) -> web.Response:
        """Reply as the server would."""
        path, body = request.path.strip("/"), await request.json()
        self.calls.append((path, body))
        if path in self.spoilt:
            return web.Response(text=self.spoilt[path])
        return web.json_response(getattr(self, f"_{path.replace('-', '_')}")(body))

    def _apply_template(self, body: dict[str, Any]) -> dict[str, Any]:
        parts = [f"{m['role'][0]}:{m['content']}\x02" for m in body["messages"]]
        return {"prompt": "".join(parts) + "a:"}

    def _tokenize(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"tokens": [*([1] if body["add_special"] else []), *map(ord, body["content"])]}

    def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
        if "logit_bias" in body:
            likely = [{"id": token, "logprob": p} for token, p in self.candidates.items()][: body["n_probs"]]
            return self._reply("a", body, [{"id": ord("a"), "logprob": -9.0, "top_logprobs": likely}])
        text = self.answers.pop(0)
        ids = [*map(ord, text), *([EOS] if self.stop_type == "eos" else [])]
        return self._reply(
            text, body, [{"id": i, "logprob": LOGPROB} for i in ids if chr(i) not in self.unreported], ids
        )

    def _reply(self, text: str, body: dict[str, Any], sampled: list[Any], ids: Any = ()) -> dict[str, Any]:
        return {
            "content": text,
            "tokens": list(ids),
            "stop_type": self.stop_type,
            "tokens_predicted": len(ids),
            "tokens_evaluated": len(body["prompt"]),
            "completion_probabilities": sampled,
        }

    def sent(self, path: str) -> list[dict[str, Any]]:
        """Return the bodies that were sent to a path."""
        return [body for called, body in self.calls if called == path]


@asynccontextmanager
async def opened(*answers: str) -> AsyncIterator[tuple[EmbeddedModel, StandIn]]:
    server = StandIn()
    server.answers = list(answers)
    app = web.Application()
    app.router.add_post("/{path}", server.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    model = EmbeddedModel(ModelSpec("embedded"), Settings(urls=[server.url], call_s=10.0))
    await model.open()
    try:
        yield model, server
    finally:
        await model.close()
        await runner.cleanup()


async def ask(
    model: EmbeddedModel, messages: list[Message] = ASK, rollout: str = "t#0", tools: Any = (), **sampling: Any
) -> Completion:
    return await model.complete(messages, Sampling(**sampling), seed=7, rollout=rollout, tools=tools)


def check(test: Callable[[EmbeddedModel, StandIn], Awaitable[None]], *answers: str) -> None:
    async def main() -> None:
        async with opened(*answers) as (model, server):
            await test(model, server)

    asyncio.run(main())


def ids_of(text: str) -> list[int]:
    return [1, *map(ord, text)]


def test_an_answer_has_its_exact_tokens_and_logprobs() -> None:
    async def test(model: EmbeddedModel, server: StandIn) -> None:
        found = await ask(model, temperature=0.3, top_p=0.9, max_tokens=5)
        turn = found.turn
        assert (found.message, turn.finish_reason) == (Message("assistant", "Yes"), "stop")
        assert (turn.prompt_ids, turn.ids) == (ids_of("u:Hi\x02a:"), [*map(ord, "Yes"), EOS])
        assert (turn.logprobs, turn.prompt_tokens, turn.completion_tokens) == ([LOGPROB] * 4, 8, 4)
        (body,) = server.sent("completion")
        assert {name: body[name] for name in ("temperature", "top_p", "top_k", "min_p", "n_predict", "seed")} == {
            "temperature": 0.3,
            "top_p": 0.9,
            "top_k": 0,
            "min_p": 0.0,
            "n_predict": 5,
            "seed": 7,
        }
        assert (body["n_probs"], body["return_tokens"]) == (1, True)
        assert (body["post_sampling_probs"], body["stream"]) == (False, False)
        assert model.url == server.url

    check(test, "Yes")


def test_extra_sampling_overrides_and_null_omits() -> None:
    async def test(model: EmbeddedModel, server: StandIn) -> None:
        await ask(model, extra={"top_k": 5, "seed": None})
        (body,) = server.sent("completion")
        assert (body["top_k"], "seed" in body) == (5, False)

    check(test, "Yes")


def test_a_response_format_becomes_a_grammar() -> None:
    async def test(model: EmbeddedModel, server: StandIn) -> None:
        form = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
        await ask(model, extra={"response_format": form})
        (body,) = server.sent("completion")
        assert body["grammar"].endswith('answer: %json {"type":"object"}')
        assert "response_format" not in body
        await ask(model, extra={"response_format": {"type": "text"}})
        assert not {"grammar", "response_format"} & set(server.sent("completion")[1])

    check(test, "Yes", "No")


@pytest.mark.parametrize(("stop_type", "reason"), [("limit", "length"), ("word", "stop")])
def test_an_answer_that_did_not_end_by_itself(stop_type: str, reason: str) -> None:
    async def test(model: EmbeddedModel, server: StandIn) -> None:
        server.stop_type = stop_type
        turn = (await ask(model)).turn
        assert (turn.finish_reason, turn.ids) == (reason, [*map(ord, "Yes")])
        again = [*ASK, Message("assistant", "Yes"), Message("user", "More")]
        assert (await ask(model, again)).turn.prompt_ids == [*ids_of("u:Hi\x02a:Yes"), *map(ord, "\x02u:More\x02a:")]

    check(test, "Yes", "No")


def test_an_answer_that_was_not_finished_is_a_failure() -> None:
    async def test(model: EmbeddedModel, server: StandIn) -> None:
        server.stop_type = "none"
        with pytest.raises(RolloutFailed, match="the answer was not finished: stop_type is 'none'"):
            await ask(model)

    check(test, "Yes")


def test_a_continued_conversation_keeps_the_ids_that_were_sampled() -> None:
    async def test(model: EmbeddedModel, server: StandIn) -> None:
        await ask(model)
        again = [*ASK, Message("assistant", "Yes"), Message("user", "More")]
        turn = (await ask(model, again)).turn
        assert turn.prompt_ids == [*ids_of("u:Hi\x02a:Yes"), *map(ord, "\x02u:More\x02a:")]
        rest = server.sent("tokenize")[-1]
        assert (rest["content"], rest["add_special"]) == ("\x02u:More\x02a:", False)

    check(test, "Yes", "No")


def test_a_conversation_that_was_changed_is_made_anew() -> None:
    async def test(model: EmbeddedModel, server: StandIn) -> None:
        await ask(model)
        changed = [*ASK, Message("assistant", "Perhaps"), Message("user", "More")]
        turn = (await ask(model, changed)).turn
        assert turn.prompt_ids == ids_of("u:Hi\x02a:Perhaps\x02u:More\x02a:")

    check(test, "Yes", "No")


def test_one_prompt_of_many_rollouts_is_rendered_once() -> None:
    async def test(model: EmbeddedModel, server: StandIn) -> None:
        for number in range(3):
            await ask(model, rollout=f"t#{number}")
        assert (len(server.sent("apply-template")), len(server.sent("tokenize"))) == (1, 1)

    check(test, "One", "Two", "Three")


def test_a_logprob_that_was_not_reported_is_asked_for() -> None:
    async def test(model: EmbeddedModel, server: StandIn) -> None:
        server.unreported = {"e"}
        server.candidates = {ord("x"): -3.0, ord("e"): -1.25}
        assert (await ask(model)).turn.logprobs == [LOGPROB, -1.25, LOGPROB, LOGPROB]
        asked = server.sent("completion")[1]
        assert asked["prompt"] == [*ids_of("u:Hi\x02a:"), ord("Y")]
        assert (asked["n_predict"], asked["temperature"], asked["logit_bias"][0][0]) == (1, 0.0, ord("a"))

    check(test, "Yes")


def test_a_logprob_that_is_never_reported_is_a_failure() -> None:
    async def test(model: EmbeddedModel, server: StandIn) -> None:
        server.unreported = {"e"}
        server.candidates = {ord("x"): -3.0}
        with pytest.raises(RolloutFailed, match=f"does not report the logprob of token {ord('e')}"):
            await ask(model)

    check(test, "Yes")


@pytest.mark.parametrize("over", [0, 1])
def test_too_many_tokens_without_a_logprob_are_a_failure(over: int) -> None:
    async def test(model: EmbeddedModel, server: StandIn) -> None:
        server.unreported = {"e"}
        server.candidates = {ord("e"): -1.25}
        if not over:
            assert (await ask(model)).turn.logprobs == [*[-1.25] * MAX_MISSING_LOGPROBS, LOGPROB]
            return
        with pytest.raises(RolloutFailed, match="tokens came without a logprob") as caught:
            await ask(model)
        assert caught.value.kind == "token_mismatch"

    check(test, "e" * (MAX_MISSING_LOGPROBS + over))


@pytest.mark.parametrize(
    ("path", "reply", "message"),
    [
        ("apply-template", "{}", "the server did not render the conversation"),
        ("apply-template", "[]", "the server did not render the conversation"),
        ("apply-template", "{", "/apply-template: "),
        ("tokenize", "{}", "the server did not tokenise the conversation"),
        ("completion", "{}", "/completion: "),
    ],
)
def test_a_reply_that_cannot_be_read_is_a_bad_completion(path: str, reply: str, message: str) -> None:
    async def test(model: EmbeddedModel, server: StandIn) -> None:
        server.spoilt = {path: reply}
        with pytest.raises(RolloutFailed, match=message) as caught:
            await ask(model)
        assert caught.value.kind == "bad_completion"

    check(test, "Yes")


def test_tools_and_images_are_refused_before_any_call() -> None:
    async def test(model: EmbeddedModel, server: StandIn) -> None:
        image = {"type": "image_url", "image_url": {"url": "https://host/a.png"}}
        text = {"type": "text", "text": "Hi"}
        with pytest.raises(RolloutFailed, match="parses no tool calls"):
            await ask(model, tools=[{"type": "function", "function": {"name": "add"}}])
        with pytest.raises(RolloutFailed, match="reads text only"):
            await ask(model, [Message("user", [text, image])])
        assert server.calls == []
        assert (await ask(model, [Message("user", [text])])).message.text == "Yes"

    check(test, "Yes")


def test_a_model_that_is_not_open_answers_nothing() -> None:
    model = EmbeddedModel(ModelSpec("embedded"), Settings())
    with pytest.raises(RuntimeError, match="the model is not open"):
        asyncio.run(ask(model))
