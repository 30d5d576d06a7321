"""TRL's rollout_func: one row for every prompt in its order, exact tokens, and None for what failed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollbook import Task
from rollbook.core import Turn
from rollbook.engine import OnFailure
from rollbook.errors import UsageError
from rollbook.trainers.formats import sample_of
from rollbook.trainers.rows import RowsMissing
from rollbook.trainers.trl import Rollouts, to_trl
from rollbook.trainers.trl.rollouts import PromptIndex, read_messages, read_sampling
from support.endpoint import Endpoint
from support.sums import SUMS, write_sums
from support.token_rollouts import played

TRAINER = SimpleNamespace(
    args=SimpleNamespace(temperature=0.7, top_p=0.9, max_completion_length=24),
    state=SimpleNamespace(global_step=3),
    processing_class=SimpleNamespace(pad_token_id=0),
)
BROKEN = SUMS.replace("        return roll", "        assert task.id != 'sum-1'\n        return roll")


def test_rows_have_exact_tokens_and_masked_ones_no_reward() -> None:
    nothing = played([1], [2], reward=None)
    nothing.turns = [Turn()]
    rollouts = [played([1, 2], [3], [1, 2, 3, 4], [5], reward=1.0), played([6], [7, 8], reward=None), nothing]
    assert to_trl([sample_of(r) for r in rollouts], pad_id=0) == {
        "prompt_ids": [[1, 2], [6], [0]],
        "completion_ids": [[3, 4, 5], [7, 8], [0]],
        "logprobs": [[-0.5, 0.0, -0.5], [0.0, 0.0], [0.0]],
        "env_mask": [[1, 0, 1], [0, 0], [0]],
        "rollbook_reward": [1.0, None, None],
        "untrained": [0, 0, 0],
    }


def test_every_prompt_is_played_and_comes_back_in_its_place(tmp_path: Path, endpoint: Endpoint) -> None:
    rollouts = Rollouts(write_sums(tmp_path), endpoint.url, limit=3)
    prompts: list[Any] = [row["prompt"] for row in rollouts.rows() for _ in range(2)]
    result = rollouts(prompts, TRAINER)
    rollouts.close()
    texts = [bytes(i for i in ids if i < 256).decode() for ids in result["prompt_ids"]]
    assert [f"What is {i // 2} + {i // 2}?" in text for i, text in enumerate(texts)] == [True] * 6
    assert [len(row) for row in result["env_mask"]] == [len(row) for row in result["completion_ids"]]
    assert rollouts.reward(**result) == result["rollbook_reward"]
    assert set(result["rollbook_reward"]) <= {0.0, 1.0}
    requested = [body for body in endpoint.bodies if body["max_tokens"] == 24]  # one call finds out the logprobs' shape
    assert {(body["temperature"], body["top_p"]) for body in requested} == {(0.7, 0.9)}
    assert len({body["seed"] for body in requested}) == 6


def test_sampled_as_all_arguments_of_the_trainer_say() -> None:
    args = SimpleNamespace(temperature=0.7, top_p=0.9, max_completion_length=24, top_k=0, min_p=None)
    assert read_sampling(args).extra == {}
    args = SimpleNamespace(**vars(args) | {"top_k": 5, "repetition_penalty": 1.1, "generation_kwargs": {"stop": ["x"]}})
    requested = read_sampling(args)
    assert (requested.temperature, requested.top_p, requested.max_tokens) == (0.7, 0.9, 24)
    assert requested.extra == {"top_k": 5, "repetition_penalty": 1.1, "stop": ["x"]}


def test_a_failure_raises_or_is_masked_and_counted(tmp_path: Path, endpoint: Endpoint) -> None:
    spec = write_sums(tmp_path, BROKEN)
    raising, masking = Rollouts(spec, endpoint.url, limit=2), Rollouts(spec, endpoint.url, limit=2, on_failure="mask")
    prompts = [row["prompt"] for row in raising.rows()]
    with pytest.raises(RowsMissing, match=r"1 of 2 rows came back; missing rows: 1; data: .*sum-1#0"):
        raising(prompts, TRAINER)
    result = masking(prompts, TRAINER)
    raising.close()
    masking.close()
    assert result["rollbook_reward"][1] is None
    assert sum(result["env_mask"][1]) == 0 < len(result["env_mask"][1])
    assert masking.masked == 1
    with pytest.raises(UsageError, match="drop_group"):
        Rollouts(spec, endpoint.url, on_failure="drop_group")


@pytest.mark.parametrize("on_failure", ["raise", "retry", "mask"])
def test_a_prompt_that_overflows_has_no_reward_and_is_counted(
    tmp_path: Path, endpoint: Endpoint, on_failure: OnFailure
) -> None:
    endpoint.mode = "context"
    rollouts = Rollouts(write_sums(tmp_path), endpoint.url, limit=2, on_failure=on_failure)
    prompts = [row["prompt"] for row in rollouts.rows()]
    if on_failure == "mask":
        result = rollouts(prompts, TRAINER)
        assert (result["rollbook_reward"], result["env_mask"]) == ([None, None], [[0], [0]])
        assert rollouts.masked == 2
    else:
        with pytest.raises(
            RowsMissing, match=r"0 of 2 rows .* rows: 0, 1; data: no_tokens: .*context_length"
        ) as caught:
            rollouts(prompts, TRAINER)
        assert caught.value.failed == {"no_tokens": 2}
    assert rollouts.unsampled == 2
    rollouts.close()


def test_rows_of_several_turns_fit_the_completion_length(tmp_path: Path, endpoint: Endpoint) -> None:
    talking = SUMS + "\n    def reply(self, task, rollout, state):\n        return 'No. ' + task.messages[0].content\n"
    args = SimpleNamespace(temperature=1.0, top_p=1.0, max_completion_length=120)
    rollouts = Rollouts(write_sums(tmp_path, talking), endpoint.url, limit=3)
    prompts = [row["prompt"] for row in rollouts.rows()]
    result = rollouts(
        prompts, SimpleNamespace(args=args, state=TRAINER.state, processing_class=TRAINER.processing_class)
    )
    rollouts.close()
    assert max(len(row) for row in result["completion_ids"]) <= 120
    assert all(0 in row and row[-1] == 1 for row in result["env_mask"]), "several turns, which end with an answer"


def test_a_dead_endpoint_names_every_row_also_where_failures_are_masked(tmp_path: Path) -> None:
    rollouts = Rollouts(write_sums(tmp_path), "http://127.0.0.1:9/v1", limit=3, on_failure="mask", outage_s=0.5)
    with pytest.raises(RowsMissing, match=r"0 of 3 rows came back; missing rows: 0, 1, 2; infra: no model answered"):
        rollouts([row["prompt"] for row in rollouts.rows()], TRAINER)
    rollouts.close()


def test_tasks_are_found_by_what_a_dataset_makes_of_their_prompts() -> None:
    task = Task("a", messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
    prompts = PromptIndex([task, Task("b", "Ho")])
    as_datasets_hold_it = [{**message, "tool_calls": None, "name": None} for message in prompts.rows()[0]["prompt"]]
    assert prompts.find_by_prompt(as_datasets_hold_it) is task
    assert prompts.find_by_prompt("Ho").id == "b"
    with pytest.raises(UsageError, match="this prompt belongs to no task"):
        prompts.find_by_prompt("He")
    with pytest.raises(UsageError, match="no task is called 'c'"):
        prompts.find_by_id("c")
    with pytest.raises(UsageError, match="the same prompt but other answers"):
        PromptIndex([Task("a", "?", answer="1"), Task("b", "?", answer="2")])


def test_calls_as_trl_holds_them_become_ours() -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    (message,) = read_messages([{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert message.tool_calls is not None
    assert (message.tool_calls[0].function.name, message.tool_calls[0].function.arguments) == ("add", '{"a":1}')
