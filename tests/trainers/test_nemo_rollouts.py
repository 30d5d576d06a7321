"""Whole rollouts for NeMo RL: streamed with token ids; missing rows are raised first, typed, and pickle."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook.core import Task, decode, encode
from rollbook.errors import UsageError
from rollbook.tokens import merge
from rollbook.trainers.formats import message_log
from rollbook.trainers.nemo_rl import (
    DataFailure,
    InfraFailure,
    RolloutEnvironment,
    RowsMissing,
    start_rollout_actor,
)
from rollbook.trainers.nemo_rl.rollouts import make_rows_missing
from rollbook.trainers.rows import MissingReason
from support.endpoint import Endpoint
from support.sums import SUMS, write_sums
from support.token_rollouts import played


def examples(count: int) -> list[dict[str, Any]]:
    """Rows as NeMo RL sends them, in an order of its own."""
    sums = [Task(f"sum-{i}", f"What is {i} + {i}?", answer=str(2 * i), env="Sums") for i in range(count)]
    return [{**decode(encode(task.line())), "_rowidx": count - 1 - i} for i, task in enumerate(sums)]


def collected(folder: Path, endpoint: Endpoint, source: str = SUMS, count: int = 4, **more: Any) -> list[Any]:
    """Everything that is streamed, and the exception at the end if there is one."""

    async def go() -> list[Any]:
        async with endpoint:
            entry = {"env": write_sums(folder, source)}
            env = RolloutEnvironment({"environments": [entry], "base_urls": [endpoint.url], **more})
            came: list[Any] = []
            try:
                async for one in env.run_rollouts(examples(count), "gym", False):  # by position, as NeMo RL does
                    came.append(one)
            except RowsMissing as error:
                came.append(error)
            await env.shutdown()
            return came

    return asyncio.run(go())


def test_every_row_comes_with_its_index_its_reward_and_its_tokens(tmp_path: Path) -> None:
    came = collected(tmp_path, Endpoint(vllm=True))
    assert sorted(index for index, _, _ in came) == [0, 1, 2, 3]
    assert [timing is None for _, _, timing in came] == [True, True, True, False]
    assert came[-1][2]["gym/seconds/max"] >= came[-1][2]["gym/model_s/mean"] > 0
    for index, result, _ in came:
        shown, sampled = result["message_log"]
        assert (
            f"What is {3 - index} + {3 - index}?" in bytes(i for i in shown["token_ids"].tolist() if i < 256).decode()
        )
        assert (shown["role"], sampled["role"]) == ("user", "assistant")
        assert len(sampled["token_ids"]) == len(sampled["generation_logprobs"])
        assert result["input_message_log"] == [shown]
        assert result["full_result"]["reward"] in (0.0, 1.0)
        assert result["full_result"]["task"] == f"sum-{3 - index}"


PARTS = SUMS.replace(
    "        return roll", "        return Score(0.75, parts={'right': 0.5, 'style': 0.25}) if True else roll"
)


def test_a_result_has_the_answer_as_items_and_the_parts_as_numbers(tmp_path: Path) -> None:
    ((_, result, _),) = collected(tmp_path, Endpoint(vllm=True), PARTS, count=1)
    full = result["full_result"]
    (item,) = full["response"]["output"]
    assert (item["type"], item["content"][0]["text"]) == ("message", full["text"])
    assert item["generation_str"] == full["text"]
    assert "generation_token_ids" not in item
    assert (full["right"], full["style"]) == (0.5, 0.25)
    assert "reward_components" not in full


def test_parts_are_components_where_that_is_wanted_and_they_sum_to_the_reward(tmp_path: Path) -> None:
    ((_, result, _),) = collected(tmp_path, Endpoint(vllm=True), PARTS, count=1, reward_components=True)
    assert result["full_result"]["reward_components"] == {"right": 0.5, "style": 0.25}
    unequal = PARTS.replace("Score(0.75", "Score(1.0")
    (error,) = collected(tmp_path, Endpoint(vllm=True), unequal, count=1, reward_components=True)
    assert isinstance(error, DataFailure)
    assert "sum to 0.75; as reward_components they must sum to the reward" in str(error)


def test_all_rows_that_did_not_come_back_are_named_whatever_kept_each_of_them(tmp_path: Path) -> None:
    broken = SUMS.replace(
        "        return roll", "        assert task.id not in ('sum-0', 'sum-2')\n        return roll"
    )
    came = collected(tmp_path, Endpoint(), broken)  # the other two have no tokens
    (error,) = came
    assert isinstance(error, DataFailure)
    assert (error.requested, error.rows) == (4, [0, 1, 2, 3])
    assert "0 of 4 rows came back; missing rows: 0, 1, 2, 3; data: " in str(error)
    assert ["verifier_error" in why for why in error.reasons.values()] == [False, True, False, True]
    assert ["no token ids" in why for why in error.reasons.values()] == [True, False, True, False]


def test_rows_without_tokens_are_missing_too(tmp_path: Path) -> None:
    (error,) = collected(tmp_path, Endpoint(), count=2)
    assert isinstance(error, DataFailure)
    assert error.rows == [0, 1]
    assert "turn 0 has no token ids" in str(error)


def test_a_prompt_that_overflows_is_a_missing_row_and_not_an_empty_log(tmp_path: Path) -> None:
    (error,) = collected(tmp_path, Endpoint("context", vllm=True), count=2)
    assert isinstance(error, DataFailure)
    assert (error.rows, error.failed) == ([0, 1], {"no_tokens": 2})


def test_an_endpoint_that_fails_is_the_infrastructures_fault(tmp_path: Path) -> None:
    (error,) = collected(tmp_path, Endpoint("garbage"), count=1, attempts={"bad_completion": 1})
    assert isinstance(error, InfraFailure)
    assert error.rows == [0]


def test_a_dead_endpoint_is_the_infrastructures_fault_of_every_row_after_one_outage(tmp_path: Path) -> None:
    (error,) = collected(tmp_path, Endpoint(), base_urls=["http://127.0.0.1:9/v1"], outage_s=0.5)
    assert isinstance(error, InfraFailure)
    assert (error.rows, error.pending) == ([0, 1, 2, 3], 4)
    assert "no model answered for 0.5 s" in str(error)


@pytest.mark.parametrize("side", ["infra", "data"])
def test_failures_pickle_with_all_they_say(side: Any) -> None:
    error = make_rows_missing(40, {row: MissingReason(side, f"why {row}") for row in range(20)})
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is {"infra": InfraFailure, "data": DataFailure}[side]
    assert (str(back), back.rows, back.reasons) == (str(error), list(range(20)), error.reasons)
    assert "20 of 40" in str(back)
    assert "15, ...;" in str(back)


def test_a_log_of_several_turns_has_logprobs_only_where_the_model_spoke() -> None:
    (sequence,) = merge(played([1, 2], [3], [1, 2, 3, 4, 5], [6, 7], reward=1.0).turns)
    log = message_log(sequence)
    assert [(m["role"], m["token_ids"].tolist()) for m in log] == [
        ("user", [1, 2]),
        ("assistant", [3]),
        ("user", [4, 5]),
        ("assistant", [6, 7]),
    ]
    assert [("generation_logprobs" in m) for m in log] == [False, True, False, True]
    assert str(np.asarray(log[0]["token_ids"]).dtype) == "int64"


def test_nonsense_is_refused() -> None:
    good: dict[str, Any] = {"environments": [{"env": "workplace"}], "base_urls": ["http://localhost:1/v1"]}
    for wrong in ({"on_failure": "mask"}, {"colour": "red"}, {"environments": []}):
        with pytest.raises(UsageError):
            RolloutEnvironment(good | wrong)

    async def ask(rows: list[dict[str, Any]]) -> None:
        async for _ in RolloutEnvironment(good).run_rollouts(rows):
            pass

    with pytest.raises(UsageError, match="no examples"):
        asyncio.run(ask([]))
    with pytest.raises(UsageError, match="two examples"):
        asyncio.run(ask([{"_rowidx": 1}, {"_rowidx": 1}]))


def test_settings_for_nemo_rls_set_up_are_in_a_block_of_their_own() -> None:
    with pytest.raises(UsageError, match="no `rollbook:` block"):
        start_rollout_actor({"nemo_gym": {}}, base_urls=["http://localhost:1/v1"], model_name="m", tokenizer=None)
