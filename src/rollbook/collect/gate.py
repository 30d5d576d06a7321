"""A gate before a model: closed while its weights change, so that no call sees half of two versions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from rollbook.core.json import JSON
from rollbook.core.manifest import Sampling
from rollbook.core.message import Message
from rollbook.errors import Stopped
from rollbook.models.continuing import Held, continuing
from rollbook.models.model import Completion, Model


class Gate:
    """A model that can be paused between calls."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.spec = model.spec
        self._calls = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._way = asyncio.Event()
        self._way.set()

    @property
    def tokens(self) -> bool:
        """Whether the model reports token ids."""
        return bool(getattr(self._model, "tokens", False))

    @property
    def version(self) -> str | None:
        """The version that calls are stamped with."""
        return self._model.version

    @version.setter
    def version(self, version: str | None) -> None:
        self._model.version = version

    async def open(self) -> None:
        """Open the model."""
        await self._model.open()
        self.spec = self._model.spec

    async def close(self) -> None:
        """Close the model."""
        await self._model.close()

    async def pause(self, within_s: float) -> None:
        """Let no new call through and wait for those under way."""
        self._way.clear()
        try:
            async with asyncio.timeout(within_s):
                await self._quiet.wait()
        except TimeoutError:
            raise Stopped(f"{self._calls} model calls did not end within {within_s:g} s of the pause") from None

    def resume(self) -> None:
        """Let calls through again."""
        self._way.set()

    async def complete(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        seed: int,
        rollout: str,
        tools: Sequence[JSON] = (),
    ) -> Completion:
        """Answer once, when the way is clear."""
        return await self._through(
            lambda: self._model.complete(messages, sampling, seed=seed, rollout=rollout, tools=tools)
        )

    async def go_on(
        self,
        held: Held,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        seed: int,
        rollout: str,
        tools: Sequence[JSON] = (),
    ) -> Completion:
        """Likewise, in the tokens that an earlier call ended with."""
        model = continuing(self._model)
        return await self._through(
            lambda: model.go_on(held, messages, sampling, seed=seed, rollout=rollout, tools=tools)
        )

    async def _through(self, call: Callable[[], Awaitable[Completion]]) -> Completion:
        while not self._way.is_set():
            await self._way.wait()
        self._calls += 1
        self._quiet.clear()
        try:
            return await call()
        finally:
            self._calls -= 1
            if not self._calls:
                self._quiet.set()
