"""The interface to a batch system: what Rollbook asks of a scheduler, and how schedulers are found by name.

A scheduler is a class with the methods of `Scheduler`, registered by an entry point of the group `rollbook.schedulers`;
`--on NAME` chooses it and a submission records its name. `rollbook.clusters.slurm` is the one that is built in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

import msgspec

from rollbook.errors import UsageError

if TYPE_CHECKING:
    from rollbook.clusters.profile import ClusterProfile

Say = Callable[[str], None]

ENTRY_POINT_GROUP = "rollbook.schedulers"
DEFAULT_SCHEDULER = "slurm"
"""What submissions were made with before they recorded it."""
BUILT_IN = {"slurm": "rollbook.clusters.slurm:Slurm"}
"""Known without any installed metadata, so that a bare source tree works too."""


PENDING, RUNNING, ENDING, COMPLETED, PREEMPTED = "PENDING", "RUNNING", "COMPLETING", "COMPLETED", "PREEMPTED"
ENDED_STATES = frozenset(
    [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    ]
)
"""The common states of tasks that have ended. A task in any other state runs, or may yet."""


class JobTask(msgspec.Struct, frozen=True):
    """One task of an array, or a job that is not an array, with its state in the common terms."""

    job: str
    task: int | None
    state: str
    reason: str = ""
    node: str = ""

    @property
    def live(self) -> bool:
        """Whether it runs, or may yet."""
        return self.state not in ENDED_STATES


class CurrentTask(msgspec.Struct, frozen=True):
    """The task that this process is part of: its own id, its array's id, its node, how often it was restarted.

    `name` is in the form that the scheduler's commands take, and means this task alone; it is empty outside of a job.
    """

    name: str = ""
    array: str = ""
    node: str = ""
    restart: int = 0


class StepRank(NamedTuple):
    """Which of the processes of a multi-node step this one is, and on which node."""

    rank: int
    node: str


class BatchJob(msgspec.Struct, frozen=True, kw_only=True):
    """What the directives of a script request: `count` tasks of an array, or with 0 a single job.

    An array has to be requeueable and to get SIGUSR1 at least `profile.grace_s` before its time is up. `bad_nodes` are
    to be avoided. Only jobs with `devices` need the profile's GPUs.
    """

    profile: ClusterProfile
    run: Path
    role: str
    devices: bool
    count: int = 0
    nodes: int = 1
    bad_nodes: Sequence[str] = ()


class Scheduler(Protocol):
    """A batch system. Refusals are SchedulerErrors of one line."""

    name: ClassVar[str]
    """What `--on` takes."""
    title: ClassVar[str]
    """What messages call it."""
    default_max_array: ClassVar[int]
    """The largest array where the batch system is not asked, as in a dry run."""
    containers: ClassVar[tuple[str, ...]] = ("apptainer",)
    """The container runtimes that jobs can use."""
    spans_nodes: ClassVar[bool] = False
    """Whether a job can start processes on several nodes: then the three methods about steps have to be there."""

    def check_time(self, text: str) -> None:
        """Refuse a time limit that the batch system cannot read."""

    def check_profile(self, profile: ClusterProfile) -> None:
        """Refuse options and set-up lines that contradict what the scripts say."""

    def check_run_path(self, run: Path) -> None:
        """Refuse a run directory whose name the batch system cannot use in the name of a log."""

    def read_max_array_size(self) -> int:
        """Return how many tasks an array may have."""

    def make_directives(self, job: BatchJob) -> list[str]:
        """Return the lines of a script that the batch system reads."""

    def log_name(self, job: str, task: int | None) -> str:
        """Return the name of the file in RUN/logs that a job, or a task of an array, writes its output to."""

    def submit(
        self, script: Path, *, count: int = 0, after_success: Sequence[str] = (), after_end: Sequence[str] = ()
    ) -> str:
        """Submit a script as an array of `count` tasks, or with 0 as one job; return its id."""

    def is_job_id(self, text: str) -> bool:
        """Return whether a text is the id of a job or of a task, not the path of a run."""

    def read_queue(self, ids: Sequence[str]) -> list[JobTask]:
        """Return all tasks of these jobs, or these tasks, that the queue still holds; unknown ids are left out."""

    def read_accounting(self, ids: Sequence[str]) -> list[JobTask]:
        """Return the same for jobs that left the queue; none where there is no accounting."""
        return []

    def cancel(self, ids: Sequence[str]) -> None:
        """End jobs, running or waiting."""

    def requeue(self, task: CurrentTask) -> None:
        """Put this one running task back into the queue."""

    def exclude_nodes(self, job: str, profile: ClusterProfile, bad_nodes: Sequence[str]) -> None:
        """Keep the waiting tasks of a job off these nodes, and off those that the profile excludes."""

    def read_current_task(self, environ: Mapping[str, str]) -> CurrentTask:
        """Return the task that this process is part of."""

    def check_job(self, environ: Mapping[str, str]) -> None:
        """Refuse to work in a job of a kind that workers cannot run in."""
        return

    def make_container_argv(
        self, image: str, mounts: Sequence[str], workdir: str | None, variables: Sequence[str]
    ) -> list[str]:
        """Return the start of a command in an image, for a container runtime that is part of the batch system."""
        raise NotImplementedError

    def make_step_argv(self, nodes: int, command: Sequence[str]) -> list[str]:
        """Return the command that runs `command` once on each node of this job, and ends when one of them does."""
        raise NotImplementedError

    def pin_to_node(self, before: Sequence[str], placeholder: str) -> list[str]:
        """Return the start of a container's command so that it stays on the node that replaces the placeholder."""
        return list(before)

    def read_rank(self, environ: Mapping[str, str]) -> StepRank:
        """Return which process of a step this one is."""
        raise NotImplementedError

    def is_own_message(self, line: str) -> bool:
        """Return whether a line of a process's output was written by the batch system."""
        return False


def scheduler_names() -> list[str]:
    """Return the names of all schedulers, sorted."""
    return sorted(_known_targets())


@lru_cache
def find_scheduler(name: str) -> Scheduler:
    """Return the scheduler of this name; UsageError if there is none or it cannot be imported."""
    target = _known_targets().get(name)
    if target is None:
        raise UsageError(f"no scheduler is called {name!r}; there are {', '.join(scheduler_names())}")
    try:
        scheduler: Scheduler = target.load()()
    except (Exception, SystemExit) as error:
        raise UsageError(f"scheduler {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    return scheduler


def _known_targets() -> dict[str, EntryPoint]:
    built_in = {name: EntryPoint(name, target, ENTRY_POINT_GROUP) for name, target in BUILT_IN.items()}
    return {**{entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}, **built_in}
