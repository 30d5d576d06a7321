"""The HTTP client for one server of NeMo Gym: JSON requests, the cookies of a rollout, failures read from replies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from io import BytesIO
from secrets import token_hex
from urllib.parse import urlsplit

import aiohttp
import msgspec
from yarl import URL

from rollbook.core import FAILURE_KINDS, JSON, JSON_ERRORS, decode, encode
from rollbook.errors import RolloutFailed, UsageError
from rollbook.models import describe_connection_error, open_http_session


def parse_address(text: str, scheme: str = "") -> str:
    """Return the base URL of `http://host:port`, or of `SCHEME://host:port`; UsageError explains what is wrong.

    >>> parse_address("gym+agent://host:9000/", "gym+agent")
    'http://host:9000'
    """
    hint = f"write {scheme or 'http'}://host:port"
    shown = text.rpartition("@")[2].partition("?")[0]  # what precedes an @ or follows a ? may be a secret
    try:
        url = urlsplit(text.strip())
        port = url.port
    except ValueError as error:
        raise UsageError(f"{shown}: not an address ({error}); {hint}") from None
    if "@" in url.netloc:
        raise UsageError(f"{shown}: no user or password in an address; {hint}")
    if not url.hostname or port == 0 or url.query or url.fragment or " " in url.netloc:
        raise UsageError(f"{shown}: not an address; {hint}")
    return f"{url.scheme if not scheme else 'http'}://{url.netloc}{url.path.rstrip('/')}"


def parse_json(line: bytes) -> JSON:
    """Parse JSON, accepting NaN and infinities, which some servers write; ValueError if it is not JSON."""
    try:
        return decode(line)
    except JSON_ERRORS:
        return json.loads(line)


CONNECT_TIMEOUT_S = 10.0
FIRST_PROBE_S, MAX_PROBE_S = 0.25, 5.0
"""The delay between requests that find out whether a server is back, at first and at most."""

MAX_CONNECTIONS = 512
"""Connections open at once to one server; further requests wait."""

MAX_REPLY_BYTES = 64 << 20
_LARGE_BODY = 512 << 10
_MAX_QUOTED_CHARS = 500


PROXY_ERROR_STATUSES = (502, 503, 504)
"""The statuses with which a proxy reports that the server itself is gone."""


class GymReply(msgspec.Struct, frozen=True):
    """The reply of a server."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """The body as text, whatever it contains."""
        return self.body.decode(errors="replace")

    @property
    def summary(self) -> str:
        """The body on one line, shortened, for a message."""
        value = self.json()
        text = value if isinstance(value, str) else self.text
        return " ".join(text.split())[:_MAX_QUOTED_CHARS] or "no message"

    def json(self) -> JSON:
        """Return the body's JSON; None if it is not JSON."""
        try:
            return decode(self.body)
        except JSON_ERRORS:
            return None


