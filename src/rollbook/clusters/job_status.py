"""The jobs of a run: their states, throughput, logs; waiting for them and cancelling them.

States come from the queue, and from the accounting where there is one; throughput comes from the chunks that were
sealed lately. A run that is worked on elsewhere is asked there. Cancelling writes the word into jobs.jsonl first, so
that no worker goes back into the queue while it is ended.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from rollbook.book import Book, RunStatus, read_status
from rollbook.clusters import scheduler, slurm
from rollbook.clusters.job_files import ClusterJob, add_job, read_jobs, select_slurm, select_submitted
from rollbook.clusters.ray.actors import RayUnreachable
from rollbook.clusters.ssh import SshRequest, read_ssh_run
from rollbook.core import Seal
from rollbook.engine import Display, Progress, RunResult
from rollbook.errors import UsageError
from rollbook.reports import make_report, make_shortfall

WINDOW_S = 600.0

_seal_decoder = msgspec.json.Decoder(Seal)


class Throughput(msgspec.Struct, frozen=True):
    """Rollouts a second over the last minutes, and seconds until the rest is done at that rate; None without one."""

    rate: float
    eta_s: float | None


def measure_throughput(run: Path, pending: int) -> Throughput:
    """The pace of a run with so many rollouts to go."""
    rounds = Book(run).rounds()
    now = time.time()
    since = max(now - WINDOW_S, rounds[-1].started if rounds else 0.0)
    done = 0
    for path in (run / "done").glob("[0-9]*.json"):
        if path.stem.isdigit() and path.stat().st_mtime >= since:
            seal = _seal_decoder.decode(path.read_bytes())
            done += seal.scored + sum(seal.failed.values())
    rate = done / max(now - since, 1.0)
    return Throughput(rate, pending / rate if rate else None)


GONE = "GONE"


class JobStateCount(msgspec.Struct, frozen=True):
    """One kind of job, one state: how many tasks, and why they wait."""

    kind: str
    state: str
    tasks: int
    reason: str = ""

    @property
    def live(self) -> bool:
        """Whether they run, or may yet."""
        return self.state != GONE and not scheduler.ENDED_STATES.fullmatch(self.state)


def read_job_states(run: Path) -> list[JobStateCount]:
    """All tasks of a run by kind and state; `GONE` are those that the controller has forgotten."""
    return [*_read_slurm_states(run), *_read_ray_states(run)]


def _read_ray_states(run: Path) -> list[JobStateCount]:
    from rollbook.clusters.ray.runs import is_driver_alive, read_last_driver

    crew = read_last_driver(run)
    return [JobStateCount("crew", "RUNNING" if is_driver_alive(run, crew) else "ENDED", 1)] if crew else []


def _read_slurm_states(run: Path) -> list[JobStateCount]:
    jobs = select_slurm(read_jobs(run))
    tasks = slurm.read_queue([job.job for job in jobs])
    known = {task.job for task in tasks}
    tasks += slurm.read_accounting([job.job for job in jobs if job.job not in known])
    found: Counter[tuple[str, str, str]] = Counter()
    for job in jobs:
        found.update(_count_states(job, [task for task in tasks if task.job == job.job]))
    return [JobStateCount(kind, state, count, reason) for (kind, state, reason), count in sorted(found.items())]


def _count_states(job: ClusterJob, tasks: list[scheduler.JobTask]) -> Counter[tuple[str, str, str]]:
    states = Counter((job.kind, task.state, task.reason if task.state == "PENDING" else "") for task in tasks)
    gone = job.count - len(tasks)
    return states + Counter({(job.kind, GONE, ""): max(gone, 0)})


def count_live_tasks(run: Path, kind: Literal["workers", "servers"] = "workers") -> int:
    """How many workers, or shared servers, wait or run."""
    ids = [job.job for job in select_submitted(read_jobs(run), kind)]
    return sum(task.live for task in slurm.read_queue(ids))


class ClusterStatus(msgspec.Struct, frozen=True):
    """What was seen. `unseen`: why the jobs could not be; the book's word does not need them."""

    status: RunStatus
    pace: Throughput
    jobs: list[JobStateCount]
    unseen: str = ""

    @property
    def live_workers(self) -> int:
        """How many workers wait or run."""
        return sum(each.tasks for each in self.jobs if each.kind == "workers" and each.live)


def read_cluster_status(run: Path) -> ClusterStatus:
    """How a run stands now."""
    far = read_ssh_run(run)
    if far:
        seen = far.call("look", SshRequest(), ClusterStatus, lambda _: None)
        return msgspec.structs.replace(seen, status=msgspec.structs.replace(seen.status, path=str(run)))
    status = read_status(run)
    going = measure_throughput(run, status.pending)
    try:
        return ClusterStatus(status, going, read_job_states(run))
    except (scheduler.SchedulerError, RayUnreachable) as error:
        return ClusterStatus(status, going, [], str(error))


POLL_S = 5.0
MAX_FAILED_POLLS = 12
"""How many looks at the queue may fail running: controllers are restarted now and then."""


def wait_for_jobs(run: Path, display: Display) -> RunResult:
    """Until no worker waits or runs; then a result if all is scored, else what a local run raises."""
    began, failed, shown = time.monotonic(), 0, ""
    display.start(read_status(run).requested)
    while True:
        try:
            seen, failed = _read_visible_status(run), 0
            states = describe_workers(seen.jobs)
            if states != shown:
                display.note(states)
                shown = states
            display.update(_make_progress(seen, time.monotonic() - began))
            if not seen.live_workers:
                break
        except scheduler.SchedulerError as error:
            failed += 1
            if failed >= MAX_FAILED_POLLS:
                raise
            display.note(f"{error}; looking again")
        time.sleep(POLL_S)
    if far := read_ssh_run(run):
        far.fetch(run)
    made = make_report(run)
    if made.scored < made.requested:
        raise make_shortfall(made)
    return RunResult(run, made)


