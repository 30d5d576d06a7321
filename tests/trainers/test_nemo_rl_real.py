"""With the real NeMo RL: its rollout functions, its retry policy, its batches and advantages over our environments."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.nemo_rl_checkout import ByteTokenizer, WritingPolicy, find_checkout, load_test_module

CHECKOUT = find_checkout()
pytestmark = pytest.mark.filterwarnings("ignore")

import ray  # noqa: E402
import torch  # noqa: E402
from nemo_rl.algorithms.advantage_estimator import (  # noqa: E402
    AdvEstimatorConfig,
    GDPOAdvantageEstimator,
    GRPOAdvantageEstimator,
)
from nemo_rl.algorithms.grpo import add_grpo_token_loss_masks_and_generation_logprobs  # noqa: E402
from nemo_rl.data.llm_message_utils import batched_message_log_to_flat_message  # noqa: E402
from nemo_rl.distributed.batched_data_dict import BatchedDataDict  # noqa: E402
from nemo_rl.environments.utils import create_env  # noqa: E402
from nemo_rl.experience.failures import FailureClass, classify_rollout_failure  # noqa: E402
from nemo_rl.experience.rollout_manager import AsyncNemoGymRolloutImpl, RolloutRetryPolicy  # noqa: E402
from nemo_rl.experience.rollouts import (  # noqa: E402
    run_async_nemo_gym_rollout,
    run_multi_turn_rollout,
    run_nemo_gym_rollout_sync,
)

from rollbook.core import Task, decode, encode  # noqa: E402
from rollbook.errors import UsageError  # noqa: E402
from rollbook.trainers.nemo_rl import CodeEnvironment, DataFailure, InfraFailure, register  # noqa: E402
from rollbook.trainers.nemo_rl.rollouts import make_rows_missing, start_rollout_actor  # noqa: E402
from rollbook.trainers.rows import MissingReason  # noqa: E402
from support.endpoint import Endpoint  # noqa: E402
from support.ray_cluster import local_ray  # noqa: E402
from support.sums import SUMS, write_sums  # noqa: E402

WAIT_S = 120
GENERATION: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": None,
    "max_new_tokens": 24,
    "stop_strings": None,
    "stop_token_ids": None,
}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with local_ray(cpus=4):
        yield


def start(folder: Path, endpoint: Endpoint, source: str = SUMS, **settings: Any) -> Any:
    """The actor, as NeMo RL's set-up starts it."""
    block = {"environments": [{"env": write_sums(folder, source), "name": "sums"}], **settings}
    urls = [endpoint.url, None]
    return start_rollout_actor({"nemo_gym": {"rollbook": block}}, base_urls=urls, model_name="mock", tokenizer=None)


def make_row(number: int) -> dict[str, Any]:
    """A row of NeMo RL's dataset."""
    task = Task(f"sum-{number}", f"What is {number} + {number}?", answer=str(2 * number), env="sums")
    line = decode(encode(task.line()))
    return {**line, "agent_ref": {"name": "sums"}, "responses_create_params": {"input": line["messages"]}}


def make_batch(prompts: int, each: int) -> BatchedDataDict[Any]:
    """A batch of rows, every prompt so many times."""
    rows = [make_row(number) for number in range(prompts) for _ in range(each)]
    return BatchedDataDict({"extra_env_info": rows, "loss_multiplier": torch.ones(len(rows))})


def common(actor: Any, batch: BatchedDataDict[Any]) -> dict[str, Any]:
    """What every rollout function of the Gym path takes."""
    return {
        "policy_generation": WritingPolicy(str),
        "input_batch": batch,
        "tokenizer": ByteTokenizer(),
        "task_to_env": {"nemo_gym": actor},
        "generation_config": GENERATION,
        "log_full_result_tables": False,
    }