class GymClient:
    """The client of one server. `generation` changes with every outage: the server may have lost its sessions."""

    def __init__(self, base: str) -> None:
        self.base = base
        self._session: aiohttp.ClientSession | None = None
        self._urls: dict[str, URL] = {}
        self._client_id, self._outages, self.unreachable = token_hex(4), 0, False
        self._failing_since: float | None = None
        self._probing, self._probes = asyncio.Lock(), 0
        self._probe_failure: RolloutFailed | None = None

    @property
    def generation(self) -> str:
        """An id for the time since the last outage, unique to this client."""
        return f"{self._client_id}.{self._outages}"

    def replace_server(self, base: str) -> None:
        """Use another server from now on, at the same address or a new one."""
        self.base, self._urls = base, {}
        self._outages += 1

    async def open(self) -> None:
        """Create the connection pool."""
        self._session = open_http_session(CONNECT_TIMEOUT_S, connections=MAX_CONNECTIONS, accept="*/*")

    async def close(self) -> None:
        """Close all connections."""
        if self._session:
            await self._session.close()
        self._session = None

    async def post(
        self,
        path: str,
        value: JSON,
        cookies: dict[str, str],
        failure_kind: str = "environment_error",
        headers: Mapping[str, str] | None = None,
    ) -> GymReply:
        """Send a POST and return the reply. Cookies that it sets are added to `cookies`; the others stay.

        A server that cannot be reached is a failure of `failure_kind`; any reply, even an error, is returned.
        """
        return await self._request("POST", path, encode(value), cookies, failure_kind, headers)

    async def get(
        self, path: str, timeout_s: float = CONNECT_TIMEOUT_S, cookies: dict[str, str] | None = None
    ) -> GymReply:
        """Send a GET and return the reply, by a deadline."""
        jar: dict[str, str] = {} if cookies is None else cookies
        try:
            async with asyncio.timeout(timeout_s):
                return await self._request("GET", path, b"", jar, "environment_error")
        except TimeoutError:
            raise RolloutFailed("environment_error", path, f"{self.base}: no answer in {timeout_s:g} s") from None

    async def _request(
        self,
        method: str,
        path: str,
        body: bytes,
        cookies: dict[str, str],
        failure_kind: str,
        more_headers: Mapping[str, str] | None = None,
    ) -> GymReply:
        if self._session is None:
            raise RuntimeError("the client is not open")
        url = self._urls.get(path) or self._urls.setdefault(path, URL(f"{self.base}{path}"))
        data = body if len(body) < _LARGE_BODY else BytesIO(body)
        headers = {**(more_headers or {})}
        if cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in cookies.items())
        try:
            async with self._session.request(method, url, data=data, headers=headers, allow_redirects=False) as reply:
                raw = await _read_body(reply)
                self.unreachable = False
        except (aiohttp.ClientError, OSError) as error:
            self._note_failure()
            raise self._connection_failure(error, path, failure_kind) from None
        if reply.status in PROXY_ERROR_STATUSES:
            self._note_failure()
        else:
            self._failing_since = None
        for header in reply.headers.getall("Set-Cookie", ()):
            name, equals, value = header.partition(";")[0].partition("=")
            if equals:
                cookies[name.strip()] = value.strip()
        return GymReply(reply.status, raw)

    def _note_failure(self) -> None:
        if self._failing_since is None:
            self._failing_since = asyncio.get_running_loop().time()

    async def wait_until_reachable(
        self, outage_s: float, find_server: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Wait for an unreachable server: one outage for all callers, and a failure when it has lasted `outage_s`.

        It is over when anything answers. Callers share the answer to one request, so that a server which returns does
        not get one from each of them at once, and one that never answers does not delay them one after the other.
        `find_server` is called before each request, for a server that may have moved.
        """
        delay = FIRST_PROBE_S
        while self._failing_since is not None:
            failure = await self._share_probe(find_server)
            if failure is None or self._failing_since is None:
                return
            left = self._failing_since + outage_s - asyncio.get_running_loop().time()
            if left <= 0:
                raise RolloutFailed("environment_error", "/", f"{failure.message}, for {outage_s:g} s or longer")
            await asyncio.sleep(min(delay, left))
            delay = min(2 * delay, MAX_PROBE_S)

    async def _share_probe(self, find_server: Callable[[], Awaitable[None]] | None) -> RolloutFailed | None:
        """Return why the server is still unreachable, or None: ask it, or wait for another caller's answer."""
        before = self._probes
        async with self._probing:
            if self._probes == before:
                if find_server:
                    await find_server()
                self._probe_failure = await self._probe()
                self._probes += 1
        return self._probe_failure

    async def _probe(self) -> RolloutFailed | None:
        try:
            reply = await self.get("/")
        except RolloutFailed as failure:
            return failure
        gone = reply.status in PROXY_ERROR_STATUSES
        return RolloutFailed("environment_error", "/", f"{self.base}: HTTP {reply.status}") if gone else None

    def _connection_failure(self, error: Exception, path: str, failure_kind: str) -> RolloutFailed:
        if isinstance(error, aiohttp.ClientConnectorError) and not self.unreachable:
            self.unreachable, self._outages = True, self._outages + 1
        return RolloutFailed(failure_kind, path, f"{self.base}: {describe_connection_error(error)}")


async def _read_body(reply: aiohttp.ClientResponse) -> bytes:
    length = reply.content_length
    if length is not None and length <= MAX_REPLY_BYTES:
        return await reply.read()
    body = bytearray()
    async for chunk in reply.content.iter_chunked(256 << 10):
        body += chunk
        if len(body) > MAX_REPLY_BYTES:
            raise aiohttp.ClientPayloadError(f"an answer of more than {MAX_REPLY_BYTES >> 20} MiB")
    return bytes(body)


def read_named_failure(reply: GymReply) -> RolloutFailed | None:
    """Return the failure that our own servers name in an error, as `KIND in WHERE: MESSAGE`."""
    if reply.status < 500:
        return None
    kind, inside, rest = reply.summary.partition(" in ")
    where, colon, message = rest.partition(": ")
    return RolloutFailed(kind, where, message) if kind in FAILURE_KINDS and inside and colon else None


def read_json_reply(reply: GymReply, where: str, failure_kind: str) -> Mapping[str, JSON]:
    """Return the object of a reply; anything else is a failure of `failure_kind`."""
    if reply.status != 200:
        kind = "environment_error" if reply.status in PROXY_ERROR_STATUSES else failure_kind
        raise read_named_failure(reply) or RolloutFailed(kind, where, f"HTTP {reply.status}: {reply.summary}")
    try:
        value = parse_json(reply.body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise RolloutFailed(failure_kind, where, f"HTTP 200 that is not a JSON object: {reply.summary}")
    return value


VERIFY_PATH, STEP_PATH = "/verify", "/step"
SESSION_LOST = "the server was unreachable during this rollout, and may have lost its state"
SESSION_OVER = "its session has ended, and the server does not declare that it scores without one (GET /reverify_mode)"


class ConnectedServer(msgspec.Struct):
    """A server that was contacted. `stateless`: it declares that its verdicts need no session.

    `requires_token_details`: its types refuse a usage without counts of cached and reasoning tokens.
    `has_mcp`: it offers tools over MCP when a session is opened; asked only of a server that could do without sessions.
    """

    client: GymClient
    stateless: bool = False
    requires_token_details: bool = False
    has_mcp: bool = False

    async def connect(self, route: str) -> None:
        """Check that the server answers and has this route; UsageError names what is there instead."""
        try:
            await self.client.get("/")
            routes = (await self.client.get("/openapi.json")).json()
            self.stateless = (await self.client.get("/reverify_mode")).json() == "stateless"
            self.has_mcp = self.stateless and await answers_mcp(self.client)
        except RolloutFailed as error:
            raise UsageError(f"{error.message}; is the server up?") from None
        self.requires_token_details = requires_token_details(routes)
        paths = routes.get("paths") if isinstance(routes, dict) else None
        if isinstance(paths, dict) and (route not in paths or (route == VERIFY_PATH and STEP_PATH in paths)):
            raise UsageError(f"{self.client.base}: {_describe_mismatch(paths, route)}")

    async def post(
        self, path: str, value: JSON, cookies: dict[str, str], failure_kind: str = "environment_error"
    ) -> Mapping[str, JSON]:
        """Send a POST and return the object of the reply; anything else is a failure of `failure_kind`."""
        return read_json_reply(await self.client.post(path, value, cookies), path, failure_kind)

    def check_session(self, generation: str, where: str) -> None:
        """Fail if the session is lost: a restarted server has none, and some then silently score an empty one."""
        current = self.client.generation
        if generation == current or self.stateless:
            return
        if generation.partition(".")[0] == current.partition(".")[0]:
            raise RolloutFailed("environment_error", where, SESSION_LOST)
        raise RolloutFailed("verifier_error", where, SESSION_OVER)

    def adapt_response(self, response: dict[str, JSON]) -> dict[str, JSON]:
        """Return a response as the server's types take it: without `usage` rather than with unknown counts."""
        return {**response, "usage": None} if self.requires_token_details else response


MCP_PATH = "/mcp"
_MCP_HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


class McpEndpoint(msgspec.Struct, frozen=True):
    """Where a server offers the tools of one rollout over MCP, as its reply to /seed_session says."""

    url_path: str = MCP_PATH
    transport: str = "http"
    headers: dict[str, str] = {}


async def answers_mcp(client: GymClient) -> bool:
    """Whether a server offers MCP at the usual path."""
    reply = (await ask_mcp(client, McpEndpoint(), "tools/list", {})).json()
    return isinstance(reply, dict) and reply.get("jsonrpc") == "2.0"


async def ask_mcp(client: GymClient, endpoint: McpEndpoint, method: str, params: dict[str, JSON]) -> GymReply:
    """Send one MCP request. Gym's MCP servers keep no sessions of their own, so no greeting precedes it."""
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return await client.post(endpoint.url_path, request, {}, headers={**_MCP_HEADERS, **endpoint.headers})


_DETAIL_COUNTS = ("cached_tokens", "reasoning_tokens")


def requires_token_details(openapi: JSON) -> bool:
    """Whether the types in an OpenAPI document insist on detailed counts, as those of NeMo Gym up to 0.5.1 do."""
    components = openapi.get("components") if isinstance(openapi, dict) else None
    schemas = components.get("schemas") if isinstance(components, dict) else None
    fields = [
        schema["properties"][name]
        for schema in (schemas.values() if isinstance(schemas, dict) else ())
        for name in _DETAIL_COUNTS
        if isinstance(schema, dict) and name in (schema.get("properties") or {})
    ]
    return any(isinstance(field, dict) and field.get("type") == "integer" for field in fields)


def _describe_mismatch(paths: dict[str, JSON], route: str) -> str:
    if "/run" in paths:
        return "an agent, not a resources server; write gym+agent://host:port"
    if STEP_PATH in paths:
        return "its rollouts run step by step; write gym+step://host:port, or gym+step:config.yaml"
    if VERIFY_PATH in paths:
        return "its rollouts do not run step by step; write http://host:port, or gym:config.yaml"
    return f"not a resources server: it has no {route}"
