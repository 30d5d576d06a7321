"""The Collector: complete groups, streamed, bounded, paused, versioned, cancelled without a trace."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from rollbook import Collector, Environment, Rollout, Shortfall, Task
from rollbook.agents import EnvironmentAccess
from rollbook.book import Book, read_status, rollouts
from rollbook.core import Group, ModelSpec, Sampling, Score, Turn
from rollbook.engine.book_worker import BookJobSource
from rollbook.engine.collector import PausableModel
from rollbook.engine.progress import SilentDisplay
from rollbook.engine.runs import extend
from rollbook.errors import BookUnwritable, EndpointDown, Stopped, UsageError
from rollbook.models import AskModel
from rollbook.tokens import batch, merge
from support.alive import eventually, open_fds
from support.endpoint import Endpoint
from support.sums import SUMS, write_script, write_sums


class Sums(Environment):
    """Async, so that it may live in a test."""

    def __init__(self) -> None:
        self.verified = 0

    def tasks(self) -> Iterator[Task]:
        return (Task(id=f"sum-{i}", prompt=f"What is {i} + {i}?", answer=str(2 * i)) for i in range(6))

    async def verify(self, task: Task, rollout: Rollout) -> bool:
        self.verified += 1
        return rollout.text.strip().endswith(task.answer)


def test_groups_come_complete_and_in_the_order_of_their_samples(tmp_path: Path) -> None:
    async def go() -> dict[str, list[int]]:
        async with Collector(write_sums(tmp_path), write_script(tmp_path), samples=4) as collector:
            return {g.task.id: [r.sample for r in g.rollouts] async for g in collector.groups()}

    groups = asyncio.run(go())
    assert groups == {f"sum-{i}": [0, 1, 2, 3] for i in range(10)}


def test_tasks_may_be_given_in_any_kind_of_iterable(tmp_path: Path) -> None:
    async def later() -> AsyncIterator[Task]:
        for i in range(3):
            await asyncio.sleep(0.01)
            yield Task(id=f"x{i}", prompt=f"What is {i} + {i}?", answer=str(2 * i))

    async def go() -> tuple[set[str], set[str]]:
        async with Collector(write_sums(tmp_path), write_script(tmp_path, right=4), samples=2) as collector:
            streamed = {g.task.id async for g in collector.groups(later())}
            listed = {g.task.id async for g in collector.groups([Task(id="y", prompt="What is 1 + 1?", answer="2")])}
            return streamed, listed

    assert asyncio.run(go()) == ({"x0", "x1", "x2"}, {"y"})


def test_a_task_asked_again_gets_new_samples_and_seeds(tmp_path: Path) -> None:
    task = Task(id="y", prompt="What is 1 + 1?", answer="2")

    async def go(**more: object) -> list[list[tuple[int, int]]]:
        async with Collector(write_sums(tmp_path), write_script(tmp_path), samples=2, **more) as collector:  # type: ignore[arg-type]
            seen = []
            for _ in range(2):
                async for group in collector.groups([task]):
                    seen.append([(r.sample, r.seed) for r in group.rollouts])
            return seen

    in_memory = asyncio.run(go())
    assert [sample for group in in_memory for sample, _ in group] == [0, 1, 2, 3]
    assert len({seed for group in in_memory for _, seed in group}) == 4
    assert asyncio.run(go(book=tmp_path / "run")) == in_memory


def test_a_group_that_cannot_be_complete_is_an_exception_never_a_short_group(tmp_path: Path) -> None:
    broken = SUMS.replace("        return roll", "        assert task.id != 'sum-2'\n        return roll")

    async def go() -> list[str]:
        seen = []
        async with Collector(write_sums(tmp_path, broken), write_script(tmp_path), samples=2) as collector:
            async for group in collector.groups():
                seen.append(group.task.id)
        return seen

    with pytest.raises(Shortfall, match="verifier_error") as caught:
        asyncio.run(go())
    assert [key[:2] for key in caught.value.missing] == [("sum-2", 0), ("sum-2", 1)]


def test_with_a_book_every_group_is_durable_before_it_is_handed_out(tmp_path: Path) -> None:
    async def go() -> None:
        run = tmp_path / "run"
        async with Collector(write_sums(tmp_path), write_script(tmp_path), samples=3, book=run) as collector:
            async for group in collector.groups():
                on_disk = {r.key for r in rollouts(Book(run))}
                assert {r.key for r in group.rollouts} <= on_disk

    asyncio.run(go())
    status = read_status(tmp_path / "run")
    assert (status.requested, status.scored, status.state) == (30, 30, "finished")


def test_exact_tokens_reach_a_training_batch() -> None:
    async def go() -> list[Rollout]:
        async with (
            Endpoint(vllm=True) as endpoint,
            Collector(Sums(), endpoint.url, samples=2, concurrency=4) as collector,
        ):
            return [r async for g in collector.groups() for r in g.rollouts]

    found = asyncio.run(go())
    assert len(found) == 12
    sequences = [s for r in found for s in merge(r.turns)]
    assert all(s.response_ids == r.turns[0].ids for s, r in zip(sequences, found, strict=True))
    for back, sequence in zip(batch(sequences, pad_id=0).sequences(), sequences, strict=True):
        assert (back.prompt_ids, back.response_ids, back.mask) == (
            sequence.prompt_ids,
            sequence.response_ids,
            sequence.mask,
        )
        assert back.logprobs == pytest.approx(sequence.logprobs, rel=1e-6)


def test_what_is_not_taken_holds_the_rest_back() -> None:
    async def go() -> int:
        begun = 0

        def endless() -> Iterator[Task]:
            nonlocal begun
            for i in range(10**9):
                begun += 1
                yield Task(id=f"t{i}", prompt="What is 1 + 1?", answer="2")

        async with Endpoint() as endpoint, Collector(Sums(), endpoint.url, samples=2, window=3) as collector:
            stream = collector.groups(endless())
            await anext(stream)
            await asyncio.sleep(0.5)
            await stream.aclose()
        return begun

    assert asyncio.run(go()) <= 5


def test_pause_lets_no_call_through_and_versions_are_stamped() -> None:
    async def go() -> tuple[int, int, set[str | None]]:
        async with (
            Endpoint("slow", delay_s=0.02) as endpoint,
            Collector(Sums(), endpoint.url, samples=8, concurrency=4, window=100) as collector,
        ):
            collector.resume("v1")
            stream = collector.groups()
            versions = {r.turns[0].model_version for r in (await anext(stream)).rollouts}
            await collector.pause()
            before = len(endpoint.bodies)
            await asyncio.sleep(0.3)
            during = len(endpoint.bodies) - before
            collector.resume("v2")
            async for group in stream:
                versions |= {r.turns[0].model_version for r in group.rollouts}
            return during, before, versions

    during, before, versions = asyncio.run(go())
    assert during == 0
    assert before < 48
    assert versions == {"v1", "v2"}


class Twice:
    """Asks twice, and lets the weights change in between."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()

    async def play(self, rollout: Rollout, ask: AskModel, world: EnvironmentAccess) -> None:
        for _ in range(2):
            completion = await ask(rollout.messages)
            rollout.messages = [*rollout.messages, completion.message]
            rollout.turns.append(completion.turn)
            self.reached.set()
            await self.go_on.wait()


