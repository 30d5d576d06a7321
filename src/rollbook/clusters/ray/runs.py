"""Runs on Ray: run, submit, resume and cancel, with this process as the driver or one on the cluster's head.

Resuming opens a new round for what is missing, in the way in which the run was started: with a driver here or there.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from rollbook.book import Book, open_ordered_round
from rollbook.clusters.job_files import (
    ClusterJob,
    SubmissionOrder,
    add_job,
    last_submission_number,
    read_jobs,
    read_order,
    select_submitted,
    write_order,
)
from rollbook.clusters.packing import pack_folder
from rollbook.clusters.profile import ClusterProfile, RoleProfile
from rollbook.clusters.ray.actors import (
    AUTO,
    DRIVER_MODULE,
    NAMESPACE,
    ProcessActor,
    RayCluster,
    explain_loss,
    join_cluster,
    make_actor_task,
    make_runtime_variables,
    make_start_failure,
    make_worker_factory,
)
from rollbook.clusters.resubmission import update_order
from rollbook.clusters.scheduler import Say
from rollbook.clusters.submission import Submission, check_devices, check_secrets, plan_run
from rollbook.core import JSON, Round, StartOptions
from rollbook.engine import (
    Display,
    Request,
    RunResult,
    StartWorker,
    change_settings,
    count_open_chunks,
    extend_samples,
    prepare_round,
    probe_run,
    run_request,
    run_round,
)
from rollbook.errors import UsageError

START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 30.0
HEAD_RESOURCES = {"node:__internal_head__": 0.001}
"""Where a driver runs: losing the head loses the cluster, so that a driver is never lost alone."""
PROFILE_FIELDS = ("name", "cpus", "gpus", "secrets", "worker", "server", "workers", "samples", "seed")
ORDER_FIELDS = ("profile", "workers", "serve", "pack", "ray")


def check_ray_order(order: SubmissionOrder) -> None:
    """Refuse what is impossible on Ray, before anything is written."""
    _refuse_unknown(order.profile, ClusterProfile(), PROFILE_FIELDS, "a profile for Ray may have {}")
    for name in ("worker", "server"):
        known = ("environment", "workdir")
        _refuse_unknown(getattr(order.profile, name), RoleProfile(), known, f"{name}: for Ray it may have {{}}")
    bare = SubmissionOrder(profile=order.profile, workers=1)
    _refuse_unknown(order, bare, ORDER_FIELDS, "is for Slurm jobs")
    if order.serve and (order.serve.shared or order.serve.nodes > 1):
        option = "--shared-servers" if order.serve.shared else "--nodes-per-server"
        raise UsageError(f"{option}: on Ray each worker starts its own server, on one node")
    check_secrets(order)
    check_devices(order)


def _refuse_unknown(value: msgspec.Struct, plain: msgspec.Struct, known: tuple[str, ...], why: str) -> None:
    for name in value.__struct_fields__:
        if name not in known and getattr(value, name) != getattr(plain, name):
            raise UsageError(f"{name}: not on Ray: {why.format(', '.join(known))}")


def run_on_ray(
    request: Request,
    order: SubmissionOrder,
    pack: Path | None,
    display: Display,
    start: StartOptions = StartOptions(),  # noqa: B008 - frozen
) -> RunResult:
    """Plan, work on Ray, report, with this process as the driver."""
    check_ray_order(order)
    with join_cluster(order.ray) as cluster:
        cluster.check_room(order)
        start_round = make_round_starter(cluster, order, pack, display.note)
        if order.serve is None:
            return run_request(request, display, start_round, start)
        return run_round(Book(plan_run(request, order.serve, display.note)), display, start_round)


def make_round_starter(
    cluster: RayCluster, order: SubmissionOrder, pack: Path | None, say: Say
) -> Callable[[Book, Round], StartWorker]:
    """Return what starts the workers of a round, once there is a run directory for their order."""

    def start_round(book: Book, round_: Round) -> StartWorker:
        run = Path(os.path.abspath(book.path))
        full = _complete_order(run, cluster, order, pack, say)
        return make_worker_factory(cluster, run, write_order(run, full), full, round_)

    return start_round


def _complete_order(
    run: Path, cluster: RayCluster, order: SubmissionOrder, pack: Path | None, say: Say
) -> SubmissionOrder:
    """Return the order with the cluster's real address, and with the packed folder."""
    packed = pack_folder(pack, run, say) if pack else order.pack
    return msgspec.structs.replace(order, ray=cluster.address, pack=packed)


