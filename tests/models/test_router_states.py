"""The states of replicas, with replicas that answer as a test says: taken out, on trial, in use, waited for."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from rollbook.core import Routing
from rollbook.errors import ContextFull, EndpointDown, EndpointRefused, RolloutFailed
from rollbook.models import router as routing
from rollbook.models.outage import IDLE_S, Outage
from rollbook.models.router import Replica, Router, describe_connection_error


class FakeReplica:
    """Fails with `error` while it is set; `reason` is what its probe says."""

    def __init__(self, base: str = "http://a/v1") -> None:
        self.base, self.in_flight, self.calls, self.probes = base, 0, 0, 0
        self.error: Exception | None = None
        self.reason: str | None = None

    async def answer(self) -> str:
        self.calls += 1
        await asyncio.sleep(0)
        if self.error:
            raise self.error
        return self.base


def make_router(*replicas: FakeReplica, outage_s: float = 5.0, way: Routing = "affinity") -> Router:
    async def probe(replica: Replica) -> str | None:
        fake = cast(FakeReplica, replica)
        fake.probes += 1
        return fake.reason

    return Router(cast(list[Replica], list(replicas)), probe, outage_s, way)


async def send(router: Router, rollout: str = "t#0", group: str = "") -> str:
    return await router.send(rollout, cast(Callable[[Replica], Awaitable[str]], FakeReplica.answer), group)


async def fail(router: Router, times: int = 1) -> None:
    for _ in range(times):
        with pytest.raises(RolloutFailed):
            await send(router)


def run(main: Callable[[], Coroutine[Any, Any, None]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "FIRST_PROBE_S", 0.01)
    asyncio.run(asyncio.wait_for(main(), 10))


SERVER_ERROR = RolloutFailed("model_unavailable", "model", "HTTP 500: oops", status=500)


def test_a_lost_connection_is_probed_at_once_and_needs_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        replica = FakeReplica()
        router = make_router(replica)
        replica.error = RolloutFailed("model_unavailable", routing.CONNECT, "refused")
        await fail(router)
        replica.error = None
        assert await asyncio.gather(*(send(router) for _ in range(3))) == [replica.base] * 3
        assert (replica.probes, replica.calls, replica.in_flight) == (1, 4, 0)
        await router.close()

    run(main, monkeypatch)


def test_two_errors_of_a_server_do_not_take_it_out_and_three_do(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        replica = FakeReplica()
        router = make_router(replica)
        replica.error = SERVER_ERROR
        await fail(router, 2)
        replica.error = None
        await send(router)
        replica.error = SERVER_ERROR
        await fail(router, 2)
        assert replica.probes == 0
        await fail(router)
        replica.error = None
        assert await send(router) == replica.base
        assert replica.probes == 1
        await router.close()

    run(main, monkeypatch)


def test_a_replica_that_passed_its_trial_may_fail_twice_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        replica = FakeReplica()
        router = make_router(replica)
        replica.error = SERVER_ERROR
        await fail(router, 3)
        replica.error = None
        await send(router)
        replica.error = SERVER_ERROR
        await fail(router, 2)
        replica.error = None
        assert await send(router) == replica.base
        assert (replica.probes, replica.calls) == (1, 7)
        await router.close()

    run(main, monkeypatch)


def test_a_prompt_that_does_not_fit_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        replica = FakeReplica()
        router = make_router(replica)
        for error in (SERVER_ERROR, SERVER_ERROR, ContextFull("too long"), SERVER_ERROR, SERVER_ERROR):
            replica.error = error
            with pytest.raises(type(error)):
                await send(router)
        assert (replica.probes, router.answered) == (0, True)

    run(main, monkeypatch)


def test_a_trial_that_fails_costs_no_attempt_twice_and_then_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        replica = FakeReplica()
        router = make_router(replica)
        replica.error = SERVER_ERROR
        await fail(router, 3)
        with pytest.raises(RolloutFailed, match="oops"):
            await send(router)
        assert replica.calls == 3 + routing.MAX_TRIALS + 1
        await router.close()

    run(main, monkeypatch)


def test_the_first_trial_waits_as_long_as_the_server_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        replica = FakeReplica()
        router, clock = make_router(replica), asyncio.get_running_loop().time
        replica.error = RolloutFailed("model_unavailable", "model", "slow down", status=429, retry_after_s=0.4)
        await fail(router, 3)
        began, replica.error = clock(), None
        await send(router)
        assert clock() - began >= 0.35
        await router.close()

    run(main, monkeypatch)


def test_a_server_whose_calls_take_too_long_is_used_again_after_a_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        replica = FakeReplica()
        router = make_router(replica)
        replica.error = RolloutFailed("model_timeout", "model", "no answer in 600 s")
        await fail(router, 3)
        with pytest.raises(RolloutFailed, match="no answer"):
            await send(router)  # not on trial: it is an attempt
        assert (replica.probes, replica.calls) == (1, 4)
        await router.close()

    run(main, monkeypatch)


def test_a_call_on_trial_stays_with_its_replica_and_its_group_stays_where_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        one, two = FakeReplica("http://a/v1"), FakeReplica("http://b/v1")
        router = make_router(one, two)
        homes = {base: f"t{n}" for n in range(20) for base in [await send(router, f"t{n}#0", f"t{n}")]}
        assert set(homes) == {one.base, two.base}
        one.error = SERVER_ERROR
        for _ in range(3):
            with pytest.raises(RolloutFailed):
                await send(router, f"{homes[one.base]}#0", homes[one.base])
        one.error = None
        await asyncio.sleep(0.1)
        group = homes[two.base]
        assert await send(router, f"{group}#1", group) == one.base  # the trial
        assert await send(router, f"{group}#1", group) == one.base
        assert await send(router, f"{group}#2", group) == two.base
        await router.close()

    run(main, monkeypatch)


def test_callers_give_up_when_the_outage_has_lasted_and_say_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        replica = FakeReplica()
        replica.reason = "http://a/v1: still starting"
        router = make_router(replica, outage_s=0.2)
        router.take_out(cast(Replica, replica), "connection refused")
        with pytest.raises(EndpointDown, match=r"no model answered for 0\.2 s \(http://a/v1: still starting\)"):
            await send(router)
        await router.close()
        assert replica.calls == 0

    run(main, monkeypatch)


def test_callers_give_up_at_once_when_waiting_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        replica = FakeReplica()
        replica.reason = "down"
        router = make_router(replica, outage_s=60.0)
        router.take_out(cast(Replica, replica), "down")
        waiting = asyncio.create_task(send(router))
        await asyncio.sleep(0.06)
        assert not waiting.done()
        router.stop_waiting()
        with pytest.raises(EndpointDown, match=r"no model answered for 0\.1 s"):
            await waiting
        with pytest.raises(EndpointDown):
            await send(router)
        await router.close()

    run(main, monkeypatch)


def test_an_outage_is_shown_after_a_second_until_a_replica_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        one, two = FakeReplica("http://a/v1"), FakeReplica("http://b/v1")
        one.reason = two.reason = "down"
        router = make_router(one, two)
        monkeypatch.setattr(routing, "SHOW_OUTAGE_AFTER_S", 0.1)
        router.take_out(cast(Replica, one), "down")
        await asyncio.sleep(0.15)
        assert router.describe_outage() == ""  # the other one is in use
        router.take_out(cast(Replica, two), "down")
        assert router.describe_outage() == ""
        await asyncio.sleep(0.15)
        assert router.describe_outage() == "no endpoint answers for 0 s: http://a/v1: down; http://b/v1: down"
        one.reason = None
        assert await send(router) == one.base
        assert router.describe_outage() == ""
        await router.close()

    run(main, monkeypatch)


@pytest.mark.parametrize("status", [401, 403])
def test_an_endpoint_that_refuses_every_call_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    async def main() -> None:
        replica = FakeReplica()
        router = make_router(replica, outage_s=60.0)
        kind = "model_rejected" if status == 403 else "model_unavailable"
        replica.error = RolloutFailed(kind, "model", f"HTTP {status}: no", status=status)
        replica.reason = "still refused"
        await fail(router, 2)
        with pytest.raises(EndpointRefused, match=f"refuses every call: http://a/v1: HTTP {status}: no"):
            await send(router)
        with pytest.raises(EndpointRefused):  # nor do callers wait that come later
            await asyncio.wait_for(send(router), 5)
        assert replica.calls == 3
        await router.close()

    run(main, monkeypatch)


def test_a_refusal_after_an_answer_costs_its_rollout_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        replica = FakeReplica()
        router = make_router(replica)
        await send(router)
        replica.error = RolloutFailed("model_rejected", "model", "HTTP 403: moderated", status=403)
        for _ in range(4):
            with pytest.raises(RolloutFailed) as caught:
                await send(router)
            assert caught.value.kind == "model_rejected"
        assert replica.probes == 0

    run(main, monkeypatch)


def test_time_without_calls_restarts_the_clock_of_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        loop, now = asyncio.get_running_loop(), 100.0
        monkeypatch.setattr(loop, "time", lambda: now)
        outage = Outage(60.0)
        assert (outage.seconds, outage.left_s()) == (0.0, 60.0)
        outage.begin()
        now = 120.0
        outage.begin()  # it runs already
        assert (outage.seconds, outage.left_s()) == (20.0, 40.0)
        outage.skip_idle_time(now - IDLE_S)
        assert outage.seconds == 20.0
        outage.skip_idle_time(now - IDLE_S - 0.5)
        assert (outage.seconds, outage.left_s()) == (0.0, 60.0)
        now = 130.0
        outage.end()
        assert (outage.seconds, outage.left_s()) == (0.0, 60.0)
        outage.skip_idle_time(0.0)
        assert outage.seconds == 0.0
        short = Outage(2.0)
        short.begin()
        now = 133.0
        short.skip_idle_time(130.5)
        assert short.seconds == 0.0

    asyncio.run(main())


def connector_error(kind: type[aiohttp.ClientConnectorError], cause: OSError) -> aiohttp.ClientConnectorError:
    key: Any = type("Key", (), {"host": "nowhere.test", "port": 1, "ssl": True, "is_ssl": True})()
    return kind(key, cause)


def test_why_no_reply_came_is_said_with_a_way_out() -> None:
    refused = connector_error(aiohttp.ClientConnectorError, ConnectionRefusedError(111, "refused"))
    unknown = connector_error(aiohttp.ClientConnectorDNSError, OSError(-2, "Name or service not known"))
    assert describe_connection_error(refused) == "connection refused"
    assert describe_connection_error(aiohttp.ServerDisconnectedError()) == "the server closed the connection"
    assert describe_connection_error(unknown) == "the name nowhere.test is not known: check the host in the URL"
    for reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        plain = connector_error(aiohttp.ClientConnectorSSLError, ssl.SSLError(1, f"[SSL: {reason}] bad"))
        expected = "TLS: the server does not use TLS: give http:// instead of https://"
        assert describe_connection_error(plain) == expected
    expired = connector_error(aiohttp.ClientConnectorSSLError, ssl.SSLError(1, "[SSL] certificate has expired"))
    described = describe_connection_error(expired)
    assert described.startswith("TLS: ")
    assert "expired" in described
    assert describe_connection_error(OSError("the network is gone")) == "the network is gone"
    assert describe_connection_error(OSError()) == "OSError"


def test_a_replica_begins_without_calls_and_knows_its_routes() -> None:
    replica = Replica("http://a/v1?v=1", cast(aiohttp.ClientSession, None), 5.0, str)
    assert replica.in_flight == 0
    urls = [str(url) for url in (replica.chat, replica.text, replica.models)]
    assert urls == [f"http://a/v1/{route}?v=1" for route in ("chat/completions", "completions", "models")]


def test_a_cancelled_call_of_an_earlier_time_ends_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        replica = FakeReplica()
        router = make_router(replica)
        health = router._health[cast(Replica, replica)]
        health.state, health.testing, health.epoch = "trial", True, 5
        router._on_cancel(health, 4)
        assert health.testing
        router._on_cancel(health, 5)
        assert not health.testing
        await router.close()

    run(main, monkeypatch)


def test_a_replica_that_is_back_ends_the_outage_and_begins_with_short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        replica = FakeReplica()
        replica.reason = "down"
        router = make_router(replica)
        health = router._health[cast(Replica, replica)]
        router.take_out(cast(Replica, replica), "down")
        await asyncio.sleep(0.05)
        assert router._outage.seconds > 0
        assert health.delay_s > routing.FIRST_PROBE_S
        replica.reason = None
        assert await send(router) == replica.base
        assert (router._outage.seconds, health.delay_s, health.state) == (0.0, routing.FIRST_PROBE_S, "in")
        await router.close()

    run(main, monkeypatch)


@pytest.mark.parametrize(("status", "answered"), [(400, True), (None, False)])
def test_a_server_that_refuses_a_prompt_has_answered(
    monkeypatch: pytest.MonkeyPatch, status: int | None, answered: bool
) -> None:
    async def main() -> None:
        replica = FakeReplica()
        replica.error = RolloutFailed("model_rejected", "model", "no", status=status)
        router = make_router(replica)
        assert not router.answered
        await fail(router)
        assert router.answered is answered
        replica.error = RolloutFailed("model_rejected", "model", "no")
        await fail(router)
        assert router.answered is answered  # once it has, it has
        await router.close()

    run(main, monkeypatch)


def test_a_router_is_closed_once_its_probes_have_ended() -> None:
    ended: list[str] = []

    async def probe(replica: Replica) -> str | None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(replica.base)
        return None

    async def main() -> None:
        replica = cast(Replica, FakeReplica())
        router = Router([replica], probe, 5.0)
        router.take_out(replica, "down")
        await asyncio.sleep(0.01)
        await router.close()
        assert ended == [replica.base]

    asyncio.run(main())


def test_a_body_that_is_long_only_when_it_is_unpacked_is_cut_off_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "RESPONSE_LIMIT", 100)

    async def reply(request: web.Request) -> web.Response:
        response = web.Response(text="x" * (101 if request.path == "/long" else 100))
        if request.query:
            response.enable_compression(web.ContentCoding.gzip)
        return response

    async def main() -> list[str]:
        app, found = web.Application(), list[str]()
        app.router.add_get("/{name}", reply)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        session = routing.open_http_session(5.0)
        replica = Replica(url, session, 5.0, str)
        for name in ("short", "short?packed=1", "long", "long?packed=1"):
            try:
                found.append((await replica.get(URL(f"{url}/{name}"), 5.0))[1].decode())
            except RolloutFailed as error:
                found.append(error.kind)
        await session.close()
        await runner.cleanup()
        return found

    assert asyncio.run(main()) == ["x" * 100, "x" * 100, "bad_completion", "bad_completion"]


def test_a_server_that_does_not_answer_in_time_is_not_reached() -> None:
    async def main() -> RolloutFailed:
        server = await asyncio.start_server(lambda *_: asyncio.sleep(5), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        session = routing.open_http_session(5.0)
        try:
            with pytest.raises(RolloutFailed, match=r"no answer in 0\.05 s") as caught:
                await Replica(url, session, 5.0, str).get(URL(url), 0.05)
        finally:
            await session.close()
            server.close()
        return caught.value

    error = asyncio.run(main())
    assert (error.kind, error.where) == ("model_unavailable", routing.CONNECT)