@pytest.mark.parametrize(("across", "versions"), [("allow", ["v1", "v2"]), ("restart", ["v2", "v2"])])
def test_a_rollout_across_two_versions_is_allowed_or_restarted(across: str, versions: list[str]) -> None:
    async def go() -> list[str | None]:
        agent = Twice()
        async with (
            Endpoint() as endpoint,
            Collector(Sums(), endpoint.url, agent=agent, across_versions=across, concurrency=1) as collector,  # type: ignore[arg-type]
        ):
            collector.resume("v1")
            stream = collector.groups([Task(id="a", prompt="What is 1 + 1?", answer="2")])
            taking = asyncio.ensure_future(anext(stream))
            await asyncio.wait_for(agent.reached.wait(), 10)
            await collector.pause()
            collector.resume("v2")
            agent.go_on.set()
            (rollout,) = (await taking).rollouts
            assert rollout.attempt == 1
            return [t.model_version for t in rollout.turns]

    assert asyncio.run(go()) == versions


def test_cancellation_leaves_nothing_running(tmp_path: Path) -> None:
    before = open_fds()

    async def go() -> None:
        async with Endpoint("hang") as endpoint:

            async def collect() -> None:
                async with Collector(write_sums(tmp_path), endpoint.url, samples=2) as collector:
                    async for _ in collector.groups():
                        pass

            work = asyncio.create_task(collect())
            await asyncio.sleep(1.0)
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            left = [t.get_name() for t in asyncio.all_tasks() if t.get_name() in ("collector", "journal", "heartbeat")]
            assert left == []

    asyncio.run(go())
    assert eventually(lambda: len(open_fds()) <= len(before) + 1)


