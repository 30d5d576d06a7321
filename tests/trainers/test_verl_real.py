"""With the real verl: its DataProto, its collation, its TransferQueue and its advantages take what we give."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.filterwarnings("ignore")
verl = pytest.importorskip("verl", reason="verl is not installed here: make test-verl has an environment with it")

import torch  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402
from verl import DataProto  # noqa: E402
from verl.protocol import pad_dataproto_to_divisor, unpad_dataproto  # noqa: E402
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage  # noqa: E402
from verl.trainer.ppo.metric_utils import process_validation_metrics  # noqa: E402
from verl.trainer.ppo.reward import extract_reward  # noqa: E402
from verl.utils.dataset.rl_dataset import collate_fn, get_dataset_class  # noqa: E402
from verl.utils.import_utils import load_class_from_fqn  # noqa: E402

from rollbook.core import Task, decode, encode  # noqa: E402
from rollbook.errors import UsageError  # noqa: E402
from rollbook.trainers.rows import RowsMissing, make_environment  # noqa: E402
from rollbook.trainers.verl import GymDataset, RollbookAgentLoopManager  # noqa: E402
from rollbook.trainers.verl.config import find_servers, read_config  # noqa: E402
from support.endpoint import Endpoint  # noqa: E402
from support.sums import SUMS, write_sums  # noqa: E402

EXAMPLES = Path(__file__).parents[2] / "examples/verl"
NAME = "rollbook.trainers.verl.RollbookAgentLoopManager"
PROMPT, RESPONSE, WAIT_S = 64, 24, 60


def config(folder: Path, endpoint: Endpoint, on_failure: str = "raise", source: str = SUMS, n: int = 2) -> Any:
    """What verl's configuration has of ours, and the file that it names."""
    block = folder / "rollbook.yaml"
    block.write_text(
        f"rollbook:\n  urls: ['{endpoint.url}']\n  on_failure: {on_failure}\n  pad_id: 0\n  environments:\n"
        f"    - {{env: '{write_sums(folder, source)}', name: Sums}}\n    - {{env: workplace, name: other}}\n"
    )
    rollout = {
        "n": n,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "prompt_length": PROMPT,
        "response_length": RESPONSE,
        "val_kwargs": {"n": 1, "temperature": 0.0, "top_p": 1.0, "top_k": -1},
        "agent": {"agent_loop_manager_class": NAME, "agent_loop_config_path": str(block), "num_workers": 2},
    }
    return OmegaConf.create({"actor_rollout_ref": {"rollout": rollout, "model": {"path": "none"}}})


def created(sent: Any) -> RollbookAgentLoopManager:
    """As both of verl's trainers do it."""
    cls = load_class_from_fqn(sent.actor_rollout_ref.rollout.agent.agent_loop_manager_class, "AgentLoopManager")
    result = cls.create(config=sent, llm_client=object(), teacher_client=None, reward_loop_worker_handles=None)
    assert isinstance(result, RollbookAgentLoopManager)
    return result


def rows(folder: Path, count: int) -> GymDataset:
    """The dataset of so many sums, made by verl's own rules."""
    path = folder / "tasks.jsonl"
    sums = [Task(f"sum-{i}", f"What is {i} + {i}?", answer=str(2 * i), env="Sums") for i in range(count)]
    path.write_bytes(b"".join(encode(task.line()) + b"\n" for task in sums))
    settings = OmegaConf.create({"custom_cls": {"path": "pkg://rollbook.trainers.verl.dataset", "name": "GymDataset"}})
    cls = get_dataset_class(settings)
    return cls(data_files=[str(path)], tokenizer=None, processor=None, config=settings, max_samples=-1)