def submit_to_ray(request: Request, order: SubmissionOrder, pack: Path | None, say: Say) -> Submission:
    """Plan here, and leave the rest to a driver on the cluster."""
    check_ray_order(order)
    with join_cluster(order.ray) as cluster:
        cluster.check_room(order)
        run = plan_run(request, order.serve, say)
        return start_driver(cluster, run, _complete_order(run, cluster, order, pack, say))


def start_driver(cluster: RayCluster, run: Path, order: SubmissionOrder) -> Submission:
    """Start a driver: a detached actor, which outlives this process, and ends with the work."""
    ray, number = cluster.ray, write_order(run, order)
    settings = Book(run).rounds()[-1].settings
    name = f"{Book(run).manifest.run}-{number}"
    task = make_actor_task(run, number, order, settings, DRIVER_MODULE, run / "logs" / f"driver-{number}.log")
    task = msgspec.structs.replace(task, environ=task.environ | make_runtime_variables(cluster))
    options = {"name": name, "namespace": NAMESPACE, "lifetime": "detached", "num_cpus": 0, "resources": HEAD_RESOURCES}
    job = add_job(run, ClusterJob("driver", name, number, order.workers, scheduler="ray"))
    actor = ray.remote(ProcessActor).options(**options).remote()
    try:
        problem = ray.get(actor.start.remote(task), timeout=START_TIMEOUT_S)
        if not problem:
            ray.get(actor.end_with_it.remote(), timeout=START_TIMEOUT_S)
            return Submission(run, [job])
    except ray.exceptions.RayError as error:
        problem = _explain_start_error(ray, error)
    ray.kill(actor)
    raise UsageError(f"{problem}; the plan stays: rollbook resume {run} --on ray")


def _explain_start_error(ray: Any, error: Exception) -> str:
    if isinstance(error, ray.exceptions.GetTimeoutError):
        return f"no driver was started on the cluster's head within {START_TIMEOUT_S:g} s"
    if isinstance(error, ray.exceptions.RayActorError):
        return f"the driver was lost ({explain_loss(str(error))})"
    return make_start_failure(str(error)).message


def read_last_driver(run: Path) -> ClusterJob | None:
    """Return the latest driver of a run, whether it still runs or not."""
    drivers = select_submitted(read_jobs(run), "driver")
    return drivers[-1] if drivers else None


def is_driver_alive(run: Path, job: ClusterJob) -> bool:
    """Return whether a driver runs."""
    with join_cluster(read_order(run, job.submission).ray) as cluster:
        return _find_actor(cluster, job) is not None


def _find_actor(cluster: RayCluster, job: ClusterJob) -> Any:
    try:
        return cluster.ray.get_actor(job.job, NAMESPACE)
    except ValueError:
        return None


def cancel_driver(run: Path, job: ClusterJob) -> bool:
    """End a driver with all its workers, gracefully if possible; return whether there was one."""
    with join_cluster(read_order(run, job.submission).ray) as cluster:
        actor = _find_actor(cluster, job)
        if actor is None:
            return False
        add_job(run, ClusterJob("cancelled", job.job, job.submission, scheduler="ray"))
        for _ in range(2):  # the first drains, the second stops
            actor.signal.remote(int(signal.SIGTERM))
            time.sleep(1.0)
        deadline = time.monotonic() + END_TIMEOUT_S
        while _find_actor(cluster, job) is not None and time.monotonic() < deadline:
            time.sleep(0.5)
        cluster.ray.kill(actor)
        return True