def test_closing_the_collector_under_a_reader_is_an_exception_not_an_end() -> None:
    async def go() -> None:
        async with Endpoint("slow", delay_s=0.1) as endpoint:
            collector = Collector(Sums(), endpoint.url, samples=2, concurrency=1)
            async with collector:
                stream = collector.groups()
                await anext(stream)
                reading = asyncio.ensure_future(anext(stream))
                await asyncio.sleep(0.05)
            with pytest.raises(Stopped, match="closed while"):
                await reading

    asyncio.run(go())


def test_a_dead_endpoint_ends_the_stream_with_an_exception() -> None:
    async def go() -> None:
        async with Endpoint() as endpoint, Collector(Sums(), endpoint.url, outage_s=1.0) as collector:
            await endpoint.switch("refuse")
            async for _ in collector.groups():
                pass

    with pytest.raises(EndpointDown):
        asyncio.run(go())


def test_nonsense_is_refused() -> None:
    with pytest.raises(UsageError, match="across_versions"):
        Collector(Sums(), across_versions="never")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="samples"):
        Collector(Sums(), samples=0)


def test_a_task_that_comes_twice_in_one_stream_is_two_groups_in_a_book_too(tmp_path: Path) -> None:
    task, other = (Task(id=f"y{i}", prompt="What is 1 + 1?", answer="2") for i in (1, 2))

    async def go() -> list[tuple[str, list[int]]]:
        seen = []
        async with Collector(
            write_sums(tmp_path), write_script(tmp_path), samples=2, book=tmp_path / "run"
        ) as collector:
            for tasks in ([task, task, other], [task, task]):
                async for group in collector.groups(tasks):
                    seen.append((group.task.id, [r.sample for r in group.rollouts]))
        return seen

    assert sorted(asyncio.run(go())) == [("y1", [i, i + 1]) for i in (0, 2, 4, 6)] + [("y2", [0, 1])]
    status = read_status(tmp_path / "run")
    assert (status.requested, status.scored, status.pending) == (10, 10, 0)
    assert extend(tmp_path / "run", 8, {}, SilentDisplay()).report.scored == 16


def test_an_id_with_other_content_is_refused_in_a_book(tmp_path: Path) -> None:
    async def go() -> None:
        async with Collector(write_sums(tmp_path), write_script(tmp_path), book=tmp_path / "run") as collector:
            for answer in ("2", "3"):
                async for _ in collector.groups([Task(id="x", prompt="What is 1 + 1?", answer=answer)]):
                    pass

    with pytest.raises(UsageError, match="different content"):
        asyncio.run(go())


def test_a_book_has_one_stream_at_a_time(tmp_path: Path) -> None:
    async def go() -> None:
        async with Collector(write_sums(tmp_path), write_script(tmp_path), book=tmp_path / "run") as collector:
            first = collector.groups()
            await anext(first)
            await anext(collector.groups())

    with pytest.raises(UsageError, match="one stream"):
        asyncio.run(go())


def test_leaving_in_the_middle_leaves_nothing_running(tmp_path: Path) -> None:
    async def go() -> list[str]:
        script = write_script(tmp_path, delay_s=0.05)
        async with Collector(write_sums(tmp_path), script, samples=2, book=tmp_path / "run") as collector:
            async for _ in collector.groups():
                break
        return [t.get_name() for t in asyncio.all_tasks() if t is not asyncio.current_task()]

    names = asyncio.run(go())
    assert not set(names) & {"collector", "heartbeat", "seal", "journal"}


def test_of_two_streams_of_a_book_that_begin_at_once_one_is_refused(tmp_path: Path) -> None:
    async def go() -> list[object]:
        async with Collector(write_sums(tmp_path), write_script(tmp_path), book=tmp_path / "run") as collector:
            streams = [collector.groups() for _ in range(2)]
            return await asyncio.gather(*map(anext, streams), return_exceptions=True)

    assert [isinstance(came, UsageError) for came in asyncio.run(go())] == [False, True]


def test_a_last_word_that_cannot_be_written_ends_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: BookJobSource) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(BookJobSource, "_write_departure", full)

    async def go() -> None:
        async with (
            asyncio.timeout(30),
            Collector(write_sums(tmp_path), write_script(tmp_path), book=tmp_path / "run") as collector,
        ):
            async for _ in collector.groups():
                pass

    with pytest.raises(BookUnwritable, match="No space left"):
        asyncio.run(go())


