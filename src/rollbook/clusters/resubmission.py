"""Resume or extend a run that was submitted: only what is missing is submitted again."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rollbook.book import Book, Seals, count_workers, explain_disk_errors, is_closed
from rollbook.clusters import slurm
from rollbook.clusters.job_files import ClusterJob, SubmissionOrder, clear_bad_nodes, last_submission_number, read_order
from rollbook.clusters.job_status import count_live_tasks
from rollbook.clusters.node_worker import check_same_model
from rollbook.clusters.packing import check_pack
from rollbook.clusters.profile import ClusterProfile
from rollbook.clusters.scheduler import Say
from rollbook.clusters.ssh import SshRequest, SshRun, read_ssh_run
from rollbook.clusters.submission import Submission, check_secrets, find_upstream_jobs, submit_jobs
from rollbook.core import JSON, SCHEMA_VERSION, Round, Settings, check_retry_rules
from rollbook.engine import check_unchanged, update_settings
from rollbook.errors import UsageError


def was_submitted(run: Path) -> bool:
    """Whether a run was ever handed to a cluster."""
    return last_submission_number(run) > 0 or read_ssh_run(run) is not None


def resubmit(
    run: Path, changes: dict[str, JSON], retry: list[str] | None, profile: ClusterProfile | None, say: Say
) -> Submission | None:
    """Submit what is missing: workers that ended too early, or a new round; None if nothing is left to do."""
    run, book = run.absolute(), Book(run)
    if far := read_ssh_run(run):
        asked = SshRequest(given=changes, retry=retry, profile=_profile_for_host(far, profile))
        sent = far.resume(run, asked, say)
        return None if sent is None else Submission(run, sent)
    if profile is not None and profile.ssh:
        raise UsageError(
            f"ssh: host: {profile.ssh.host}: {run} lies here, and so do its jobs; give a profile without ssh"
        )
    order = _update_order(run, changes, profile)
    check_secrets(order)
    most, live = slurm.read_max_array_size(), count_live_tasks(run)
    if live:
        return _add_missing_workers(run, order, live, bool(changes or retry or profile), most, say)
    settings = make_round_settings(book, changes, retry)
    for note in check_unchanged(book):
        say(note)
    open_chunks = count_open_chunks(book, settings)
    if not open_chunks:
        return None
    book.open_round(settings)
    after = [] if count_workers(run) else find_upstream_jobs(order.profile.after)  # who has worked has waited for them
    if not any((run / "journals").iterdir()):
        clear_bad_nodes(run, say)
    return submit_jobs(run, order, most, after, say, min(order.workers, open_chunks))


def extend_submitted_run(run: Path, samples: int, changes: dict[str, JSON], say: Say) -> Submission:
    """Add samples to every task that has fewer, and submit workers for them."""
    if far := read_ssh_run(run):
        return Submission(run, far.call("extend", SshRequest(samples=samples, given=changes), list[ClusterJob], say))
    if count_live_tasks(run):
        raise UsageError(f"workers of {run} wait or run: extend it when they are done, or rollbook cancel {run} first")
    order = _update_order(run, changes, None)
    with explain_disk_errors(run):
        added = Book(run).extend(samples, order.workers)
    if not added:
        raise UsageError(f"{run} has {samples} samples of every task already: give more than that with -k")
    sent = resubmit(run, changes, ["none"], None, say)
    assert sent is not None
    return sent


def _profile_for_host(remote: SshRun, profile: ClusterProfile | None) -> ClusterProfile | None:
    """A profile as it is meant over there; a run does not move to another host."""
    if profile is None or profile.ssh is None:
        return profile
    if profile.ssh.host != remote.host:
        raise UsageError(f"ssh: host: {profile.ssh.host}: this run is at {remote.host}, and stays there")
    return msgspec.structs.replace(profile, ssh=None)


def _update_order(run: Path, changes: dict[str, JSON], profile: ClusterProfile | None) -> SubmissionOrder:
    """What was ordered last, with what is given now."""
    number = last_submission_number(run)
    if not number:
        if profile is None:
            raise UsageError(f"{run} was never submitted: say how jobs are asked for with --cluster FILE")
        return SubmissionOrder(profile=profile, workers=changes.get("workers") or profile.workers or 1)
    order = read_order(run, number)
    if order.pack:
        check_pack(run, order.pack)
    if order.serve and changes.get("urls"):
        raise UsageError(f"-m {changes['urls'][0]}: the jobs of {run} serve the model themselves; leave it out")
    workers = changes.get("workers") or (profile and profile.workers) or order.workers
    return msgspec.structs.replace(order, profile=_merge_profiles(order.profile, profile), workers=workers, ray="")


def _merge_profiles(before: ClusterProfile, now: ClusterProfile | None) -> ClusterProfile:
    """How jobs are asked for: as another file says now, with as many GPUs as before where it says nothing of them."""
    if now is None:
        return before
    return now if now.gpus or now.gres else msgspec.structs.replace(now, gpus=before.gpus)


def _add_missing_workers(
    run: Path, order: SubmissionOrder, live: int, changed: bool, max_array: int, say: Say
) -> Submission:
    """Workers of the present round are there: no new round, only as many more as are missing."""
    if changed:
        raise UsageError(f"{live} workers of {run} wait or run as they were started: rollbook cancel {run} first")
    book = Book(run)
    missing = max(0, min(order.workers, count_open_chunks(book, _last_settings(book))) - live)
    servers = max(0, order.serve.shared - count_live_tasks(run, "servers")) if order.serve else 0
    if not missing and not servers:
        say(f"{live} workers wait or run, and that is enough: nothing was submitted")
        return Submission(run, [])
    return submit_jobs(run, order, max_array, [], say, missing, servers)


def count_open_chunks(book: Book, settings: Settings) -> int:
    """How many chunks a round with these settings would still have to see to."""
    rounds = book.rounds()
    seals = Seals(book.path).refresh()
    upcoming = [*rounds, Round(SCHEMA_VERSION, len(rounds) + 1, 0.0, settings)]
    return sum(not is_closed(seals.get(number), upcoming) for number in range(len(book.chunks)))


def _last_settings(book: Book) -> Settings:
    """As the present round has it: what it has given up stays given up."""
    rounds = book.rounds()
    return msgspec.structs.replace(rounds[-1].settings if rounds else Settings(), retry=[])


def make_round_settings(book: Book, changes: dict[str, JSON], retry: list[str] | None) -> Settings:
    """The settings of another round: what is given now, else as it was."""
    settings = update_settings(_last_settings(book), {**changes, "retry": check_retry_rules(retry or ["infra"])})
    if settings.urls or book.manifest.model.kind != "chat":
        check_same_model(book, settings)
    return settings
