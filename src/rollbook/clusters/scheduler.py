"""What every batch system has in common: tasks and their states, the task this process is, errors in one line."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from rollbook.errors import UsageError

Say = Callable[[str], None]


class SchedulerError(UsageError):
    """A command of Slurm's that did not do what was asked."""


ENDED_STATES = re.compile(
    "BOOT_FAIL|CANCELLED|COMPLETED|DEADLINE|FAILED|NODE_FAIL|OUT_OF_MEMORY|PREEMPTED|REVOKED|TIMEOUT"
)


class JobTask(msgspec.Struct, frozen=True):
    """One job as the queue shows it, of an array one task."""

    job: str
    task: int | None
    state: str
    reason: str = ""
    node: str = ""

    @property
    def live(self) -> bool:
        """Whether it runs, or may yet."""
        return not ENDED_STATES.fullmatch(self.state)


class CurrentTask(msgspec.Struct, frozen=True):
    """Where this process sits: the array, the task in it, the node, how often Slurm has started it again."""

    array: str = ""
    task: str = ""
    node: str = ""
    restart: int = 0

    @property
    def name(self) -> str:
        """What Slurm calls it. A bare job id could mean the whole array."""
        return f"{self.array}_{self.task}" if self.task else self.array