class RayResume(msgspec.Struct, frozen=True, kw_only=True):
    """How to resume a run: settings, failures to try again, a profile and an address, samples of every task."""

    given: dict[str, JSON] = {}
    retry: list[str] | None = None
    profile: ClusterProfile | None = None
    address: str | None = None
    samples: int | None = None
    start: StartOptions = StartOptions()


def is_detached(run: Path) -> bool:
    """Return whether a run was left to a driver on the cluster, so that it is resumed there too."""
    driver = read_last_driver(run)
    return driver is not None and driver.submission == last_submission_number(run)


def resume_here(run: Path, request: RayResume, display: Display) -> RunResult | None:
    """Do what is missing, with this process as the driver; None if nothing is left to do."""
    _probe_before_resuming(run, request, display.note)
    with _prepare_resume(run, request, display.note) as (cluster, order):
        return run_round(Book(run), display, make_round_starter(cluster, order, None, display.note)) if order else None


def _probe_before_resuming(run: Path, request: RayResume, say: Say) -> None:
    """Ask the endpoints before anything is written; not where the workers serve the model, or nothing is left to do."""
    book = Book(run)
    changes = {**request.given, "retry": request.retry or ["infra"]}
    settings = change_settings(book.manifest, book.last_settings(), changes)
    wanted = request.samples is not None or count_open_chunks(book, settings)
    if wanted and make_resume_order(run, request).serve is None:
        probe_run(book, settings, request.start, say)


def resume_detached(run: Path, request: RayResume, say: Say) -> Submission | None:
    """Leave what is missing to a driver on the cluster; None if nothing is left to do."""
    with _prepare_resume(run, request, say) as (cluster, order):
        return start_driver(cluster, Path(os.path.abspath(run)), order) if order else None


@contextmanager
def _prepare_resume(run: Path, request: RayResume, say: Say) -> Iterator[tuple[RayCluster, SubmissionOrder | None]]:
    """Open a new round; yield a cluster with room and the order for it, None where nothing is left to do."""
    order = make_resume_order(run, request)
    check_ray_order(order)
    with join_cluster(order.ray) as cluster:
        cluster.check_room(order)
        _refuse_running(run, cluster)
        if request.samples is not None:
            served = order.serve is not None
            extend_samples(Book(run), request.samples, request.given, order.workers, served=served)
        yield cluster, _open_round(run, request, msgspec.structs.replace(order, ray=cluster.address), say)


def make_resume_order(run: Path, request: RayResume) -> SubmissionOrder:
    """Return the order of another submission: the latest one with the changes."""
    last = update_order(run, _read_last_order(run), request.given, request.profile)
    # The last profile may have been written for a batch system.
    profile = request.profile or ClusterProfile(**{name: getattr(last.profile, name) for name in PROFILE_FIELDS})
    address = request.address or last.ray or AUTO
    return SubmissionOrder(profile=profile, workers=last.workers, serve=last.serve, pack=last.pack, ray=address)


def _read_last_order(run: Path) -> SubmissionOrder:
    number, rounds = last_submission_number(run), Book(run).rounds()
    if number:
        return read_order(run, number)
    return SubmissionOrder(profile=ClusterProfile(), workers=rounds[-1].settings.workers if rounds else 1)


def _refuse_running(run: Path, cluster: RayCluster) -> None:
    """Refuse while a driver runs. In another cluster it cannot be seen, and would only share the work."""
    driver = read_last_driver(run)
    if driver and read_order(run, driver.submission).ray == cluster.address and is_driver_alive(run, driver):
        raise UsageError(f"workers of {run} are running: rollbook cancel {run} first, or wait: rollbook status {run}")


def _open_round(run: Path, request: RayResume, order: SubmissionOrder, say: Say) -> SubmissionOrder | None:
    """Open a new round with no more workers than there are open chunks; None if there is no chunk."""
    book = Book(run)
    upcoming = prepare_round(book, request.given, request.retry, say, served=order.serve is not None)
    if not upcoming.open_chunks:
        return None
    workers = min(order.workers, upcoming.open_chunks)
    open_ordered_round(book, msgspec.structs.replace(upcoming.settings, workers=workers))
    return msgspec.structs.replace(order, workers=workers)
