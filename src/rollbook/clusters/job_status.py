"""The jobs of a run: their states, throughput, logs; waiting for them and cancelling them.

States come from the queue, and from the accounting where there is one; throughput comes from the chunks that were
sealed lately. For a run on another host, that host is asked. Cancelling is recorded in jobs.jsonl first, so that no
worker is requeued while it is ended.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from rollbook.book import Book, RunStatus, read_status
from rollbook.clusters.job_files import ClusterJob, add_job, read_jobs, select_batch_jobs, select_submitted
from rollbook.clusters.scheduler import ENDED_STATES, PENDING, JobTask, Scheduler, find_scheduler
from rollbook.clusters.ssh import SshRequest, read_ssh_run
from rollbook.core import Seal
from rollbook.engine import Display, Progress, RunResult
from rollbook.errors import RayUnreachable, SchedulerError, UsageError
from rollbook.reports import make_report, make_shortfall

WINDOW_S = 600.0

_seal_decoder = msgspec.json.Decoder(Seal)


class Throughput(msgspec.Struct, frozen=True):
    """Rollouts per second over the last minutes, and seconds until the rest is done; None without a rate."""

    rate: float
    eta_s: float | None


def measure_throughput(run: Path, pending: int) -> Throughput:
    """Measure the throughput of a run that has so many rollouts pending."""
    rounds = Book(run).rounds()
    now = time.time()
    since = max(now - WINDOW_S, rounds[-1].started if rounds else 0.0)
    done = 0
    for path in (run / "done").glob("[0-9]*.json"):
        if path.stem.replace(".", "").isdigit() and path.stat().st_mtime >= since:
            seal = _seal_decoder.decode(path.read_bytes())
            done += seal.scored + sum(seal.failed.values())
    rate = done / max(now - since, 1.0)
    return Throughput(rate, pending / rate if rate else None)


GONE = "GONE"
"""The state of tasks that the batch system has forgotten."""


class JobStateCount(msgspec.Struct, frozen=True):
    """How many tasks of one kind of job are in one state, and why they wait."""

    kind: str
    state: str
    tasks: int
    reason: str = ""

    @property
    def live(self) -> bool:
        """Whether they run, or may yet."""
        return self.state != GONE and self.state not in ENDED_STATES


def _read_ray_states(run: Path) -> list[JobStateCount]:
    from rollbook.clusters.ray.runs import is_driver_alive, read_last_driver

    driver = read_last_driver(run)
    return [JobStateCount("driver", "RUNNING" if is_driver_alive(run, driver) else "ENDED", 1)] if driver else []


def _read_batch_states(run: Path) -> list[JobStateCount]:
    counts: Counter[tuple[str, str, str]] = Counter()
    for scheduler, jobs in _group_by_scheduler(select_batch_jobs(read_jobs(run))):
        tasks = scheduler.read_queue([job.job for job in jobs])
        known = {task.job for task in tasks}
        tasks += scheduler.read_accounting([job.job for job in jobs if job.job not in known])
        for job in jobs:
            counts.update(_count_states(job, [task for task in tasks if task.job == job.job]))
    return [JobStateCount(kind, state, count, reason) for (kind, state, reason), count in sorted(counts.items())]


def _group_by_scheduler(jobs: Sequence[ClusterJob]) -> Iterator[tuple[Scheduler, list[ClusterJob]]]:
    """Yield each scheduler with its jobs: two of them may use the same ids."""
    for name in dict.fromkeys(job.scheduler for job in jobs):
        yield find_scheduler(name), [job for job in jobs if job.scheduler == name]


def _count_states(job: ClusterJob, tasks: list[JobTask]) -> Counter[tuple[str, str, str]]:
    states = Counter((job.kind, task.state, task.reason if task.state == PENDING else "") for task in tasks)
    gone = job.count - len(tasks)
    return states + Counter({(job.kind, GONE, ""): max(gone, 0)})


def count_live_tasks(run: Path, kind: Literal["workers", "servers"] = "workers") -> int:
    """Return how many workers, or shared servers, wait or run."""
    groups = _group_by_scheduler(select_submitted(read_jobs(run), kind))
    return sum(task.live for scheduler, jobs in groups for task in scheduler.read_queue([job.job for job in jobs]))


class ClusterStatus(msgspec.Struct, frozen=True):
    """The status of a run and of its jobs. `unseen`: why the jobs could not be read; the rest does not need them."""

    status: RunStatus
    pace: Throughput
    jobs: list[JobStateCount]
    unseen: str = ""

    @property
    def live_workers(self) -> int:
        """How many workers wait or run."""
        return sum(each.tasks for each in self.jobs if each.kind == "workers" and each.live)


def read_cluster_status(run: Path) -> ClusterStatus:
    """Return the present status of a run."""
    if remote := read_ssh_run(run):
        seen = remote.call("look", SshRequest(), ClusterStatus, lambda _: None)
        return msgspec.structs.replace(seen, status=msgspec.structs.replace(seen.status, path=str(run)))
    status = read_status(run)
    throughput = measure_throughput(run, status.pending)
    try:
        return ClusterStatus(status, throughput, [*_read_batch_states(run), *_read_ray_states(run)])
    except (SchedulerError, RayUnreachable) as error:
        return ClusterStatus(status, throughput, [], str(error))


POLL_S = 5.0
MAX_FAILED_POLLS = 12
"""How many polls of the queue may fail in a row: controllers are restarted now and then."""


def wait_for_jobs(run: Path, display: Display) -> RunResult:
    """Wait until no worker waits or runs; return the result if all is scored, else raise what a local run raises."""
    started, failed, shown = time.monotonic(), 0, ""
    before = read_status(run)
    display.start(before.requested, before.pending)
    while True:
        try:
            current = read_cluster_status(run)
            if current.unseen:
                raise SchedulerError(current.unseen)
            failed, states = 0, describe_workers(current.jobs)
            if states != shown:
                display.note(states)
                shown = states
            display.update(_make_progress(current, time.monotonic() - started))
            if not current.live_workers:
                break
        except SchedulerError as error:
            failed += 1
            if failed >= MAX_FAILED_POLLS:
                raise
            display.note(f"{error}; checking again")
        time.sleep(POLL_S)
    if remote := read_ssh_run(run):
        remote.fetch(run)
    report = make_report(run)
    if report.scored < report.requested:
        raise make_shortfall(report)
    return RunResult(run, report)


def describe_workers(states: list[JobStateCount]) -> str:
    """Return the states of the workers on one line.

    >>> describe_workers([JobStateCount("workers", "PENDING", 3, "Resources"), JobStateCount("workers", "RUNNING", 1)])
    'workers: 3 pending (Resources), 1 running'
    """
    workers = [each for each in states if each.kind == "workers"]
    parts = [f"{s.tasks} {s.state.lower()}" + (f" ({s.reason})" if s.reason else "") for s in workers]
    return f"workers: {', '.join(parts)}"


def _make_progress(current: ClusterStatus, seconds: float) -> Progress:
    status = current.status
    return Progress(
        requested=status.requested,
        scored=status.scored,
        failed=status.failed,
        pending=status.pending,
        rate=current.pace.rate,
        in_flight=status.in_flight,
        concurrency=current.live_workers,
        seconds=seconds,
    )


def cancel_run(run: Path) -> int:
    """End all jobs that wait or run; return how many tasks that were."""
    if remote := read_ssh_run(run):
        return remote.call("cancel", SshRequest(), int, lambda _: None)
    jobs = select_submitted(read_jobs(run))
    if not jobs:
        raise UsageError(f"{run}: no job was submitted for this run, so there is none to cancel")
    return _cancel_jobs(run, select_batch_jobs(jobs)) + _cancel_ray_driver(run)


def _cancel_ray_driver(run: Path) -> int:
    from rollbook.clusters.ray.runs import cancel_driver, read_last_driver

    driver = read_last_driver(run)
    return int(driver is not None and cancel_driver(run, driver))


def cancel_workers(run: Path) -> int:
    """End the workers; the report that waits for them is then written."""
    return _cancel_jobs(run, select_submitted(read_jobs(run), "workers"))


def _cancel_jobs(run: Path, jobs: Sequence[ClusterJob]) -> int:
    cancelled = 0
    for scheduler, own in _group_by_scheduler(jobs):
        live = [task.job for task in scheduler.read_queue([job.job for job in own]) if task.live]
        ending = [job for job in own if job.job in live]
        for job in ending:
            add_job(run, ClusterJob("cancelled", job.job, job.submission, scheduler=job.scheduler))
        if ending:
            scheduler.cancel([job.job for job in ending])
        cancelled += len(live)
    return cancelled


WORKER_LOG_NAME = re.compile(r"worker-(\d+)-(\d+)\.log")
TAIL_BYTES = 64 * 1024


class WorkerLog(msgspec.Struct, frozen=True):
    """A log file: whose it is, and where it is."""

    who: str
    path: Path
    worker: int | None = None

    @property
    def last_line(self) -> str:
        """The last line that is not blank."""
        with open(self.path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "")


def find_logs(run: Path, worker: int | None = None) -> list[WorkerLog]:
    """Return every log file of a run, or those of one worker; for a run on another host they are copied here first."""
    if remote := read_ssh_run(run):
        remote.fetch(run, "logs/***", "jobs.jsonl")
    candidates = [*_find_batch_logs(run), *_find_driver_logs(run), *_find_worker_logs(run), *_find_server_logs(run)]
    logs = [log for log in candidates if log.path.exists()]
    if worker is None:
        return logs
    own = [log for log in logs if log.worker == worker]
    if not own:
        known = sorted({log.worker for log in logs if log.worker is not None})
        there = f"there are workers {known[0]} to {known[-1]}" if known else f"no worker has written to {run / 'logs'}"
        raise UsageError(f"--worker {worker}: no log of that worker; {there}")
    return own


def _find_batch_logs(run: Path) -> list[WorkerLog]:
    logs = []
    for job in select_batch_jobs(read_jobs(run)):
        log_name = find_scheduler(job.scheduler).log_name
        if job.kind == "report":
            logs.append(WorkerLog(f"report {job.job}", run / "logs" / log_name(job.job, None)))
            continue
        for task in range(job.count):
            number = job.first + task
            worker = number if job.kind == "workers" else None
            name = f"{job.kind.removesuffix('s')} {number}"
            logs.append(WorkerLog(name, run / "logs" / log_name(job.job, task), worker))
    return logs


def _find_driver_logs(run: Path) -> list[WorkerLog]:
    """Those of drivers on Ray."""
    drivers = select_submitted(read_jobs(run), "driver")
    return [WorkerLog(f"driver {job.submission}", find_driver_log(run, job.submission)) for job in drivers]


def find_driver_log(run: Path, submission: int) -> Path:
    """Return the path of a driver's log; earlier versions called it `crew-N.log`."""
    old = run / "logs" / f"crew-{submission}.log"
    return old if old.exists() else run / "logs" / f"driver-{submission}.log"


def _find_worker_logs(run: Path) -> list[WorkerLog]:
    """Those of workers that a pool started, on this machine or on Ray."""
    paths = sorted((run / "logs").glob("worker-*.log"))
    matches = [(path, WORKER_LOG_NAME.fullmatch(path.name)) for path in paths]
    return [WorkerLog(f"worker {m[2]} (round {m[1]})", path, int(m[2])) for path, m in matches if m]


def _find_server_logs(run: Path) -> list[WorkerLog]:
    """Those of model servers that jobs started."""
    return [WorkerLog("model server", path) for path in sorted((run / "logs").glob("server-*.log"))]
