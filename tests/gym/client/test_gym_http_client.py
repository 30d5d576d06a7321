"""The client of a server: its cookies, the bound on replies, and errors when the server is down."""

import asyncio

import pytest
from aiohttp import web

from rollbook.errors import RolloutFailed
from rollbook.gym.client import http_client as module
from rollbook.gym.client.http_client import GymClient, GymReply, parse_address
from support.gym_servers import Listening


class Echo(Listening):
    """Says what it was sent, or what it is told to."""

    def __init__(self, *headers):
        super().__init__()
        self._headers, self.heard = headers, []

    def app(self):
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/{path}", self._say)
        return app

    async def _say(self, request):
        self.heard.append(request.headers.get("Cookie"))
        body = await request.read()
        reply = web.Response(body=body, status=500 if request.path == "/fails" else 200)
        for header in self._headers if request.path == "/sets" else ():
            reply.headers.add("Set-Cookie", header)
        return reply


def talk(server, work):
    async def main():
        async with server:
            client = GymClient(server.url)
            await client.open()
            try:
                return await work(client, server)
            finally:
                await client.close()

    return asyncio.run(main())


def test_cookies_are_added_and_none_is_lost_when_an_answer_sets_none():
    async def work(client, server):
        cookies = {"mine": "1"}
        await client.post("/sets", {}, cookies)
        assert cookies == {"mine": "1", "Toy___a": "eyJ=.x-y_z=", "other": "2"}
        answer = await client.post("/fails", {}, cookies)
        assert (answer.status, cookies["other"]) == (500, "2")
        assert server.heard[1] == "mine=1; Toy___a=eyJ=.x-y_z=; other=2"

    talk(Echo("Toy___a=eyJ=.x-y_z=; Path=/; HttpOnly; SameSite=lax", "other=2"), work)


def test_a_large_body_goes_and_comes_whole():
    async def work(client, server):
        text = "x" * (3 << 20)
        assert (await client.post("/big", text, {})).json() == text

    talk(Echo(), work)


def test_an_answer_without_end_is_not_read_to_it(monkeypatch):
    monkeypatch.setattr(module, "MAX_REPLY_BYTES", 1000)

    async def work(client, server):
        with pytest.raises(RolloutFailed, match="an answer of more than"):
            await client.post("/big", "x" * 2000, {})

    talk(Echo(), work)


def test_the_generation_changes_once_for_each_time_that_nobody_was_there():
    async def work(client, server):
        first = client.generation
        await client.post("/a", {}, {})
        await server.go_away()
        for _ in range(3):
            with pytest.raises(RolloutFailed, match=r"connection refused|closed the connection"):
                await client.post("/a", {}, {})
        second = client.generation
        await server.listen()
        await client.post("/a", {}, {})
        assert first != second == client.generation

    talk(Echo(), work)


def test_words_of_an_answer_are_one_short_line():
    assert GymReply(500, b"\"RuntimeError('boom')\"").summary == "RuntimeError('boom')"
    assert GymReply(500, b"a\n b" + b"x" * 999).summary[:5] == "a bxx"
    assert len(GymReply(500, b"x" * 9999).summary) == 500
    assert GymReply(500, b"").summary == "no message"


@pytest.mark.parametrize(
    ("text", "base"),
    [("http://h:1/", "http://h:1"), ("https://h/gym/", "https://h/gym"), ("http://[::1]:8000", "http://[::1]:8000")],
)
def test_an_address_is_taken_as_it_is(text, base):
    assert parse_address(text) == base


class Silent(Listening):
    """Accepts requests and answers none."""

    asked = 0

    def app(self):
        app = web.Application()
        app.router.add_get("/", self._wait)
        return app

    async def _wait(self, request):
        self.asked += 1
        await asyncio.sleep(3)


def test_callers_that_wait_for_a_server_that_never_answers_wait_together(monkeypatch):
    get = GymClient.get
    monkeypatch.setattr(GymClient, "get", lambda client, path: get(client, path, 0.5))

    async def work(client, server):
        client._note_failure()
        waiting = [client.wait_until_reachable(0.1) for _ in range(20)]
        async with asyncio.timeout(5):
            ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert all("no answer in 0.5 s, for 0.1 s or longer" in str(end) for end in ends)
        assert server.asked == 1

    talk(Silent(), work)
