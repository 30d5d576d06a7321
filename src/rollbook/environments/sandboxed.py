"""Sandboxed: a base class for environments that run the model's code; it has a sandbox from `start` to `stop`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cached_property

from rollbook.core import JSON
from rollbook.environments.environment import Environment
from rollbook.errors import UsageError
from rollbook.processes import usable_cores
from rollbook.sandbox import Grader, Limits, Sandbox, Verdict

OPENING_S = 60.0
DETAIL_CHARS = 500


class Sandboxed(Environment):
    """One sandbox per worker, with as many concurrent runs as cores; waiting does not count towards a deadline.

    Where no sandbox can be opened, `start` raises and the run is refused.
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
        """The grader of the open sandbox."""
        return Grader(self.box)

    async def start(self) -> None:
        """Open the sandbox."""
        sandbox = Sandbox(self.limits, packages=self.packages, size=usable_cores(), sessions=self.sessions)
        self._opening = asyncio.create_task(sandbox.__aenter__(), name="sandbox")
        self._box = await asyncio.shield(self._opening)

    async def stop(self) -> None:
        """Close it, also while it is being opened: none of its processes is left."""
        opening, self._opening, self._box = self._opening, None, None
        self.__dict__.pop("grader", None)
        if opening is None:
            return
        done, _ = await asyncio.wait({opening}, timeout=OPENING_S)
        if done and not opening.cancelled() and opening.exception() is None:
            await opening.result().__aexit__(None, None, None)


def marks(verdict: Verdict) -> dict[str, JSON]:
    """Return what is stored of a verdict in addition to the reward, for the `info` of a score."""
    info: dict[str, JSON] = {"reason": verdict.reason, "cpu_seconds": round(verdict.cpu_seconds, 4)}
    if verdict.detail:
        info["detail"] = verdict.detail[:DETAIL_CHARS]
    if verdict.weak:
        info["weak"] = True
    return info