def make_batch(dataset: GymDataset, n: int) -> DataProto:
    """A batch as V0's trainer asks it: every prompt with a uid, n times, one after the other."""
    batch = DataProto.from_single_dict(collate_fn([dataset[i] for i in range(len(dataset))]))
    batch.non_tensor_batch["uid"] = np.array([f"u{i}" for i in range(len(dataset))], dtype=object)
    batch.meta_info = {"global_steps": 3}
    return batch.repeat(repeat_times=n, interleave=True)


def test_the_dataset_loses_no_field_and_collates(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [
        '{"responses_create_params": {"input": [{"type": "function_call", "name": "f"}], "tools": [{"x": 1}]}, "a": 1}',
        '{"responses_create_params": {"input": "Hi"}, "agent_ref": {"name": "m"}, "expected_answer": 0, "b": null}',
    ]
    path.write_text("\n".join(lines) + "\n")
    dataset = GymDataset([str(path)])
    batch = collate_fn([dataset[0], dataset[1]])
    assert list(batch["gym_row"]) == lines
    assert batch["raw_prompt"][0] == [{"type": "function_call", "name": "f"}]
    assert batch["agent_ref"].tolist() == ["", "m"]
    assert len(GymDataset(str(path), max_samples=1)) == 1
    with pytest.raises(UsageError, match="parquet"):
        GymDataset(["rows.parquet"])


def test_v0_gives_every_row_back_in_its_order_and_verl_goes_on_with_it(tmp_path: Path, endpoint: Endpoint) -> None:
    manager = created(config(tmp_path, endpoint))
    sent = make_batch(rows(tmp_path, 5), 2)
    result = manager.generate_sequences(sent)
    manager.close()
    assert result.batch["prompts"].shape == (10, PROMPT)
    assert result.batch["responses"].shape == (10, RESPONSE)
    texts = ["".join(chr(i) for i in row if 0 < i < 256) for row in result.batch["prompts"].tolist()]
    assert [f"What is {i // 2} + {i // 2}?" in text for i, text in enumerate(texts)] == [True] * 10
    rewards = result.batch["rm_scores"].sum(-1)
    assert set(rewards.tolist()) <= {0.0, 1.0}
    answers = ["".join(chr(i) for i in row if 0 < i < 256) for row in result.batch["responses"].tolist()]
    assert [float(a.strip().endswith(str(2 * (i // 2)))) for i, a in enumerate(answers)] == rewards.tolist()
    assert result.non_tensor_batch["max_global_steps"].tolist() == [3] * 10
    assert "timing" in result.meta_info
    survives_verl(sent, result)


def survives_verl(sent: DataProto, result: DataProto) -> None:
    """Union, reorder, chunk, concat, padding and advantages, as the trainer does them."""
    timing = result.meta_info.pop("timing")
    assert timing["agent_loop/generate_sequences/max"] >= 0
    before = result.batch["responses"].clone()
    batch = DataProto.from_single_dict({"uid": sent.non_tensor_batch["uid"].copy(), "x": torch.zeros(len(sent), 1)})
    batch = batch.union(result)
    order = torch.arange(len(batch) - 1, -1, -1)
    batch.reorder(order)
    assert torch.equal(batch.batch["responses"], before[order])
    chunks = batch.chunk(5)
    again = DataProto.concat(chunks)
    assert torch.equal(again.batch["responses"], batch.batch["responses"])
    padded, size = pad_dataproto_to_divisor(again, 4)
    assert len(padded) == 12
    assert len(unpad_dataproto(padded, size)) == 10
    advantages, _ = compute_grpo_outcome_advantage(
        again.batch["rm_scores"], again.batch["response_mask"], again.non_tensor_batch["uid"]
    )
    assert torch.isfinite(advantages).all()
    assert (advantages[again.batch["response_mask"] == 0] == 0).all()


def test_v0_asks_validation_and_greedy_rows_otherwise(tmp_path: Path, endpoint: Endpoint) -> None:
    manager = created(config(tmp_path, endpoint))
    sent = make_batch(rows(tmp_path, 2), 1)
    sent.non_tensor_batch["__do_sample__"] = np.array([True, False])
    manager.generate_sequences(sent)
    assert sorted(temperatures(endpoint)) == [0.0, 1.0]
    endpoint.bodies.clear()
    del sent.non_tensor_batch["__do_sample__"]
    sent.meta_info["validate"] = True
    manager.generate_sequences(sent)
    manager.close()
    assert temperatures(endpoint) == [0.0, 0.0]


def temperatures(endpoint: Endpoint) -> list[float]:
    """Of the rollouts; one call more may find out the shape of the logprobs."""
    return [body["temperature"] for body in endpoint.bodies if body["max_tokens"] == RESPONSE]


STYLED = SUMS.replace(
    "        return roll",
    "        if task.id == 'sum-1':\n            return Score(0.5, parts={'style': 0.5})\n        return roll",
)


def test_v0_validates_several_batches_of_which_not_all_have_the_same_parts(tmp_path: Path, endpoint: Endpoint) -> None:
    manager = created(config(tmp_path, endpoint, source=STYLED))
    dataset = rows(tmp_path, 3)
    for order in ([1, 0, 2], [0, 1, 2]):  # a key of the first batch, then one that is known from the validation before
        infos, scores = validate_as_verl_does(manager, dataset, order, step=10 + order[0])
        assert {key: len(values) for key, values in infos.items()} == {"reward": 3, "style": 3}
        metrics = process_validation_metrics(["sums"] * 3, [f"u{i}" for i in order], infos)
        assert metrics["sums"]["style"]["mean@1"] == 0.5
        assert metrics["sums"]["reward"]["mean@1"] == pytest.approx(sum(scores) / 3)
    manager.close()


def validate_as_verl_does(manager: Any, dataset: GymDataset, order: list[int], step: int) -> tuple[Any, list[float]]:
    """What RayPPOTrainer._validate does with batches of one row, with its assertion."""
    infos: dict[str, list[Any]] = {"reward": []}
    for index in order:
        batch = DataProto.from_single_dict(collate_fn([dataset[index]]))
        batch.meta_info = {"validate": True, "global_steps": step}
        rewards, extra = extract_reward(manager.generate_sequences(batch))
        infos["reward"].extend(rewards.sum(-1).tolist())
        for key, values in extra.items():
            infos.setdefault(key, []).extend(values.tolist())
    scores = infos["reward"]
    for key, values in infos.items():
        assert len(values) in (0, len(scores)), key
    return infos, scores


def test_v0_cuts_no_row_of_several_turns(tmp_path: Path, endpoint: Endpoint) -> None:
    talking = SUMS + "\n    def reply(self, task, rollout, state):\n        return 'No. ' + task.messages[0].content\n"
    sent = config(tmp_path, endpoint, source=talking)
    sent.actor_rollout_ref.rollout.response_length = 100
    manager = created(sent)
    result = manager.generate_sequences(make_batch(rows(tmp_path, 3), 2))
    manager.close()
    assert result.meta_info["timing"]["rollbook/cut_tokens"] == 0
    assert result.non_tensor_batch["__num_turns__"].min() > 1
    assert result.batch["response_mask"].sum(-1).min() > 0


def test_v0_raises_and_names_what_is_missing(tmp_path: Path, endpoint: Endpoint) -> None:
    broken = SUMS.replace("        return roll", "        assert task.id != 'sum-1'\n        return roll")
    manager = created(config(tmp_path, endpoint, source=broken))
    with pytest.raises(RowsMissing, match=r"4 of 6 rows .* missing rows: 2, 3; data: verifier_error: .*sum-1#"):
        manager.generate_sequences(make_batch(rows(tmp_path, 3), 2))
    manager.close()
    masking = created(config(tmp_path, endpoint, on_failure="mask"))
    with pytest.raises(UsageError, match="on_failure: mask: verl's V0"):
        masking.generate_sequences(make_batch(rows(tmp_path, 1), 2))
    masking.close()


def test_a_dead_endpoint_costs_one_outage_and_every_row_is_named(tmp_path: Path, endpoint: Endpoint) -> None:
    sent = config(tmp_path, endpoint)
    block = Path(sent.actor_rollout_ref.rollout.agent.agent_loop_config_path)
    block.write_text(block.read_text().replace(endpoint.url, "http://127.0.0.1:9/v1") + "  outage_s: 0.5\n")
    manager = created(sent)
    with pytest.raises(RowsMissing, match=r"0 of 6 rows .* missing rows: 0, 1, 2, 3, 4, 5; infra: no model") as caught:
        manager.generate_sequences(make_batch(rows(tmp_path, 3), 2))
    manager.close()
    assert set(caught.value.reasons) == set(range(6))


def test_v0_raises_for_prompts_that_overflow_instead_of_making_up_a_row(tmp_path: Path, endpoint: Endpoint) -> None:
    endpoint.mode = "context"
    manager = created(config(tmp_path, endpoint))
    with pytest.raises(RowsMissing, match=r"0 of 2 rows .* data: no_tokens: no token was sampled"):
        manager.generate_sequences(make_batch(rows(tmp_path, 1), 2))
    assert manager.unsampled == 2
    manager.close()


def test_a_row_for_nobody_is_named(tmp_path: Path, endpoint: Endpoint) -> None:
    manager = created(config(tmp_path, endpoint))
    sent = make_batch(rows(tmp_path, 1), 1)
    row = decode(sent.non_tensor_batch["gym_row"][0])
    sent.non_tensor_batch["gym_row"][0] = encode({**row, "env": "nobody"}).decode()
    with pytest.raises(UsageError, match="agent_ref 'nobody'"):
        manager.generate_sequences(sent)
    manager.close()


@pytest.mark.parametrize("name", ["math", "workplace", "blend"])
def test_every_example_composes_with_verls_own_configuration(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hydra import compose, initialize_config_dir

    (tmp_path / "train.jsonl").write_text("")
    for variable, value in {"EXAMPLES": EXAMPLES, "ROWS": tmp_path, "MODEL": "tiny", "NODES": "4"}.items():
        monkeypatch.setenv(variable, str(value))
    with initialize_config_dir(str(EXAMPLES), version_base=None):
        sent = compose(name)
    OmegaConf.resolve(sent)
    assert (sent.trainer.nnodes, sent.trainer.use_v1, sent.algorithm.adv_estimator) == (4, True, "grpo")
    block = read_config(sent.actor_rollout_ref.rollout.agent.agent_loop_config_path)
    entries = [make_environment(entry) for entry in block.entries(EXAMPLES).values()]
    assert [type(one).__name__ for one in entries] == {
        "math": ["Math"],
        "workplace": ["Workplace"],
        "blend": ["Math", "Workplace"],
    }[name]
    assert get_dataset_class(sent.data) is GymDataset


@pytest.fixture(scope="module")
def queue() -> Iterator[Any]:
    """verl's TransferQueue, on a Ray of this test's own."""
    tq = pytest.importorskip("transfer_queue")
    import ray

    paths = os.pathsep.join(path for path in sys.path if path)
    env = {"env_vars": {"PYTHONPATH": paths}}
    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env=env)
    tq.init()
    yield tq
    tq.close()
    ray.shutdown()


def v1_batch(dataset: GymDataset, step: int) -> Any:
    """A batch as V1's trainer makes it."""
    from verl.utils import tensordict_utils as tu

    columns = collate_fn([dataset[i] for i in range(len(dataset))])
    columns["uid"] = np.array([f"{step}-{i}" for i in range(len(dataset))], dtype=object)
    batch = tu.get_tensordict(columns)
    tu.assign_non_tensor_data(batch, "global_steps", step)
    return batch


def settled(tq: Any, uids: list[str], partition: str = "train") -> dict[str, Any]:
    """The tags of a partition once every prompt is finished or has failed."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        entries = (tq.kv_list() or {}).get(partition, {})
        if all(entries.get(uid, {}).get("status") in ("finished", "failure") for uid in uids):
            return dict(entries)
        time.sleep(0.1)
    raise AssertionError(f"not settled within {WAIT_S} s: {entries}")


def test_v1_returns_at_once_and_puts_what_verl_trains_on(tmp_path: Path, endpoint: Endpoint, queue: Any) -> None:
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

    broken = SUMS.replace("        return roll", "        assert rollout.key != ('sum-1', 1)\n        return roll")
    manager = created(config(tmp_path, endpoint, on_failure="mask", source=broken, n=3))
    batch = v1_batch(rows(tmp_path, 3), step=7)
    uids = list(batch["uid"])
    tags = [{"is_prompt": True, "status": "pending", "global_steps": 7} for _ in uids]
    queue.kv_batch_put(keys=uids, partition_id="train", tags=tags)
    assert manager.generate_sequences(batch) is None
    buffer = ReplayBuffer("sync", OmegaConf.create({}), None, "drop", OmegaConf.create({}), poll_interval=0.1)
    sampled, _ = buffer.sample(7, "train", 3)  # waits, as the trainer does, until every prompt is finished
    assert (len(buffer.finished_keys["train"]), len(buffer.failure_keys["train"])) == (3, 0)
    entries = queue.kv_list()["train"]
    assert sorted(sampled.keys) == sorted(f"{uid}_{session}_0" for uid in uids for session in range(3))
    keys = sorted(key for key in entries if key.count("_") == 2)
    assert keys == sorted(f"{uid}_{session}_0" for uid in uids for session in range(3))
    fields = ["uid", "prompts", "responses", "response_mask", "rm_scores", "rollout_log_probs", "data_source"]
    data = queue.kv_batch_get(keys=keys, partition_id="train", select_fields=fields)
    lengths = [entries[key]["response_len"] for key in keys]
    assert [len(row) for row in data["responses"].unbind()] == lengths
    masked = [i for i, key in enumerate(keys) if key == "7-1_1_0"]
    own = data["uid"].tolist() if hasattr(data["uid"], "tolist") else list(data["uid"])
    assert [own[i] for i in masked] == ["7-1-masked-1"]
    trained = [int(row.sum()) for row in data["response_mask"].unbind()]
    assert [i for i, count in enumerate(trained) if not count] == masked
    assert manager.counts.masked == 1
    manager.close()
    leaves_the_statistics(keys, data, own, masked[0])
    queue.kv_clear(partition_id="train", keys=keys)


def test_v1_validates_without_what_failed(tmp_path: Path, endpoint: Endpoint, queue: Any) -> None:
    from verl.utils import tensordict_utils as tu

    broken = SUMS.replace("        return roll", "        assert task.id != 'sum-1'\n        return roll")
    manager = created(config(tmp_path, endpoint, on_failure="mask", source=broken))
    batch = v1_batch(rows(tmp_path, 2), step=5)
    tu.assign_non_tensor_data(batch, "validate", True)
    manager.generate_sequences(batch)
    entries = settled(queue, ["5-0", "5-1"], "val")
    assert sorted(key for key in entries if "_" in key) == ["5-0_0_0"]
    assert (entries["5-0"]["status"], entries["5-1"]["status"]) == ("finished", "failure")
    assert temperatures(endpoint) == [0.0, 0.0]
    manager.close()


def leaves_the_statistics(keys: list[str], data: Any, uids: list[str], masked: int) -> None:
    """verl's advantages are those that it computes where the masked rollout never was."""
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    def advantages(places: list[int]) -> Any:
        fields = {name: data[name].to_padded_tensor(0.0) for name in ("response_mask", "rm_scores")}
        batch = DataProto.from_dict(
            tensors={name: value[places] for name, value in fields.items()},
            non_tensors={"uid": np.array([uids[i] for i in places], dtype=object)},
        )
        batch.batch["token_level_rewards"] = batch.batch["rm_scores"]
        return compute_advantage_for_multi_trajectories(batch, [keys[i] for i in places], "grpo").batch["advantages"]

    everyone = list(range(len(keys)))
    others = [i for i in everyone if i != masked]
    entries = advantages(everyone)
    assert torch.equal(entries[others], advantages(others))
    assert (entries[masked] == 0).all()


def test_verls_own_client_names_its_servers(queue: Any) -> None:
    from verl.workers.rollout.llm_server import LLMServerClient
    from verl.workers.rollout.router import get_router_handle

    balancer = get_router_handle(servers={"10.0.0.1:8000": None, "http://10.0.0.2:8000/v1": None})
    client = LLMServerClient(config=OmegaConf.create({}), load_balancer_handle=balancer)
    assert sorted(find_servers(client)) == ["http://10.0.0.1:8000/v1", "http://10.0.0.2:8000/v1"]
    listing = type("Client", (), {"get_addresses": lambda self: ["10.0.0.3:8000"]})()
    assert find_servers(listing) == ["http://10.0.0.3:8000/v1"], "what is public comes first"
    for client in (object(), LLMServerClient(config=OmegaConf.create({}))):
        with pytest.raises(UsageError, match="`urls` in the rollbook: block"):
            find_servers(client)


def test_v1_drops_a_failed_group_whole_or_raises_with_the_next_batch(
    tmp_path: Path, endpoint: Endpoint, queue: Any
) -> None:
    broken = SUMS.replace("        return roll", "        assert task.id != 'sum-1'\n        return roll")
    for on_failure in ("drop_group", "raise"):
        manager = created(config(tmp_path, endpoint, on_failure=on_failure, source=broken))
        step = 8 if on_failure == "raise" else 9
        batch = v1_batch(rows(tmp_path, 2), step)
        manager.generate_sequences(batch)
        entries = settled(queue, [f"{step}-0", f"{step}-1"])
        assert entries[f"{step}-0"]["status"] == "finished"
        assert entries[f"{step}-1"]["status"] == "failure"
        assert not [key for key in entries if key.startswith(f"{step}-1_")]
        if on_failure == "raise":
            with pytest.raises(RowsMissing, match=r"1 of 2 rows .* missing rows: 8-1; data: task sum-1: "):
                manager.generate_sequences(batch)
        else:
            assert (manager.counts.dropped_failed, manager.counts.given) == (1, 1)
        manager.close()


@pytest.mark.parametrize("on_failure", ["drop_group", "mask", "raise"])
def test_v1_has_no_trajectory_for_prompts_that_overflow(
    tmp_path: Path, endpoint: Endpoint, queue: Any, on_failure: str
) -> None:
    endpoint.mode = "context"
    manager = created(config(tmp_path, endpoint, on_failure=on_failure))
    step = 20 + ["drop_group", "mask", "raise"].index(on_failure)
    batch = v1_batch(rows(tmp_path, 1), step)
    manager.generate_sequences(batch)
    entries = settled(queue, [f"{step}-0"])
    assert entries[f"{step}-0"]["status"] == "failure"
    assert not [key for key in entries if key.startswith(f"{step}-0_")]
    assert manager.unsampled == 2
    if on_failure == "raise":
        with pytest.raises(RowsMissing, match="no_tokens"):
            manager.generate_sequences(batch)
    else:
        assert (manager.counts.failed, manager.counts.dropped_failed) == (2, 1)
    manager.close()


def test_another_verl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from rollbook.trainers.verl import config as config_module

    assert config_module.check_verl().startswith("0.9.")
    monkeypatch.setattr(config_module, "version", lambda _: "0.8.0")
    with pytest.raises(UsageError, match=r"verl 0.8.0 is installed, but Rollbook works with 0.9"):
        config_module.check_verl()
