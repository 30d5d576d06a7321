"""Going through a book: fresh chunks, orphans, what was done before, what is reopened."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from rollbook.book import claims as claims_module
from rollbook.book.book import Book, BookDraft
from rollbook.book.claims import ChunkClaimer, Claim, TakeoverReader, is_finished
from rollbook.book.counted_lines import CountedLines, KeyMap
from rollbook.book.heartbeats import (
    InFlightKeys,
    WorkerGone,
    make_presence,
    publish_worker_gone,
    read_presence,
    write_heartbeat,
)
from rollbook.book.journal import Journal, JournalEntry
from rollbook.book.leases import Leases
from rollbook.book.seals import Seals, measure_extent, write_seals
from rollbook.core import EnvironmentSpec, Part, Rollout, Round, ScoredLine, Seal, Task
from support.books import edit_record, failed, make_book, open_round, scored


def journal(book: Book, worker: str, marks: list[JournalEntry]) -> Journal:
    async def go() -> Journal:
        made = Journal(book.path, worker, lambda _: None)
        made.start()
        for mark in marks:
            await made.add(mark)
        await made.close()
        return made

    return asyncio.run(go())


def dead_worker(book: Book, round_: Round, marks: list[Rollout], chunks: int = 1) -> str:
    """A worker of this machine that claimed chunks, wrote marks, and is gone without a word."""
    presence = make_presence(round_.number)
    presence.born = "1"
    write_heartbeat(book.path, presence)
    claims = ChunkClaimer(book, round_, presence.id)
    for _ in range(chunks):
        assert claims.claim_next()
    journal(book, presence.id, [JournalEntry(r, True) for r in marks])
    return presence.id


def all_claims(claims: ChunkClaimer) -> list[Claim]:
    found = []
    while claim := claims.claim_next():
        found.append(claim)
    return found


def todo(claims: list[Claim]) -> list[tuple[int, int]]:
    return sorted((row, sample) for claim in claims for row, sample, _ in claim.todo)


def test_a_fresh_book_is_claimed_chunk_by_chunk(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=3, samples=2)
    claims = ChunkClaimer(book, open_round(book), "a")
    assert todo(all_claims(claims)) == [(r, s) for r in range(3) for s in range(2)]
    assert not claims.is_over()


def test_two_workers_share_the_chunks(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=10, samples=2)
    round_ = open_round(book)
    a, b = ChunkClaimer(book, round_, "a"), ChunkClaimer(book, round_, "b")
    taken: list[Claim] = []
    while (one := a.claim_next()) or (other := b.claim_next()):
        taken.append(one or other)
    assert todo(taken) == [(r, s) for r in range(10) for s in range(2)]


def test_a_worker_that_others_took_for_gone_does_not_claim_its_own_chunks_again(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=3, samples=2)
    round_ = open_round(book)
    presence = make_presence(round_.number)
    write_heartbeat(book.path, presence)
    claims = ChunkClaimer(book, round_, presence.id)
    held = {claim.chunk.number: claim.epoch for claim in all_claims(claims)}
    publish_worker_gone(book.path, presence.id, WorkerGone(presence.counter, held))
    again = ChunkClaimer(book, round_, presence.id)  # reads the record at once
    assert again.claim_next() is None
    assert Leases(book.path).refresh() == held


def test_the_heir_of_a_dead_worker_repeats_nothing_that_was_scored(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=4, samples=2)
    round_ = open_round(book)
    dead_worker(book, round_, [scored(book, 0, 0), scored(book, 1, 1)])
    claims = all_claims(ChunkClaimer(book, round_, "heir"))
    assert todo(claims) == [(r, s) for r in range(4) for s in range(2) if (r, s) not in ((0, 0), (1, 1))]
    assert sum(claim.scored for claim in claims) == 2
    assert max(claim.epoch for claim in claims) == 2


def test_attempts_of_the_dead_count_in_the_same_round_only(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=1)
    round_ = open_round(book)
    presence = make_presence(1)
    presence.born = "1"
    write_heartbeat(book.path, presence)
    assert ChunkClaimer(book, round_, presence.id).claim_next()
    journal(book, presence.id, [JournalEntry(failed(book, 0, 0), False), JournalEntry(failed(book, 0, 0), False)])
    (claim,) = all_claims(ChunkClaimer(book, round_, "heir"))
    assert claim.todo[0][2].tries == {"model_timeout": 2}


def test_a_key_in_flight_on_dead_workers_is_counted_against_it(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=1)
    round_ = open_round(book)
    for expected in range(3):
        presence = make_presence(1)
        write_heartbeat(book.path, presence)
        (claim,) = all_claims(ChunkClaimer(book, round_, presence.id))
        assert claim.todo[0][2].deaths == expected
        InFlightKeys(book.path, presence.id).add(0, 0)
        presence.born = "1"
        write_heartbeat(book.path, presence)
    (claim,) = all_claims(ChunkClaimer(book, round_, "heir"))
    assert claim.todo[0][2].deaths == 3
    (later,) = [c for c in all_claims(ChunkClaimer(book, open_round(book), "x")) if c.todo] or [None]
    assert later is None or later.todo[0][2].deaths == 0


def sealed_with(book: Book, round_: Round, rollouts: list[Rollout]) -> None:
    """Work a one-chunk book off and seal it."""
    claims = ChunkClaimer(book, round_, "first")
    for claim in all_claims(claims):
        mine = [r for r in rollouts if (book.tasks.rows[r.task.id], r.sample) in set(claim.chunk)]
        pen = journal(book, f"first{claim.chunk.number}", [JournalEntry(r, True) for r in mine])
        kinds: dict[str, int] = {}
        for r in mine:
            if r.failure:
                kinds[r.failure.kind] = kinds.get(r.failure.kind, 0) + 1
        good = sum(r.score is not None for r in mine)
        seal = Seal(round_.number, claim.epoch, good, kinds, 0, pen.extents(1))
        write_seals(book.path, {claim.chunk.number: (seal, False)})


def test_a_sealed_book_is_over(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=1)
    sealed_with(book, open_round(book), [scored(book, 0, 0)])
    assert ChunkClaimer(book, open_round(book), "b").is_over()


def leave_false_records(book: Book, chunk: int, epoch: int) -> None:
    """A lease of a worker that does not exist, and a record that it is gone and left the chunk."""
    Leases(book.path, "ghost", 1).claim(chunk, epoch)
    publish_worker_gone(book.path, "ghost", WorkerGone(-1, {chunk: epoch}))


def test_a_sealed_chunk_is_not_claimed_whatever_leases_and_dead_workers_say(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=4, samples=1)
    round_ = open_round(book)
    sealed_with(book, round_, [scored(book, row, 0) for row in range(4)])
    before = {path: path.read_bytes() for path in (book.path / "done").iterdir()}
    leave_false_records(book, 0, 2)
    claims = ChunkClaimer(book, round_, "b")
    assert claims.claim_next() is None
    assert claims.is_over()
    assert {path: path.read_bytes() for path in (book.path / "done").iterdir()} == before


def test_a_chunk_that_is_sealed_while_it_is_claimed_is_not_worked_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner was thought dead, wakes, and seals after the heir has looked and before it has claimed."""
    book = make_book(tmp_path / "run", tasks=1, samples=1)
    round_ = open_round(book)
    dead_worker(book, round_, [scored(book, 0, 0)])
    claim = Leases.claim

    def claim_late(leases: Leases, chunk: int, epoch: int) -> bool:
        write_seals(book.path, {chunk: (Seal(1, 1, 1, {}, 0, {}), False)})
        return claim(leases, chunk, epoch)

    heir = ChunkClaimer(book, round_, "heir")
    monkeypatch.setattr(Leases, "claim", claim_late)
    assert heir.claim_next() is None


