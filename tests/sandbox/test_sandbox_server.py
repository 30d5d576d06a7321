"""The sandbox over HTTP, with a real server and a real sandbox."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from rollbook.errors import SandboxError, SandboxFull, TestsBroken, UsageError
from rollbook.sandbox import Limits, Result, Sandbox
from rollbook.sandbox.server import MAX_BODY_BYTES, MAX_LIMITS, SandboxServer, check_bounds, merge_limits

TOKEN = "s3cret"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
Ask = Callable[..., Awaitable[tuple[int, Any]]]


@asynccontextmanager
async def served(room: int = 8, **options: Any) -> AsyncIterator[Ask]:
    async with Sandbox(Limits(seconds=1), size=1, **options) as box, asking(box, room) as ask:
        yield ask


@asynccontextmanager
async def asking(box: Any, room: int = 8) -> AsyncIterator[Ask]:
    runner = web.AppRunner(SandboxServer(box, TOKEN, room).make_app())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with aiohttp.ClientSession(base) as session:

        async def ask(path: str, body: Any = None, method: str = "POST", headers: Any = HEADERS) -> tuple[int, Any]:
            given = {"data": body} if isinstance(body, bytes | BytesIO) else {"json": body}
            async with session.request(method, path, headers=headers, **given) as response:
                return response.status, await response.json(content_type=None)

        try:
            yield ask
        finally:
            await runner.cleanup()


def asked(*requests: tuple[Any, ...], room: int = 8, **options: Any) -> list[tuple[int, Any]]:
    async def go() -> list[tuple[int, Any]]:
        async with served(room) as ask:
            return list(await asyncio.gather(*(ask(*request, **options) for request in requests)))

    return asyncio.run(go())


def test_a_run_comes_back_as_a_result() -> None:
    files = {"a.txt": base64.b64encode(b"hello").decode()}
    code = "print(input() + open('a.txt').read()); 6 * 7"
    ((status, said),) = asked(("/run", {"code": code, "stdin": "oh ", "files": files}))
    assert (status, said["status"], said["stdout"], said["value"]) == (200, "ok", "oh hello\n", "42")
    assert said["isolation"]


def test_its_limits_are_the_requests_own_within_bounds() -> None:
    loop, wild = {"code": "while True: pass"}, {"code": "1"}
    got = asked(
        ("/run", {**loop, "limits": {"seconds": 0.1}}),
        ("/run", {**wild, "limits": {"seconds": 1e9}}),
        ("/run", {**wild, "limits": {"seconds": -1}}),
        ("/run", {**wild, "limits": {"second": 1}}),
        ("/run", {**wild, "limits": {"memory_mb": 1.5}}),
    )
    assert (got[0][0], got[0][1]["status"]) == (200, "timeout")
    assert [status for status, _ in got[1:]] == [400] * 4
    words = [said["error"] for _, said in got[1:]]
    assert words[0] == "limit seconds=1e+09: at most 300 here"
    assert "positive" in words[1]
    assert "no limit is called second; there are seconds" in words[2]
    assert "memory_mb" in words[3]


def test_a_client_of_sandbox_fusion_is_answered_by_a_path_with_the_token() -> None:
    request = {"code": "print(int(input()) + 1)", "stdin": "41", "language": "python", "compile_timeout": 10}
    request |= {"run_timeout": 5, "memory_limit_MB": 256, "files": {}, "fetch_files": []}
    slow = {**request, "code": "while True: pass", "run_timeout": 0.2}
    good, late, left, other = asked(
        (f"/{TOKEN}/run_code", request),
        (f"/{TOKEN}/run_code", slow),
        (f"/{TOKEN}/run_code", {**request, "code": "import sys; sys.exit(3)"}),
        (f"/{TOKEN}/run_code", {**request, "language": "cpp"}),
        headers={},
    )
    assert (good[1]["status"], good[1]["run_result"]["stdout"]) == ("Success", "42\n")
    assert (late[1]["status"], late[1]["run_result"]["status"]) == ("Failed", "TimeLimitExceeded")
    assert left[1]["run_result"]["return_code"] == 3
    assert (other[0], other[1]["error"]) == (400, "language 'cpp': only python runs here")


@pytest.mark.parametrize("path", ["/run", "/run_code", "/wrong/run", "/wrong/run_code", "/s3cre/run"])
def test_without_the_token_nothing_runs(path: str) -> None:
    for token in ("wrong", "wr\udcffng"):
        ((status, said),) = asked((path, {"code": "1"}), headers={"Authorization": f"Bearer {token}"})
        assert (status, said) == (401, {"error": "no token, or a wrong one"})


def test_what_does_not_fit_the_room_is_refused_at_once() -> None:
    got = asked(*[("/run", {"code": "import time; time.sleep(0.3)"})] * 6, room=2)
    assert sorted(status for status, _ in got) == [200, 200, 429, 429, 429, 429]


def test_when_all_sessions_are_taken_one_more_is_to_come_again() -> None:
    async def go() -> list[tuple[int, Any]]:
        async with served(sessions=1) as ask:
            first = await ask("/sessions", {})
            refused = await ask("/sessions", {})
            await ask(f"/sessions/{first[1]['session']}", None, "DELETE")
            return [first, refused, await ask("/sessions", {})]

    first, refused, again = asyncio.run(go())
    assert (first[0], refused[0], again[0]) == (200, 429, 200)
    assert refused[1]["error"].startswith("1 sessions are open")


@pytest.mark.parametrize("path", ["/run", "/run_code"])
def test_when_the_sandbox_itself_has_no_room_one_more_is_to_come_again(path: str) -> None:
    async def go() -> list[int]:
        async with served(waiting=1) as ask:
            request = {"code": "import time; time.sleep(0.3)"}
            return [status for status, _ in await asyncio.gather(*(ask(path, request) for _ in range(5)))]

    assert sorted(asyncio.run(go())) == [200, 200, 429, 429, 429]


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b'{"code": 1}', b'{"code": "1", "cod": 2}'])
def test_a_malformed_request_is_the_clients(body: bytes) -> None:
    ((status, said),) = asked(("/run", body))
    assert status == 400
    assert said["error"].startswith("the request is invalid")


def test_a_body_without_end_is_cut_off() -> None:
    big, small = asked(("/run", BytesIO(b"x" * (MAX_BODY_BYTES + 1))), ("/run", {"code": "1"}))
    assert (big[0], small[0]) == (413, 200)


def test_health_says_which_walls_stand() -> None:
    ((status, said),) = asked(("/health", None, "GET"))
    assert status == 200
    assert (said["under_way"], said["room"], "seccomp" in said["isolation"]) == (0, 8, True)


class Refusing:
    """A sandbox that fails in one way, whatever it is asked."""

    limits, isolation, packages = Limits(seconds=1), ("pid",), ("numpy",)

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.given = error, list[Any]()

    async def run(self, code: str, **given: Any) -> Result:
        self.given.append(given)
        if self.error:
            raise self.error
        return Result("ok", stdout="said")


def ask_pretended(box: Refusing, *requests: tuple[Any, ...], room: int = 8) -> list[tuple[int, Any]]:
    async def go() -> list[tuple[int, Any]]:
        async with asking(box, room) as ask:
            return [await ask(*request) for request in requests]

    return asyncio.run(go())


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (UsageError("wrong"), 400, "wrong"),
        (TestsBroken("the tests\ndo not run"), 422, "the tests do not run"),
        (SandboxFull("no room"), 429, "no room"),
        (SandboxError("it broke"), 503, "it broke"),
    ],
)
def test_every_failure_has_its_status(error: Exception, status: int, words: str) -> None:
    box = Refusing(error)
    assert (
        ask_pretended(box, ("/run", {"code": "1"}), ("/run", {"code": "1"}), room=1) == [(status, {"error": words})] * 2
    )  # the first one has given its place back


def test_a_client_of_sandbox_fusion_is_told_of_a_broken_sandbox_as_such() -> None:
    ((status, said),) = ask_pretended(Refusing(SandboxError("it broke")), ("/run_code", {"code": "1"}))
    assert (status, said["status"], said["message"]) == (200, "SandboxError", "it broke")
    ((status, said),) = ask_pretended(Refusing(SandboxFull("no room")), ("/run_code", {"code": "1"}))
    assert (status, said) == (429, {"error": "no room"})


def test_a_run_of_sandbox_fusion_has_its_input_files_and_limits() -> None:
    box = Refusing()
    request = {"code": "1", "stdin": None, "files": {"a": "aGk="}, "run_timeout": 2}
    ((_, said),) = ask_pretended(box, ("/run_code", request))
    assert said["run_result"]["stdout"] == "said"
    (given,) = box.given
    assert (given["stdin"], given["files"]) == ("", {"a": b"hi"})
    assert (given["limits"].seconds, given["limits"].wall_s) == (2, 7)
    ((status, said),) = ask_pretended(box, ("/run_code", {"code": "1", "run_timeout": 301}))
    assert (status, said["error"]) == (400, "limit seconds=301: at most 300 here")


def test_health_is_that_of_the_sandbox_and_of_the_requests_under_way() -> None:
    ((status, said),) = ask_pretended(Refusing(), ("/health", None, "GET"), room=5)
    assert (status, said) == (200, {"isolation": ["pid"], "packages": ["numpy"], "under_way": 0, "room": 5})


def test_who_is_refused_for_want_of_room_is_told_when_to_come_again() -> None:
    async def go() -> tuple[int, str]:
        runner = web.AppRunner(SandboxServer(Refusing(), TOKEN, 0).make_app())  # type: ignore[arg-type]
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/run"
        async with aiohttp.ClientSession() as session, session.post(url, headers=HEADERS, json={"code": "1"}) as got:
            found = got.status, got.headers["Retry-After"]
        await runner.cleanup()
        return found

    assert asyncio.run(go()) == (429, "1")


def test_a_session_runs_its_turns_by_http() -> None:
    async def go() -> list[Any]:
        async with served() as ask:
            _, begun = await ask("/sessions", {"files": {"a.txt": "aGk="}})
            path = f"/sessions/{begun['session']}/run"
            turns = [
                await ask(path, {"code": code, **more})
                for code, more in (
                    ("x = open('a.txt').read()", {}),
                    ("x", {"limits": {"seconds": 0.5}}),
                    ("x", {"limits": {"memory_mb": 1}}),
                )
            ]
            ended = await ask(f"/sessions/{begun['session']}", None, "DELETE")
            return [*turns, ended, await ask(path, {"code": "x"})]

    first, second, wrong, ended, late = asyncio.run(go())
    assert (first[1]["status"], second[1]["value"]) == ("ok", "'hi'")
    assert wrong[0] == 400
    assert "the session has 256 for good" in wrong[1]["error"]
    assert ended == (200, {})
    assert late[0] == 400
    assert late[1]["error"].startswith("no session has that name: it has ended, or was unused for 900 s")


def test_limits_of_a_request_are_allowed_up_to_the_highest() -> None:
    assert merge_limits(Limits(), {"seconds": 300, "wall_seconds": None}).seconds == 300
    assert check_bounds(MAX_LIMITS) is MAX_LIMITS
    with pytest.raises(UsageError, match="limit processes=257: at most 256 here"):
        merge_limits(Limits(), {"processes": 257})
