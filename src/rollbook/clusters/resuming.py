"""Going on with a run that was submitted: only what is missing is submitted again."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rollbook.book.book import Book
from rollbook.book.claims import closed
from rollbook.book.durable import writing
from rollbook.book.presence import count_presences
from rollbook.book.seal import Seals
from rollbook.clusters import slurm
from rollbook.clusters.after import upstream
from rollbook.clusters.blame import forgive
from rollbook.clusters.duty import same_model
from rollbook.clusters.far import Asked, Far, far_of
from rollbook.clusters.jobs import Job
from rollbook.clusters.order import Order, last_order, read_order
from rollbook.clusters.pack import check_pack
from rollbook.clusters.profile import Profile
from rollbook.clusters.standing import live_workers
from rollbook.clusters.submit import Say, Submission, check_secrets, send
from rollbook.collect.planning import check_unchanged
from rollbook.collect.run import settings_of
from rollbook.core.failure import check_retry
from rollbook.core.json import JSON
from rollbook.core.line import SCHEMA
from rollbook.core.manifest import Round, Settings
from rollbook.errors import UsageError


def was_submitted(run: Path) -> bool:
    """Whether a run was ever handed to a cluster."""
    return last_order(run) > 0 or far_of(run) is not None


def resubmit(
    run: Path, given: dict[str, JSON], retry: list[str] | None, profile: Profile | None, say: Say
) -> Submission | None:
    """Submit what is missing: workers that ended too early, or a new round; None if nothing is left to do."""
    run, book = run.absolute(), Book(run)
    if far := far_of(run):
        asked = Asked(given=given, retry=retry, profile=_same_place(far, profile))
        sent = far.resume(run, asked, say)
        return None if sent is None else Submission(run, sent)
    if profile is not None and profile.ssh:
        raise UsageError(
            f"ssh: host: {profile.ssh.host}: {run} lies here, and so do its jobs; give a profile without ssh"
        )
    order = _ordered(run, given, profile)
    check_secrets(order)
    most, live = slurm.max_array_size(), live_workers(run)
    if live:
        return _top_up(run, order, live, bool(given or retry or profile), most, say)
    settings = new_settings(book, given, retry)
    for note in check_unchanged(book):
        say(note)
    open_chunks = left(book, settings)
    if not open_chunks:
        return None
    book.open_round(settings)
    after = [] if count_presences(run) else upstream(order.profile.after)  # who has worked has waited for them
    if not any((run / "journals").iterdir()):
        forgive(run, say)
    return send(run, order, most, after, say, min(order.workers, open_chunks))


def extend_there(run: Path, samples: int, given: dict[str, JSON], say: Say) -> Submission:
    """Add samples to every task that has fewer, and submit workers for them."""
    if far := far_of(run):
        return Submission(run, far.ask("extend", Asked(samples=samples, given=given), list[Job], say))
    if live_workers(run):
        raise UsageError(f"workers of {run} wait or run: extend it when they are done, or rollbook cancel {run} first")
    order = _ordered(run, given, None)
    with writing(run):
        added = Book(run).extend(samples, order.workers)
    if not added:
        raise UsageError(f"{run} has {samples} samples of every task already: give more than that with -k")
    sent = resubmit(run, given, ["none"], None, say)
    assert sent is not None
    return sent


def _same_place(far: Far, profile: Profile | None) -> Profile | None:
    """A profile as it is meant over there; a run does not move to another host."""
    if profile is None or profile.ssh is None:
        return profile
    if profile.ssh.host != far.host:
        raise UsageError(f"ssh: host: {profile.ssh.host}: this run is at {far.host}, and stays there")
    return msgspec.structs.replace(profile, ssh=None)


def _ordered(run: Path, given: dict[str, JSON], profile: Profile | None) -> Order:
    """What was ordered last, with what is given now."""
    number = last_order(run)
    if not number:
        if profile is None:
            raise UsageError(f"{run} was never submitted: say how jobs are asked for with --cluster FILE")
        return Order(profile=profile, workers=given.get("workers") or profile.workers or 1)
    order = read_order(run, number)
    if order.pack:
        check_pack(run, order.pack)
    if order.serve and given.get("urls"):
        raise UsageError(f"-m {given['urls'][0]}: the jobs of {run} serve the model themselves; leave it out")
    workers = given.get("workers") or (profile and profile.workers) or order.workers
    return msgspec.structs.replace(order, profile=_asked(order.profile, profile), workers=workers, ray="")


def _asked(before: Profile, now: Profile | None) -> Profile:
    """How jobs are asked for: as another file says now, with as many GPUs as before where it says nothing of them."""
    if now is None:
        return before
    return now if now.gpus or now.gres else msgspec.structs.replace(now, gpus=before.gpus)


def _top_up(run: Path, order: Order, live: int, changed: bool, most: int, say: Say) -> Submission:
    """Workers of the present round are there: no new round, only as many more as are missing."""
    if changed:
        raise UsageError(f"{live} workers of {run} wait or run as they were started: rollbook cancel {run} first")
    book = Book(run)
    missing = max(0, min(order.workers, left(book, _last(book))) - live)
    servers = max(0, order.serve.shared - live_workers(run, "servers")) if order.serve else 0
    if not missing and not servers:
        say(f"{live} workers wait or run, and that is enough: nothing was submitted")
        return Submission(run, [])
    return send(run, order, most, [], say, missing, servers)


def left(book: Book, settings: Settings) -> int:
    """How many chunks a round with these settings would still have to see to."""
    rounds = book.rounds()
    seals = Seals(book.path).refresh()
    upcoming = [*rounds, Round(SCHEMA, len(rounds) + 1, 0.0, settings)]
    return sum(not closed(seals.get(number), upcoming) for number in range(len(book.chunks)))


def _last(book: Book) -> Settings:
    """As the present round has it: what it has given up stays given up."""
    rounds = book.rounds()
    return msgspec.structs.replace(rounds[-1].settings if rounds else Settings(), retry=[])


def new_settings(book: Book, given: dict[str, JSON], retry: list[str] | None) -> Settings:
    """The settings of another round: what is given now, else as it was."""
    settings = settings_of(_last(book), {**given, "retry": check_retry(retry or ["infra"])})
    if settings.urls or book.manifest.model.kind != "chat":
        same_model(book, settings)
    return settings
