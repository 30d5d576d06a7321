"""Status: cheap, from seals, leases and presences alone, and it always adds up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from rollbook.book import Book, BookDraft, Journal, JournalEntry, Leases
from rollbook.book.claims import ChunkClaimer
from rollbook.book.heartbeats import make_presence, write_heartbeat
from rollbook.book.seals import write_seals
from rollbook.book.status import has_pending, name_state, read_exact_status, read_status
from rollbook.core import (
    SCHEMA_VERSION,
    EnvironmentSpec,
    Held,
    Limits,
    Manifest,
    ModelSpec,
    RoleCall,
    RoleSpec,
    Sampling,
    Seal,
    Task,
    make_part,
    make_scored_line,
)
from support.alive import open_fds
from support.books import encode_journal_line, failed, make_book, open_round, scored


def make_blend(path: Path, tasks: dict[str, int]) -> Book:
    """Return a book with so many tasks of each environment, of two samples each."""
    specs = {name: EnvironmentSpec(f"{name}.py", f"{name}:Env") for name in tasks}
    manifest = Manifest(SCHEMA_VERSION, "f00d", 1.0, specs, ModelSpec("toy"), Sampling(), 2, 0, Limits(), {})
    with BookDraft(path) as draft:
        for name, count in tasks.items():
            draft.add_tasks([Task(f"{name}-{at}", "?", answer="!") for at in range(count)], name)
        return draft.finish(manifest, [make_part((0, sum(tasks.values())), (0, 2), 1)])


def adds_up(path: Path) -> bool:
    status = read_status(path)
    return status.requested == status.scored + sum(status.failed.values()) + status.pending


def test_a_planned_run_is_all_pending(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=3, samples=2)
    status = read_status(book.path)
    assert (status.requested, status.scored, status.failed, status.pending) == (6, 0, {}, 6)
    assert status.state == "planned"


def test_chunks_in_work_count_by_their_owners_heartbeat(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=4, samples=2)
    presence = make_presence(1)
    claims = ChunkClaimer(book, open_round(book), presence.id)
    assert claims.claim_next()
    presence.chunks = {0: Held(2, {"model_timeout": 1})}
    presence.in_flight = 1
    write_heartbeat(book.path, presence)
    status = read_status(book.path)
    assert (status.scored, status.failed, status.pending, status.in_flight) == (2, {"model_timeout": 1}, 5, 1)
    assert (status.state, status.workers) == ("running", [presence.id])


def test_seals_count_and_reopened_failures_are_pending_again(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=4)
    claims = ChunkClaimer(book, open_round(book), "w")
    first = claims.claim_next()
    assert first
    kinds = {"model_timeout": 1}
    write_seals(book.path, {0: (Seal(1, 1, first.chunk.size - 1, kinds, 0, {}), False)})
    assert read_status(book.path).failed == kinds
    assert adds_up(book.path)
    open_round(book, ["infra"])
    status = read_status(book.path)
    assert status.failed == {}
    assert status.pending == 4 - (first.chunk.size - 1)
    assert adds_up(book.path)


def test_a_chunk_whose_failures_are_tried_again_is_in_work(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=4)
    first = ChunkClaimer(book, open_round(book), "first").claim_next()
    assert first
    seal = Seal(1, 1, first.chunk.size - 1, {"model_timeout": 1}, 0, {})
    write_seals(book.path, {0: (seal, False)})
    again = open_round(book, ["infra"])
    assert read_status(book.path).chunks_in_work == 0
    presence = make_presence(again.number)
    assert Leases(book.path, presence.id, again.number).claim(0, 2)
    presence.chunks = {0: Held(first.chunk.size - 1)}
    write_heartbeat(book.path, presence)
    assert read_status(book.path).chunks_in_work == 1
    write_seals(book.path, {0: (Seal(2, 2, first.chunk.size, {}, 0, {}), True)})
    status = read_status(book.path)
    assert (status.chunks_in_work, status.scored) == (0, first.chunk.size)


def test_what_was_written_after_the_last_heartbeat_is_counted_exactly_or_said_not_to_be(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=4, samples=2)
    presence = make_presence(1)
    presence.born = "1"  # killed
    write_heartbeat(book.path, presence)
    assert ChunkClaimer(book, open_round(book), presence.id).claim_next()
    overridden = failed(book, 0, 1)
    rollouts = [failed(book, 1, 0), overridden, scored(book, 0, 0), scored(book, 0, 1), failed(book, 1, 1)]

    async def write() -> None:
        journal = Journal(book.path, presence.id, lambda _: None)
        journal.start()
        for rollout in rollouts:
            await journal.add(JournalEntry(rollout))
        await journal.close()

    asyncio.run(write())
    status = read_status(book.path)
    assert (status.scored, status.pending, status.chunks_in_work, status.exact) == (0, 8, 1, False)
    exact = read_exact_status(book.path)
    assert (exact.scored, exact.failed, exact.pending) == (2, {"model_timeout": 2}, 4)
    assert (exact.state, exact.exact, exact.damaged) == ("interrupted", True, [])
    (path,) = (book.path / "journals").glob("*.1.jsonl")
    path.write_bytes(path.read_bytes().replace(b'"reward":1.0', b'"reward":0.0', 1))
    exact = read_exact_status(book.path)
    assert (exact.scored, exact.pending, exact.damaged) == (1, 5, [f"{path}:1: the checksum is wrong"])


def test_the_word_for_a_state() -> None:
    assert name_state(4, 4, 0, False) == "finished"
    assert name_state(4, 2, 2, True) == "running"
    assert name_state(4, 2, 2, False) == "interrupted"
    assert name_state(4, 2, 0, False) == "shortfall"


def test_looking_again_and_again_holds_no_file(tmp_path: Path) -> None:
    """A worker pool looks every second, for days."""
    book = make_book(tmp_path / "run")
    before = open_fds()
    for _ in range(20):
        read_status(book.path)
    assert len(open_fds()) <= len(before)


def test_counts_are_by_environment_where_there_are_several(tmp_path: Path) -> None:
    book = make_blend(tmp_path / "run", {"a": 3, "b": 2})
    open_round(book)

    async def write() -> None:
        journal = Journal(book.path, "w", lambda _: None)
        journal.start()
        for rollout in (scored(book, 0, 0), scored(book, 0, 1), failed(book, 2, 0), scored(book, 4, 1)):
            await journal.add(JournalEntry(rollout))
        await journal.close()

    asyncio.run(write())
    found = read_exact_status(book.path).environments
    assert {name: (each.requested, each.scored, each.failed) for name, each in found.items()} == {
        "a": (6, 2, 1),
        "b": (4, 1, 0),
    }
    assert [each.pending for each in found.values()] == [3, 3]


def test_a_run_has_pending_rollouts_until_all_are_sealed(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=1)
    open_round(book)
    assert has_pending(book.path)
    write_seals(book.path, {0: (Seal(1, 1, 1, {}, 0, {}), False)})
    assert not has_pending(book.path)


@pytest.mark.parametrize("asks", ["judge", "roles", "nothing"])
def test_the_calls_of_roles_are_counted_where_a_run_has_any(tmp_path: Path, asks: str) -> None:
    plain = make_book(tmp_path / "plain", tasks=1, samples=1)
    roles = {"judge": {"judge": ModelSpec("j")}, "roles": {"roles": {"user": RoleSpec(ModelSpec("u"))}}}.get(asks, {})
    with BookDraft(tmp_path / "run") as draft:
        draft.copy_tasks(plain)
        book = draft.finish(msgspec.structs.replace(plain.manifest, **roles), plain.plan.parts)
    rollout = scored(book, 0, 0)
    rollout.role_calls = [RoleCall("judge", 0, 1, "5", prompt_tokens=30, completion_tokens=4, cost=0.25)]
    line = encode_journal_line(make_scored_line(rollout, [None]))
    (book.path / "journals" / "w.1.jsonl").write_bytes(line)
    found = read_exact_status(book.path).roles
    assert {name: use.prompt_tokens for name, use in found.items()} == ({} if asks == "nothing" else {"judge": 30})


def test_a_run_that_was_only_planned_has_done_nothing(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=3, samples=2)
    for status in (read_status(book.path), read_exact_status(book.path)):
        assert (status.dropped, status.chunks_done, status.chunks_in_work, status.in_flight) == (0, 0, 0, 0)
        assert (status.workers, status.outage, status.damaged) == ([], "", [])
        assert (status.environments, status.roles, status.state) == ({}, {}, "planned")
        assert (status.round, status.chunks, status.prompt_tokens, status.cached_tokens) == (0, len(book.chunks), 0, 0)
    assert [read_status(book.path).exact, read_exact_status(book.path).exact] == [False, True]