def test_the_samples_of_a_group_go_to_one_replica() -> None:
    async def go() -> list[set[str]]:
        async with Endpoint(delay_s=0.05) as a, Endpoint(delay_s=0.05) as b:
            async with Collector(Sums(), [a.url, b.url], model_name="mock", samples=4, concurrency=8) as collector:
                assert len([group async for group in collector.groups()]) == 6
            return [{body["messages"][-1]["content"] for body in endpoint.bodies} for endpoint in (a, b)]

    one, other = asyncio.run(go())
    assert one
    assert other
    assert not one & other


class Called:
    """A model that keeps what is asked of it."""

    def __init__(self) -> None:
        self.spec, self.version, self.wire_names = ModelSpec("toy"), None, {"max_tokens": "n"}
        self.tokens = True
        self.calls: list[str] = []
        self.gate = asyncio.Event()

    async def open(self) -> None:
        self.calls.append("open")
        self.spec = ModelSpec("opened")

    async def close(self) -> None:
        self.calls.append("close")

    def stop_waiting(self) -> None:
        self.calls.append("stop waiting")

    def describe_outage(self) -> str:
        return "down"

    async def complete(self, *_: object, **__: object) -> str:
        self.calls.append("complete")
        await self.gate.wait()
        return "completion"

    async def complete_from(self, *_: object, **__: object) -> str:
        self.calls.append("continue")
        await self.gate.wait()
        return "continued"


def test_a_pausable_model_passes_on_what_it_is_asked() -> None:
    async def go() -> None:
        own = Called()
        model = PausableModel(own)  # type: ignore[arg-type]
        await model.open()
        assert (model.spec.name, model.tokens, model.wire_names) == ("opened", True, {"max_tokens": "n"})
        assert model.describe_outage() == "down"
        model.stop_waiting()
        model.version = "v2"
        assert (own.version, model.version) == ("v2", "v2")
        own.gate.set()
        assert await model.complete([], Sampling()) == "completion"  # type: ignore[comparison-overlap, typeddict-item]
        assert await model.complete_from(None, [], Sampling()) == "continued"  # type: ignore[arg-type, comparison-overlap, typeddict-item]
        await model.close()
        assert own.calls == ["open", "stop waiting", "complete", "continue", "close"]
        own.tokens = False
        assert model.tokens is False

    asyncio.run(go())


def test_a_pause_waits_for_every_call_and_says_how_many_did_not_end() -> None:
    async def go() -> None:
        own = Called()
        model = PausableModel(own)  # type: ignore[arg-type]
        await model.pause(0.05)  # nothing is in progress
        model.resume()
        calls = [asyncio.create_task(model.complete([], Sampling())) for _ in range(2)]  # type: ignore[typeddict-item]
        await asyncio.sleep(0)
        with pytest.raises(Stopped, match=r"^2 model calls did not end within 0\.05 s of the pause$"):
            await model.pause(0.05)
        later = asyncio.create_task(model.complete([], Sampling()))  # type: ignore[typeddict-item]
        await asyncio.sleep(0.01)
        assert own.calls == ["complete"] * 2
        own.gate.set()
        await asyncio.gather(*calls)
        await model.pause(0.05)
        assert not later.done()
        model.resume()
        assert await later == "completion"  # type: ignore[comparison-overlap]

    asyncio.run(asyncio.wait_for(go(), 10))


def test_what_was_opened_is_closed_if_opening_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    async def close(self: PausableModel) -> None:
        closed.append(self.spec.name)

    async def go() -> None:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "file").touch()
        async with Collector(write_sums(tmp_path), write_script(tmp_path), book=tmp_path / "run"):
            pass

    monkeypatch.setattr(PausableModel, "close", close)
    with pytest.raises(UsageError, match="is not empty"):
        asyncio.run(go())
    assert len(closed) == 1


def test_a_stream_that_has_ended_leaves_nothing_in_the_collector(tmp_path: Path) -> None:
    async def go() -> None:
        async with Collector(write_sums(tmp_path), write_script(tmp_path), samples=2) as collector:
            for _ in range(2):
                assert len([group async for group in collector.groups(at_most=3)]) == 3
                assert (collector._streams, collector._work_tasks) == (set(), set())
                assert "collector" not in {task.get_name() for task in asyncio.all_tasks()}
            async with aclosing(collector.groups()) as groups:  # type: ignore[type-var]
                await anext(groups)
                assert "collector" in {task.get_name() for task in asyncio.all_tasks()}
            assert "collector" not in {task.get_name() for task in asyncio.all_tasks()}
            assert collector.counts.drawn >= 7

    asyncio.run(go())


