"""Which replica a call goes to."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from rollbook.core import Message, ModelSpec, Sampling, Settings
from rollbook.errors import RolloutFailed
from rollbook.models import replica_choice
from rollbook.models.chat import ChatModel
from rollbook.models.replica_choice import MAX_LOAD, MIN_MAX_LOAD, ReplicaChooser
from support.endpoint import Endpoint


@dataclass(eq=False)
class Replica:
    base: str
    in_flight: int = 0


def replicas(count: int) -> list[Replica]:
    return [Replica(f"http://replica-{number}/v1") for number in range(count)]


def start(chooser: ReplicaChooser[Replica], task: str, sample: int, available: list[Replica]) -> Replica:
    chosen = chooser.choose(f"{task}#{sample}", task, available)
    chosen.in_flight += 1
    return chosen


def test_the_samples_of_a_task_share_a_replica_and_tasks_spread_evenly() -> None:
    chooser, available = ReplicaChooser[Replica](), replicas(8)
    homes = [{start(chooser, f"t{task}", sample, available).base for sample in range(16)} for task in range(32)]
    assert all(len(home) == 1 for home in homes)
    assert Counter(base for home in homes for base in home) == {replica.base: 4 for replica in available}


def test_least_loaded_spreads_the_samples() -> None:
    chooser, available = ReplicaChooser[Replica]("least-loaded"), replicas(8)
    assert len({start(chooser, "t", sample, available).base for sample in range(8)}) == 8


def test_equal_loads_do_not_send_every_worker_to_the_first_replica() -> None:
    firsts = Counter(
        start(ReplicaChooser[Replica]("least-loaded"), f"t{worker}", 0, replicas(8)).base for worker in range(200)
    )
    assert len(firsts) == 8
    assert max(firsts.values()) < 60


def test_a_group_leaves_a_replica_that_has_too_much_and_stays_where_it_went() -> None:
    chooser, available = ReplicaChooser[Replica](), replicas(4)
    home = start(chooser, "t", 0, available)
    for replica in available:
        replica.in_flight = 40
    home.in_flight = round(MAX_LOAD * 50)
    moved = start(chooser, "t", 1, available)
    assert moved is not home
    home.in_flight = 40
    assert start(chooser, "t", 2, available) is moved


def test_a_new_group_goes_where_there_is_less_than_the_mean() -> None:
    full, idle = replicas(2)
    full.in_flight = 1
    chosen = {ReplicaChooser[Replica]().choose(f"t{task}#0", f"t{task}", [full, idle]).base for task in range(20)}
    assert chosen == {idle.base}  # the mean, with the new call, is 1: the other one has it already


def test_least_loaded_is_the_only_one_with_the_fewest_calls() -> None:
    chooser, available = ReplicaChooser[Replica]("least-loaded"), replicas(3)
    for replica, calls in zip(available, (2, 1, 3), strict=True):
        replica.in_flight = calls
    assert {chooser.choose(f"t{task}#0", f"t{task}", available).base for task in range(20)} == {available[1].base}


def test_what_was_used_longest_ago_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_choice, "MAX_REMEMBERED", 2)
    chooser, (one, two) = ReplicaChooser[Replica](), replicas(2)
    for rollout in ("a", "b"):
        chooser.remember(rollout, one)
    chooser.choose("a", "", [one, two])
    chooser.remember("c", one)
    one.in_flight = 9
    assert [chooser.choose(rollout, "", [one, two]) for rollout in ("c", "a", "b")] == [one, one, two]


def test_a_small_batch_is_never_split() -> None:
    chooser, available = ReplicaChooser[Replica](), replicas(8)
    assert len({start(chooser, "t", sample, available).base for sample in range(MIN_MAX_LOAD)}) == 1


def test_a_rollout_stays_whatever_the_load() -> None:
    chooser, available = ReplicaChooser[Replica](), replicas(4)
    home = start(chooser, "t", 0, available)
    home.in_flight = 10_000
    assert start(chooser, "t", 0, available) is home


def test_the_groups_of_a_lost_replica_move_together_and_no_others_do() -> None:
    chooser, available = ReplicaChooser[Replica](), replicas(8)
    before = {task: start(chooser, f"t{task}", 0, available) for task in range(64)}
    for replica in available:
        replica.in_flight = 0  # all calls have ended
    lost = before[0]
    rest = [replica for replica in available if replica is not lost]
    after = {task: {start(chooser, f"t{task}", sample, rest).base for sample in range(1, 4)} for task in range(64)}
    assert all(len(homes) == 1 for homes in after.values())
    assert {task for task in before if after[task] != {before[task].base}} == {
        task for task in before if before[task] is lost
    }
    moved = [base for task, homes in after.items() if before[task] is lost for base in homes]
    assert len(set(moved)) > 2, "the groups of a lost replica must not all go to one other"


def test_a_replica_that_comes_back_gets_new_groups_up_to_the_mean() -> None:
    chooser, available = ReplicaChooser[Replica](), replicas(8)
    for replica in available[1:]:
        replica.in_flight = 64
    taken = Counter(start(chooser, f"new{task}", sample, available).base for task in range(4) for sample in range(16))
    assert taken[available[0].base] >= 48
    assert available[0].in_flight <= 64


def test_processes_agree_on_the_replica_of_a_group() -> None:
    code = (
        "from rollbook.models.replica_choice import ReplicaChooser\n"
        "from types import SimpleNamespace as S\n"
        "there = [S(base=f'http://replica-{n}/v1', in_flight=0) for n in range(8)]\n"
        "print([ReplicaChooser().choose(f't{t}#{t % 3}', f't{t}', there).base for t in range(20)])"
    )
    said = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    here = [ReplicaChooser[Replica]().choose(f"t{task}#0", f"t{task}", replicas(8)).base for task in range(20)]
    assert said == {f"{here}\n"}


def test_the_memory_of_groups_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_choice, "MAX_REMEMBERED", 5)
    chooser, available = ReplicaChooser[Replica](), replicas(4)
    for task in range(50):
        start(chooser, f"t{task}", 0, available)
    assert len(chooser._by_group) == len(chooser._by_rollout) == 5


@pytest.mark.parametrize(("changes", "shared"), [({}, True), ({"routing": "least-loaded"}, False)])
def test_calls_of_a_group_go_to_one_server(changes: dict[str, Any], shared: bool) -> None:
    async def main() -> list[int]:
        async with Endpoint(delay_s=0.1) as a, Endpoint(delay_s=0.1) as b:
            model = ChatModel(ModelSpec("mock"), Settings(urls=[a.url, b.url], **changes))
            await model.open()
            asked = [Message("user", "What is 1 + 2?")]
            calls = (model.complete(asked, Sampling(), seed=1, rollout=f"t#{n}", group="t") for n in range(8))
            await asyncio.gather(*calls)
            await model.close()
            return sorted((a.counts["chat"], b.counts["chat"]))

    assert asyncio.run(main()) == ([0, 8] if shared else [4, 4])


def test_a_server_that_dies_loses_its_groups_at_once() -> None:
    async def main() -> None:
        async with Endpoint() as a, Endpoint() as b:
            model = ChatModel(ModelSpec("mock"), Settings(urls=[a.url, b.url], outage_s=20.0))
            await model.open()
            asked = [Message("user", "What is 1 + 2?")]
            await model.complete(asked, Sampling(), seed=1, rollout="t#0", group="t")
            home, other = (a, b) if a.counts["ok"] else (b, a)
            await home.switch("refuse")
            lost = 0
            for sample in range(1, 9):
                try:
                    await model.complete(asked, Sampling(), seed=1, rollout=f"t#{sample}", group="t")
                except RolloutFailed:
                    lost += 1
            await model.close()
            assert lost <= 1
            assert other.counts["ok"] >= 7

    asyncio.run(main())