def test_the_lines_of_a_sealed_chunk_are_found_by_whoever_takes_it_over(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=2, samples=1)
    round_ = open_round(book)
    worker = dead_worker(book, round_, [scored(book, 0, 0), scored(book, 1, 0)], chunks=2)
    files = {f"{worker}.1.jsonl": measure_extent(book.path / "journals" / f"{worker}.1.jsonl", 1 << 30)}
    seals = {chunk: Seal(1, 1, 1, {}, 0, files) for chunk in range(2)}
    leases = Leases(book.path)
    leases.refresh()
    reader = TakeoverReader(book, leases, round_)
    for chunk in (0, 1):
        assert [past.scored for past in reader.read_history(chunk, 2, seals).keys.values()] == [True]


def test_a_chunk_that_an_heir_has_taken_is_left_for_the_heir_to_seal(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=1)
    round_ = open_round(book)
    slow = ChunkClaimer(book, round_, "slow")
    claim = slow.claim_next()
    assert claim
    assert Leases(book.path, "heir", 1).claim(0, 2)
    slow.seal([(claim, Seal(1, 1, 1, {}, 0, {}))])
    assert not any((book.path / "done").iterdir())
    assert not slow.is_over()


def test_a_later_round_reopens_infra_failures_and_no_others(tmp_path: Path) -> None:
    for kind, retry, over in (
        ("model_timeout", ["infra"], False),
        ("verifier_error", ["infra"], True),
        ("verifier_error", ["all"], False),
        ("model_timeout", [], True),
    ):
        book = make_book(tmp_path / f"{kind}-{'-'.join(retry)}", tasks=1, samples=1)
        sealed_with(book, open_round(book), [failed(book, 0, 0, kind)])
        assert ChunkClaimer(book, open_round(book, retry), "b").is_over() is over


