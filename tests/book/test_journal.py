"""Writing marks: durable in groups, ids before lines, a failed write starts a new segment."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from rollbook.book import journal as journal_module
from rollbook.book.book import Book
from rollbook.book.counted_lines import CountedLines, rollouts
from rollbook.book.journal import Journal, JournalEntry
from rollbook.core import ScoredLine
from rollbook.errors import BookUnwritable
from support.books import failed, make_book, open_round, scored


def write(book: Book, marks: list[JournalEntry], worker: str = "w") -> tuple[Journal, list[JournalEntry]]:
    durable: list[JournalEntry] = []

    async def go() -> Journal:
        journal = Journal(book.path, worker, durable.extend)
        journal.start()
        for mark in marks:
            await journal.add(mark)
        await journal.close()
        return journal

    return asyncio.run(go()), durable


def keys(book: Book) -> list[tuple[str, int]]:
    return sorted((line.task, line.sample) for _, _, line in CountedLines(book, ScoredLine))


def test_marks_become_durable_and_come_back(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    open_round(book)
    marks = [
        JournalEntry(scored(book, 0, 0, tokens=True)),
        JournalEntry(failed(book, 1, 0), False),
        JournalEntry(scored(book, 1, 0)),
    ]
    _, durable = write(book, marks)
    assert durable == marks
    assert keys(book) == [("t0", 0), ("t1", 0)]
    names = sorted(p.name for p in (book.path / "journals").iterdir())
    assert names == ["w.1.failures.jsonl", "w.1.jsonl", "w.1.tokens"]


def test_tokens_come_back_exactly(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    wrote = scored(book, 2, 1, tokens=True)
    write(book, [JournalEntry(scored(book, 0, 0)), JournalEntry(scored(book, 1, 0, tokens=True)), JournalEntry(wrote)])
    read = {r.key: r for r in rollouts(book, tokens=True)}
    assert read["t2", 1].turns == wrote.turns
    assert read["t0", 0].turns[0].ids is None


def test_extents_vouch_for_exactly_what_is_on_disk(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    journal, _ = write(book, [JournalEntry(scored(book, 0, 0, tokens=True)), JournalEntry(failed(book, 1, 1))])
    for name, extent in journal.extents(1).items():
        data = (book.path / "journals" / name).read_bytes()
        assert (extent.bytes, extent.sha256) == (len(data), hashlib.sha256(data).hexdigest())


def test_segments_roll_over_and_are_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 600)
    book = make_book(tmp_path / "run", tasks=8)

    async def go() -> None:
        journal = Journal(book.path, "w", lambda _: None)
        journal.start()
        for row in range(8):
            await journal.add(JournalEntry(scored(book, row, 0, tokens=True)))
            journal.flush_soon()
            await asyncio.sleep(0.02)
        await journal.close()

    asyncio.run(go())
    assert len(list((book.path / "journals").glob("w.*.jsonl"))) > 1, "on a slow machine some commits are one"
    assert len(keys(book)) == 8
    assert all(r.turns[0].has_tokens for r in rollouts(book, tokens=True))


def fail_fsync(monkeypatch: pytest.MonkeyPatch, times: int, code: int = errno.EIO) -> None:
    real, left = os.fdatasync, [times]

    def fdatasync(handle: int) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(code, os.strerror(code))
        real(handle)

    monkeypatch.setattr(os, "fdatasync", fdatasync)


def test_after_a_failed_fsync_the_group_is_written_again_in_a_new_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = make_book(tmp_path / "run")
    fail_fsync(monkeypatch, 1)
    marks = [JournalEntry(scored(book, row, 0, tokens=True)) for row in range(3)]
    journal, durable = write(book, marks)
    assert durable == marks
    assert journal.segment == 2
    assert keys(book) == [("t0", 0), ("t1", 0), ("t2", 0)]
    assert len(list(rollouts(book, tokens=True))) == 3


def test_a_disk_that_takes_nothing_breaks_the_journal_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = make_book(tmp_path / "run")
    fail_fsync(monkeypatch, 99, errno.ENOSPC)
    journal, durable = write(book, [JournalEntry(scored(book, 0, 0))])
    assert durable == []
    assert isinstance(journal.broken, BookUnwritable)
    assert "No space left" in str(journal.broken)
    assert journal.segment == 2, "it was tried once more, and not again"


def test_a_failed_write_after_one_that_succeeded_is_tried_again_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = make_book(tmp_path / "run")
    durable: list[JournalEntry] = []

    async def go() -> Journal:
        journal = Journal(book.path, "w", durable.extend)
        journal.start()
        for row in range(2):
            fail_fsync(monkeypatch, 1)
            await journal.add(JournalEntry(scored(book, row, 0)))
            journal.flush_soon()
            while len(durable) == row and not journal.broken:
                await asyncio.sleep(0.01)
            monkeypatch.undo()
        await journal.close()
        return journal

    journal = asyncio.run(go())
    assert journal.broken is None
    assert keys(book) == [("t0", 0), ("t1", 0)]


def test_what_is_durable_is_asked_for_in_the_middle_of_a_write_and_is_true(tmp_path: Path) -> None:
    # A seal is made while the next group is being written: its size and its hash must be of the same bytes.
    file = journal_module._AppendFile(tmp_path / "w.1.jsonl")
    blocks = [os.urandom(50_000) for _ in range(200)]
    whole, seen = b"".join(blocks), set()
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: [file.write(block) for block in blocks])
        while not writing.done():
            seen.add(file.extent())
    file.close()
    writing.result()
    assert len(seen) > 2
    for extent in seen:
        assert hashlib.sha256(whole[: extent.bytes]).hexdigest() == extent.sha256


def test_who_adds_waits_while_too_much_is_unwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "MAX_UNWRITTEN_BYTES", 10)
    monkeypatch.setattr(journal_module, "COMMIT_S", 30)
    book = make_book(tmp_path / "run")

    async def go() -> None:
        journal = Journal(book.path, "w", lambda _: None)
        journal.start()
        await journal.add(JournalEntry(scored(book, 0, 0)))
        for row in range(1, 3):
            adding = asyncio.create_task(journal.add(JournalEntry(scored(book, row, 0))))
            await asyncio.sleep(0.05)
            assert not adding.done()
            journal.flush_soon()
            await asyncio.wait_for(adding, 10)
        journal.flush_soon()
        await journal.close()

    asyncio.run(go())
    assert keys(book) == [("t0", 0), ("t1", 0), ("t2", 0)]


def test_who_waits_for_room_learns_that_the_journal_broke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "MAX_UNWRITTEN_BYTES", 10)
    book = make_book(tmp_path / "run")
    fail_fsync(monkeypatch, 99)

    async def go() -> None:
        journal = Journal(book.path, "w", lambda _: None)
        journal.start()
        await journal.add(JournalEntry(scored(book, 0, 0)))
        journal.flush_soon()
        waiting = asyncio.create_task(journal.add(JournalEntry(scored(book, 1, 0))))
        while not journal.broken:
            journal.flush_soon()
            await asyncio.sleep(0.01)
        await journal.close()
        with pytest.raises(BookUnwritable, match="cannot be written"):
            await asyncio.wait_for(journal.add(JournalEntry(scored(book, 2, 0))), 10)
        waiting.cancel()

    asyncio.run(go())


def test_entries_form_a_group_until_the_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "COMMIT_S", 0.1)
    book = make_book(tmp_path / "run")
    groups: list[int] = []

    async def go() -> None:
        journal = Journal(book.path, "w", lambda entries: groups.append(len(entries)))
        journal.start()
        for row in range(3):
            await journal.add(JournalEntry(scored(book, row, 0)))
            await asyncio.sleep(0)
        assert groups == []
        while not groups:
            await asyncio.sleep(0.01)
        await journal.add(JournalEntry(scored(book, 3, 0)))
        await journal.close()

    asyncio.run(go())
    assert groups == [3, 1]


def test_extents_begin_with_the_segment_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 1)
    book = make_book(tmp_path / "run")

    async def go() -> Journal:
        journal = Journal(book.path, "w", lambda _: None)
        journal.start()
        for row in range(2):
            await journal.add(JournalEntry(scored(book, row, 0)))
            journal.flush_soon()
            while journal.segment == row + 1:
                await asyncio.sleep(0.01)
        await journal.close()
        return journal

    journal = asyncio.run(go())
    assert journal.segment == 3
    assert {since: sorted(journal.extents(since)) for since in (1, 2, 3)} == {
        1: ["w.1.jsonl", "w.2.jsonl"],
        2: ["w.2.jsonl"],
        3: [],
    }


@pytest.mark.parametrize("how", ["close", "flush"])
def test_nothing_is_waited_for_once_a_journal_is_closed_or_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(journal_module, "COMMIT_S", 3600)
    book = make_book(tmp_path / "run")
    durable: list[JournalEntry] = []

    async def go() -> None:
        journal = Journal(book.path, "w", durable.extend)
        journal.start()
        if how == "flush":
            journal.flush_soon()
        await journal.add(JournalEntry(scored(book, 0, 0)))
        if how == "flush":
            while not durable:
                await asyncio.sleep(0.01)
        await journal.close()

    asyncio.run(asyncio.wait_for(go(), 20))
    assert len(durable) == 1


@pytest.mark.parametrize("missing", ["prompt_ids", "ids"])
def test_a_turn_with_half_of_its_ids_is_stored_without_them(tmp_path: Path, missing: str) -> None:
    book = make_book(tmp_path / "run")
    wrote = scored(book, 0, 0, tokens=True)
    half = msgspec.structs.replace(wrote.turns[0], **{missing: None})
    wrote.turns = [half, wrote.turns[0]]
    write(book, [JournalEntry(wrote)])
    (read,) = rollouts(book, tokens=True)
    assert [turn.has_tokens for turn in read.turns] == [False, True]
    assert read.turns[1] == wrote.turns[1]


def test_journals_are_readable_for_everyone_and_writable_for_their_owner(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    before = os.umask(0)
    try:
        write(book, [JournalEntry(scored(book, 0, 0, tokens=True)), JournalEntry(failed(book, 1, 0))])
    finally:
        os.umask(before)
    modes = [path.stat().st_mode & 0o777 for path in (book.path / "journals").iterdir()]
    assert modes == [0o644] * 3


def test_a_journal_of_another_worker_is_never_written_to(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    (book.path / "journals" / "w.1.jsonl").write_bytes(b"theirs")
    _, durable = write(book, [JournalEntry(scored(book, 0, 0))])
    assert len(durable) == 1
    assert (book.path / "journals" / "w.1.jsonl").read_bytes() == b"theirs"
    assert (book.path / "journals" / "w.2.jsonl").exists()


def test_closed_journals_keep_no_file_open(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    journal, _ = write(book, [JournalEntry(scored(book, row, 0, tokens=True)) for row in range(3)])
    assert len(list((book.path / "journals").iterdir())) == 2
    assert open_journals(book) == []
    asyncio.run(journal.close())


@pytest.mark.parametrize(("bytes_", "segments"), [(64 << 20, 1), (1, 4)])
def test_a_segment_stays_open_until_it_is_full_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_: int, segments: int
) -> None:
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", bytes_)
    book, handles = make_book(tmp_path / "run"), list[int]()

    async def go() -> Journal:
        durable = asyncio.Event()
        journal = Journal(book.path, "w", lambda _: durable.set())
        journal.start()
        for row in range(3):
            await journal.add(JournalEntry(scored(book, row, 0)))
            journal.flush_soon()
            await durable.wait()
            durable.clear()
            handles.append(len(list((book.path / "journals").iterdir())) - len(open_journals(book)))
        await journal.close()
        return journal

    assert asyncio.run(go()).segment == segments
    assert handles == ([0, 0, 0] if segments == 1 else [1, 2, 3]), "how many journals are closed"
    assert len(keys(book)) == 3


def open_journals(book: Book) -> list[str]:
    """The journals that this process has open."""
    folder = Path("/proc/self/fd")
    links = [os.readlink(path) for path in folder.iterdir() if path.is_symlink()]
    return [link for link in links if link.startswith(str(book.path / "journals"))]


def test_an_error_that_is_not_of_the_disk_is_no_reason_to_write_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise ValueError("a mistake")

    monkeypatch.setattr(journal_module, "_write_all", fail)
    book = make_book(tmp_path / "run")
    with pytest.raises(ValueError, match="a mistake"):
        write(book, [JournalEntry(scored(book, 0, 0))])


def test_after_a_flush_entries_form_groups_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "COMMIT_S", 3600)
    book = make_book(tmp_path / "run")
    groups: list[int] = []

    async def go() -> None:
        journal = Journal(book.path, "w", lambda entries: groups.append(len(entries)))
        journal.start()
        await journal.add(JournalEntry(scored(book, 0, 0)))
        journal.flush_soon()
        while not groups:
            await asyncio.sleep(0.01)
        for row in (1, 2):
            await journal.add(JournalEntry(scored(book, row, 0)))
            await asyncio.sleep(0.05)
        journal.flush_soon()
        while len(groups) < 2:
            await asyncio.sleep(0.01)
        await journal.close()

    asyncio.run(go())
    assert groups == [1, 2]
