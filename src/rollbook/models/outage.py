"""An outage: no replica of a model answers. How long callers wait for it, and which error they get."""

from __future__ import annotations

import asyncio

IDLE_S = 10.0
"""Time without calls that does not count as outage: a trainer may be busy elsewhere for minutes."""


class Outage:
    """The clock of an outage, one for all callers of a model: it may last `allowed_s` in all."""

    def __init__(self, allowed_s: float) -> None:
        self.allowed_s = allowed_s
        self._since: float | None = None

    def begin(self) -> None:
        """Start the clock, unless it runs."""
        if self._since is None:
            self._since = asyncio.get_running_loop().time()

    def end(self) -> None:
        """Stop the clock: a replica answers again."""
        self._since = None

    def skip_idle_time(self, last_call_ended: float) -> None:
        """Restart a running clock if there was no call for a while."""
        now = asyncio.get_running_loop().time()
        if self._since is not None and now - last_call_ended > min(IDLE_S, self.allowed_s):
            self._since = now

    @property
    def seconds(self) -> float:
        """How long it has lasted; 0 where there is none."""
        return 0.0 if self._since is None else asyncio.get_running_loop().time() - self._since

    def left_s(self) -> float:
        """Return how much longer callers wait."""
        now = asyncio.get_running_loop().time()
        return (self._since if self._since is not None else now) + self.allowed_s - now


def describe_waiting(reasons: str, allowed_s: float) -> str:
    """Return the message while a run waits for its model."""
    return f"waiting for the model, {allowed_s:g} s at most: {reasons}"


def describe_outage(
    reasons: str, allowed_s: float, advice: str = "try again; continue a run with `rollbook resume`"
) -> str:
    """Return the message of an EndpointDown."""
    lasted = f" for {allowed_s:g} s" if allowed_s else ""
    return f"no model answered{lasted} ({reasons}); check the server, then {advice}"


def describe_refusal(reasons: str) -> str:
    """Return the message of an EndpointRefused."""
    return f"the endpoint refuses every call: {reasons}; then continue with `rollbook resume`"


def describe_current_outage(reasons: str, seconds: float) -> str:
    """Return what progress shows while no replica answers.

    >>> describe_current_outage("http://host/v1: connection refused", 12.3)
    'no endpoint answers for 12 s: http://host/v1: connection refused'
    """
    return f"no endpoint answers for {seconds:.0f} s: {reasons}"
