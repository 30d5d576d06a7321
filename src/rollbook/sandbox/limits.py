"""What untrusted code may use up. Every limit applies to the code alone, never to the interpreter's own start."""

from __future__ import annotations

import math

import msgspec

from rollbook.errors import UsageError

THREADS = 64


class Limits(msgspec.Struct, frozen=True):
    """CPU seconds, memory beyond the interpreter's own, printed and written bytes, processes."""

    seconds: float = 5.0
    """CPU time of the code; a wall clock stands behind it."""
    memory_mb: int = 256
    output_kb: int = 64
    """What is kept of each of stdout, stderr and the value; the rest is drained and dropped."""
    processes: int = 1
    """1 forbids other processes; threads are always allowed."""
    files_mb: int = 16
    wall_seconds: float | None = None
    """The longest it may take by the clock; max(1, 4 x seconds) unless given."""

    def __post_init__(self) -> None:
        for name in ("seconds", "memory_mb", "output_kb", "processes", "files_mb"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise UsageError(f"limit {name}={value}: give a positive, finite number")
        if self.wall_seconds is not None and not (math.isfinite(self.wall_seconds) and self.wall_seconds > 0):
            raise UsageError(f"limit wall_seconds={self.wall_seconds}: give a positive, finite number")

    @property
    def wall_s(self) -> float:
        """The wall clock's limit."""
        return self.wall_seconds or max(1.0, 4 * self.seconds)

    @property
    def keep_bytes(self) -> int:
        """How much is kept of each of stdout, stderr and the value."""
        return self.output_kb << 10

    def wire(self) -> dict[str, float | int]:
        """What the zygote is told."""
        return {
            "seconds": self.seconds,
            "memory_mb": self.memory_mb,
            "files_mb": self.files_mb,
            "processes": self.processes,
            "threads": THREADS + self.processes,
            "keep": self.keep_bytes,
        }
