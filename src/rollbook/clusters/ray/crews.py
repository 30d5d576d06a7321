"""Runs on Ray: with this process as the foreman, or handed to one that stays on the cluster's head."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from rollbook.book.book import Book
from rollbook.clusters.jobs import Job, add_job, read_jobs, submitted
from rollbook.clusters.order import Order, read_order, write_order
from rollbook.clusters.pack import packed
from rollbook.clusters.profile import Part, Profile
from rollbook.clusters.ray.cluster import NAMESPACE, Cluster, joined
from rollbook.clusters.ray.hand import broken, why_lost
from rollbook.clusters.ray.muster import FOREMAN, errand, mustered, surroundings
from rollbook.clusters.ray.post import Post
from rollbook.clusters.submit import Say, Submission, check_devices, check_secrets, planned
from rollbook.collect.crew import Start
from rollbook.collect.progress import Display
from rollbook.collect.request import Request
from rollbook.collect.run import Result, run_request, work_off
from rollbook.core.manifest import Round
from rollbook.errors import UsageError

START_S = 120.0
END_S = 30.0
HEAD = {"node:__internal_head__": 0.001}
"""Where a foreman goes: the head's loss is the cluster's, so that a foreman is never lost alone."""
OF_PROFILE = ("name", "cpus", "gpus", "secrets", "worker", "server", "workers", "samples", "seed")
OF_ORDER = ("profile", "workers", "serve", "pack", "ray")


def check_order(order: Order) -> None:
    """What can be known to be impossible on Ray before anything is written."""
    _refuse_unknown(order.profile, Profile(), OF_PROFILE, "a profile for Ray may say {}")
    for name in ("worker", "server"):
        known = ("environment", "workdir")
        _refuse_unknown(getattr(order.profile, name), Part(), known, f"{name}: for Ray it may say {{}}")
    bare = Order(profile=order.profile, workers=1)
    _refuse_unknown(order, bare, OF_ORDER, "is for jobs of Slurm's")
    if order.serve and (order.serve.shared or order.serve.nodes > 1):
        option = "--shared-servers" if order.serve.shared else "--nodes-per-server"
        raise UsageError(f"{option}: on Ray each worker brings its own server, on one node")
    check_secrets(order)
    check_devices(order)


def _refuse_unknown(given: msgspec.Struct, plain: msgspec.Struct, known: tuple[str, ...], why: str) -> None:
    for name in given.__struct_fields__:
        if name not in known and getattr(given, name) != getattr(plain, name):
            raise UsageError(f"{name}: not on Ray: {why.format(', '.join(known))}")


def run_there(request: Request, order: Order, pack: Path | None, display: Display) -> Result:
    """Plan, work on Ray, report, with this process as the foreman."""
    check_order(order)
    with joined(order.ray) as cluster:
        cluster.check_room(order)
        muster = mustering(cluster, order, pack, display.note)
        if order.serve is None:
            return run_request(request, display, muster)
        return work_off(Book(planned(request, order.serve, display.note)), display, muster)


def mustering(cluster: Cluster, order: Order, pack: Path | None, say: Say) -> Callable[[Book, Round], Start]:
    """What says how the workers of a round are started, once there is a run directory for their order."""

    def muster(book: Book, round_: Round) -> Start:
        run = Path(os.path.abspath(book.path))
        full = _complete(run, cluster, order, pack, say)
        return mustered(cluster, run, write_order(run, full), full, round_)

    return muster


def _complete(run: Path, cluster: Cluster, order: Order, pack: Path | None, say: Say) -> Order:
    """The order with the address at which the cluster really is, and with the folder that goes along."""
    taken = packed(pack, run, say) if pack else order.pack
    return msgspec.structs.replace(order, ray=cluster.address, pack=taken)


def submit_there(request: Request, order: Order, pack: Path | None, say: Say) -> Submission:
    """Plan here, and leave the rest to a foreman on the cluster."""
    check_order(order)
    with joined(order.ray) as cluster:
        cluster.check_room(order)
        run = planned(request, order.serve, say)
        return send(cluster, run, _complete(run, cluster, order, pack, say))


def send(cluster: Cluster, run: Path, order: Order) -> Submission:
    """Start a foreman: a detached actor, which outlives this process, and ends with the work."""
    ray, number = cluster.ray, write_order(run, order)
    settings = Book(run).rounds()[-1].settings
    name = f"{Book(run).manifest.run}-{number}"
    task = errand(run, number, order, settings, FOREMAN, run / "logs" / f"crew-{number}.log")
    task = msgspec.structs.replace(task, environ=task.environ | surroundings(cluster))
    options = {"name": name, "namespace": NAMESPACE, "lifetime": "detached", "num_cpus": 0, "resources": HEAD}
    job = add_job(run, Job("crew", name, number, order.workers))
    actor = ray.remote(Post).options(**options).remote()
    try:
        problem = ray.get(actor.start.remote(task), timeout=START_S)
        if not problem:
            ray.get(actor.end_with_it.remote(), timeout=START_S)
            return Submission(run, [job])
    except ray.exceptions.RayError as error:
        problem = _unsent(ray, error)
    ray.kill(actor)
    raise UsageError(f"{problem}; the plan stays: rollbook resume {run} --on ray")


def _unsent(ray: Any, error: Exception) -> str:
    if isinstance(error, ray.exceptions.GetTimeoutError):
        return f"no foreman was started on the cluster's head within {START_S:g} s"
    if isinstance(error, ray.exceptions.RayActorError):
        return f"the foreman was lost ({why_lost(str(error))})"
    return broken(str(error)).words


def foreman(run: Path) -> Job | None:
    """The latest foreman of a run, whether it still is there or not."""
    crews = submitted(read_jobs(run), "crew")
    return crews[-1] if crews else None


def is_alive(run: Path, job: Job) -> bool:
    """Whether a foreman is at work."""
    with joined(read_order(run, job.submission).ray) as cluster:
        return _actor(cluster, job) is not None


def _actor(cluster: Cluster, job: Job) -> Any:
    try:
        return cluster.ray.get_actor(job.job, NAMESPACE)
    except ValueError:
        return None


def cancel_foreman(run: Path, job: Job) -> bool:
    """End a foreman with all its workers, orderly if it can be; gives whether there was one."""
    with joined(read_order(run, job.submission).ray) as cluster:
        actor = _actor(cluster, job)
        if actor is None:
            return False
        add_job(run, Job("cancelled", job.job, job.submission))
        for _ in range(2):  # the first drains, the second stops
            actor.signal.remote(int(signal.SIGTERM))
            time.sleep(1.0)
        deadline = time.monotonic() + END_S
        while _actor(cluster, job) is not None and time.monotonic() < deadline:
            time.sleep(0.5)
        cluster.ray.kill(actor)
        return True
