"""Replicas of a model: how one is called over HTTP, which one a call goes to, and how failing ones are handled."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from io import BytesIO
from typing import Literal, TypeVar

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from rollbook.core import FAILURE_KINDS, Routing
from rollbook.errors import ContextFull, EndpointDown, EndpointRefused, RolloutFailed
from rollbook.models.model import join_url
from rollbook.models.outage import Outage, describe_current_outage, describe_outage, describe_refusal
from rollbook.models.replica_choice import ReplicaChooser
from rollbook.models.server_errors import CONNECT, REFUSED_STATUSES, WHERE, make_bad_completion, make_http_error
from rollbook.processes import timeout_after

RESPONSE_LIMIT = 64 * 1024 * 1024
_LARGE_BODY = 512 * 1024
_IDLE_CONNECTION_S = 3.0
"""Below the 5 s after which common servers close an idle connection: a POST on a closing one is lost."""


def open_http_session(
    connect_s: float,
    key: str = "",
    connections: int = 0,
    accept: str = "application/json",
    more_headers: Mapping[str, str] | None = None,
) -> aiohttp.ClientSession:
    """Open the one session with a server: no limit on connections unless given, no cookies, no per-call timers."""
    headers = CIMultiDict({"Content-Type": "application/json", "Accept": accept, "Accept-Encoding": "identity"})
    if key:
        headers["Authorization"] = f"Bearer {key}"
    headers.update(more_headers or {})
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections, keepalive_timeout=_IDLE_CONNECTION_S, ttl_dns_cache=60),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_s),
    )


class Replica:
    """One base URL. `post` returns the body of a 200, or raises the failure; `key_advice` goes with a refused key."""

    def __init__(
        self,
        base: str,
        session: aiohttp.ClientSession,
        call_s: float,
        scrub: Callable[[str], str],
        key_advice: str = "",
    ) -> None:
        self.base, self._key_advice = base, key_advice
        self.chat = URL(join_url(base, "chat/completions"))
        self.text = URL(join_url(base, "completions"))
        self.models = URL(join_url(base, "models"))
        self.in_flight = 0
        self._session = session
        self._call_s = call_s
        self._scrub = scrub

    async def post(self, url: URL, body: bytes) -> bytes:
        """Return the body of the answer."""
        status, retry_after, raw = await self.post_any_status(url, body)
        if status != 200:
            raise self.make_error(status, retry_after, raw)
        return raw

    def make_error(self, status: int, retry_after: str | None, raw: bytes) -> RolloutFailed | ContextFull:
        """Return the failure for an answer whose status is not 200."""
        return make_http_error(status, retry_after, raw, self._key_advice)

    async def post_any_status(self, url: URL, body: bytes) -> tuple[int, str | None, bytes]:
        """Return status, Retry-After and body, whatever they are; RolloutFailed if no answer came."""
        data = body if len(body) < _LARGE_BODY else BytesIO(body)
        try:
            answering = self._session.post(url, data=data, allow_redirects=False)
            async with timeout_after(self._call_s), answering as response:
                raw = await _read_body(response)
        except aiohttp.ClientError as error:
            raise self._connection_failure(error) from None
        except TimeoutError:
            raise RolloutFailed("model_timeout", WHERE, f"{self.base}: no answer in {self._call_s:g} s") from None
        except OSError as error:
            raise self._connection_failure(error) from None
        scrubbed = raw if response.status == 200 else self._scrub_bytes(raw)
        return response.status, response.headers.get("Retry-After"), scrubbed

    async def get(self, url: URL, within_s: float) -> tuple[int, bytes]:
        """Return the status and body of a GET; RolloutFailed("model_unavailable") if no answer came."""
        try:
            async with asyncio.timeout(within_s):
                async with self._session.get(url, allow_redirects=False) as response:
                    return response.status, self._scrub_bytes(await _read_body(response))
        except TimeoutError:
            raise RolloutFailed("model_unavailable", CONNECT, f"{self.base}: no answer in {within_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise self._connection_failure(error) from None

    def _connection_failure(self, error: Exception) -> RolloutFailed:
        where = CONNECT if isinstance(error, aiohttp.ClientConnectionError | OSError) else WHERE
        return RolloutFailed(
            "model_unavailable", where, f"{self.base}: {self._scrub(describe_connection_error(error))}"
        )

    def _scrub_bytes(self, raw: bytes) -> bytes:
        return self._scrub(raw.decode(errors="replace")).encode()


async def _read_body(response: aiohttp.ClientResponse) -> bytes:
    length = response.content_length
    if length is not None and length <= RESPONSE_LIMIT and "Content-Encoding" not in response.headers:
        return await response.read()
    body = bytearray()
    async for chunk in response.content.iter_chunked(256 * 1024):
        body += chunk
        if len(body) > RESPONSE_LIMIT:
            raise make_bad_completion(f"an answer of more than {RESPONSE_LIMIT} bytes")
    return bytes(body)


def describe_connection_error(error: Exception) -> str:
    """Return why a request got no reply."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the server closed the connection"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"the name {error.host} is not known: check the host in the URL"
    if isinstance(error, aiohttp.ClientSSLError):
        plain = "WRONG_VERSION_NUMBER" in str(error) or "RECORD_LAYER_FAILURE" in str(error)
        return f"TLS: {'the server does not use TLS: give http:// instead of https://' if plain else error}"
    return str(error) or type(error).__name__


