"""The states that clients have open over HTTP: each from its seed to its verification.

What a state came to is remembered when it is closed, so that a verification that is asked for again is answered again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from rollbook.core.json import JSON
from rollbook.core.task import Task
from rollbook.environments.hosts import SeatLost
from rollbook.environments.seat import Seat
from rollbook.environments.stage import Stage
from rollbook.errors import RolloutFailed
from rollbook.wire.gym.leases import LEASE_S, MOST, Leases, NoSession

T = TypeVar("T")


class State:
    """The state of one rollout; `failure` is why it can come to nothing."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self.tools = [str(tool["function"]["name"]) for tool in seat.tools]
        self.failure: RolloutFailed | None = None

    async def guarded(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do something with the state; what breaks it once has broken it for good."""
        if self.failure is None:
            try:
                return await work()
            except SeatLost:
                self.failure = _lost()
            except RolloutFailed as error:
                self.failure = error
        raise self.failure


class Sessions:
    """The states by the name of their session: at most `most` are open, and as many outcomes are remembered."""

    def __init__(self, stage: Stage, *, lease_s: float = LEASE_S, most: int = MOST) -> None:
        self._stage, self._most = stage, most
        self._leases = Leases[State](lambda state: stage.leave(state.seat), lease_s=lease_s, most=most)
        self._outcomes: dict[str, JSON | RolloutFailed] = {}

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def remembered(self) -> int:
        """How many outcomes are."""
        return len(self._outcomes)

    async def begin(self, name: str, task: Task) -> None:
        """Open a state under a name."""

        async def seated() -> State:
            try:
                return State(await self._stage.seat(task, name))
            except SeatLost:
                raise _lost() from None

        await self._leases.begin(name, seated)

    async def use(self, name: str, tool: str, arguments: str) -> str | None:
        """What a tool says; None if there is no such tool."""
        if name in self._outcomes:
            raise NoSession("this session has been verified: seed a new one")
        async with self._leases.used(name) as state:
            if tool not in state.tools:
                return None
            return await state.guarded(lambda: state.seat.use(tool, arguments))

    async def tools(self, name: str) -> list[str]:
        """The names of the tools that there are for a rollout."""
        async with self._leases.used(name) as state:
            return state.tools

    async def conclude(self, name: str) -> JSON:
        """What the state came to, or the failure that it came to nothing; it is closed."""
        try:
            async with self._leases.used(name) as state:
                self._remember(name, await self._outcome(state))
                await self._leases.end(name)
        except NoSession:
            if name not in self._outcomes:
                raise
        outcome = self._outcomes[name]
        if isinstance(outcome, RolloutFailed):
            raise outcome
        return outcome

    async def _outcome(self, state: State) -> JSON | RolloutFailed:
        try:
            return await state.guarded(state.seat.outcome)
        except RolloutFailed as error:
            return error

    def _remember(self, name: str, outcome: JSON | RolloutFailed) -> None:
        self._outcomes[name] = outcome
        while len(self._outcomes) > self._most:
            del self._outcomes[next(iter(self._outcomes))]

    def kept(self, app: object) -> AsyncIterator[None]:
        """For aiohttp: while the server is up."""
        return self._leases.kept(app)


def _lost() -> RolloutFailed:
    return RolloutFailed("environment_error", "environment", "the process of this state was lost")
