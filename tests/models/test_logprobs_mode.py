import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from yarl import URL

from rollbook.core import Message, ModelSpec, Sampling, Settings, encode
from rollbook.models.chat import ChatModel, find_logprobs_mode, is_shaped
from support.endpoint import Endpoint


@pytest.mark.parametrize(
    ("sampling", "shaped"),
    [
        (Sampling(), False),
        (Sampling(0.7), True),
        (Sampling(top_p=0.95), True),
        (Sampling(0.0, 0.9), False),
        (Sampling(extra={"top_k": 20}), True),
        (Sampling(extra={"top_k": -1, "min_p": 0, "stop": ["x"]}), False),
        (Sampling(extra={"frequency_penalty": 0.5}), True),
        (Sampling(extra={"logit_bias": {"1": 5}}), True),
    ],
)
def test_whether_what_is_sampled_from_is_the_models_own(sampling: Sampling, shaped: bool) -> None:
    assert is_shaped(sampling) is shaped


def collect_warnings(
    sampling: Sampling, *others: Sampling, calls: int = 3, **endpoint: Any
) -> tuple[list[str], Endpoint]:
    async def go() -> tuple[list[str], Endpoint]:
        warnings: list[str] = []
        async with Endpoint(**endpoint) as served:
            model = ChatModel(ModelSpec(""), Settings(urls=[served.url]), say=warnings.append)
            await model.open()
            try:
                for seed, each in enumerate([*[sampling] * calls, *others]):
                    await model.complete([Message("user", "hi")], each, seed=seed, rollout="t#0")
            finally:
                await model.close()
        return warnings, served

    return asyncio.run(go())


def test_logprobs_of_another_distribution_are_told_once() -> None:
    warnings, served = collect_warnings(Sampling(0.7), vllm=True)
    assert len(warnings) == 1
    assert "--logprobs-mode processed_logprobs" in warnings[0]
    assert served.bodies[0]["top_k"] == 1
    assert served.counts["chat"] == 4
    warnings, served = collect_warnings(Sampling(0.7), Sampling(0.8), calls=1, vllm=True)
    assert (len(warnings), served.counts["chat"]) == (1, 3)  # another sampling is of the same server


def test_what_a_forced_token_says_of_the_logprobs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def mode_of(content: object) -> object:
        async def post(url: object, body: bytes) -> bytes:
            choice = {"message": {"content": "x"}, "finish_reason": "length", "logprobs": content}
            return encode({"choices": [choice]})

        replica: Any = SimpleNamespace(chat=URL("http://host/v1/chat/completions"), post=post)
        return await find_logprobs_mode(replica, "m")

    cases = [
        ({"content": [{"logprob": value}]}, mode) for value, mode in ((0.0, "processed"), (-0.1, "raw"), (None, None))
    ]
    for content, mode in [*cases, ({"content": []}, None), (None, None)]:
        assert asyncio.run(mode_of(content)) == mode


def test_nothing_is_asked_where_it_does_not_matter() -> None:
    assert collect_warnings(Sampling(), vllm=True)[1].counts["chat"] == 3
    assert collect_warnings(Sampling(0.7), vllm=False)[1].counts["chat"] == 3


def test_a_server_that_does_not_answer_the_question_just_now_is_asked_again_later() -> None:
    warnings, served = collect_warnings(Sampling(0.7), calls=1, vllm=True, mode="500", models="ok", times=1)
    assert (warnings, served.counts["chat"]) == ([], 2)
    warnings, served = collect_warnings(Sampling(0.7), calls=2, vllm=True, mode="500", models="ok", times=1)
    assert (len(warnings), served.counts["chat"]) == (1, 4)
