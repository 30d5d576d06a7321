"""Parts of the chat model by themselves: what an endpoint serves, delays, secrets in messages, and whose logprobs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from rollbook.core import ModelSpec, Sampling, Settings
from rollbook.errors import ContextFull, EndpointDown, RolloutFailed, UsageError
from rollbook.models import chat
from rollbook.models.chat import (
    ChatModel,
    EndpointModels,
    _name_parameter,
    choose_model_name,
    fetch_endpoint_models,
    find_logprobs_mode,
    is_shaped,
)
from rollbook.models.chat_protocol import ChatAnswer, read_answer

URL = "http://a/v1"


def make_model(say: Any = None, tokens: bool | None = None, **settings: Any) -> ChatModel:
    given = {"urls": [URL], "api_key_env": "ROLLBOOK_TEST_KEY", **settings}
    return ChatModel(ModelSpec("m"), Settings(**given), say=say, tokens=tokens)


class Replica:
    """Answers every request as it is told."""

    chat = "chat"

    def __init__(
        self, status: int = 200, body: object = None, base: str = URL, v1: tuple[int, object] = (404, "")
    ) -> None:
        self.status, self.body, self.base, self.v1 = status, body, base, v1
        self.models = "models"
        self.asked: list[Any] = []

    async def get(self, url: object, within_s: float) -> tuple[int, bytes]:
        self.asked.append((str(url), within_s))
        status, body = (self.status, self.body) if url == "models" else self.v1
        return status, body if isinstance(body, bytes) else json.dumps(body).encode()

    async def post(self, url: object, body: bytes) -> bytes:
        self.asked.append(json.loads(body))
        return json.dumps(self.body).encode()


def fetch(replica: Replica) -> EndpointModels:
    return asyncio.run(fetch_endpoint_models(replica, 3.0, "set the key"))  # type: ignore[arg-type]


def test_what_is_served_is_listed_with_what_is_vllms() -> None:
    rows = [{"id": "a", "owned_by": "vllm"}, {"id": "b", "owned_by": "me"}, {"id": "c"}]
    replica = Replica(body={"data": rows})
    assert fetch(replica) == EndpointModels(URL, ["a", "b", "c"], frozenset({"a"}))
    assert replica.asked == [("models", 3.0)]


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_a_mistake_with_advice(status: int) -> None:
    with pytest.raises(UsageError) as caught:
        fetch(Replica(status))
    assert str(caught.value) == f"{URL}: HTTP {status}; set the key"


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_server_that_is_busy_or_broken_may_come_back(status: int) -> None:
    with pytest.raises(RolloutFailed) as caught:
        fetch(Replica(status, {"error": {"message": "later"}}))
    assert (caught.value.kind, caught.value.message) == ("model_unavailable", f"{URL}: HTTP {status}: later")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_an_endpoint_that_moved_is_a_mistake(status: int) -> None:
    with pytest.raises(UsageError, match=f"HTTP {status}, the endpoint is elsewhere; give its new URL with -m"):
        fetch(Replica(status))


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (404, "", "HTTP 404"),
        (499, "", "HTTP 499"),
        (200, [], "not a list of models"),
        (200, b"<html><title>Hello</title></html>", 'an HTML page, "Hello"'),
    ],
)
def test_an_endpoint_that_lists_nothing_says_what_it_said_instead(status: int, body: object, problem: str) -> None:
    assert fetch(Replica(status, body)) == EndpointModels(URL, None, problem=problem)


def test_a_forgotten_v1_is_suggested_where_it_answers() -> None:
    found = (200, {"data": [{"id": "a"}]})
    with pytest.raises(UsageError, match=r"http://a\?x=1 is not the endpoint; did you mean http://a/v1\?x=1\?"):
        fetch(Replica(404, "", "http://a?x=1", found))
    assert fetch(Replica(404, "", URL, found)).problem == "HTTP 404"  # it has one
    for v1 in ((404, {"data": [{"id": "a"}]}), (200, "no list")):
        assert fetch(Replica(404, "", "http://a", v1)).problem == "HTTP 404"


def test_the_only_name_is_taken_and_several_need_a_choice() -> None:
    one, two = EndpointModels("http://a/v1", ["m"]), EndpointModels("http://b/v1", ["m", "n"])
    assert choose_model_name("", [one, one]) == "m"
    assert choose_model_name("n", [two]) == "n"
    with pytest.raises(UsageError, match="http://a/v1 serves m, n; choose the model with --model-name"):
        choose_model_name("", [one, two])
    with pytest.raises(UsageError, match="does not report what it serves; choose the model with --model-name"):
        choose_model_name("", [EndpointModels("http://a/v1", None)])
    with pytest.raises(chat.ModelsNotListed, match="http://c/v1/models: HTTP 404; check the path of the URL"):
        choose_model_name("", [one, EndpointModels("http://c/v1", None, problem="HTTP 404")])
    assert choose_model_name("x", [EndpointModels("http://c/v1", None, problem="HTTP 404")]) == "x"


@pytest.mark.parametrize(
    ("sampling", "shaped"),
    [
        (Sampling(), False),
        (Sampling(temperature=0.0, top_p=0.5), False),
        (Sampling(temperature=0.5), True),
        (Sampling(top_p=0.5), True),
        (Sampling(extra={"temperature": None}), True),
        (Sampling(extra={"top_p": None}), True),
        (Sampling(extra={"top_k": -1, "presence_penalty": 0.0}), False),
        (Sampling(extra={"presence_penalty": 0.5}), True),
        (Sampling(extra={"logit_bias": {}}), True),
        (Sampling(temperature=0.0, extra={"temperature": None}), True),
    ],
)
def test_sampling_that_changes_the_distribution_is_known(sampling: Sampling, shaped: bool) -> None:
    assert is_shaped(sampling) is shaped


@pytest.mark.parametrize(
    ("logprobs", "mode"),
    [
        ({"content": [{"logprob": 0.0}]}, "processed"),
        ({"content": [{"logprob": -0.1}]}, "raw"),
        ({"content": [{}]}, None),
        ({"content": []}, None),
        (None, None),
    ],
)
def test_whose_logprobs_are_reported_is_found_by_one_forced_token(logprobs: object, mode: str | None) -> None:
    choice = {"message": {"content": "x"}, "finish_reason": "length", "logprobs": logprobs}
    replica = Replica(body={"choices": [choice]})
    assert asyncio.run(find_logprobs_mode(replica, "m")) == mode  # type: ignore[arg-type]
    (body,) = replica.asked
    assert (body["max_tokens"], body["top_k"], body["seed"], body["logprobs"]) == (1, 1, 0, True)


@pytest.mark.parametrize(("outage_s", "announced"), [(2.0, 0), (4.9, 1)])
def test_a_server_that_is_starting_is_asked_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch, outage_s: float, announced: int
) -> None:
    delays: list[float] = []
    said: list[str] = []

    async def refuse(*_: object) -> RolloutFailed:
        return RolloutFailed("model_unavailable", "connect", "refused")

    async def sleep(seconds: float) -> None:
        delays.append(seconds)

    monkeypatch.setattr(ChatModel, "_fetch_models", refuse)
    monkeypatch.setattr(chat.asyncio, "sleep", sleep)
    with pytest.raises(EndpointDown, match="try again"):
        asyncio.run(make_model(said.append, outage_s=outage_s)._wait_for_replicas([Replica()] * 2))  # type: ignore[list-item]
    assert delays == [0.25, 0.5, 1.0, 2.0, 4.0][: len(delays)]
    assert len(delays) == (5 if announced else 3)
    assert said == [f"waiting for the model, {outage_s:g} s at most: refused; refused"] * announced


def test_secrets_are_taken_out_of_messages_unless_they_are_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ONE", "abc"), ("TWO", "wxyz"), ("ROLLBOOK_TEST_KEY", "q")):
        monkeypatch.setenv(name, value)
    model = make_model(headers={"X-One": "ONE", "X-Two": "TWO"})
    assert model._scrub("abc wxyz q") == "abc [X-Two] [key]"
    monkeypatch.delenv("ROLLBOOK_TEST_KEY")
    assert make_model()._scrub("abc q") == "abc q"


@pytest.mark.parametrize("value", ["schlüssel", "a\nb"])
def test_a_key_that_cannot_be_sent_is_a_mistake(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("ROLLBOOK_TEST_KEY", value)
    with pytest.raises(UsageError, match="ROLLBOOK_TEST_KEY does not hold a valid key"):
        make_model()


def test_a_refused_parameter_is_a_mistake_until_something_was_answered() -> None:
    model, raw = make_model(), b'{"error": "no"}'
    words = "http://a/v1 refuses {}: 'no'; pass --sampling {}=null to omit it"
    for name, usual in (("seed", "seed"), ("max_completion_tokens", "max_tokens")):
        error = model._explain_refusal(URL, name, raw)
        assert isinstance(error, UsageError)
        assert str(error) == words.format(name, usual)
    model._answered = True
    failed = model._explain_refusal(URL, "seed", raw)
    assert isinstance(failed, RolloutFailed)
    assert (failed.kind, failed.message) == ("model_rejected", words.format("seed", "seed"))


def test_names_that_are_learned_are_reported_once() -> None:
    said: list[str] = []
    model = make_model(said.append, wire_names={"max_tokens": "given"})
    assert model.wire_names == {"max_tokens": "given"}
    for _ in range(2):
        model._learn_names(URL, "max_tokens", {"max_tokens": "max_completion_tokens"})
    assert said == ["http://a/v1 does not take max_tokens: max_completion_tokens is sent instead"]
    assert model.wire_names == {"max_tokens": "max_completion_tokens"}


@pytest.mark.parametrize(
    ("status", "raw", "advice"),
    [
        (400, b'{"error": "top_k is odd"}', "; give another value, or pass --sampling top_k=null to omit it"),
        (422, b'{"error": "max_tokens is odd"}', "; give another value, or pass --sampling max_tokens=null to omit it"),
        (400, b'{"error": "it is odd"}', ""),
        (500, b'{"error": "top_k is odd"}', ""),
    ],
)
def test_a_complaint_in_words_of_its_own_gets_advice(status: int, raw: bytes, advice: str) -> None:
    error = RolloutFailed("model_rejected", "model", "why", status=status)
    named = _name_parameter(error, raw, b'{"top_k": 1, "max_tokens": 2}')
    assert isinstance(named, RolloutFailed)
    assert (named.message, named.status, named.kind) == (f"why{advice}", status, "model_rejected")
    full = ContextFull("full")
    assert _name_parameter(full, raw, b"{}") is full


def read_ids(tokens: bool | None, **fields: Any) -> object:
    choice = {"message": {"content": "x"}, "finish_reason": "stop", **fields.pop("choice", {})}
    answer, chosen, _ = read_answer(json.dumps({"choices": [choice], **fields}).encode())
    assert isinstance(answer, ChatAnswer)
    return make_model(tokens=tokens)._read_ids(answer, chosen)


def test_token_ids_come_with_their_logprobs_or_are_a_failure() -> None:
    logprobs = {"content": [{"logprob": -0.5}]}
    exact = {"prompt_token_ids": [1, 2], "choice": {"token_ids": [3], "logprobs": logprobs}}
    assert read_ids(True, **exact) == ([1, 2], [3], [-0.5])
    assert read_ids(None) is None  # a server too old to report them
    for fields in (
        {},
        {"prompt_token_ids": [1, 2], "choice": {"token_ids": [3]}},
        {"choice": {"token_ids": [3], "logprobs": logprobs}},
        {"prompt_token_ids": [1, 2], "choice": {"logprobs": logprobs}},
    ):
        with pytest.raises(RolloutFailed, match="the server did not return token ids with their logprobs"):
            read_ids(True, **json.loads(json.dumps(fields)))
    for usage in ({"prompt_tokens": 3, "completion_tokens": 1}, {"prompt_tokens": 2, "completion_tokens": 2}):
        with pytest.raises(RolloutFailed) as caught:
            read_ids(True, **json.loads(json.dumps(exact)), usage=usage)
        assert caught.value.kind == "token_mismatch"