MAX_STRIKES = 3
FIRST_PROBE_S, SLOWEST_PROBE_S = 0.25, 5.0
TRIAL_S = 5.0

T = TypeVar("T")

MAX_TRIALS = 2


class ReplicaHealth:
    """The health of a replica: in use, out and being probed, or on trial with one call."""

    __slots__ = ("delay_s", "epoch", "needs_trial", "reason", "refused", "state", "strikes", "testing")

    def __init__(self) -> None:
        self.state: Literal["in", "out", "trial"] = "in"
        self.strikes = 0
        self.epoch = 0
        self.delay_s = FIRST_PROBE_S
        self.needs_trial = False
        self.testing = False
        self.reason = ""
        self.refused: int | None = None
        """The status of its last answer, if that was a refusal of the call whatever it is."""


SHOW_OUTAGE_AFTER_S = 1.0
"""A shorter outage is not shown: a lost connection is often back at the first look."""


class Router:
    """Sends each call to a replica (see `ReplicaChooser`); takes failing ones out and back in.

    A replica that cannot be reached, or that failed three times in a row, is taken out. `probe` returns why it still
    fails, or None; one that answers probes but failed calls is used again only after one successful call on trial,
    which costs that call's rollout no attempt. While no replica is in use, callers wait, for `outage_s` in all: then
    every caller gets EndpointDown; they get it at once after `stop_waiting`. Where every replica refuses every call and
    none has ever answered one, callers get EndpointRefused without waiting.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        probe: Callable[[Replica], Awaitable[str | None]],
        outage_s: float,
        routing: Routing = "affinity",
    ) -> None:
        self.replicas = list(replicas)
        self._health = {replica: ReplicaHealth() for replica in replicas}
        self._probe = probe
        self._outage = Outage(outage_s)
        self._active_calls = 0
        self._last_call_ended = 0.0
        self._changed = asyncio.Event()
        self._chooser = ReplicaChooser[Replica](routing)
        self._probe_tasks: dict[Replica, asyncio.Task[None]] = {}
        self._waiting_ended = False
        self.answered = False
        """Whether any call was ever answered."""

    def stop_waiting(self) -> None:
        """Let callers that wait for a replica, now or later, give up at once."""
        self._waiting_ended = True
        self._notify_waiters()

    def describe_outage(self) -> str:
        """Return how long no replica has been in use, and why; empty where one is, or was a moment ago."""
        seconds = self._outage.seconds
        return describe_current_outage(self._list_reasons(), seconds) if seconds >= SHOW_OUTAGE_AFTER_S else ""

    async def close(self) -> None:
        """Stop all probing."""
        tasks, self._probe_tasks = list(self._probe_tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def send(self, rollout: str, call: Callable[[Replica], Awaitable[T]], group: str = "") -> T:
        """Make one call, on the replica chosen for the rollout and its group."""
        if not self._active_calls:
            self._outage.skip_idle_time(self._last_call_ended)
        self._active_calls += 1
        try:
            return await self._send(rollout, group, call)
        finally:
            self._active_calls -= 1
            self._last_call_ended = asyncio.get_running_loop().time()

    async def _send(self, rollout: str, group: str, call: Callable[[Replica], Awaitable[T]]) -> T:
        trials = 0
        while True:
            replica = self._choose(rollout, group) or await self._wait(rollout, group)
            health = self._health[replica]
            epoch, on_trial = health.epoch, health.state == "trial"
            if on_trial:
                self._begin_trial(replica, epoch)
            replica.in_flight += 1
            try:
                result = await call(replica)
            except RolloutFailed as raised:
                error = self._read_refusal(raised)
                self._on_failure(replica, error, epoch)
                self._raise_if_refused()
                trials += on_trial
                if not (on_trial and error.kind == "model_unavailable") or trials > MAX_TRIALS:
                    # the server or this one prompt may be the cause: in the end the prompt pays an attempt
                    raise error from None
            except ContextFull:
                self.answered = True
                self._on_answer(replica, epoch)
                raise
            except BaseException:
                self._on_cancel(health, epoch)
                raise
            else:
                self.answered = True
                if health.strikes or on_trial:
                    self._on_answer(replica, epoch)
                return result
            finally:
                replica.in_flight -= 1

    def take_out(self, replica: Replica, reason: str, *, needs_trial: bool = False, wait_s: float = 0.0) -> None:
        """Stop using a replica until a probe succeeds; the first probe comes after `wait_s`."""
        health = self._health[replica]
        health.state, health.reason, health.needs_trial = "out", reason, needs_trial
        health.epoch, health.testing = health.epoch + 1, False
        if not any(each.state == "in" for each in self._health.values()):
            self._outage.begin()
        if replica not in self._probe_tasks:
            self._probe_tasks[replica] = asyncio.create_task(self._probe_until_healthy(replica, health, wait_s))

    def _choose(self, rollout: str, group: str) -> Replica | None:
        if len(self.replicas) == 1:
            return self.replicas[0] if self._accepts_calls(self.replicas[0]) else None
        available = [replica for replica in self.replicas if self._accepts_calls(replica)]
        if not available:
            return None
        trial = next((replica for replica in available if self._health[replica].state == "trial"), None)
        if trial is None:
            return self._chooser.choose(rollout, group, available)
        self._chooser.remember(rollout, trial)  # one call tries it; the group of that call stays where it is
        return trial

    def _accepts_calls(self, replica: Replica) -> bool:
        health = self._health[replica]
        return health.state == "in" or (health.state == "trial" and not health.testing)

    async def _wait(self, rollout: str, group: str) -> Replica:
        while (replica := self._choose(rollout, group)) is None:
            self._raise_if_refused()
            left = self._outage.left_s()
            if left <= 0 or self._waiting_ended:
                raise self._endpoint_down()
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                continue
        return replica

    def _endpoint_down(self) -> EndpointDown:
        lasted = self._outage.seconds if self._waiting_ended else self._outage.allowed_s
        reasons = self._list_reasons()
        return EndpointDown(describe_outage(reasons, round(lasted, 1)), reasons)

    def _raise_if_refused(self) -> None:
        """Raise EndpointRefused if no replica is in use, all of them refuse every call, and none ever answered one."""
        if self.answered:
            return
        statuses = [health.refused for health in self._health.values() if health.state != "in"]
        refused = [status for status in statuses if status is not None]
        if len(refused) == len(self._health):
            reasons = self._list_reasons()
            raise EndpointRefused(describe_refusal(reasons), reasons, refused)

    def _read_refusal(self, error: RolloutFailed) -> RolloutFailed:
        """Return the failure; a 403 while nothing was ever answered is about the key, not about one prompt.

        It must not cost its rollout: later a 403 may be a moderated prompt, which another attempt would not change.
        """
        if error.status != 403 or self.answered:
            return error
        return RolloutFailed("model_unavailable", error.where, error.message, status=error.status)

    def _list_reasons(self) -> str:
        return "; ".join(self._describe_replica(replica) for replica in self.replicas)

    def _describe_replica(self, replica: Replica) -> str:
        return f"{replica.base}: {self._health[replica].reason.removeprefix(f'{replica.base}: ')}"

    def _begin_trial(self, replica: Replica, epoch: int) -> None:
        health = self._health[replica]
        health.testing = True

        def promote() -> None:
            if health.epoch == epoch and health.testing:
                self._put_back(health)

        # A refusal comes fast. A call that still runs is being processed: other calls need not wait for its end.
        asyncio.get_running_loop().call_later(TRIAL_S, promote)

    def _on_failure(self, replica: Replica, error: RolloutFailed, epoch: int) -> None:
        health = self._health[replica]
        health.refused = error.status if error.status in REFUSED_STATUSES else None
        if not FAILURE_KINDS[error.kind].no_answer:
            self.answered = self.answered or error.status is not None
            self._on_answer(replica, epoch)
            return
        if health.epoch != epoch:
            return
        health.strikes += 1
        struck_out = health.testing or health.strikes >= MAX_STRIKES
        if error.kind == "model_timeout" and struck_out:
            self.take_out(replica, error.message)
        elif struck_out:
            wait_s = max(error.retry_after_s or 0.0, self._next_delay(health))
            self.take_out(replica, error.message, needs_trial=True, wait_s=wait_s)
        elif error.where == CONNECT:
            # One lost connection may mean nothing: it is probed at once, and other calls lose no more than that.
            self.take_out(replica, error.message)

    def _on_answer(self, replica: Replica, epoch: int) -> None:
        health = self._health[replica]
        if health.epoch != epoch:
            return
        health.strikes = 0
        if health.state == "trial":
            self._put_back(health)

    def _on_cancel(self, health: ReplicaHealth, epoch: int) -> None:
        if health.epoch == epoch and health.testing:
            health.testing = False
            self._notify_waiters()

    def _put_back(self, health: ReplicaHealth) -> None:
        health.state, health.testing, health.delay_s = "in", False, FIRST_PROBE_S
        self._outage.end()
        self._notify_waiters()

    async def _probe_until_healthy(self, replica: Replica, health: ReplicaHealth, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        while (reason := await self._probe(replica)) is not None:
            health.reason = reason
            await asyncio.sleep(self._next_delay(health) * random.uniform(0.8, 1.2))
        self._probe_tasks.pop(replica, None)
        if health.needs_trial:
            health.state = "trial"
            self._notify_waiters()
        else:
            self._put_back(health)

    def _next_delay(self, health: ReplicaHealth) -> float:
        delay_s, health.delay_s = health.delay_s, min(health.delay_s * 2, SLOWEST_PROBE_S)
        return delay_s

    def _notify_waiters(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