def test_too_few_groups_are_a_shortfall_that_counts_them(tmp_path: Path) -> None:
    async def go(**asked: int) -> list[str]:
        async with Collector(
            write_sums(tmp_path), write_script(tmp_path), samples=2, equal_rewards="drop", concurrency=1, window=1
        ) as collector:
            return [group.task.id async for group in collector.groups(**asked)]

    for asked, drawn in (({"wanted": 3, "at_most": 5}, 5), ({"wanted": 2}, 8), ({"wanted": 9}, 10)):
        with pytest.raises(Shortfall) as caught:
            asyncio.run(go(**asked))
        assert (caught.value.requested, caught.value.scored) == (2 * asked["wanted"], 0)
        assert f"{asked['wanted']} groups were requested, and 0 of {drawn} collected were usable" in str(caught.value)
    assert asyncio.run(go(at_most=2)) == []
    for name in ("wanted", "at_most"):
        with pytest.raises(UsageError, match=f"^{name}=0: give a number of groups from 1 on$"):
            asyncio.run(go(**{name: 0}))


@pytest.mark.parametrize(
    ("settings", "window"),
    [
        ({"concurrency": 8, "samples": 1}, 16),
        ({"concurrency": 8, "samples": 3}, 6),
        ({"concurrency": 1, "samples": 9}, 2),
        ({"concurrency": "auto", "samples": 4}, 128),
    ],
)
def test_the_window_holds_twice_what_is_in_flight(tmp_path: Path, settings: dict[str, Any], window: int) -> None:
    async def go() -> int:
        async with Collector(write_sums(tmp_path), write_script(tmp_path), **settings) as collector:
            return collector._default_window()

    assert asyncio.run(go()) == window


def test_the_age_of_a_version_is_how_many_came_after_it(tmp_path: Path) -> None:
    async def go() -> None:
        async with Collector(write_sums(tmp_path), write_script(tmp_path), samples=1) as collector:

            def age(*versions: str | None) -> int:
                task = Task(id="t", prompt="?")
                turns = [Turn(model_version=version) for version in versions]
                return collector._staleness(
                    Group(task, [Rollout(task=task, sample=0, seed=0, turns=turns, score=Score(1.0))])
                )

            assert age(None) == age() == 0
            for version in ("a", "b", "b", None):
                collector.resume(version)
            assert [age(None), age("a"), age("b"), age("b", "a")] == [2, 1, 0, 1]
            collector.resume("a")
            assert [age(None), age("a"), age("b")] == [3, 0, 1]

    asyncio.run(go())


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"across_versions": "never"}, "across_versions='never': allow or restart"),
        ({"window": 0}, "window=0: give a number of groups from 1 on"),
        ({"equal_rewards": "drop", "samples": 1}, "samples=1: one reward is always equal; give samples >= 2"),
    ],
)
def test_a_wrong_parameter_is_one_line(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Collector("sums", **wrong)


def test_a_collector_that_is_not_open_gives_no_groups(tmp_path: Path) -> None:
    async def go() -> None:
        collector = Collector(write_sums(tmp_path), write_script(tmp_path))
        for opened in (False, True):
            if opened:
                async with collector:
                    pass
            for tasks in (None, [Task(id="t", prompt="?")]):
                with pytest.raises(UsageError, match="the collector is not open: use it in `async with`"):
                    await anext(collector.groups(tasks))

    asyncio.run(go())


def test_what_is_no_task_is_refused(tmp_path: Path) -> None:
    async def go() -> None:
        async with Collector(write_sums(tmp_path), write_script(tmp_path)) as collector:
            with pytest.raises(UsageError, match=r"groups\(\) was given a str, not a Task"):
                await anext(collector.groups(["sum-1"]))  # type: ignore[list-item]

    asyncio.run(go())


@pytest.mark.parametrize("more", [{"equal_rewards": "drop", "samples": 2}, {"window": 1}])
def test_the_smallest_parameters_that_make_sense_are_accepted(tmp_path: Path, more: dict[str, Any]) -> None:
    async def go() -> int:
        async with Collector(write_sums(tmp_path), write_script(tmp_path, right=4), **more) as collector:
            return len([group async for group in collector.groups(wanted=1, at_most=1)])

    if "equal_rewards" in more:
        with pytest.raises(Shortfall, match="1 groups were requested, and 0 of 1 collected were usable"):
            asyncio.run(go())
    else:
        assert asyncio.run(go()) == 1