def test_what_is_sealed_while_it_looks_is_heard_of_at_the_next_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop seals while a thread reads the seals of others: that may not change what is being read."""
    book = make_book(tmp_path / "run", tasks=3, samples=1, workers=3)
    open_round(book)
    claims, read, whole = ChunkClaimer(book, open_round(book), "a"), Seals.read, Seal(2, 1, 1, {}, 0, {})
    *mine, theirs = all_claims(claims)

    def read_and_seal(seals: Seals, number: int) -> Seal:
        claims.seal([(claim, whole) for claim in mine])
        return read(seals, number)

    write_seals(book.path, {theirs.chunk.number: (whole, False)})
    monkeypatch.setattr(Seals, "read", read_and_seal)
    claims._refreshed_at = float("-inf")
    assert not claims.is_over()
    assert claims.is_over()


def test_what_is_written_while_its_journal_is_inherited_is_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One taken for dead may wake and write: beyond the bytes that the heir's seal will vouch for, nothing counts."""
    book = make_book(tmp_path / "run", tasks=4, samples=2)
    round_ = open_round(book)
    worker = dead_worker(book, round_, [scored(book, 0, 0)])
    path = book.path / "journals" / f"{worker}.1.jsonl"

    def wake(found: Book) -> KeyMap:
        with open(path, "ab") as file:
            file.write(path.read_bytes().replace(b'"sample":0', b'"sample":1'))
        return KeyMap(found)

    monkeypatch.setattr(claims_module, "KeyMap", wake)
    claim = next(claim for claim in all_claims(ChunkClaimer(book, round_, "heir")) if claim.epoch == 2)
    assert (claim.scored, todo([claim])) == (1, [key for key in claim.chunk if key != (0, 0)])
    assert claim.files[path.name].bytes * 2 == path.stat().st_size


def test_who_leaves_removes_the_hidden_files_of_killed_workers_and_of_no_other(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=4, samples=2, workers=4)
    round_ = open_round(book)
    killed, alive = make_presence(1, book.path), make_presence(1, book.path)
    killed.born = "1"  # its pid is another process now
    claimers = [ChunkClaimer(book, round_, presence.id) for presence in (killed, alive)]
    for presence, claimer in zip((killed, alive), claimers, strict=True):
        write_heartbeat(book.path, presence)
        assert claimer.claim_next()
    leaver = ChunkClaimer(book, round_, "leaver")
    assert leaver.claim_next()
    leaver.remove_claim_files()
    (hidden,) = (path.name for path in (book.path / "leases").glob(".*"))
    assert hidden.startswith(f".{alive.id}.")


def damage_first_line(path: Path) -> int:
    """Change a digit in the first line, whose checksum is wrong then; return where the line ends."""
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"sample":0', b'"sample":7', 1))
    return data.index(b"\n") + 1


def test_lines_that_are_damaged_are_recorded_for_the_seal_and_not_counted(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=4)
    round_ = open_round(book)
    marks = [scored(book, 0, 0), scored(book, 0, 1), failed(book, 0, 0, "verifier_error"), failed(book, 0, 2)]
    worker = dead_worker(book, round_, marks, chunks=len(book.chunks))
    names = [f"{worker}.1.jsonl", f"{worker}.1.failures.jsonl"]
    ends = {name: [damage_first_line(book.path / "journals" / name)] for name in names}
    claims = all_claims(ChunkClaimer(book, round_, "heir"))
    assert [claim.damaged for claim in claims] == [ends] * len(claims)
    assert todo(claims) == [(0, 0), (0, 3)]
    assert sum(claim.scored for claim in claims) == 1
    assert [claim.failed for claim in claims if claim.failed] == [{"model_timeout": 1}]


