"""The group policy: what a trainer gets when something failed, is old, or teaches nothing. A group is never short."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rollbook import Collector, Environment, Rollout, Shortfall, Task
from rollbook.core import FAILURE_KINDS, Failure, Group, Score, Turn
from rollbook.engine.groups import GroupBuffer, GroupCounts, GroupPolicy, group_shortfall
from rollbook.errors import UsageError
from support.endpoint import Endpoint
from support.sums import SUMS, write_script, write_sums

# Sample 1 of sum-2 cannot be verified; the others of it can.
BROKEN = SUMS.replace("        return roll", "        assert rollout.key != ('sum-2', 1)\n        return roll")


def group(*rewards: float | None) -> Group:
    """A group with these rewards; None failed."""
    task = Task(id="t", prompt="?")
    broke = Failure("verifier_error", "data", "verify", "broke")
    return Group(
        task,
        [
            Rollout(task=task, sample=i, seed=i, failure=broke)
            if reward is None
            else Rollout(task=task, sample=i, seed=i, score=Score(reward))
            for i, reward in enumerate(rewards)
        ],
    )


def test_rollouts_of_a_task_form_groups_in_the_order_of_their_samples() -> None:
    async def go() -> None:
        buffer = GroupBuffer(samples=2, window=2)
        buffer.begin(2)
        task, other = Task(id="t", prompt="?"), Task(id="u", prompt="?")
        for each, sample in ((task, 3), (task, 1), (other, 1), (task, 2), (task, 0), (other, 0)):
            buffer.add(Rollout(task=each, sample=sample, seed=0))
        found = [await buffer.take() for _ in range(3)]
        buffer.end()
        assert [(each.task.id, [r.sample for r in each.rollouts]) for each in found if each] == [
            ("t", [2, 3]),
            ("t", [0, 1]),
            ("u", [0, 1]),
        ]
        assert await buffer.take() is None

    asyncio.run(go())


def test_a_group_starts_only_while_there_is_room() -> None:
    async def go() -> None:
        buffer = GroupBuffer(samples=1, window=3)
        buffer.begin()
        assert buffer.free_slots == 2
        await asyncio.wait_for(buffer.wait_for_room(), 5)
        buffer.begin(2)
        assert buffer.free_slots == 0
        waiting = asyncio.create_task(buffer.wait_for_room())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        buffer.add(Rollout(task=Task(id="t", prompt="?"), sample=0, seed=0))
        await buffer.take()
        await asyncio.wait_for(waiting, 5)
        assert buffer.free_slots == 1

    asyncio.run(go())


def test_a_shortfall_of_a_group_counts_and_names_what_failed() -> None:
    found = group_shortfall(group(1.0, None, None).rollouts)
    assert (found.requested, found.scored, found.failed) == (3, 1, {"verifier_error": 2})
    assert [key[:2] for key in found.missing] == [("t", 1), ("t", 2)]
    assert "probable cause: broke" in str(found)


@pytest.mark.parametrize("on_failure", ["raise", "retry"])
def test_a_failure_raises_and_names_the_rollout(on_failure: Any) -> None:
    counts = GroupCounts()
    with pytest.raises(Shortfall, match="1 of 2") as caught:
        GroupPolicy(on_failure).passes(group(1.0, None), 0, counts)
    assert caught.value.missing == [("t", 1, "verifier_error: broke")]
    assert (counts.scored, counts.failed, counts.given) == (1, 1, 0)


def test_a_failed_group_is_dropped_whole_or_handed_out_to_be_masked_and_counted() -> None:
    dropped, masked = GroupCounts(), GroupCounts()
    assert not GroupPolicy("drop_group").passes(group(1.0, None, 0.0), 0, dropped)
    assert GroupPolicy("mask").passes(group(1.0, None, 0.0), 0, masked)
    assert (dropped.dropped_failed, dropped.given, dropped.scored, dropped.failed) == (1, 0, 2, 1)
    assert (masked.dropped_failed, masked.given, masked.masked) == (0, 1, 1)


@pytest.mark.parametrize(
    ("rewards", "passes"),
    [((1.0, 0.0), True), ((1.0, 1.0), False), ((1.0, None, 1.0), False), ((1.0, None, 0.0), True), ((None,), False)],
)
def test_equal_rewards_are_those_of_the_scored_ones(rewards: tuple[float | None, ...], passes: bool) -> None:
    counts = GroupCounts()
    assert GroupPolicy("mask", "drop").passes(group(*rewards), 0, counts) is passes
    assert counts.dropped_equal == (not passes)


def test_a_group_in_which_all_failed_is_dropped_and_counted_as_failed() -> None:
    counts = GroupCounts()
    assert not GroupPolicy("mask", "drop").passes(group(None, None), 0, counts)
    assert GroupPolicy("mask").passes(group(None), 0, counts), "who collects single rollouts sees to them himself"
    assert (counts.dropped_failed, counts.dropped_equal, counts.given, counts.masked) == (1, 0, 1, 1)


def test_a_group_behind_by_more_versions_than_allowed_is_dropped() -> None:
    counts = GroupCounts()
    assert [GroupPolicy(max_staleness=1).passes(group(1.0), old, counts) for old in (0, 1, 2)] == [True, True, False]
    assert (counts.given, counts.dropped_stale) == (2, 1)


def test_retry_gives_every_kind_of_failure_more_attempts() -> None:
    assert GroupPolicy().attempt_budgets({"verifier_error": 2}) == {"verifier_error": 2}
    budgets = GroupPolicy("retry").attempt_budgets({"model_timeout": 1})
    assert budgets["verifier_error"] == 3
    assert budgets["model_timeout"] == 3
    assert set(budgets) == set(FAILURE_KINDS)


def test_a_policy_may_take_only_groups_of_the_newest_version() -> None:
    counts = GroupCounts()
    assert [GroupPolicy(max_staleness=0).passes(group(1.0), old, counts) for old in (0, 1)] == [True, False]


@pytest.mark.parametrize("wrong", [{"on_failure": "ignore"}, {"equal_rewards": "no"}, {"max_staleness": -1}])
def test_nonsense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        GroupPolicy(**wrong)
    with pytest.raises(UsageError, match="samples"):
        Collector("sums", equal_rewards="drop")


def collected(folder: Path, source: str, **options: Any) -> tuple[dict[str, list[bool]], GroupCounts]:
    """Which rollouts of each group were scored, and the counts."""

    async def go() -> tuple[dict[str, list[bool]], GroupCounts]:
        script = write_script(folder)
        async with Collector(write_sums(folder, source), script, samples=3, concurrency=8, **options) as collector:
            got = {g.task.id: [r.score is not None for r in g.rollouts] async for g in collector.groups()}
            return got, collector.counts

    return asyncio.run(go())


def test_a_collector_masks_or_drops_and_nothing_is_silently_short(tmp_path: Path) -> None:
    masked, counts = collected(tmp_path, BROKEN, on_failure="mask", book=tmp_path / "run")
    assert masked["sum-2"] == [True, False, True]
    assert len(masked) == 10
    assert (counts.drawn, counts.given, counts.masked, counts.scored, counts.failed) == (10, 10, 1, 29, 1)
    left, counts = collected(tmp_path, BROKEN, on_failure="drop_group")
    assert set(left) == set(masked) - {"sum-2"}
    assert (counts.drawn, counts.given, counts.dropped_failed, counts.open) == (10, 9, 1, 0)


def test_a_collector_tries_again_what_usually_has_one_attempt(tmp_path: Path) -> None:
    seen = f"open({str(tmp_path)!r} + '/seen-%s-%d' % rollout.key, 'a+')"
    flaky = f"        with {seen} as file:\n            assert file.tell() or not file.write('x')\n        return roll"
    once = SUMS.replace("        return roll", flaky)
    groups, counts = collected(tmp_path, once, on_failure="retry")
    assert len(groups) == 10
    assert all(all(scored) for scored in groups.values())
    assert (counts.retried, counts.failed) == (30, 0)


class Parity(Environment):
    """Every other task rewards its samples differently; the rest all alike."""

    def tasks(self) -> Iterator[Task]:
        return (Task(id=f"t{i}", prompt="Say ok.", odd=i % 2) for i in range(100))

    async def verify(self, task: Task, rollout: Rollout) -> float:
        return float(task.odd and rollout.sample % 2)


def test_more_is_drawn_for_groups_whose_rewards_are_all_equal() -> None:
    async def go() -> tuple[list[str], GroupCounts]:
        async with (
            Endpoint() as endpoint,
            Collector(Parity(), endpoint.url, samples=2, window=2, equal_rewards="drop") as collector,
        ):
            return [g.task.id async for g in collector.groups(wanted=5)], collector.counts

    ids, counts = asyncio.run(go())
    assert len(ids) == 5
    assert all(int(name[1:]) % 2 for name in ids)
    assert counts.given == 5
    assert counts.dropped_equal >= 4
    assert counts.drawn == counts.given + counts.dropped_equal + counts.open <= 20


def test_drawing_is_bounded_and_too_few_is_an_exception() -> None:
    async def go() -> GroupCounts:
        async with (
            Endpoint() as endpoint,
            Collector(Parity(), endpoint.url, samples=2, equal_rewards="drop") as collector,
        ):
            with pytest.raises(Shortfall, match="5 groups were requested, and 3 of 6 collected were usable") as caught:
                [g async for g in collector.groups(wanted=5, at_most=6)]
            assert (caught.value.requested, caught.value.scored) == (10, 6)
            return collector.counts

    assert msgspec.structs.asdict(asyncio.run(go())) | {"scored": 12, "retried": 0} == {
        **msgspec.structs.asdict(GroupCounts(drawn=6, given=3, dropped_equal=3)),
        "scored": 12,
    }


@pytest.mark.parametrize("wrong", [{"wanted": 0}, {"wanted": 2, "at_most": 0}])
def test_a_number_of_groups_is_at_least_one(wrong: dict[str, int]) -> None:
    async def go() -> None:
        await anext(Collector(Parity(), "http://localhost:1/v1", samples=2).groups(**wrong))

    with pytest.raises(UsageError, match="from 1 on"):
        asyncio.run(go())


def test_a_version_that_comes_back_makes_those_between_older() -> None:
    async def go() -> list[int]:
        async with Endpoint() as endpoint, Collector(Parity(), endpoint.url, samples=2) as collector:
            ages = []
            for version in ("a", "b", "b", "a"):
                collector.resume(version)
                ages.append(collector._staleness(Group(Task("t", "?"), [stamped("b")])))
            return ages

    assert asyncio.run(go()) == [1, 0, 0, 1]


def stamped(version: str) -> Rollout:
    return Rollout(task=Task("t", "?"), sample=0, seed=0, turns=[Turn(model_version=version)], score=Score(1.0))


def test_groups_that_waited_through_too_many_updates_are_dropped() -> None:
    async def go() -> tuple[list[str | None], GroupCounts]:
        async with (
            Endpoint() as endpoint,
            Collector(Parity(), endpoint.url, samples=2, window=3, concurrency=4, max_staleness=1) as collector,
        ):
            versions = []
            collector.resume("v1")
            async for group in collector.groups(wanted=8):
                versions.append(group.rollouts[0].turns[0].model_version)
                if len(versions) <= 3:  # others have ended meanwhile, or are under way, with the weights of before
                    await asyncio.sleep(0.2)
                    await collector.pause()
                    collector.resume(f"v{1 + len(versions)}")
            return versions, collector.counts

    versions, counts = asyncio.run(go())
    assert counts.given == 8
    newest = 1
    for place, version in enumerate(versions):
        assert version is not None
        assert newest - int(version[1:]) <= 1
        newest = min(place + 2, 4)
