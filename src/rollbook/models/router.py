"""The router: which replica a call goes to, and what becomes of a replica that falls ill."""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeVar

from rollbook.errors import ContextFull, EndpointDown, RolloutFailed
from rollbook.models.refusal import CONNECT
from rollbook.models.replica import Replica

STRIKES = 3
FIRST_PROBE_S, SLOWEST_PROBE_S = 0.25, 5.0
TRIAL_S = 5.0
STICKY = 16_384
IDLE_S = 10.0

T = TypeVar("T")

TRIALS = 2


class Health:
    """How a replica is: in use, out and being probed, or on trial with one call."""

    __slots__ = ("delay_s", "epoch", "needs_trial", "reason", "state", "strikes", "testing")

    def __init__(self) -> None:
        self.state: Literal["in", "out", "trial"] = "in"
        self.strikes = 0
        self.epoch = 0
        self.delay_s = FIRST_PROBE_S
        self.needs_trial = False
        self.testing = False
        self.reason = ""


class Router:
    """Least-loaded, a rollout staying on its replica; the sick taken out, probed and let back in.

    A replica that cannot be reached, or that failed three times running, is taken out. `probe` says why it is still
    ill, or None; one that answers probes but failed calls is let back in only after one call on trial went well,
    which costs that call's rollout no attempt. While nobody is in, callers wait, for `outage_s` in all: then every
    one gets EndpointDown.
    """

    def __init__(
        self, replicas: Sequence[Replica], probe: Callable[[Replica], Awaitable[str | None]], outage_s: float
    ) -> None:
        self.replicas = list(replicas)
        self._health = {replica: Health() for replica in replicas}
        self._probe = probe
        self._outage_s = outage_s
        self._down_since: float | None = None
        self._asking = 0
        self._left_off = 0.0
        self._changed = asyncio.Event()
        self._sticky: OrderedDict[str, Replica] = OrderedDict()
        self._healers: dict[Replica, asyncio.Task[None]] = {}

    async def close(self) -> None:
        """Stop all probing."""
        healers, self._healers = list(self._healers.values()), {}
        for healer in healers:
            healer.cancel()
        await asyncio.gather(*healers, return_exceptions=True)

    async def send(self, rollout: str, call: Callable[[Replica], Awaitable[T]]) -> T:
        """Make one call on the replica that should have it."""
        self._resume_clock()
        self._asking += 1
        try:
            return await self._send(rollout, call)
        finally:
            self._asking -= 1
            self._left_off = asyncio.get_running_loop().time()

    def _resume_clock(self) -> None:
        """Time in which nobody asked is no outage: a trainer may be busy with other things for minutes."""
        now = asyncio.get_running_loop().time()
        if self._down_since is not None and not self._asking and now - self._left_off > min(IDLE_S, self._outage_s):
            self._down_since = now

    async def _send(self, rollout: str, call: Callable[[Replica], Awaitable[T]]) -> T:
        trials = 0
        while True:
            replica = self._choose(rollout) or await self._wait(rollout)
            health = self._health[replica]
            epoch, on_trial = health.epoch, health.state == "trial"
            if on_trial:
                self._begin_trial(replica, epoch)
            replica.in_flight += 1
            try:
                result = await call(replica)
            except RolloutFailed as error:
                self._failed(replica, error, epoch)
                trials += on_trial
                if not (on_trial and error.kind == "model_unavailable") or trials > TRIALS:
                    raise  # it may be the server or this one prompt: in the end the prompt pays an attempt
            except ContextFull:
                self._answered(replica, epoch)
                raise
            except BaseException:
                self._abandoned(health, epoch)
                raise
            else:
                if health.strikes or on_trial:
                    self._answered(replica, epoch)
                return result
            finally:
                replica.in_flight -= 1

    def take_out(self, replica: Replica, reason: str, *, needs_trial: bool = False, wait_s: float = 0.0) -> None:
        """Stop using a replica until a probe finds it well; the first probe comes after `wait_s`."""
        health = self._health[replica]
        health.state, health.reason, health.needs_trial = "out", reason, needs_trial
        health.epoch, health.testing = health.epoch + 1, False
        if self._down_since is None and not self._anyone_in():
            self._down_since = asyncio.get_running_loop().time()
        if replica not in self._healers:
            self._healers[replica] = asyncio.create_task(self._heal(replica, health, wait_s))

    def _choose(self, rollout: str) -> Replica | None:
        if len(self.replicas) == 1:
            return self.replicas[0] if self._takes(self.replicas[0]) else None
        trial = next((r for r in self.replicas if self._health[r].state == "trial" and self._takes(r)), None)
        kept = self._sticky.get(rollout)
        if trial is None and kept is not None and self._takes(kept):
            self._sticky.move_to_end(rollout)
            return kept
        chosen = trial or min((r for r in self.replicas if self._takes(r)), key=_load, default=None)
        if chosen is not None:
            self._remember(rollout, chosen)
        return chosen

    def _takes(self, replica: Replica) -> bool:
        health = self._health[replica]
        return health.state == "in" or (health.state == "trial" and not health.testing)

    def _remember(self, rollout: str, replica: Replica) -> None:
        self._sticky[rollout] = replica
        self._sticky.move_to_end(rollout)
        if len(self._sticky) > STICKY:
            self._sticky.popitem(last=False)

    async def _wait(self, rollout: str) -> Replica:
        loop = asyncio.get_running_loop()
        while (replica := self._choose(rollout)) is None:
            left = (self._down_since or loop.time()) + self._outage_s - loop.time()
            if left <= 0:
                raise self._endpoint_down()
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                continue
        return replica

    def _endpoint_down(self) -> EndpointDown:
        reasons = "; ".join(f"{r.base}: {self._health[r].reason.removeprefix(f'{r.base}: ')}" for r in self.replicas)
        return EndpointDown(outage(reasons, self._outage_s))

    def _begin_trial(self, replica: Replica, epoch: int) -> None:
        health = self._health[replica]
        health.testing = True

        def promote() -> None:
            if health.epoch == epoch and health.testing:
                self._let_in(health)

        # A refusal comes fast. A call that is still running is being worked on: others need not wait for its end.
        asyncio.get_running_loop().call_later(TRIAL_S, promote)

    def _failed(self, replica: Replica, error: RolloutFailed, epoch: int) -> None:
        health = self._health[replica]
        if error.kind not in ("model_unavailable", "model_timeout"):
            self._answered(replica, epoch)
            return
        if health.epoch != epoch:
            return
        health.strikes += 1
        struck_out = health.testing or health.strikes >= STRIKES
        if error.kind == "model_timeout" and struck_out:
            self.take_out(replica, error.message)
        elif struck_out:
            wait_s = max(error.retry_after_s or 0.0, self._next_delay(health))
            self.take_out(replica, error.message, needs_trial=True, wait_s=wait_s)
        elif error.where == CONNECT:
            # One lost connection may mean nothing: it is probed at once, and costs the others no more than that.
            self.take_out(replica, error.message)

    def _answered(self, replica: Replica, epoch: int) -> None:
        health = self._health[replica]
        if health.epoch != epoch:
            return
        health.strikes = 0
        if health.state == "trial":
            self._let_in(health)

    def _abandoned(self, health: Health, epoch: int) -> None:
        if health.epoch == epoch and health.testing:
            health.testing = False
            self._tell()

    def _let_in(self, health: Health) -> None:
        health.state, health.testing, health.delay_s = "in", False, FIRST_PROBE_S
        self._down_since = None
        self._tell()

    async def _heal(self, replica: Replica, health: Health, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        while (reason := await self._probe(replica)) is not None:
            health.reason = reason
            await asyncio.sleep(self._next_delay(health) * random.uniform(0.8, 1.2))
        self._healers.pop(replica, None)
        if health.needs_trial:
            health.state = "trial"
            self._tell()
        else:
            self._let_in(health)

    def _next_delay(self, health: Health) -> float:
        delay_s, health.delay_s = health.delay_s, min(health.delay_s * 2, SLOWEST_PROBE_S)
        return delay_s

    def _anyone_in(self) -> bool:
        return any(health.state == "in" for health in self._health.values())

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def outage(reasons: str, outage_s: float, then: str = "try again; a run goes on with `rollbook resume`") -> str:
    """The one line of an EndpointDown."""
    return f"no model answered for {outage_s:g} s ({reasons}); check the server, then {then}"


def _load(replica: Replica) -> int:
    return replica.in_flight
