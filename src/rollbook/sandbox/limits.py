"""What untrusted code may use up. Every limit applies to the code alone, never to the interpreter's own start."""

from __future__ import annotations

from types import UnionType

import msgspec

from rollbook.errors import UsageError

THREADS = 64
MOST_SECONDS, MOST = 1_000_000_000, 1_000_000
"""More than anybody has, and few enough for the kernel's own numbers."""


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
        for name in ("seconds", "wall_seconds"):
            value = getattr(self, name)
            if not (_is_number(value, int | float, MOST_SECONDS) or (value is None and name == "wall_seconds")):
                raise UsageError(f"limit {name}={value!r}: give a positive, finite number, at most {MOST_SECONDS}")
        for name in ("memory_mb", "output_kb", "processes", "files_mb"):
            value = getattr(self, name)
            if not _is_number(value, int, MOST):
                raise UsageError(f"limit {name}={value!r}: give a positive, finite number, whole and at most {MOST}")

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


def _is_number(value: object, kind: type | UnionType, most: int) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and 0 < value <= most  # type: ignore[operator]