def test_its_synchronous_rollouts_run_over_ours_and_its_advantages_take_the_logs(
    tmp_path: Path, endpoint: Endpoint
) -> None:
    actor = start(tmp_path, endpoint)
    result = run_nemo_gym_rollout_sync(**common(actor, make_batch(3, 4)))
    final = result.final_batch
    texts = [bytes(i for i in log[0]["token_ids"].tolist() if i < 256).decode() for log in final["message_log"]]
    assert [f"What is {i // 4} + {i // 4}?" in text for i, text in enumerate(texts)] == [True] * 12
    answers = [bytes(i for i in log[1]["token_ids"].tolist() if i < 256).decode() for log in final["message_log"]]
    right = [float(answer.strip().endswith(str(2 * (i // 4)))) for i, answer in enumerate(answers)]
    assert final["total_reward"].tolist() == right
    assert result.rollout_metrics["sums/reward/mean"] == pytest.approx(sum(right) / 12)
    assert result.rollout_metrics["timing/rollout/seconds/max"] > 0
    check_advantages(final["message_log"], final["total_reward"])
    ray.get(actor.shutdown.remote(), timeout=WAIT_S)


PARTS = SUMS.replace("        return roll", "        right = roll") + (
    "        return Score(float(right) + 0.5, parts={'right': float(right), 'style': 0.5})\n"
)


def test_its_reward_penalties_read_our_answers_and_its_gdpo_our_parts(tmp_path: Path, endpoint: Endpoint) -> None:
    actor = start(tmp_path, endpoint, source=PARTS, reward_components=True)
    flags = ("penalize_duplicated_reasoning", "penalize_empty_final_answer", "penalize_malformed_think_tag")
    penalties = dict.fromkeys(flags, True)
    result = run_nemo_gym_rollout_sync(**common(actor, make_batch(2, 4)), reward_penalty_config=penalties)
    final, metrics = result.final_batch, result.rollout_metrics
    assert metrics["empty_final_answer_rate"] == metrics["malformed_think_tag_rate"] == 0
    assert final["total_reward"].min() >= 0.5
    assert torch.equal(final["reward/right"] + final["reward/style"], final["total_reward"])
    assert metrics["sums/style/mean"] == 0.5
    prompts, mask = torch.tensor([[i // 4] for i in range(8)]), torch.ones(8, 2)
    estimator = GDPOAdvantageEstimator(AdvEstimatorConfig(name="gdpo", normalize_rewards=False), None)
    advantages = estimator.compute_advantage(prompts, None, mask, repeated_batch=final)
    assert torch.isfinite(advantages).all()
    ray.get(actor.shutdown.remote(), timeout=WAIT_S)


def check_advantages(logs: list[Any], rewards: Any) -> None:
    """The loss mask is on exactly what the model sampled, and the advantages are those of the groups of four."""
    sampled = [sum(len(m["token_ids"]) for m in log if m["role"] == "assistant") for log in logs]
    add_grpo_token_loss_masks_and_generation_logprobs(logs)
    flat, lengths = batched_message_log_to_flat_message(logs, pad_value_dict={"token_ids": 0})
    mask = flat["token_loss_mask"]
    assert mask.sum(dim=1).tolist() == sampled
    assert (flat["generation_logprobs"][mask == 1] < 0).all()
    assert lengths.tolist() == [sum(len(m["token_ids"]) for m in log) for log in logs]
    prompts = torch.tensor([[i // 4] for i in range(len(logs))])
    estimator = GRPOAdvantageEstimator(AdvEstimatorConfig(normalize_rewards=False), None)
    advantages = estimator.compute_advantage(prompts, rewards, mask)
    others = [(rewards[i // 4 * 4 : i // 4 * 4 + 4].sum() - rewards[i]) / 3 for i in range(len(logs))]
    assert advantages[:, 0].tolist() == pytest.approx([float(r - o) for r, o in zip(rewards, others, strict=True)])


def test_its_asynchronous_rollouts_yield_group_after_group(tmp_path: Path, endpoint: Endpoint) -> None:
    actor = start(tmp_path, endpoint)

    async def collect() -> list[Any]:
        stream = run_async_nemo_gym_rollout(**common(actor, make_batch(3, 2)), num_generations=2)
        return [group async for group in stream]

    groups = asyncio.run(collect())
    assert [len(group.final_batch["message_log"]) for group in groups] == [2, 2, 2]
    ray.get(actor.shutdown.remote(), timeout=WAIT_S)


def test_its_retry_policy_knows_our_failures_here_and_through_a_pickle() -> None:
    for side, kind in (("infra", FailureClass.INFRA), ("data", FailureClass.DATA)):
        error = make_rows_missing(4, {2: MissingReason(side, "why")})  # type: ignore[arg-type]
        assert classify_rollout_failure(error) is kind
        assert classify_rollout_failure(pickle.loads(pickle.dumps(error))) is kind


class RowsByPrompt:
    """NeMo RL's own rollouts of one prompt, which dispatch missing rows again after an infrastructure failure."""

    def __init__(self, actor: Any, attempts: int) -> None:
        self._rollouts = AsyncNemoGymRolloutImpl(
            tokenizer=ByteTokenizer(),
            task_to_env={"nemo_gym": actor},
            num_generations_per_prompt=4,
            max_seq_len=4096,
            max_rollout_turns=1,
            generation_config=GENERATION,
            retry_policy=RolloutRetryPolicy.single_attempt(max_gym_row_attempts=attempts),
        )

    def run(self, number: int) -> Any:
        sample: Any = {"idx": 0, "message_log": [], "extra_env_info": make_row(number)}
        return asyncio.run(self._rollouts.run_rollout(sample))


def test_it_dispatches_rows_again_that_the_infrastructure_lost(tmp_path: Path, endpoint: Endpoint) -> None:
    endpoint.mode, endpoint.times = "garbage", 2
    actor = start(tmp_path, endpoint, attempts={"bad_completion": 1})
    record = RowsByPrompt(actor, attempts=2).run(3)
    assert len(record.completions) == 4
    assert all(len(completion.message_log) == 2 for completion in record.completions)
    endpoint.mode, endpoint.times = "garbage", None
    with pytest.raises(InfraFailure, match="0 of 4 rows came back; missing rows: 0, 1, 2, 3; infra"):
        RowsByPrompt(actor, attempts=2).run(3)
    ray.get(actor.shutdown.remote(), timeout=WAIT_S)


def test_it_does_not_dispatch_rows_again_that_would_fail_again(tmp_path: Path, endpoint: Endpoint) -> None:
    broken = SUMS.replace("        return roll", "        assert task.id != 'sum-3'\n        return roll")
    actor = start(tmp_path, endpoint, source=broken)
    with pytest.raises(DataFailure, match="missing rows: 0, 1, 2, 3; data: verifier_error"):
        RowsByPrompt(actor, attempts=5).run(3)
    assert sum(endpoint.seeds.values()) == 4
    ray.get(actor.shutdown.remote(), timeout=WAIT_S)


def test_its_own_test_of_the_code_environment_passes_with_ours(pytestconfig: pytest.Config) -> None:
    pytestconfig.addinivalue_line("markers", "hf_gated: a mark of NeMo RL's own")
    own = load_test_module(CHECKOUT / "tests/unit/environments/test_code_environment.py")
    actor = CodeEnvironment.remote({**own.cfg, "like_nemo_rl": True})
    own.test_untrusted_code(actor)
    ray.kill(actor)


def test_a_name_is_registered_once_and_again_but_not_for_another_environment() -> None:
    assert register("rollbook_again") == register("rollbook_again") == "rollbook_again"
    with pytest.raises(UsageError, match=r"NeMo RL has math registered as nemo_rl\.environments"):
        register("math")


def test_its_multi_turn_rollouts_run_over_our_code_environment() -> None:
    """What its own test checks with a GPU, of a policy that writes the same code."""
    prompts = ["Add. ", "Run it. "]
    written = {
        "Add. ": "<code>x = 3; y = 4</code>",
        "Add. <code>x = 3; y = 4</code><result></result>": "\nThis is some regular text.\n<code>x + y</code>",
        "Run it. ": "<code>\ndef f(x):\n    return x * x\n\nf(2)\n</code>\n",
    }
    policy = WritingPolicy(lambda text: written[text])
    logs = [[{"role": "user", "content": p, "token_ids": torch.tensor(list(p.encode()))}] for p in prompts]
    batch = BatchedDataDict(
        {
            "message_log": logs,
            "extra_env_info": [{}, {}],
            "task_name": ["code", "code"],
            "stop_strings": [["</code>"]] * 2,
        }
    )
    actor = create_env(register("rollbook_code_of_this_test"), {"num_workers": 1, "terminate_on_evaluation": True})
    final, metrics = run_multi_turn_rollout(
        policy_generation=policy,
        input_batch=batch,
        tokenizer=ByteTokenizer(),
        task_to_env={"code": actor},
        max_seq_len=1024,
        max_rollout_turns=2,
        greedy=True,
    )
    ends = [log[-1] for log in final["message_log"]]
    assert [(end["role"], end["content"]) for end in ends] == [
        ("environment", "<result>7</result>"),
        ("environment", "\n<result>\n4\n</result>"),
    ]
    assert metrics["natural_termination_rate"] == 1.0
    ray.kill(actor)
