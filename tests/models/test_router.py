import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest

from rollbook.core import Message, ModelSpec, Sampling, Settings
from rollbook.errors import EndpointDown, RolloutFailed
from rollbook.models import replica_choice, router
from rollbook.models.chat import ChatModel
from support.endpoint import Endpoint

ASK = [Message("user", "What is 1 + 2?")]


@asynccontextmanager
async def opened(*endpoints: Endpoint, **changes: Any) -> AsyncIterator[ChatModel]:
    settings = Settings(urls=[e.url for e in endpoints], **{"outage_s": 20.0, "call_s": 5.0, **changes})
    model = ChatModel(ModelSpec("mock"), settings)
    await model.open()
    try:
        yield model
    finally:
        await model.close()
        assert [
            task for task in asyncio.all_tasks() if router.Router._probe_until_healthy.__qualname__ in repr(task)
        ] == []


async def ask(model: ChatModel, rollout: str = "t#0") -> str:
    return (await model.complete(ASK, Sampling(), seed=1, rollout=rollout)).turn.finish_reason


async def outcomes(model: ChatModel, calls: int) -> Counter[str]:
    async def one(i: int) -> str:
        try:
            return await ask(model, f"t{i}#0")
        except RolloutFailed as error:
            return error.kind

    return Counter(await asyncio.gather(*(one(i) for i in range(calls))))


def test_calls_go_to_the_least_loaded_replica() -> None:
    async def main() -> None:
        async with Endpoint(delay_s=0.2) as a, Endpoint(delay_s=0.2) as b, opened(a, b) as model:
            await outcomes(model, 20)
            assert (a.counts["chat"], b.counts["chat"]) == (10, 10)

    asyncio.run(main())


def test_a_rollout_stays_on_its_replica() -> None:
    async def main() -> None:
        async with Endpoint() as a, Endpoint() as b, opened(a, b) as model:
            busy = [asyncio.create_task(ask(model, f"other{i}#0")) for i in range(3)]
            for _ in range(6):
                await ask(model, "mine#0")
            await asyncio.gather(*busy)
            assert sorted((a.counts["chat"], b.counts["chat"])) in ([1, 8], [2, 7])

    asyncio.run(main())


def test_the_memory_of_rollouts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_choice, "MAX_REMEMBERED", 5)

    async def main() -> None:
        async with Endpoint() as a, Endpoint() as b, opened(a, b) as model:
            await outcomes(model, 20)
            assert model._router is not None
            assert len(model._router._chooser._by_rollout) == 5

    asyncio.run(main())


def test_a_replica_that_is_refused_is_left_alone_and_comes_back() -> None:
    async def main() -> None:
        async with Endpoint() as a, Endpoint() as b, opened(a, b) as model:
            await a.switch("refuse")
            lost = 0
            for i in range(20):
                lost += (await outcomes(model, 1))["model_unavailable"]
                assert i < 19 or b.counts["ok"] >= 17
            assert lost <= 2
            await a.switch("ok")
            before = a.counts["ok"]
            deadline = time.monotonic() + 8
            for i in count():
                if a.counts["ok"] > before or time.monotonic() > deadline:
                    break
                await asyncio.gather(*(ask(model, f"new-{i}-{j}#0") for j in range(4)))
                await asyncio.sleep(0.05)
            assert a.counts["ok"] > before

    asyncio.run(main())


def test_an_unreachable_replica_at_the_start_does_not_hold_up_the_others() -> None:
    async def main() -> None:
        async with Endpoint("refuse") as a, Endpoint() as b, opened(a, b) as model:
            assert await outcomes(model, 10) == {"stop": 10}
            assert b.counts["ok"] == 10

    asyncio.run(main())


def test_while_nobody_is_well_callers_wait_and_lose_no_attempt() -> None:
    async def main() -> None:
        async with Endpoint() as endpoint, opened(endpoint) as model:
            await endpoint.switch("gone", seconds=1.5)
            with pytest.raises(RolloutFailed):
                await ask(model)
            started = time.monotonic()
            assert await outcomes(model, 30) == {"stop": 30}
            assert 0.5 < time.monotonic() - started < 8

    asyncio.run(main())


def test_after_the_outage_allowance_every_waiter_is_told() -> None:
    async def main() -> None:
        async with Endpoint() as endpoint, opened(endpoint, outage_s=1.0) as model:
            await endpoint.switch("refuse")
            with pytest.raises(RolloutFailed):
                await ask(model)
            started = time.monotonic()
            waiters = await asyncio.gather(*(ask(model, f"t{i}#0") for i in range(10)), return_exceptions=True)
            assert [type(w) for w in waiters] == [EndpointDown] * 10
            assert "connection refused" in str(waiters[0])
            assert 0.5 < time.monotonic() - started < 3

    asyncio.run(main())


