"""The recorder of one rollout: asks for its agent, and keeps every answer, and every failure, as it comes."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec

from rollbook.core.json import JSON
from rollbook.core.rollout import Rollout, seed_of
from rollbook.errors import ContextFull, LimitReached, RolloutFailed, UsageError
from rollbook.models.ask import Ask
from rollbook.models.model import Completion
from rollbook.wire.gateway.asked import Asked
from rollbook.wire.gateway.branches import Branch, Branches, digests_of
from rollbook.wire.gateway.trouble import Busy, Ended

MOST_AT_ONCE = 64
"""Calls that one rollout may have under way; more are told to come again."""

MOST_FAILED = 64
"""Different calls that may fail before the rollout is given up: an agent may ask without end."""


class Recorder:
    """Answers the calls of one rollout with `ask`. What the rollout holds is always all that was answered so far.

    `broken` is set once something happened that concerns more than one call: then the rollout is over.
    """

    def __init__(self, rollout: Rollout, ask: Ask) -> None:
        self._rollout, self._ask = rollout, ask
        self._branches = Branches()
        self._failed: dict[bytes, RolloutFailed] = {}
        self._ended: ContextFull | LimitReached | None = None
        self._trouble: BaseException | None = None
        self._times: Counter[bytes] = Counter()
        self._under_way = 0
        self._closed = False
        self.broken = asyncio.Event()

    @property
    def branches(self) -> list[Branch]:
        """What was said so far, the branch that was asked in last at the end."""
        return self._branches.ordered()

    @property
    def calls(self) -> int:
        """How many calls were answered."""
        return len(self._rollout.turns)

    def close(self) -> None:
        """Answer no more."""
        self._closed = True

    def settle(self) -> None:
        """Raise what the calls came to, if that is not an answer to each.

        A call that failed and was answered when the agent made it again is no failure. A prompt that was too long is
        the end only if no other followed it.
        """
        if self._trouble is not None:
            raise self._trouble
        for error in self._failed.values():
            raise error
        if self._ended is not None:
            raise self._ended

    async def complete(self, asked: Asked) -> Completion:
        """One answer; RolloutFailed, ContextFull or LimitReached if there is none."""
        if self._closed or self.broken.is_set():
            raise Ended
        if self._under_way >= MOST_AT_ONCE:
            raise Busy(f"{MOST_AT_ONCE} calls of this rollout are under way")
        digests = digests_of(asked.messages)
        asked = msgspec.structs.replace(asked, messages=self._branches.restored(asked.messages, digests))
        self._under_way += 1
        try:
            completion = await self._asked(asked, digests[-1])
        finally:
            self._under_way -= 1
        if self._closed:
            raise Ended
        self._note(asked, digests, completion)
        return completion

    async def _asked(self, asked: Asked, prompt: bytes) -> Completion:
        extra = self._seeded(asked.extra, prompt)
        self._times[prompt] += 1
        try:
            return await self._ask(asked.messages, tools=asked.tools, extra=extra)
        except BaseException as error:
            self._times[prompt] -= 1  # nobody has heard this answer: the next call may have it
            self._hold(error, prompt)
            raise

    def _seeded(self, extra: dict[str, JSON], prompt: bytes) -> dict[str, JSON]:
        """Whoever asks the same again wants another answer, and the same one when the rollout is played again."""
        times = self._times[prompt]
        if not times or "seed" in extra:
            return extra
        return {**extra, "seed": seed_of(self._rollout.seed, prompt.hex(), times)}

    def _hold(self, error: BaseException, prompt: bytes) -> None:
        if isinstance(error, RolloutFailed):
            self._failed[prompt] = error
            if len(self._failed) >= MOST_FAILED:
                self.broken.set()
        elif isinstance(error, ContextFull | LimitReached):
            self._ended = error
        elif not isinstance(error, asyncio.CancelledError | UsageError):
            self._trouble = error
            self.broken.set()

    def _note(self, asked: Asked, digests: list[bytes], completion: Completion) -> None:
        self._failed.pop(digests[-1], None)
        if isinstance(self._ended, ContextFull):
            self._ended = None
        self._branches.add(asked.messages, digests, completion.message, completion.turn)
        self._rollout.turns = self._branches.turns()
        self._rollout.messages = self._branches.messages(self._rollout.task.messages)
