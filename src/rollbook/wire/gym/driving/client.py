"""Speaking to one server of NeMo Gym: JSON out, whatever comes back, and the cookies of one rollout kept together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from io import BytesIO
from secrets import token_hex

import aiohttp
import msgspec
from yarl import URL

from rollbook.core.json import JSON, decode, encode
from rollbook.errors import RolloutFailed
from rollbook.wire.gym.driving.files import read_json

CONNECT_S = 10.0
CONNECTIONS = 512
"""Open at once to one server; more requests than that wait their turn."""

ANSWER_BYTES = 64 << 20
_KEEP_ALIVE_S = 3.0
"""Below the 5 s after which common servers close an idle connection: a POST on a closing one is lost."""

_LARGE_BODY = 512 << 10
_QUOTED = 500


class Answer(msgspec.Struct, frozen=True):
    """What a server said."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """As text, whatever it is."""
        return self.body.decode(errors="replace")

    @property
    def words(self) -> str:
        """On one line and not too long, for a message."""
        value = self.json()
        words = value if isinstance(value, str) else self.text
        return " ".join(words.split())[:_QUOTED] or "no words"

    def json(self) -> JSON:
        """Its JSON; None where it is none."""
        try:
            return decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None


class Client:
    """One server. `era` changes when it was out of reach: what it held for a rollout may be gone since."""

    def __init__(self, base: str) -> None:
        self.base = base
        self._session: aiohttp.ClientSession | None = None
        self._urls: dict[str, URL] = {}
        self._name, self._outages, self.away = token_hex(4), 0, False

    @property
    def era(self) -> str:
        """The time since it was last out of reach, told from that of any other client."""
        return f"{self._name}.{self._outages}"

    def moved(self, base: str) -> None:
        """The server is another one from now on, at its old address or a new one."""
        self.base, self._urls = base, {}
        self._outages += 1

    async def open(self) -> None:
        """Get ready to connect."""
        headers = {"Content-Type": "application/json", "Accept": "*/*", "Accept-Encoding": "identity"}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS, keepalive_timeout=_KEEP_ALIVE_S, ttl_dns_cache=60),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        )

    async def close(self) -> None:
        """Let go of every connection."""
        if self._session:
            await self._session.close()
        self._session = None

    async def post(self, path: str, value: JSON, cookies: dict[str, str], kind: str = "environment_error") -> Answer:
        """What it says to this. Cookies that it sets are added to those of the rollout; none is lost when it sets none.

        A server that cannot be reached is a failure of `kind`; one that answers, however badly, has answered.
        """
        return await self._ask("POST", path, encode(value), cookies, kind)

    async def get(self, path: str, within_s: float = CONNECT_S, cookies: dict[str, str] | None = None) -> Answer:
        """What it says to a GET, by a deadline."""
        held: dict[str, str] = {} if cookies is None else cookies
        try:
            async with asyncio.timeout(within_s):
                return await self._ask("GET", path, b"", held, "environment_error")
        except TimeoutError:
            raise RolloutFailed("environment_error", path, f"{self.base}: no answer in {within_s:g} s") from None

    async def _ask(self, method: str, path: str, body: bytes, cookies: dict[str, str], kind: str) -> Answer:
        if self._session is None:
            raise RuntimeError("the client is not open")
        url = self._urls.get(path) or self._urls.setdefault(path, URL(f"{self.base}{path}"))
        data = body if len(body) < _LARGE_BODY else BytesIO(body)
        headers = {"Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())} if cookies else None
        try:
            async with self._session.request(method, url, data=data, headers=headers, allow_redirects=False) as reply:
                raw = await _read(reply)
                self.away = False
        except (aiohttp.ClientError, OSError) as error:
            raise self._lost(error, path, kind) from None
        for given in reply.headers.getall("Set-Cookie", ()):
            name, equals, value = given.partition(";")[0].partition("=")
            if equals:
                cookies[name.strip()] = value.strip()
        return Answer(reply.status, raw)

    def _lost(self, error: Exception, path: str, kind: str) -> RolloutFailed:
        if isinstance(error, aiohttp.ClientConnectorError) and not self.away:
            self.away, self._outages = True, self._outages + 1
        return RolloutFailed(kind, path, f"{self.base}: {_words(error)}")


async def _read(reply: aiohttp.ClientResponse) -> bytes:
    length = reply.content_length
    if length is not None and length <= ANSWER_BYTES:
        return await reply.read()
    held = bytearray()
    async for chunk in reply.content.iter_chunked(256 << 10):
        held += chunk
        if len(held) > ANSWER_BYTES:
            raise aiohttp.ClientPayloadError(f"an answer of more than {ANSWER_BYTES >> 20} MiB")
    return bytes(held)


def _words(error: Exception) -> str:
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the server closed the connection"
    return str(error) or type(error).__name__


def object_in(answer: Answer) -> Mapping[str, JSON] | None:
    """The JSON object that an answer holds, NaN and the like included, which some servers write."""
    try:
        value = read_json(answer.body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
