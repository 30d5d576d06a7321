"""A replica: one server of a model, and how it is spoken to over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from io import BytesIO

import aiohttp
from yarl import URL

from rollbook.core.deadline import within
from rollbook.core.manifest import Settings
from rollbook.errors import RolloutFailed
from rollbook.models.refusal import CONNECT, WHERE, bad_completion, refusal

RESPONSE_LIMIT = 64 * 1024 * 1024
_LARGE_BODY = 512 * 1024
_KEEP_ALIVE_S = 3.0
"""Below the 5 s after which common servers close an idle connection: a POST on a closing one is lost."""


def open_session(settings: Settings, key: str = "", connections: int = 0) -> aiohttp.ClientSession:
    """The one session of a model: no limit on connections unless given, no cookies, no per-call timers of its own."""
    headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections, keepalive_timeout=_KEEP_ALIVE_S, ttl_dns_cache=60),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_s),
    )


class Replica:
    """One base URL. `post` answers with the body of a 200, or raises what the failure means."""

    def __init__(self, base: str, session: aiohttp.ClientSession, call_s: float, scrub: Callable[[str], str]) -> None:
        self.base = base
        self.chat = URL(f"{base}/chat/completions")
        self.text = URL(f"{base}/completions")
        self.models = URL(f"{base}/models")
        self.in_flight = 0
        self._session = session
        self._call_s = call_s
        self._scrub = scrub

    async def post(self, url: URL, body: bytes) -> bytes:
        """The body of the answer."""
        status, retry_after, raw = await self.ask(url, body)
        if status != 200:
            raise refusal(status, retry_after, raw)
        return raw

    async def ask(self, url: URL, body: bytes) -> tuple[int, str | None, bytes]:
        """Whatever the answer is: its status, when to come again, and its body; RolloutFailed if none came."""
        data = body if len(body) < _LARGE_BODY else BytesIO(body)
        try:
            answering = self._session.post(url, data=data, allow_redirects=False)
            async with within(self._call_s), answering as response:
                raw = await _read(response)
        except aiohttp.ClientError as error:
            raise self._lost(error) from None
        except TimeoutError:
            raise RolloutFailed("model_timeout", WHERE, f"{self.base}: no answer in {self._call_s:g} s") from None
        except OSError as error:
            raise self._lost(error) from None
        scrubbed = raw if response.status == 200 else self._scrub_bytes(raw)
        return response.status, response.headers.get("Retry-After"), scrubbed

    async def get(self, url: URL, within_s: float) -> tuple[int, bytes]:
        """The status and body of a GET; RolloutFailed("model_unavailable") if none came."""
        try:
            async with asyncio.timeout(within_s):
                async with self._session.get(url, allow_redirects=False) as response:
                    return response.status, self._scrub_bytes(await _read(response))
        except TimeoutError:
            raise RolloutFailed("model_unavailable", CONNECT, f"{self.base}: no answer in {within_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise self._lost(error) from None

    def _lost(self, error: Exception) -> RolloutFailed:
        where = CONNECT if isinstance(error, aiohttp.ClientConnectionError | OSError) else WHERE
        return RolloutFailed("model_unavailable", where, f"{self.base}: {self._scrub(_words(error))}")

    def _scrub_bytes(self, raw: bytes) -> bytes:
        return self._scrub(raw.decode(errors="replace")).encode()


async def _read(response: aiohttp.ClientResponse) -> bytes:
    length = response.content_length
    if length is not None and length <= RESPONSE_LIMIT and "Content-Encoding" not in response.headers:
        return await response.read()
    held = bytearray()
    async for chunk in response.content.iter_chunked(256 * 1024):
        held += chunk
        if len(held) > RESPONSE_LIMIT:
            raise bad_completion(f"an answer of more than {RESPONSE_LIMIT} bytes")
    return bytes(held)


def _words(error: Exception) -> str:
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the server closed the connection"
    return str(error) or type(error).__name__
