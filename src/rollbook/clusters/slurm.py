"""Slurm's commands, called with lists of words; what they refuse is one line."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rollbook.errors import UsageError

ANSWER_S = 60.0
SEPARATOR = "|"
ENDED = re.compile("BOOT_FAIL|CANCELLED|COMPLETED|DEADLINE|FAILED|NODE_FAIL|OUT_OF_MEMORY|PREEMPTED|REVOKED|TIMEOUT")


class Refused(UsageError):
    """A command of Slurm's that did not do what was asked."""


class Task(msgspec.Struct, frozen=True):
    """One job as the queue shows it, of an array one task."""

    job: str
    task: int | None
    state: str
    reason: str = ""
    node: str = ""

    @property
    def live(self) -> bool:
        """Whether it runs, or may yet."""
        return not ENDED.fullmatch(self.state)


def ask(*words: str) -> str:
    """What a command says."""
    own = _environ() if words[0] == "sbatch" else None
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=ANSWER_S, stdin=subprocess.DEVNULL, env=own
        )
    except FileNotFoundError:
        raise Refused(f"{words[0]}: not found; go to a machine that can submit to Slurm") from None
    except subprocess.TimeoutExpired:
        raise Refused(f"{words[0]} did not answer in {ANSWER_S:g} s: is Slurm's controller up?") from None
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit {done.returncode}"
        raise Refused(f"{words[0]}: {said.removeprefix(f'{words[0]}: ').removeprefix('error: ')}")
    return done.stdout


def _environ() -> dict[str, str]:
    """Ours, without what would have a word in a script, or tell a job that it is the one that submits it."""
    return {
        name: value
        for name, value in os.environ.items()
        if name == "SLURM_CONF" or not name.startswith(("SBATCH_", "SLURM_"))
    }


def submit(script: Path, *options: str) -> str:
    """Hand in a script; gives the job's id."""
    said = ask("sbatch", "--parsable", *options, str(script)).strip()
    job = said.partition(";")[0]
    if not job.isdigit():
        raise Refused(f"sbatch: {said!r} is no job id")
    return job


def max_array_size() -> int:
    """How many tasks an array may have."""
    for line in ask("scontrol", "show", "config").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "MaxArraySize":
            return max(int(value), 1)
    raise Refused("scontrol show config: says no MaxArraySize")


def queue(jobs: Sequence[str]) -> list[Task]:
    """All tasks of these jobs that the controller still knows, those that ended lately too."""
    if not jobs:
        return []
    form = SEPARATOR.join(("%F", "%K", "%T", "%r", "%N"))
    try:
        said = ask("squeue", "--noheader", "--array", "--states=all", f"--jobs={','.join(jobs)}", f"--format={form}")
    except Refused as error:
        if "Invalid job id" in str(error):
            return []  # it ended so long ago that the controller has forgotten it
        raise
    return [_task(line) for line in said.splitlines()]


def _task(line: str) -> Task:
    job, index, state, reason, node = line.split(SEPARATOR, 4)
    return Task(job, int(index) if index.isdigit() else None, state, reason, node)


def accounted(jobs: Sequence[str]) -> list[Task]:
    """The same from the accounting, which many clusters do not have: then nothing."""
    if not jobs:
        return []
    try:
        said = ask("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={','.join(jobs)}", "-oJobID,State")
    except Refused:
        return []
    return [_accounted(line) for line in said.splitlines()]


def _accounted(line: str) -> Task:
    name, _, state = line.partition(SEPARATOR)
    job, _, index = name.partition("_")
    return Task(job, int(index) if index.isdigit() else None, state.partition(" ")[0])


def cancel(jobs: Sequence[str]) -> None:
    """End jobs, running or waiting."""
    if jobs:
        ask("scancel", *jobs)


def requeue(task: str) -> None:
    """Put a running job back into the queue. For a task of an array that is ARRAY_TASK: a bare id means all tasks."""
    ask("scontrol", "requeue", task)


def keep_off(job: str, nodes: Sequence[str]) -> None:
    """See to it that what still waits of a job does not start on these nodes."""
    ask("scontrol", "update", f"JobId={job}", f"ExcNodeList={','.join(nodes)}")
