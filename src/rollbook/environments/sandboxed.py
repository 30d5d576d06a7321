"""Sandboxed: a base class for environments that run the model's code; it holds a sandbox from `start` to `stop`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from functools import cached_property

from rollbook.core import JSON
from rollbook.environments.environment import Environment
from rollbook.errors import UsageError
from rollbook.sandbox import Grader, Limits, Sandbox, Verdict

OPENING_S = 60.0
DETAIL_CHARS = 500


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Sandboxed(Environment):
    """One sandbox a worker, with as many runs at once as there are cores; who waits is not on the clock.

    Where no sandbox can be had, `start` says so and the run is refused.
    """

    verify_at_once = usable_cores()
    limits = Limits()
    packages: Sequence[str] = ()
    sessions = 1

    _box: Sandbox | None = None
    _opening: asyncio.Task[Sandbox] | None = None

    @property
    def box(self) -> Sandbox:
        """The open sandbox."""
        if self._box is None:
            raise UsageError(f"{type(self).__name__} runs code: await its start() first, and its stop() in the end")
        return self._box

    @cached_property
    def grader(self) -> Grader:
        """Grades in the sandbox, for as long as it is open."""
        return Grader(self.box)

    async def start(self) -> None:
        """Open the sandbox."""
        box = Sandbox(self.limits, packages=self.packages, size=usable_cores(), sessions=self.sessions)
        self._opening = asyncio.create_task(box.__aenter__(), name="sandbox")
        self._box = await asyncio.shield(self._opening)

    async def stop(self) -> None:
        """Close it, also when it was still being opened: no process of it stays behind."""
        entering, self._opening, self._box = self._opening, None, None
        self.__dict__.pop("grader", None)
        if entering is None:
            return
        done, _ = await asyncio.wait({entering}, timeout=OPENING_S)
        if done and not entering.cancelled() and entering.exception() is None:
            await entering.result().__aexit__(None, None, None)


def marks(verdict: Verdict) -> dict[str, JSON]:
    """What is kept of a verdict beside the reward."""
    kept: dict[str, JSON] = {"reason": verdict.reason, "cpu_seconds": round(verdict.cpu_seconds, 4)}
    if verdict.detail:
        kept["detail"] = verdict.detail[:DETAIL_CHARS]
    if verdict.weak:
        kept["weak"] = True
    return kept
