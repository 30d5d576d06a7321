"""The progress of a run: from done/, leases/ and workers/ alone, cheap at any size, or exactly from its journals."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from rollbook.book.book import Book
from rollbook.book.counted_lines import (
    CountedLines,
    FinalFailures,
    ScoredLineHeader,
    iterate_parts,
)
from rollbook.book.heartbeats import read_presences
from rollbook.book.leases import Leases, WorkerMonitor
from rollbook.book.seals import Seals, find_reopened_kinds
from rollbook.book.task_groups import TaskGroups
from rollbook.book.token_counts import SpentTokens
from rollbook.core import Held, Presence, RoleUse, Seal


class GroupStatus(msgspec.Struct, frozen=True):
    """The counts of one environment of a run, or of one group of its tasks (task_groups.py)."""

    requested: int
    scored: int
    failed: int

    @property
    def pending(self) -> int:
        """What is neither scored nor failed."""
        return self.requested - self.scored - self.failed


class RunStatus(msgspec.Struct, frozen=True):
    """Requested = scored + failed + pending.

    Unless it is `exact`, the `chunks_in_work` count as of their worker's last heartbeat: what was written since is
    durable, and still pending here. Only an exact status knows of damaged journal lines, and has counts by environment
    where there are several, or several groups in one.
    """

    run: str
    path: str
    state: str
    round: int
    requested: int
    scored: int
    failed: dict[str, int]
    pending: int
    dropped: int
    chunks: int
    chunks_done: int
    workers: list[str]
    in_flight: int
    chunks_in_work: int = 0
    exact: bool = False
    damaged: list[str] = []
    outage: str = ""
    """Why a worker that is alive gets no answer of its model, as of its last heartbeat; empty if all do."""
    environments: dict[str, GroupStatus] = {}
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt tokens of all attempts, as far as their servers tell, those that were cached."""
    roles: dict[str, RoleUse] = {}
    """The calls of each role in all attempts; only an exact status counts them."""


def read_status(run: str | Path) -> RunStatus:
    """Read the status of a run from its files."""
    book = Book(run)
    rounds = book.rounds()
    presences = read_presences(book.path)
    leases = Leases(book.path)
    seals = Seals(book.path).refresh()
    leases.refresh()
    watch = WorkerMonitor(book.path)
    alive = [name for name, p in sorted(presences.items()) if not watch.is_gone(name, p)]
    scored, done, dropped, in_work = 0, 0, 0, 0
    failed: dict[str, int] = {}
    for number in range(len(book.chunks)):
        seal, held = seals.get(number), _find_worker_counts(number, leases, presences)
        open_again = find_reopened_kinds(seal.failed, seal.round, rounds) if seal else set()
        done += seal is not None and not open_again
        dropped += seal.dropped if seal else 0
        is_in_work = _is_in_work(seal, open_again, leases.epochs.get(number, 0))
        in_work += is_in_work
        counted = held if held and is_in_work else _count_sealed(seal, open_again)
        scored += counted.scored
        for kind, count in counted.failed.items():
            failed[kind] = failed.get(kind, 0) + count
    requested = book.plan.requested
    pending = requested - scored - sum(failed.values())
    return RunStatus(
        book.manifest.run,
        str(book.path),
        name_state(requested, scored, pending, bool(alive)) if presences else "planned",
        len(rounds),
        requested,
        scored,
        failed,
        pending,
        dropped,
        len(book.chunks),
        done,
        alive,
        sum(presences[name].in_flight for name in alive),
        in_work,
        prompt_tokens=sum(presence.prompt_tokens for presence in presences.values()),
        cached_tokens=sum(presence.cached_tokens for presence in presences.values()),
        outage=next((presences[name].outage for name in alive if presences[name].outage), ""),
    )


def has_pending(run: str | Path) -> bool:
    """Return whether rollouts of a run are neither scored nor failed, by what its workers sealed and last reported."""
    return read_status(run).pending > 0


def read_exact_status(run: str | Path) -> RunStatus:
    """Read the status of a run with counts from its journals: everything that is durable counts."""
    status, book = read_status(run), Book(run)
    failures, counted = FinalFailures(book), CountedLines(book, ScoredLineHeader)
    failed_keys = {(failure.task, failure.sample): failure.failure.kind for failure in failures}
    scored_by_row = Counter[int]()
    for row, _, line in counted:
        scored_by_row[row] += 1
        failed_keys.pop((line.task, line.sample), None)
    scored = scored_by_row.total()
    pending, alive = status.requested - scored - len(failed_keys), bool(status.workers)
    return msgspec.structs.replace(
        status,
        state=status.state if status.state == "planned" else name_state(status.requested, scored, pending, alive),
        scored=scored,
        failed=dict(Counter(failed_keys.values())),
        pending=pending,
        dropped=counted.dropped,
        exact=True,
        roles=_count_role_calls(book),
        damaged=[str(line) for line in (*counted.damaged, *failures.damaged)],
        environments=_count_by_group(book, scored_by_row, Counter(book.tasks.rows[task] for task, _ in failed_keys)),
    )


def _count_role_calls(book: Book) -> dict[str, RoleUse]:
    if not book.manifest.roles and book.manifest.judge is None:
        return {}
    spent = SpentTokens(book.path)
    spent.refresh()
    return spent.roles


def _count_by_group(book: Book, scored: Counter[int], failed: Counter[int]) -> dict[str, GroupStatus]:
    """Return the counts by environment or group, from those by row; empty where there is only one."""
    groups = TaskGroups(book)
    if len(groups.names) == 1:
        return {}
    totals = {name: [0, 0, 0] for name in groups.names}
    for rows, samples, _, _ in iterate_parts(book):
        for row in rows:
            counts = totals[groups.name_of(row)]
            counts[0] += len(samples)
    for place, counted in enumerate((scored, failed), start=1):
        for row, count in counted.items():
            totals[groups.name_of(row)][place] += count
    return {name: GroupStatus(*counts) for name, counts in totals.items()}


def name_state(requested: int, scored: int, pending: int, alive: bool) -> str:
    """Return the state of a run in one word."""
    if scored == requested:
        return "finished"
    if alive:
        return "running"
    return "interrupted" if pending else "shortfall"


def _find_worker_counts(number: int, leases: Leases, presences: dict[str, Presence]) -> Held | None:
    epoch = leases.epochs.get(number, 0)
    presence = presences.get(leases.read_lease(number, epoch).worker) if epoch else None
    return presence.chunks.get(number) if presence else None


def _is_in_work(seal: Seal | None, open_again: set[str], epoch: int) -> bool:
    """Return whether a worker has claimed a chunk and not sealed it yet; a closed chunk counts by its seal."""
    return epoch > 0 if seal is None else bool(open_again) and epoch > seal.epoch


def _count_sealed(seal: Seal | None, open_again: set[str]) -> Held:
    if seal is None:
        return Held()
    return Held(seal.scored, {kind: n for kind, n in seal.failed.items() if kind not in open_again})
