"""Whether a server is ready: healthy, serving the right name, able to write one token. An open port is not enough."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp
import msgspec

from rollbook.core.json import decode, encode
from rollbook.errors import ChildFailed
from rollbook.models.protocol import read_models

FIRST_LOOK_S, SLOWEST_LOOK_S = 0.2, 5.0
HEALTH_S = 10.0
TOKEN_S = 120.0


async def wait_ready(
    root: str, name: str, *, within_s: float, ended: Callable[[], str | None], key: str = "", what: str = "the server"
) -> None:
    """Until the server at `root` answers; ChildFailed when it ends (`ended` says how) or when time is up."""
    loop = asyncio.get_running_loop()
    deadline, delay, why = loop.time() + within_s, FIRST_LOOK_S, "nothing was tried"
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession(headers=headers, trust_env=False) as session:
        while True:
            over = ended()
            if over is not None:
                raise ChildFailed(f"{what} ended before it was ready ({over})")
            left = deadline - loop.time()
            if left <= 0:
                raise ChildFailed(f"{what} was not ready within {within_s:g} s: {why}")
            found = await unready(session, root, name, left)
            if found is None:
                return
            if loop.time() < deadline:  # at the very end, all one learns is that time was up
                why = found
            await asyncio.sleep(min(delay, max(deadline - loop.time(), 0)))
            delay = min(delay * 2, SLOWEST_LOOK_S)


async def unready(session: aiohttp.ClientSession, root: str, name: str, within_s: float) -> str | None:
    """Why a server is not ready; None if it is."""
    try:
        return await _health(session, root, within_s) or await _token(session, root, name, within_s)
    except TimeoutError:
        return "no answer in time"
    except (aiohttp.ClientError, OSError) as error:
        return str(error) or type(error).__name__


async def _health(session: aiohttp.ClientSession, root: str, within_s: float) -> str | None:
    async with asyncio.timeout(min(within_s, HEALTH_S)):
        async with session.get(f"{root}/health") as response:
            return None if response.status == 200 else f"/health says HTTP {response.status}"


async def _token(session: aiohttp.ClientSession, root: str, name: str, within_s: float) -> str | None:
    async with asyncio.timeout(min(within_s, TOKEN_S)):
        async with session.get(f"{root}/v1/models") as response:
            missing = _unlisted(name, response.status, await response.read())
        if missing:
            return missing
        body = {"model": name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "temperature": 0}
        async with session.post(
            f"{root}/v1/chat/completions", data=encode(body), headers={"Content-Type": "application/json"}
        ) as response:
            return _unspoken(response.status, await response.read())


def _unlisted(name: str, status: int, raw: bytes) -> str | None:
    if status != 200:
        return f"/v1/models says HTTP {status}"
    try:
        served = [row.id for row in read_models(raw).data]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "/v1/models is not a list of models"
    return None if name in served else f"it serves {', '.join(served) or 'nothing'}, not {name}"


def _unspoken(status: int, raw: bytes) -> str | None:
    if status != 200:
        return f"a completion of one token says HTTP {status}"
    try:
        said = decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "a completion of one token is not JSON"
    return None if isinstance(said, dict) and said.get("choices") else "a completion of one token has no choices"