def test_what_a_seal_says_of_a_chunk_is_part_of_its_history(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=1)
    round_ = open_round(book)
    worker = dead_worker(book, round_, [scored(book, 0, 0)])
    name = f"{worker}.1.jsonl"
    own = measure_extent(book.path / "journals" / name, 1 << 30)
    leases = Leases(book.path)
    leases.refresh()
    seal = Seal(1, 1, 1, {}, 0, {name: own, "gone.1.jsonl": own}, {"gone.1.jsonl": [7]})
    for seals, files, damaged in (
        ({}, {name: own}, {}),
        ({0: seal}, {name: own, "gone.1.jsonl": own}, {"gone.1.jsonl": [7]}),
    ):
        history = TakeoverReader(book, leases, round_).read_history(0, 2, seals)
        assert (history.files, history.damaged, history.dropped) == (files, damaged, 0)


def test_a_second_score_of_a_key_is_dropped(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=1)
    round_ = open_round(book)
    dead_worker(book, round_, [scored(book, 0, 0), scored(book, 0, 0), scored(book, 0, 0)])
    (claim,) = all_claims(ChunkClaimer(book, round_, "heir"))
    assert (claim.scored, claim.dropped, claim.todo) == (1, 2, [])


def test_a_chunk_that_was_released_is_not_thought_owned(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=1)
    round_ = open_round(book)
    now = [0.0]
    slow = ChunkClaimer(book, round_, "slow", clock=lambda: now[0])
    assert slow.claim_next()
    presence = make_presence(1)
    presence.born = "1"
    write_heartbeat(book.path, presence)
    assert Leases(book.path, presence.id, 1).claim(0, 2)
    now[0] = 100.0
    assert slow.claim_next() is None
    slow.release(0)
    now[0] = 200.0
    again = slow.claim_next()
    assert again
    assert again.epoch == 3


def test_a_worker_that_is_slower_lists_the_leases_again_and_skips_what_others_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = make_book(tmp_path / "run", tasks=8, samples=2, workers=4)
    round_ = open_round(book)
    slow, fast = ChunkClaimer(book, round_, "slow"), Leases(book.path, "fast", 1)
    tried, claim = [], Leases.claim

    def claim_late(leases: Leases, chunk: int, epoch: int) -> bool:
        for number in range(3):
            claim(fast, number, 1)
        tried.append(chunk)
        return claim(leases, chunk, epoch)

    monkeypatch.setattr(Leases, "claim", claim_late)
    found = slow.claim_next()
    assert found
    assert (tried, found.chunk.number) == ([0, 3], 3)
    claim(fast, 4, 1)
    found = slow.claim_next()
    assert found
    assert (tried, found.chunk.number) == ([0, 3, 5], 5)


def test_a_book_is_finished_when_every_chunk_is_sealed_for_its_rounds(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=2, samples=1)
    rounds = [open_round(book)]
    assert not is_finished(book, rounds)
    sealed_with(book, rounds[0], [scored(book, 0, 0), failed(book, 1, 0)])
    assert is_finished(book, rounds)
    rounds.append(open_round(book, []))
    assert is_finished(book, rounds)
    rounds.append(open_round(book, ["infra"]))
    assert not is_finished(book, rounds)


def test_with_hundreds_of_workers_each_refreshes_less_often(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=1)
    round_ = open_round(book)
    for number in range(30):
        (book.path / "workers" / f"w{number}.json").write_bytes(b"{}")
    now = [1000.0]
    claims = ChunkClaimer(book, round_, "a", clock=lambda: now[0])
    assert claims.claim_next()
    assert claims.claim_next() is None
    refreshed = []
    claims._refresh = lambda: refreshed.append(now[0])  # type: ignore[method-assign]
    for now[0] in (1001.0, 1002.9, 1003.0, 1005.9, 1006.0):
        assert claims.claim_next() is None
    assert refreshed == [1003.0, 1006.0]


