"""The completion that is asked of every replica before a run: what it accepts, waits for and refuses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from rollbook.core import ModelSpec, Sampling, Settings
from rollbook.errors import RolloutFailed, UsageError
from rollbook.models import probe as module
from rollbook.models import probe_endpoint
from rollbook.models.probe import ReplicaFault
from support.endpoint import Endpoint


async def probe(*endpoints: Endpoint, wait_s: float = 0.0, name: str = "mock", **changes: Any) -> list[str]:
    """Probe endpoints; return what was reported meanwhile."""
    reports: list[str] = []
    settings = Settings(urls=[each.url for each in endpoints], **{"call_s": 5.0, **changes})
    found = await probe_endpoint(
        ModelSpec(name), settings, Sampling(max_tokens=1024), wait_s=wait_s, say=reports.append
    )
    assert found.spec.name == "mock"
    return reports


async def refuse(*endpoints: Endpoint, **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        await probe(*endpoints, **options)
    return str(caught.value)


def test_one_short_completion_is_asked_for() -> None:
    async def main() -> None:
        async with Endpoint() as endpoint:
            assert await probe(endpoint) == []
            assert [body["max_tokens"] for body in endpoint.bodies] == [16]

    asyncio.run(main())


def test_the_served_name_is_found_out() -> None:
    async def main() -> None:
        async with Endpoint() as endpoint:
            await probe(endpoint, name="")

    asyncio.run(main())


@pytest.mark.parametrize("mode", ["429", "thinks", "context"])
def test_a_server_that_is_busy_or_out_of_tokens_works(mode: str) -> None:
    async def main() -> None:
        async with Endpoint(mode) as endpoint:
            assert await probe(endpoint) == []

    asyncio.run(main())


@pytest.mark.parametrize(("mode", "times", "calls"), [("empty", 2, 3), ("500", 1, 2)])
def test_a_bad_answer_is_asked_again(mode: str, times: int, calls: int) -> None:
    async def main() -> None:
        async with Endpoint(mode, models="ok", times=times) as endpoint:
            await probe(endpoint)
            assert endpoint.counts["chat"] == calls

    asyncio.run(main())


@pytest.mark.parametrize(
    ("mode", "message", "calls"),
    [
        ("401", "HTTP 401: bad key; set OPENAI_API_KEY to the key", 3),
        ("400", "temperature must be non-negative", 1),
        ("empty", "an answer without choices", 3),
        ("redirect", "HTTP 308", 1),
    ],
)
def test_an_endpoint_that_refuses_is_named_with_the_cause(mode: str, message: str, calls: int) -> None:
    async def main() -> None:
        async with Endpoint(mode, models="ok") as endpoint:
            error = await refuse(endpoint)
            assert message in error
            assert error.count(endpoint.url) == 1
            assert endpoint.counts["chat"] == calls

    asyncio.run(main())


def make_ready(endpoint: Endpoint, **settings: Any) -> Callable[[], None]:
    return lambda: vars(endpoint).update(settings)


def test_a_proxy_that_lists_no_models_yet_is_waited_for() -> None:
    async def main() -> None:
        async with Endpoint("ok", models="404") as endpoint:
            asyncio.get_running_loop().call_later(0.7, make_ready(endpoint, models="ok"))
            await probe(endpoint, wait_s=20, name="")
            assert endpoint.counts["models"] >= 2

    asyncio.run(main())


def test_a_proxy_that_knows_no_path_yet_is_waited_for() -> None:
    async def main() -> None:
        async with Endpoint("404", models="ok") as endpoint:
            asyncio.get_running_loop().call_later(0.7, make_ready(endpoint, mode="ok"))
            await probe(endpoint, wait_s=20)
            assert endpoint.counts["chat"] >= 2

    asyncio.run(main())


@pytest.mark.parametrize(("mode", "models"), [("404", "ok"), ("ok", "404")])
def test_without_a_wait_it_is_refused_at_once(mode: str, models: str) -> None:
    async def main() -> None:
        async with Endpoint(mode, models=models) as endpoint:
            assert "HTTP 404" in await refuse(endpoint, name="")
            assert endpoint.counts["models"] == 1

    asyncio.run(main())


def test_a_key_that_is_refused_is_not_waited_for() -> None:
    async def main() -> None:
        async with Endpoint("401", models="ok") as endpoint:
            began = time.monotonic()
            assert "HTTP 401" in await refuse(endpoint, wait_s=60)
            assert time.monotonic() - began < 30

    asyncio.run(main())


@pytest.mark.parametrize(
    ("wait_s", "advice"),
    [(0.0, "start the server first, or wait for one that is starting: --wait 300"), (2.0, "waited 2 s for it")],
)
def test_a_server_that_is_down_is_named_with_what_to_do(wait_s: float, advice: str) -> None:
    async def main() -> None:
        async with Endpoint("refuse") as endpoint:
            error = await refuse(endpoint, wait_s=wait_s)
            assert error.endswith(advice)
            assert endpoint.url in error

    asyncio.run(main())


@pytest.mark.parametrize(("call_s", "wait_s", "seconds"), [(1.0, 0.0, 1), (1.0, 2.0, 2)])
def test_a_server_that_never_answers_is_named_with_how_long_it_was_asked(
    call_s: float, wait_s: float, seconds: int
) -> None:
    async def main() -> None:
        async with Endpoint("hang", models="ok") as endpoint:
            error = await refuse(endpoint, call_s=call_s, wait_s=wait_s)
            assert f"no answer to a first short completion in {seconds} s" in error
            assert "needs --wait 600; --no-probe skips this check" in error

    asyncio.run(main())


def test_a_replica_that_is_down_is_reported_and_not_waited_for_once_another_answers() -> None:
    async def main() -> None:
        async with Endpoint() as good, Endpoint("refuse") as down:
            began = time.monotonic()
            reports = await probe(good, down, wait_s=60)
            assert time.monotonic() - began < 30
            assert reports[-1].startswith(down.url)
            assert reports[-1].endswith("; the other replicas answer")

    asyncio.run(main())


def test_one_wrong_replica_is_a_mistake_although_others_answer() -> None:
    async def main() -> None:
        async with Endpoint() as good, Endpoint("401", models="ok") as wrong:
            error = await refuse(good, wrong)
            assert wrong.url in error
            assert good.url not in error

    asyncio.run(main())


def test_replicas_that_fail_alike_are_told_once_what_to_do() -> None:
    async def main() -> None:
        async with Endpoint("refuse") as one, Endpoint("refuse") as two:
            error = await refuse(one, two)
            assert one.url in error
            assert two.url in error
            assert error.count("--wait 300") == 1

    asyncio.run(main())


def test_replicas_of_different_models_need_a_name() -> None:
    async def main() -> None:
        async with Endpoint() as one, Endpoint(names=("other",)) as two:
            error = await refuse(one, two, name="")
            assert f"{one.url} serves mock, {two.url} serves other; choose the model with --model-name" in error

    asyncio.run(main())


def test_who_waited_long_is_told_to_wait_twice_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollbook.models.probe.LONG_WAIT_S", 1.0)

    async def main() -> None:
        async with Endpoint("hang", models="ok") as endpoint:
            assert "needs --wait 3; " in await refuse(endpoint, call_s=0.5, wait_s=1.5)
            assert "needs --wait 1; " in await refuse(endpoint, call_s=0.5)

    asyncio.run(main())


def test_a_replica_that_is_only_slow_is_no_mistake_where_another_answers() -> None:
    async def main() -> None:
        async with Endpoint() as good, Endpoint("hang", models="ok") as slow:
            reports = await probe(good, slow, call_s=0.5)
            assert reports[-1].startswith(f"{slow.url}: no answer to a first short completion in 0.5 s")

    asyncio.run(main())


def test_a_slow_first_answer_is_reported() -> None:
    async def main() -> None:
        async with Endpoint(delay_s=5.5) as endpoint:
            assert await probe(endpoint, call_s=30.0) == [f"waiting for a first answer of {endpoint.url}"]

    asyncio.run(main())


class Fault:
    """A probe that takes a while, and then finds this."""

    def __init__(self, found: ReplicaFault | None, seconds: float = 0.0) -> None:
        self.found, self.seconds, self.stopped = found, seconds, asyncio.Event()

    def stop_waiting(self) -> None:
        self.stopped.set()

    async def find_fault(self) -> ReplicaFault | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self.seconds):
                await self.stopped.wait()
        return self.found


DOWN, WRONG, ODD = ReplicaFault("down", passing=True), ReplicaFault("wrong"), ReplicaFault("odd")
UNKNOWN = ReplicaFault("", passing=True)


@pytest.mark.parametrize(
    ("probes", "found"),
    [
        ([(None, 0.0), (DOWN, 60.0)], [None, DOWN]),  # one answers: the other one is not waited for
        ([(DOWN, 0.0), (None, 0.1)], [DOWN, None]),
        ([(WRONG, 0.0), (ODD, 0.05)], [WRONG, ODD]),  # another one may be wrong too
        ([(WRONG, 0.0), (DOWN, 60.0)], [WRONG, UNKNOWN]),
        ([(DOWN, 0.0), (DOWN, 0.05)], [DOWN, DOWN]),
    ],
)
def test_a_probe_ends_once_one_replica_is_wrong_and_waits_for_none_once_one_answers(
    monkeypatch: pytest.MonkeyPatch,
    probes: list[tuple[ReplicaFault | None, float]],
    found: list[ReplicaFault | None],
) -> None:
    monkeypatch.setattr(module, "GRACE_S", 1.0)
    assert asyncio.run(asyncio.wait_for(module._probe_all([Fault(*each) for each in probes]), 20)) == found  # type: ignore[misc]


@pytest.mark.parametrize(
    ("status", "message", "works"),
    [
        (429, "slow down", True),
        (429, "no quota", False),
        (429, module.BILLING, False),
        (400, f"it is {module.OUT_OF_TOKENS}", True),
        (400, "odd", False),
        (500, module.OUT_OF_TOKENS, False),
    ],
)
def test_an_endpoint_that_is_busy_takes_the_calls_of_a_run(status: int, message: str, works: bool) -> None:
    assert module._is_working(RolloutFailed("model_unavailable", "model", message, status=status)) is works


@pytest.mark.parametrize(
    ("kind", "status", "tries", "again"),
    [
        ("bad_completion", None, module.TRIES - 1, True),
        ("bad_completion", None, module.TRIES, False),
        ("model_unavailable", 500, 99, True),
        ("model_unavailable", 308, 1, False),
        ("model_unavailable", 429, 1, False),
        ("model_rejected", 400, 1, False),
    ],
)
def test_only_what_another_try_may_change_is_tried_again(
    kind: str, status: int | None, tries: int, again: bool
) -> None:
    assert module._is_worth_another_try(RolloutFailed(kind, "model", "why", status=status), tries) is again


def make_probe(wait_s: float, limit_s: float = 120.0) -> module._Probe:
    model = SimpleNamespace(url="http://host/v1")
    return module._Probe(model, Sampling(), wait_s, limit_s, print)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reasons", "wait_s", "fault"),
    [
        ("check the host", 0.0, ReplicaFault("check the host")),
        ("TLS: odd", 0.0, ReplicaFault("TLS: odd")),
        ("refused", 7.0, ReplicaFault("refused", "waited 7 s for it", passing=True)),
    ],
)
def test_an_outage_that_waiting_does_not_end_is_a_fault(reasons: str, wait_s: float, fault: ReplicaFault) -> None:
    assert make_probe(wait_s)._explain_outage(reasons) == fault


def test_who_did_not_wait_is_told_how_to() -> None:
    fault = make_probe(0.0)._explain_outage("refused")
    assert fault.passing
    assert fault.advice.startswith("start the server first, or wait for one that is starting: ")


@pytest.mark.parametrize(
    ("message", "cause"), [("odd", "http://host/v1: odd"), ("http://host/v1: odd", "http://host/v1: odd")]
)
def test_the_cause_of_a_failure_names_the_endpoint_once(message: str, cause: str) -> None:
    found = make_probe(0.0)._explain_failure(RolloutFailed("model_rejected", "model", message))
    assert found == ReplicaFault(cause)


@pytest.mark.parametrize(
    ("wait_s", "limit_s", "longer"),
    [
        (0.0, 10.0, module.LONG_WAIT_S),
        (0.0, 10 * module.LONG_WAIT_S, module.LONG_WAIT_S),
        (5.0, 10.0, module.LONG_WAIT_S),
        (5.0, 10 * module.LONG_WAIT_S, 20 * module.LONG_WAIT_S),
    ],
)
def test_a_first_answer_that_takes_too_long_needs_a_longer_wait(wait_s: float, limit_s: float, longer: float) -> None:
    found = make_probe(wait_s, limit_s)._explain_failure(RolloutFailed("model_timeout", "model", "late"))
    assert found.passing
    assert found.cause == f"http://host/v1: no answer to a first short completion in {limit_s:g} s"
    assert f"needs --wait {longer:g}; --no-probe skips this check" in found.advice


def test_faults_are_listed_once_with_their_advice_last() -> None:
    faults = [ReplicaFault("a", "wait"), ReplicaFault("b"), ReplicaFault("a", "wait"), ReplicaFault("c", "go")]
    assert module._describe_faults(faults) == "a; b; c; wait; go"
