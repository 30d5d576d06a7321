"""What a run directory holds about its jobs: jobs.jsonl, jobs/NNNN/order.json and jobs/nodes.jsonl.

RUN/jobs.jsonl: every job that was submitted for the run, one per line, in the order in which the cluster accepted them.
RUN/jobs/NNNN/order.json: the order of a submission, everything it contains beyond the run itself; its jobs read it.
RUN/jobs/nodes.jsonl: nodes on which a worker could not start its server. A node with two such reports is excluded.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from rollbook.book import explain_disk_errors, lock_run, read_whole_lines, sync_folder, write_new
from rollbook.clusters.profile import ClusterProfile
from rollbook.clusters.scheduler import DEFAULT_SCHEDULER
from rollbook.core import JSON_ERRORS, ServerSpec, encode_line, encode_pretty
from rollbook.errors import BookError, UsageError

T = TypeVar("T")


class PackedFolder(msgspec.Struct, frozen=True):
    """A project folder that is copied into the run: its name in RUN/jobs/pack, and the sha256 of its contents."""

    name: str
    digest: str
    uncommitted: list[str] = []


class SubmissionOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a submission requests: how jobs are requested, how many workers, which servers and which project folder."""

    profile: ClusterProfile
    workers: int
    serve: ServerSpec | None = None
    pack: PackedFolder | None = None
    ray: str = ""
    """The address of the Ray cluster that workers run on; empty where they are batch jobs."""
    sandbox: bool = False
    """Whether a sandbox server runs next to each worker, outside of its image."""
    sandbox_packages: list[str] = []
    install: bool = False
    """Whether jobs install Rollbook, and what the project folder requires, before they start."""
    scheduler: str = DEFAULT_SCHEDULER
    """The batch system that runs the jobs."""


def submission_folder(run: Path, number: int) -> Path:
    """Return the folder of a submission."""
    return run / "jobs" / f"{number:04}"


def write_order(run: Path, order: SubmissionOrder) -> int:
    """Write an order under the next number, and return that."""
    (run / "jobs").mkdir(exist_ok=True)
    number = last_submission_number(run) + 1
    with explain_disk_errors(run):
        while True:
            submission_folder(run, number).mkdir(exist_ok=True)
            if write_new(submission_folder(run, number) / "order.json", encode_pretty(order)):
                return number
            number += 1


def last_submission_number(run: Path) -> int:
    """Return the number of the latest submission; 0 without any."""
    numbers = [int(path.parent.name) for path in (run / "jobs").glob("[0-9]*/order.json")]
    return max(numbers, default=0)


def was_sent_to_ray(run: Path) -> bool:
    """Return whether the latest submission went to Ray."""
    number = last_submission_number(run)
    return bool(number and read_order(run, number).ray)


def read_order(run: Path, number: int) -> SubmissionOrder:
    """Read a submission's order."""
    path = submission_folder(run, number) / "order.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=SubmissionOrder)
    except FileNotFoundError:
        raise UsageError(f"{path} is missing: restore it from a copy of the run") from None
    except JSON_ERRORS as error:
        raise UsageError(f"{path}: {error}") from None


JobKind = Literal["workers", "servers", "report", "driver", "cancelled", "crew"]
"""`crew` is an earlier name of `driver`: run directories have it, `read_jobs` translates it."""


class ClusterJob(msgspec.Struct, frozen=True):
    """A job that was submitted, or the record that it was cancelled. An array has `count` tasks, from worker `first`.

    A `driver` is on Ray: an actor with this name, and `count` workers.
    """

    kind: JobKind
    job: str
    submission: int
    count: int = 1
    first: int = 0
    script: str = ""
    """The sha256 of its script."""
    at: float = 0.0
    scheduler: str = DEFAULT_SCHEDULER


_job_decoder = msgspec.json.Decoder(ClusterJob)


def add_job(run: Path, job: ClusterJob) -> ClusterJob:
    """Record a job durably."""
    stamped = msgspec.structs.replace(job, at=round(time.time(), 3))
    # Under the lock: a line that another process is writing must not be taken for a torn one.
    with explain_disk_errors(run), lock_run(run):
        handle = os.open(run / "jobs.jsonl", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            _cut_torn_line(handle)
            os.write(handle, encode_line(stamped))
            os.fsync(handle)
        finally:
            os.close(handle)
        sync_folder(run)
    return stamped


def _cut_torn_line(handle: int) -> None:
    """Remove half a line that a power failure left: the next line must not be taken for its end."""
    size = os.fstat(handle).st_size
    tail = os.pread(handle, size, 0)
    os.ftruncate(handle, tail.rfind(b"\n") + 1)


def read_jobs(run: Path) -> list[ClusterJob]:
    """Read every job of a run, and every record of a cancelled one; none for a run that was never submitted."""
    path, jobs = run / "jobs.jsonl", list[ClusterJob]()
    for number, (_, line) in enumerate(read_whole_lines(path) if path.exists() else (), 1):
        try:
            job = _job_decoder.decode(line)
        except JSON_ERRORS as error:
            raise BookError(f"{path}:{number}: {error}") from None
        jobs.append(msgspec.structs.replace(job, kind="driver") if job.kind == "crew" else job)
    return jobs


def select_submitted(jobs: list[ClusterJob], kind: JobKind | None = None) -> list[ClusterJob]:
    """Return the jobs without the records of cancelled ones, all or of one kind."""
    return [job for job in jobs if job.kind != "cancelled" and kind in (None, job.kind)]


def select_batch_jobs(jobs: list[ClusterJob]) -> list[ClusterJob]:
    """Return the jobs that a batch system runs."""
    return [job for job in select_submitted(jobs) if job.kind != "driver"]


def select_cancelled_ids(jobs: list[ClusterJob], scheduler: str = DEFAULT_SCHEDULER) -> set[str]:
    """Return the ids of a scheduler's jobs that were cancelled."""
    return {job.job for job in jobs if job.kind == "cancelled" and job.scheduler == scheduler}


REPORTS_NEEDED = 2


class BadNodeReport(msgspec.Struct, frozen=True):
    """A node, and what failed there."""

    node: str
    why: str


def report_bad_node(run: Path, node: str, why: str) -> None:
    """Record that a worker could not start its server on this node."""
    with open(run / "jobs" / "nodes.jsonl", "ab", buffering=0) as file:
        file.write(encode_line(BadNodeReport(node, why)))


def read_bad_nodes(run: Path) -> list[str]:
    """Return the nodes with enough reports to be excluded."""
    reports = Counter(report.node for report in read_reports(run / "jobs" / "nodes.jsonl", BadNodeReport))
    return sorted(node for node, count in reports.items() if node and count >= REPORTS_NEEDED)


def read_reports(path: Path, kind: type[T]) -> list[T]:
    """Return the lines of a file that jobs append to. A torn line is one report less: jobs are killed at any time."""
    reports = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        with suppress(*JSON_ERRORS):
            reports.append(msgspec.json.decode(line, type=kind))
    return reports


def clear_bad_nodes(run: Path, say: Callable[[str], None]) -> None:
    """Stop excluding nodes. Where no server ever ran, the nodes were not the cause, and all of them may try again."""
    if bad := read_bad_nodes(run):
        say(f"nothing was ever written, so these nodes are no longer excluded: {', '.join(bad)}")
    (run / "jobs" / "nodes.jsonl").unlink(missing_ok=True)
