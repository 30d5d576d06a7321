"""How far a run is: the numbers a worker shows while it works, and whoever shows them."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a run: requested = scored + failed + pending; `failed` counts by kind, times are recent means."""

    requested: int
    scored: int = 0
    failed: dict[str, int] = {}
    pending: int = 0
    rate: float = 0.0
    """Rollouts brought to their end per second, lately."""
    mean_reward: float | None = None
    in_flight: int = 0
    concurrency: int = 0
    loop_lag_ms: float = 0.0
    model_ms: float = 0.0
    verify_ms: float = 0.0
    seconds: float = 0.0
    """Since this start of the run."""

    @property
    def eta_s(self) -> float | None:
        """Seconds until nothing is pending at this rate; None while there is no rate."""
        return self.pending / self.rate if self.rate > 0 else None


class Display(Protocol):
    """Whoever shows progress: `start` once, `update` as often as one likes, `stop` once or more."""

    def start(self, total: int) -> None: ...

    def update(self, progress: Progress) -> None: ...

    def note(self, line: str) -> None: ...

    def stop(self) -> None: ...


class Silent:
    """Shows nothing: what a call from Python gets."""

    def start(self, total: int) -> None:
        """Nothing to show."""

    def update(self, progress: Progress) -> None:
        """Nothing to show."""

    def note(self, line: str) -> None:
        """Nothing to show."""

    def stop(self) -> None:
        """Nothing to end."""
