"""Resume or extend a run that was submitted: only what is missing is submitted again."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rollbook.book import Book, count_workers, lock_run, open_ordered_round
from rollbook.clusters.job_files import (
    ClusterJob,
    SubmissionOrder,
    clear_bad_nodes,
    last_submission_number,
    read_order,
    was_sent_to_ray,
)
from rollbook.clusters.job_status import count_live_tasks
from rollbook.clusters.packing import check_pack
from rollbook.clusters.profile import ClusterProfile
from rollbook.clusters.scheduler import DEFAULT_SCHEDULER, Say, find_scheduler
from rollbook.clusters.ssh import SshRequest, SshRun, read_ssh_run
from rollbook.clusters.submission import Submission, check_secrets, find_upstream_jobs, submit_jobs
from rollbook.core import JSON
from rollbook.engine import count_open_chunks, extend_samples, prepare_round
from rollbook.errors import UsageError


def was_submitted(run: Path) -> bool:
    """Return whether a run was ever submitted to a cluster."""
    return last_submission_number(run) > 0 or read_ssh_run(run) is not None


def find_last_place(run: Path) -> str:
    """Return where the latest submission of a run went: ray, or the name of a scheduler."""
    if was_sent_to_ray(run):
        return "ray"
    if remote := read_ssh_run(run):
        return remote.order.scheduler
    number = last_submission_number(run)
    return read_order(run, number).scheduler if number else DEFAULT_SCHEDULER


def choose_cluster(run: Path, on: str | None, settings: dict[str, JSON]) -> tuple[str, dict[str, JSON]]:
    """Return the place where a run continues, by default the last one; "" is this machine. Adapt the settings to it."""
    ssh_run = read_ssh_run(run)
    if ssh_run and on in ("local", "ray"):
        raise UsageError(f"--on {on}: {run} is worked on at {ssh_run.host}; this directory is a copy")
    submitted = was_submitted(run)
    if on not in (None, "local") or (on is None and submitted):
        return on or find_last_place(run), settings
    # The number of workers that were submitted to a cluster does not fit this machine.
    return "", {"workers": 1, **settings} if submitted else settings


def resubmit(
    run: Path,
    changes: dict[str, JSON],
    retry: list[str] | None,
    profile: ClusterProfile | None,
    say: Say,
    scheduler: str | None = None,
) -> Submission | None:
    """Submit what is missing: workers that ended too early, or a new round; None if nothing is left to do."""
    run = run.absolute()
    if remote := read_ssh_run(run):
        own = _profile_for_host(remote, profile)
        jobs = remote.resume(run, SshRequest(given=changes, retry=retry, profile=own, scheduler=scheduler), say)
        return None if jobs is None else Submission(run, jobs)
    if profile is not None and profile.ssh:
        raise UsageError(
            f"ssh: host: {profile.ssh.host}: {run} and its jobs are on this machine; give a profile without ssh"
        )
    Book(run)  # nothing is written into a folder that is not a run directory
    order = _make_order(run, changes, profile, scheduler)
    check_secrets(order)
    (run / "jobs").mkdir(exist_ok=True)
    with lock_run(run / "jobs"):  # a second resume at the same moment has to see what the first one submits
        return _submit_missing(run, order, changes, retry, profile, say)


def _submit_missing(
    run: Path,
    order: SubmissionOrder,
    changes: dict[str, JSON],
    retry: list[str] | None,
    profile: ClusterProfile | None,
    say: Say,
) -> Submission | None:
    book, batch = Book(run), find_scheduler(order.scheduler)
    max_array, live = batch.read_max_array_size(), count_live_tasks(run)
    if live:
        return _add_missing_workers(run, order, live, bool(changes or retry or profile), max_array, say)
    upcoming = prepare_round(book, changes, retry, say, served=order.serve is not None)
    if not upcoming.open_chunks:
        return None
    open_ordered_round(book, upcoming.settings)
    # A run that has workers has waited for these jobs already.
    after = [] if count_workers(run) else find_upstream_jobs(batch, order.profile.after)
    if not any((run / "journals").iterdir()):
        clear_bad_nodes(run, say)
    return submit_jobs(run, order, max_array, after, say, min(order.workers, upcoming.open_chunks))


def extend_submitted_run(
    run: Path, samples: int, changes: dict[str, JSON], say: Say, scheduler: str | None = None
) -> Submission:
    """Add samples to every task that has fewer, and submit workers for them."""
    if remote := read_ssh_run(run):
        request = SshRequest(samples=samples, given=changes, scheduler=scheduler)
        return Submission(run, remote.call("extend", request, list[ClusterJob], say))
    if count_live_tasks(run):
        raise UsageError(f"workers of {run} wait or run: extend it when they are done, or rollbook cancel {run} first")
    order = _make_order(run, changes, None, scheduler)
    extend_samples(Book(run), samples, changes, order.workers, served=order.serve is not None)
    submission = resubmit(run, changes, ["none"], None, say, scheduler)
    assert submission is not None
    return submission


def _profile_for_host(remote: SshRun, profile: ClusterProfile | None) -> ClusterProfile | None:
    """Return a profile as the other host has to read it; a run does not move to another host."""
    if profile is None or profile.ssh is None:
        return profile
    if profile.ssh.host != remote.host:
        raise UsageError(f"ssh: host: {profile.ssh.host}: this run is at {remote.host}, and stays there")
    return msgspec.structs.replace(profile, ssh=None)


def _make_order(
    run: Path, changes: dict[str, JSON], profile: ClusterProfile | None, scheduler: str | None
) -> SubmissionOrder:
    """Return the order of another submission: the latest one with the changes."""
    number = last_submission_number(run)
    if not number:
        if profile is None:
            raise UsageError(f"{run} was never submitted: describe your cluster with --cluster FILE")
        workers = changes.get("workers") or profile.workers or 1
        return SubmissionOrder(profile=profile, workers=workers, scheduler=scheduler or DEFAULT_SCHEDULER)
    order = update_order(run, read_order(run, number), changes, profile)
    merged = _merge_profiles(order.profile, profile)
    return msgspec.structs.replace(order, profile=merged, ray="", scheduler=scheduler or order.scheduler)


def update_order(
    run: Path, order: SubmissionOrder, changes: dict[str, JSON], profile: ClusterProfile | None
) -> SubmissionOrder:
    """Check that an order can be submitted again with these changes; return it with the number of workers."""
    if order.pack:
        check_pack(run, order.pack)
    if order.serve and changes.get("urls"):
        raise UsageError(f"-m {changes['urls'][0]}: the jobs of {run} serve the model themselves; leave it out")
    workers = changes.get("workers") or (profile and profile.workers) or order.workers
    return msgspec.structs.replace(order, workers=workers)


def _merge_profiles(before: ClusterProfile, now: ClusterProfile | None) -> ClusterProfile:
    """Return the new profile, with the GPUs of the previous one where it names none."""
    if now is None:
        return before
    return now if now.gpus or now.gres else msgspec.structs.replace(now, gpus=before.gpus)


def _add_missing_workers(
    run: Path, order: SubmissionOrder, live: int, changed: bool, max_array: int, say: Say
) -> Submission:
    """Submit as many workers as are missing: those of the present round still wait or run, so there is no new one."""
    if changed:
        raise UsageError(f"{live} workers of {run} wait or run as they were started: rollbook cancel {run} first")
    missing = max(0, min(order.workers, count_open_chunks(Book(run))) - live)
    servers = max(0, order.serve.shared - count_live_tasks(run, "servers")) if order.serve else 0
    if not missing and not servers:
        say(f"{live} workers are waiting or running, which is enough: nothing was submitted")
        return Submission(run, [])
    return submit_jobs(run, order, max_array, [], say, missing, servers)
