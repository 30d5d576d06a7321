"""The Collector: complete groups, streamed, bounded, paused, versioned, cancelled without a trace."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from rollbook import Collector, Environment, Rollout, Shortfall, Task
from rollbook.agents import EnvironmentAccess
from rollbook.book import Book, read_status, rollouts
from rollbook.engine.book_worker import BookJobSource
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
