"""Going on with a run on Ray: a new round for what is missing, worked off as the run was started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from rollbook.book.book import Book
from rollbook.book.durable import writing
from rollbook.clusters.order import Order, last_order, read_order
from rollbook.clusters.pack import check_pack
from rollbook.clusters.profile import Profile
from rollbook.clusters.ray.cluster import AUTO, Cluster, joined
from rollbook.clusters.ray.crews import OF_PROFILE, check_order, foreman, is_alive, mustering, send
from rollbook.clusters.resuming import left, new_settings
from rollbook.clusters.submit import Say, Submission
from rollbook.collect.planning import check_unchanged
from rollbook.collect.progress import Display
from rollbook.collect.run import Result, work_off
from rollbook.core.json import JSON
from rollbook.errors import UsageError


class Again(msgspec.Struct, frozen=True, kw_only=True):
    """How a run is to go on: settings, failures to try again, a profile and an address, samples of every task."""

    given: dict[str, JSON] = {}
    retry: list[str] | None = None
    profile: Profile | None = None
    address: str | None = None
    samples: int | None = None


def stays(run: Path) -> bool:
    """Whether a run was left to a foreman on the cluster, so that it goes on there too."""
    crew = foreman(run)
    return crew is not None and crew.submission == last_order(run)


def work_again(run: Path, again: Again, display: Display) -> Result | None:
    """Do what is missing, with this process as the foreman; None if nothing is left to do."""
    with _ready(run, again, display.note) as (cluster, order):
        return work_off(Book(run), display, mustering(cluster, order, None, display.note)) if order else None


def leave_again(run: Path, again: Again, say: Say) -> Submission | None:
    """Leave what is missing to a foreman on the cluster; None if nothing is left to do."""
    with _ready(run, again, say) as (cluster, order):
        return send(cluster, Path(os.path.abspath(run)), order) if order else None


@contextmanager
def _ready(run: Path, again: Again, say: Say) -> Iterator[tuple[Cluster, Order | None]]:
    """A cluster with room, a new round, and the order for it; no order where nothing is left to do."""
    order = ordered(run, again)
    check_order(order)
    with joined(order.ray) as cluster:
        cluster.check_room(order)
        _refuse_busy(run, cluster)
        _extend(run, again, order)
        yield cluster, _open_round(run, again, msgspec.structs.replace(order, ray=cluster.address), say)


def ordered(run: Path, again: Again) -> Order:
    """What was ordered last, with what is given now."""
    before = _before(run)
    if before.pack:
        check_pack(run, before.pack)
    if before.serve and again.given.get("urls"):
        raise UsageError(f"-m {again.given['urls'][0]}: the workers of {run} serve the model themselves; leave it out")
    profile = again.profile or _known(before.profile)
    workers = again.given.get("workers") or (again.profile and again.profile.workers) or before.workers
    address = again.address or before.ray or AUTO
    return Order(profile=profile, workers=workers, serve=before.serve, pack=before.pack, ray=address)


def _before(run: Path) -> Order:
    number, rounds = last_order(run), Book(run).rounds()
    if number:
        return read_order(run, number)
    return Order(profile=Profile(), workers=rounds[-1].settings.workers if rounds else 1)


def _known(profile: Profile) -> Profile:
    """What Ray understands of a profile that may have been written for Slurm."""
    return Profile(**{name: getattr(profile, name) for name in OF_PROFILE})


def _refuse_busy(run: Path, cluster: Cluster) -> None:
    """A foreman may be at it. In another cluster than this one it cannot be seen, and would only share the work."""
    crew = foreman(run)
    if crew and read_order(run, crew.submission).ray == cluster.address and is_alive(run, crew):
        raise UsageError(f"workers of {run} are at it: rollbook cancel {run} first, or wait: rollbook status {run}")


def _extend(run: Path, again: Again, order: Order) -> None:
    if again.samples is None:
        return
    with writing(run):
        added = Book(run).extend(again.samples, order.workers)
    if not added:
        raise UsageError(f"{run} has {again.samples} samples of every task already: give more than that with -k")


def _open_round(run: Path, again: Again, order: Order, say: Say) -> Order | None:
    """A new round, with no more workers than there are chunks to see to; None if there is none."""
    book = Book(run)
    settings = new_settings(book, again.given, again.retry)
    for note in check_unchanged(book):
        say(note)
    chunks = left(book, settings)
    if not chunks:
        return None
    workers = min(order.workers, chunks)
    book.open_round(msgspec.structs.replace(settings, workers=workers))
    return msgspec.structs.replace(order, workers=workers)
