"""A parameter that a run omits is omitted by whatever asks the model: runs, collectors, the gateway, blends, Gym."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollbook import Collector, Environment, Rollout, Task, run
from rollbook.book import read_presences
from rollbook.core import Limits, ModelSpec, Sampling
from rollbook.engine.blends import merge_sampling
from rollbook.engine.planning import omit_unknown_parameters
from rollbook.engine.request import Request
from rollbook.errors import UsageError
from rollbook.gateway import RolloutDefaults
from rollbook.gym.client.agents import make_run_body
from rollbook.models.embedded import LlamaServer
from rollbook.models.responses_api import CreateParams
from support.endpoint import Endpoint
from support.gateways import Gate
from support.hosted import NewerOpenAI

OMITS = Sampling(extra={"seed": None, "temperature": None})


class Sums(Environment):
    def tasks(self) -> Iterator[Task]:
        yield Task(id="one", prompt="What is 1 + 1?", answer="2")

    async def verify(self, task: Task, rollout: Rollout) -> bool:
        return True


def test_what_is_omitted_stays_omitted_whatever_a_call_asks_for() -> None:
    changed = OMITS.override({"temperature": 0.3, "seed": 5, "top_p": 0.5, "top_k": 3})
    assert changed == Sampling(top_p=0.5, extra={"seed": None, "temperature": None, "top_k": 3})
    assert CreateParams([], temperature=0.3, seed=5, extra={"seed": 6}).sampling(OMITS) == OMITS


def test_a_collector_sends_what_a_run_would() -> None:
    async def main() -> dict[str, Any]:
        async with Endpoint() as endpoint:
            async with Collector(Sums(), endpoint.url, sampling=OMITS) as collector:
                assert [len(group.rollouts) async for group in collector.groups()] == [1]
            return endpoint.bodies[0]

    body = asyncio.run(main())
    assert {"seed", "temperature"}.isdisjoint(body)
    assert body["top_p"] == 1.0


def test_the_book_of_a_collector_records_the_names_that_were_learned(tmp_path: Path) -> None:
    async def main() -> None:
        with NewerOpenAI() as server:
            async with Collector(Sums(), server.url, book=tmp_path / "book") as collector:
                assert [len(group.rollouts) async for group in collector.groups()] == [1]

    asyncio.run(main())
    (presence,) = read_presences(tmp_path / "book").values()
    assert presence.wire_names == {"max_tokens": "max_completion_tokens"}


def test_an_agent_behind_the_gateway_cannot_ask_for_what_is_omitted() -> None:
    async def main() -> list[dict[str, Any]]:
        async with Endpoint() as endpoint, Gate(endpoint.url, defaults=RolloutDefaults(sampling=OMITS)) as gate:
            place = await gate.open()
            body = {"model": "m", "messages": [{"role": "user", "content": "What is 1 + 1?"}], "temperature": 0.3}
            for _ in range(2):  # a repeated question would get a seed of its own
                async with gate.http.post(f"{place.openai_base_url}/chat/completions", json=body) as reply:
                    assert reply.status == 200, await reply.text()
            return endpoint.bodies

    bodies = asyncio.run(main())
    assert len(bodies) == 2
    assert all({"seed", "temperature"}.isdisjoint(body) for body in bodies)


def test_an_agent_of_gym_is_not_asked_for_it() -> None:
    params = {"input": "hi", "temperature": 0.7, "max_output_tokens": 9, "metadata": {"extra_body": '{"seed": 3}'}}
    task = Task(id="t", prompt="hi", responses_create_params=params)
    rollout = Rollout(task=task, sample=0, seed=1)
    sent = make_run_body(task, rollout, Sampling(extra={"seed": None, "temperature": None, "max_tokens": None}))
    requested = sent["responses_create_params"]
    assert {"temperature", "max_output_tokens"}.isdisjoint(requested)
    assert requested["top_p"] == 1.0
    assert json.loads(requested["metadata"]["extra_body"]) == {}


def test_the_embedded_model_is_asked_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: list[dict[str, Any]] = []

    async def complete(self: LlamaServer, body: dict[str, Any]) -> None:
        bodies.append(body)

    monkeypatch.setattr(LlamaServer, "_complete", complete)
    server = LlamaServer.__new__(LlamaServer)
    asyncio.run(server.sample([1], Sampling(extra={"seed": None, "max_tokens": None}), 7))
    asyncio.run(server.sample([1], Sampling(max_tokens=9), 7))
    assert {"seed", "n_predict", "max_tokens"}.isdisjoint(bodies[0])
    assert (bodies[1]["seed"], bodies[1]["n_predict"]) == (7, 9)


def test_an_environment_of_a_blend_may_omit_but_not_contradict() -> None:
    assert merge_sampling(Sampling(0.5), {"seed": None, "top_p": None}).extra == {"seed": None, "top_p": None}
    with pytest.raises(UsageError, match=r"temperature is 0\.7 here, and --sampling temperature=null omits it"):
        merge_sampling(OMITS, {"temperature": 0.7})


def test_a_limit_that_needs_a_parameter_refuses_to_omit_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be enforced"):
        Request(
            env="gsm8k",
            out=str(tmp_path / "a"),
            sampling=Sampling(extra={"max_tokens": None}),
            limits=Limits(max_tokens_total=9),
        )


def test_the_seed_is_omitted_where_an_api_has_none(tmp_path: Path) -> None:
    request = Request(env="gsm8k", out=str(tmp_path / "a"), sampling=Sampling(extra={"top_k": 3}))
    changed = omit_unknown_parameters(request, ModelSpec("claude-9", "anthropic"))
    assert changed.sampling.extra == {"top_k": 3, "seed": None}
    assert omit_unknown_parameters(request, ModelSpec("m", "chat")) is request


@pytest.mark.parametrize(
    "extra",
    [{"user": "sk-hidden-1"}, {"list": [{"x": "Bearer sk-hidden-1"}]}, {"api_key": "abc"}, {"headers": {"token": "a"}}],
)
def test_a_secret_among_parameters_is_refused_and_not_repeated(
    extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-hidden-1")
    with pytest.raises(UsageError, match="--header NAME=ENV_VAR") as refused:
        run(Sums(), "http://127.0.0.1:9/v1", sampling=Sampling(extra=extra), api_key_env="MY_KEY", out=tmp_path / "run")
    assert "sk-hidden" not in str(refused.value)
    with pytest.raises(UsageError, match="--judge-key-env"):
        run(Sums(), "http://127.0.0.1:9/v1", judge_sampling=extra, api_key_env="MY_KEY", out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_ordinary_parameters_are_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "EMPTY")
    schema = {"type": "object", "properties": {"password": {"type": "string"}, "token": {"type": "string"}}}
    extra = {"max_new_tokens": 5, "top_k": 2, "logit_bias": {"5": 1}, "stop_token_ids": [1], "user": "EMPTY"}
    extra |= {"skip_special_tokens": False, "prompt_cache_key": "a", "response_format": schema, "min_tokens": 3}
    assert Request(env="sums", out="run", sampling=Sampling(extra=extra)).sampling.extra == extra