@pytest.mark.parametrize("rounds", [1, 2])
def test_own_seals_are_known_without_reading_the_disk(tmp_path: Path, rounds: int) -> None:
    book = make_book(tmp_path / "run", tasks=2, samples=1)
    round_ = [open_round(book) for _ in range(rounds)][-1]
    claims = ChunkClaimer(book, round_, "a", clock=lambda: 5.0)
    found = all_claims(claims)
    claims._refresh = lambda: None  # type: ignore[method-assign]
    assert not claims.is_over()
    claims.seal([(claim, Seal(rounds, claim.epoch, claim.keys_left, {}, 0, {})) for claim in found])
    assert claims.is_over()


def test_a_chunk_that_its_owner_has_sealed_is_free_for_a_later_round_although_the_owner_lives(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=1)
    round_ = open_round(book)
    owner = make_presence(round_.number)
    write_heartbeat(book.path, owner)
    (claim,) = all_claims(ChunkClaimer(book, round_, owner.id))
    pen = journal(book, owner.id, [JournalEntry(failed(book, 0, 0), True)])
    write_seals(book.path, {0: (Seal(1, claim.epoch, 0, {"model_timeout": 1}, 0, pen.extents(1)), False)})
    later = open_round(book)
    (again,) = all_claims(ChunkClaimer(book, later, "later"))
    assert (again.epoch, again.resealed, todo([again])) == (2, True, [(0, 0)])


def test_the_journal_of_a_dead_worker_is_read_again_only_if_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=2, workers=1)
    round_ = open_round(book)
    worker = dead_worker(book, round_, [scored(book, 0, 0)], chunks=len(book.chunks))
    leases = Leases(book.path)
    leases.refresh()
    reader, scans = TakeoverReader(book, leases, round_), list[int]()
    scan = TakeoverReader._scan
    monkeypatch.setattr(TakeoverReader, "_scan", lambda *given: scans.append(1) or scan(*given))  # type: ignore[func-returns-value]

    def read_scored() -> list[tuple[int, int]]:
        histories = [reader.read_history(chunk, 2, {}) for chunk in range(len(book.chunks))]
        return sorted(key for history in histories for key, past in history.keys.items() if past.scored)

    assert [read_scored(), read_scored()] == [[(0, 0)], [(0, 0)]]
    assert len(scans) == 1
    journal(book, worker, [JournalEntry(scored(book, 0, 1), True)])  # it was alive after all
    assert read_scored() == [(0, 0), (0, 1)]


def test_the_record_of_a_gone_worker_is_read_until_its_chunks_are_claimed_and_then_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=1)
    round_ = open_round(book)
    worker = dead_worker(book, round_, [])
    presence = read_presence(book.path, worker)
    assert presence
    publish_worker_gone(book.path, worker, WorkerGone(presence.counter, {0: 1}))
    now, read, found = [0.0], list[str](), claims_module.read_worker_gone
    monkeypatch.setattr(claims_module, "read_worker_gone", lambda run, name: (read.append(name), found(run, name))[1])
    claims = ChunkClaimer(book, round_, "heir", clock=lambda: now[0])
    claim = claims.claim_next()
    assert claim
    assert (claim.epoch, read) == (2, [worker] * 2)  # once more before the claim: it may be back
    for now[0] in (100.0, 200.0):
        assert claims.claim_next() is None
    assert read == [worker] * 2


def test_gone_workers_are_looked_for_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=1)
    now, looked, list_gone = [0.0], list[float](), claims_module.list_joined_and_gone
    monkeypatch.setattr(claims_module, "list_joined_and_gone", lambda run: (looked.append(now[0]), list_gone(run))[1])
    claims = ChunkClaimer(book, open_round(book), "a", clock=lambda: now[0])
    for now[0] in (0.0, 0.9, 1.0, 1.9, 2.0):
        claims.claim_next()
    assert looked == [0.0, 1.0, 2.0]


def test_lines_of_keys_that_are_not_in_the_plan_are_skipped_by_an_heir(tmp_path: Path) -> None:
    book, other = make_book(tmp_path / "run", tasks=1, samples=2), make_book(tmp_path / "other", tasks=3, samples=2)
    round_ = open_round(book)
    foreign = [scored(other, 2, 0), failed(other, 2, 1)]
    worker = dead_worker(book, round_, [*foreign, scored(book, 0, 0), failed(book, 0, 1)], chunks=len(book.chunks))
    claims = all_claims(ChunkClaimer(book, round_, "heir"))
    assert (sum(claim.scored for claim in claims), todo(claims)) == (1, [])
    assert [claim.failed for claim in claims if claim.failed] == [{"model_timeout": 1}]
    assert {f"{worker}.1.jsonl", f"{worker}.1.failures.jsonl"} <= set(claims[0].files)


