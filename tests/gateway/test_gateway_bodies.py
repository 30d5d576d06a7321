"""The memory that the requests of one rollout may take."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from urllib.parse import urlsplit

import aiohttp
import pytest

from rollbook.core import JSON, Message, Rollout, Sampling, Task, Turn
from rollbook.gateway import LocalGateway, server
from rollbook.gateway.bodies import MAX_BODY_BYTES_AT_ONCE, BodyBudget
from rollbook.models import Completion

LARGE = 30 << 20
AT_ONCE = MAX_BODY_BYTES_AT_ONCE // LARGE


class SlowModel:
    """Answers when it may."""

    sampling = Sampling()

    def __init__(self) -> None:
        self.asked, self.may_answer = 0, asyncio.Event()

    async def __call__(
        self, messages: Sequence[Message], *, tools: Sequence[JSON] = (), extra: Mapping[str, JSON] | None = None
    ) -> Completion:
        self.asked += 1
        await self.may_answer.wait()
        return Completion(Message("assistant", "ok"), Turn())


def with_gateway(work: Callable[[SlowModel, str, aiohttp.ClientSession], Awaitable[None]]) -> None:
    async def main() -> None:
        rollout, model = Rollout(task=Task("t", "x"), sample=0, seed=0, messages=[], turns=[]), SlowModel()
        async with LocalGateway().open(rollout, model) as endpoint, aiohttp.ClientSession() as http:
            await work(model, f"{endpoint.url}/v1/chat/completions", http)

    asyncio.run(main())


def make_body(text: str, **fields: JSON) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text}], **fields}).encode()


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def post(
    http: aiohttp.ClientSession, url: str, data: bytes | AsyncIterator[bytes], **headers: str
) -> tuple[int, str]:
    body = BytesIO(data) if isinstance(data, bytes) else data
    async with http.post(url, data=body, headers=headers) as answer:
        return answer.status, await answer.text()


def test_parallel_calls_with_large_bodies_are_all_answered_but_few_at_once() -> None:
    async def work(model: SlowModel, url: str, http: aiohttp.ClientSession) -> None:
        calls = [asyncio.create_task(post(http, url, make_body(f"{i}" + "x" * LARGE))) for i in range(2 * AT_ONCE)]
        await wait_until(lambda: model.asked == AT_ONCE)
        await asyncio.sleep(0.5)
        assert model.asked == AT_ONCE
        model.may_answer.set()
        assert [status for status, _ in await asyncio.gather(*calls)] == [200] * len(calls)

    with_gateway(work)


def test_small_bodies_are_not_held_up_by_each_other() -> None:
    async def chunks(text: str) -> AsyncIterator[bytes]:  # without a length: as large as allowed, until it is read
        yield make_body(text)

    async def work(model: SlowModel, url: str, http: aiohttp.ClientSession) -> None:
        calls = [asyncio.create_task(post(http, url, chunks(f"{i}"))) for i in range(20)]
        await wait_until(lambda: model.asked == 20)
        model.may_answer.set()
        assert [status for status, _ in await asyncio.gather(*calls)] == [200] * 20

    with_gateway(work)


def test_bodies_that_never_end_are_not_read_beyond_the_limit() -> None:
    async def send_most(url: str) -> asyncio.StreamWriter:
        """Send a body without its last byte, as far as it is read."""
        address = urlsplit(url)
        _, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(f"POST {address.path} HTTP/1.1\r\nHost: x\r\nContent-Length: {LARGE + 1}\r\n\r\n".encode())
        writer.write(b" " * LARGE)
        await writer.drain()
        return writer

    async def work(model: SlowModel, url: str, http: aiohttp.ClientSession) -> None:
        sending = [asyncio.create_task(send_most(url)) for _ in range(3 * AT_ONCE)]
        await wait_until(lambda: sum(each.done() for each in sending) == AT_ONCE)
        await asyncio.sleep(0.5)
        assert sum(each.done() for each in sending) == AT_ONCE
        for each in sending:
            each.cancel()
            with suppress(asyncio.CancelledError):
                (await each).transport.abort()

    with_gateway(work)


def test_a_call_waits_for_bodies_that_do_not_come_no_longer_than_their_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "BODY_TIMEOUT_S", 1.0)

    async def never() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(3600)

    async def work(model: SlowModel, url: str, http: aiohttp.ClientSession) -> None:
        model.may_answer.set()
        slow = [asyncio.create_task(post(http, url, never())) for _ in range(AT_ONCE)]
        await asyncio.sleep(0.2)
        assert (await post(http, url, make_body("hi")))[0] == 200
        for each in slow:
            each.cancel()

    with_gateway(work)


@pytest.mark.parametrize(
    ("data", "headers", "status", "words"),
    [
        (gzip.compress(make_body("hi")), {"Content-Encoding": "gzip"}, 400, "send the body without compression"),
        (make_body("hi", stop=["x"] * server.MAX_JSON_VALUES), {}, 400, "more than 2000000 commas"),
        (make_body("hi") + b" " * server.BODY_LIMIT, {}, 413, "a request of more than"),
    ],
    ids=["compressed", "many values", "large"],
)
def test_what_would_take_much_memory_is_refused(data: bytes, headers: dict[str, str], status: int, words: str) -> None:
    async def work(model: SlowModel, url: str, http: aiohttp.ClientSession) -> None:
        model.may_answer.set()
        found, text = await post(http, url, data, **headers)
        assert found == status
        assert words in text
        assert (await post(http, url, make_body("hi")))[0] == 200

    with_gateway(work)


def make_request(url: str, headers: int, size: int) -> bytes:
    body = make_body("hi")
    lines = [f"POST {urlsplit(url).path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *(f"x-{i}: {'y' * size}" for i in range(headers)), "", ""]).encode() + body


def test_of_requests_that_follow_without_an_answer_few_are_read() -> None:
    async def work(model: SlowModel, url: str, http: aiohttp.ClientSession) -> None:
        request = make_request(url, 50, 4000)
        with socket.create_connection((urlsplit(url).hostname, urlsplit(url).port)) as client:
            client.setblocking(False)
            tracemalloc.start()
            try:
                for _ in range(100):
                    with suppress(BlockingIOError):
                        client.send(request)
                    await asyncio.sleep(0.01)
                assert tracemalloc.get_traced_memory()[0] < 20 * len(request)
            finally:
                tracemalloc.stop()
        assert model.asked == 1

    with_gateway(work)


@pytest.mark.parametrize(("headers", "size"), [(100, 10), (1, 5000)])
def test_large_headers_are_refused_without_a_line_in_the_log(
    headers: int, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(model: SlowModel, url: str, http: aiohttp.ClientSession) -> None:
        reader, writer = await asyncio.open_connection(urlsplit(url).hostname, urlsplit(url).port)
        writer.write(make_request(url, headers, size))
        assert b" 400 " in await asyncio.wait_for(reader.readline(), 10)
        writer.close()

    with_gateway(work)
    assert caplog.records == []


def test_room_is_given_in_order_and_returned_by_what_is_cancelled() -> None:
    async def main() -> None:
        budget, admitted = BodyBudget(10), list[str]()

        async def hold(name: str, size: int) -> None:
            async with budget.hold(size):
                admitted.append(name)
                await asyncio.sleep(3600)

        tasks = [asyncio.create_task(hold(name, size)) for name, size in (("a", 6), ("b", 6), ("c", 4))]
        await asyncio.sleep(0.01)
        assert admitted == ["a"], "a small body does not overtake a large one, which could else wait for ever"
        tasks[1].cancel()
        await asyncio.sleep(0.01)
        assert admitted == ["a", "c"]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with asyncio.timeout(1), budget.hold(10):
            pass

    asyncio.run(main())