def test_three_failures_running_take_a_replica_out_and_a_call_on_trial_lets_it_in() -> None:
    async def main() -> None:
        async with Endpoint("500", models="ok") as endpoint, opened(endpoint) as model:
            for _ in range(3):
                with pytest.raises(RolloutFailed):
                    await ask(model)
            waiting = asyncio.create_task(outcomes(model, 20))
            await asyncio.sleep(1.0)
            # Probes are answered, yet only trials were sent: a handful, and none of the twenty lost an attempt.
            assert 1 <= endpoint.counts["500"] - 3 <= 3
            assert not waiting.done()
            await endpoint.switch("ok")
            assert await asyncio.wait_for(waiting, 8) == {"stop": 20}

    asyncio.run(main())


def test_an_endpoint_that_refuses_every_call_is_an_outage_too() -> None:
    async def main() -> None:
        async with Endpoint("429", models="ok", retry_after="0") as endpoint, opened(endpoint, outage_s=1.5) as model:
            for _ in range(3):
                with pytest.raises(RolloutFailed):
                    await ask(model)
            with pytest.raises(EndpointDown, match="slow down"):
                await ask(model)

    asyncio.run(main())


def test_time_in_which_nobody_asks_is_no_outage() -> None:
    async def main() -> None:
        async with Endpoint("500", models="ok", times=4) as endpoint, opened(endpoint, outage_s=3.0) as model:
            for _ in range(3):
                with pytest.raises(RolloutFailed):
                    await ask(model)
            await asyncio.sleep(3.5)
            assert await ask(model) == "stop", "one more 500 is one more trial, not the end"

    asyncio.run(main())


def test_a_success_between_failures_keeps_a_replica_in() -> None:
    async def main() -> None:
        async with Endpoint() as endpoint, opened(endpoint, outage_s=0.2) as model:
            for _ in range(3):
                for _ in range(2):
                    await endpoint.switch("500", models="ok", times=1)
                    with pytest.raises(RolloutFailed):
                        await ask(model)
                assert await ask(model) == "stop"

    asyncio.run(main())


def test_a_trial_that_runs_long_does_not_keep_the_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "TRIAL_S", 0.3)

    async def main() -> None:
        async with Endpoint("500", models="ok", times=3) as endpoint, opened(endpoint) as model:
            assert await outcomes(model, 3) == {"model_unavailable": 3}
            endpoint.delay_s = 2.0
            started = time.monotonic()
            assert await outcomes(model, 10) == {"stop": 10}
            assert time.monotonic() - started < 3.8

    asyncio.run(main())


def test_a_trial_that_is_cancelled_passes_to_the_next() -> None:
    async def main() -> None:
        async with Endpoint("500", models="ok", times=3) as endpoint, opened(endpoint) as model:
            await outcomes(model, 3)
            await endpoint.switch("hang", models="ok", times=1)
            trial = asyncio.create_task(ask(model))
            while not endpoint.counts["hang"]:
                await asyncio.sleep(0.02)
            other = asyncio.create_task(ask(model, "other#0"))
            await asyncio.sleep(0.05)
            assert not other.done()
            trial.cancel()
            assert await asyncio.wait_for(other, 3) == "stop"

    asyncio.run(main())


def test_a_trial_that_is_cancelled_proves_nothing() -> None:
    async def main() -> None:
        async with Endpoint("500", models="ok", times=3) as endpoint, opened(endpoint) as model:
            await outcomes(model, 3)
            await endpoint.switch("hang", models="ok", times=10)
            for trials in (1, 2):  # the next call is a trial again, and alone
                calls = [asyncio.create_task(ask(model, f"t{i}#0")) for i in range(3)]
                while endpoint.counts["hang"] < trials:
                    await asyncio.sleep(0.02)
                await asyncio.sleep(0.1)
                assert endpoint.counts["hang"] == trials
                for call in calls[::-1]:
                    call.cancel()
                await asyncio.gather(*calls, return_exceptions=True)

    asyncio.run(main())


def test_a_hung_server_is_an_outage_but_a_slow_one_is_not() -> None:
    async def main() -> None:
        async with Endpoint("hang", models="ok") as endpoint, opened(endpoint, call_s=0.2, outage_s=1.0) as model:
            for _ in range(5):
                assert await outcomes(model, 1) == {"model_timeout": 1}
            await endpoint.switch("hang")
            with pytest.raises(EndpointDown, match="no answer"):  # noqa: PT012
                for _ in range(5):
                    await outcomes(model, 1)

    asyncio.run(main())


def test_a_server_that_comes_back_with_another_model_is_not_asked() -> None:
    async def main() -> None:
        async with Endpoint() as endpoint, opened(endpoint, outage_s=1.0) as model:
            await endpoint.switch("refuse")
            await outcomes(model, 1)
            await endpoint.switch("ok", names=("another",))
            with pytest.raises(EndpointDown, match="does not serve 'mock'"):
                await ask(model)

    asyncio.run(main())