def make_blend(path: Path, environments: int, parts: int = 2) -> Book:
    """A book with several environments and a part of the plan for each, of three chunks."""
    spec = EnvironmentSpec("sums.py:Sums", "sums:Sums")
    specs = {f"e{at}": spec for at in range(environments)}
    manifest = msgspec.structs.replace(make_book(path.with_name(f"{path.name}-one")).manifest, environments=specs)
    with BookDraft(path) as draft:
        draft.add_tasks([Task(f"t{at}", "?") for at in range(3 * parts)], "e0")
        return draft.finish(manifest, [Part((3 * at, 3 * at + 3), (0, 1), [1, 1, 1]) for at in range(parts)])


@pytest.mark.parametrize(("environments", "order"), [(1, [0, 1, 2, 3, 4, 5]), (2, [0, 3, 1, 4, 2, 5])])
def test_the_environments_of_a_blend_advance_together_and_one_alone_in_the_order_of_its_plan(
    tmp_path: Path, environments: int, order: list[int]
) -> None:
    book = make_blend(tmp_path / "run", environments)
    claims = all_claims(ChunkClaimer(book, open_round(book), "a"))
    assert [claim.chunk.number for claim in claims] == order


def test_a_chunk_whose_leases_were_lost_is_free_for_a_later_round(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=1)
    sealed_with(book, open_round(book), [failed(book, 0, 0)])
    for path in (book.path / "leases").iterdir():
        path.unlink()
    (claim,) = all_claims(ChunkClaimer(book, open_round(book), "b"))
    assert (claim.epoch, claim.resealed, todo([claim])) == (1, True, [(0, 0)])


def test_the_last_line_that_a_seal_covers_still_counts_when_a_later_round_opens_the_chunk(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=8)
    round_ = open_round(book)
    (chunk, *_) = book.chunks
    ends = [failed(book, 0, 0), scored(book, 0, 1), failed(book, 0, 2, "verifier_error")]
    assert list(chunk) == [(0, sample) for sample in range(4)]
    sealed_with(book, round_, [*ends, scored(book, 0, 3)])
    name = next((book.path / "journals").glob("*.failures.jsonl")).name
    seal = Seals(book.path).refresh()[0]
    assert seal.files[name].bytes == (book.path / "journals" / name).stat().st_size
    for path in (book.path / "leases").glob("[0-9]*"):  # the journals are of workers of other names
        edit_record(path, worker=f"first{int(path.stem)}")
    again = all_claims(ChunkClaimer(book, open_round(book), "b"))
    (claim,) = (claim for claim in again if claim.chunk.number == 0)
    assert (todo([claim]), claim.scored, claim.failed, claim.dropped) == ([(0, 0)], 2, {"verifier_error": 1}, 0)


def test_no_score_that_a_seal_covers_changes_when_a_later_round_opens_its_chunk(tmp_path: Path) -> None:
    """A worker that was taken for dead wrote a file of its own behind the seal: no later seal may cover it."""
    book = make_book(tmp_path / "run", tasks=1, samples=8)
    open_round(book)
    for epoch, name in enumerate(("woken", "heir"), 1):
        assert Leases(book.path, name, 1).claim(0, epoch)
    heir = [failed(book, 0, 0), *(scored(book, 0, sample, reward=0.25) for sample in range(1, 4))]
    pen = journal(book, "heir", [JournalEntry(each, True) for each in heir])
    write_seals(book.path, {0: (Seal(1, 2, 3, {"model_timeout": 1}, 0, pen.extents(1)), False)})
    journal(book, "woken", [JournalEntry(scored(book, 0, 1, reward=0.75), True)])
    claims = all_claims(ChunkClaimer(book, open_round(book), "later"))
    (claim,) = (claim for claim in claims if claim.chunk.number == 0)
    assert (claim.epoch, claim.scored, todo([claim])) == (3, 3, [(0, 0)])
    pen = journal(book, "later", [JournalEntry(scored(book, 0, 0, reward=0.5), True)])
    write_seals(book.path, {0: (Seal(2, 3, 4, {}, 0, claim.files | pen.extents(1)), True)})
    assert {line.sample: line.reward for _, _, line in CountedLines(book, ScoredLine)} == {
        0: 0.5, 1: 0.25, 2: 0.25, 3: 0.25,
    }  # fmt: skip