def _read_visible_status(run: Path) -> ClusterStatus:
    seen = read_cluster_status(run)
    if seen.unseen:
        raise scheduler.SchedulerError(seen.unseen)
    return seen


def describe_workers(states: list[JobStateCount]) -> str:
    """How the workers stand, on one line.

    >>> describe_workers([JobStateCount("workers", "PENDING", 3, "Resources"), JobStateCount("workers", "RUNNING", 1)])
    'workers: 3 pending (Resources), 1 running'
    """
    several = [each for each in states if each.kind == "workers"]
    said = [f"{s.tasks} {s.state.lower()}" + (f" ({s.reason})" if s.reason else "") for s in several]
    return f"workers: {', '.join(said)}"


def _make_progress(seen: ClusterStatus, seconds: float) -> Progress:
    status = seen.status
    return Progress(
        requested=status.requested,
        scored=status.scored,
        failed=status.failed,
        pending=status.pending,
        rate=seen.pace.rate,
        in_flight=status.in_flight,
        concurrency=seen.live_workers,
        seconds=seconds,
    )


def cancel_run(run: Path) -> int:
    """End all that waits or runs; gives how many tasks that were."""
    if far := read_ssh_run(run):
        return far.call("cancel", SshRequest(), int, lambda _: None)
    jobs = select_submitted(read_jobs(run))
    if not jobs:
        raise UsageError(f"{run}: no job was submitted for this run, so there is none to cancel")
    return _cancel_jobs(run, select_slurm(jobs)) + _cancel_ray_driver(run)


def _cancel_ray_driver(run: Path) -> int:
    from rollbook.clusters.ray.runs import cancel_driver, read_last_driver

    crew = read_last_driver(run)
    return int(crew is not None and cancel_driver(run, crew))


def cancel_workers(run: Path) -> int:
    """End the workers; the report that waits for them comes."""
    return _cancel_jobs(run, select_submitted(read_jobs(run), "workers"))


def _cancel_jobs(run: Path, jobs: Sequence[ClusterJob]) -> int:
    live = [task for task in slurm.read_queue([job.job for job in jobs]) if task.live]
    ids = sorted({task.job for task in live}, key=int)
    for job in jobs:
        if job.job in ids:
            add_job(run, ClusterJob("cancelled", job.job, job.submission))
    slurm.cancel_jobs(ids)
    return len(live)


WORKER_LOG_NAME = re.compile(r"worker-(\d+)-(\d+)\.log")
TAIL_BYTES = 64 * 1024


class WorkerLog(msgspec.Struct, frozen=True):
    """A log: whose it is, and where it lies."""

    who: str
    path: Path
    worker: int | None = None

    @property
    def last_line(self) -> str:
        """The last thing it says."""
        with open(self.path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "")


def find_logs(run: Path, worker: int | None = None) -> list[WorkerLog]:
    """Every log of a run that is there, or those of one worker; of a run elsewhere they are brought here first."""
    if far := read_ssh_run(run):
        far.fetch(run, "logs/***", "jobs.jsonl")
    found = [
        log
        for log in [*_find_slurm_logs(run), *_find_driver_logs(run), *_find_worker_logs(run), *_find_server_logs(run)]
        if log.path.exists()
    ]
    if worker is None:
        return found
    own = [log for log in found if log.worker == worker]
    if not own:
        known = sorted({log.worker for log in found if log.worker is not None})
        there = f"there are workers {known[0]} to {known[-1]}" if known else f"no worker has written to {run / 'logs'}"
        raise UsageError(f"--worker {worker}: no log of that worker; {there}")
    return own


def _find_slurm_logs(run: Path) -> list[WorkerLog]:
    found = []
    for job in select_slurm(read_jobs(run)):
        if job.kind == "report":
            found.append(WorkerLog(f"report {job.job}", run / "logs" / f"slurm-{job.job}.log"))
            continue
        for task in range(job.count):
            number = job.first + task
            worker = number if job.kind == "workers" else None
            name = f"{job.kind.removesuffix('s')} {number}"
            found.append(WorkerLog(name, run / "logs" / f"slurm-{job.job}_{task}.log", worker))
    return found


def _find_driver_logs(run: Path) -> list[WorkerLog]:
    """Those of foremen on Ray."""
    crews = select_submitted(read_jobs(run), "crew")
    return [WorkerLog(f"crew {job.submission}", run / "logs" / f"crew-{job.submission}.log") for job in crews]


def _find_worker_logs(run: Path) -> list[WorkerLog]:
    """Those of workers that a crew started, on this machine or on Ray."""
    paths = sorted((run / "logs").glob("worker-*.log"))
    matches = [(path, WORKER_LOG_NAME.fullmatch(path.name)) for path in paths]
    return [WorkerLog(f"worker {m[2]} (round {m[1]})", path, int(m[2])) for path, m in matches if m]


def _find_server_logs(run: Path) -> list[WorkerLog]:
    """Those of model servers that jobs brought along."""
    return [WorkerLog("model server", path) for path in sorted((run / "logs").glob("server-*.log"))]
