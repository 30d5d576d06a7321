"""One flipped bit anywhere in a run directory: no reader crashes, no result changes unless `verify` names damage."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.book import Book, read_exact_status, rollouts, verify_run
from rollbook.engine.book_worker import BookJobSource
from rollbook.errors import BookError, TokenError
from support.books import failed, make_book, open_round, scored

OVERWRITTEN = (".seats", ".gone")
"""Of workers, not of results: they may change at any time."""


async def work(book: Book, jobs: int) -> None:
    """Do so many rollouts as one worker, then leave; every third fails."""
    round_ = book.rounds()[-1]
    source = BookJobSource(book, round_)
    await source.join()
    for number in range(jobs):
        if (job := await source.next()) is None:
            break
        make = failed if number % 3 == 2 else scored
        await source.mark(job, make(book, job.row, job.sample, tokens=True, round_number=round_.number), True)
    await source.leave()


@pytest.fixture(scope="module", params=[True, False], ids=["finished", "unfinished"])
def run(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A run whose first worker left in the middle; finished by a second worker and a second round, or not."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        book = make_book(Path(folder) / "run", tasks=6, samples=2)
        open_round(book)
        asyncio.run(work(book, 4))
        if request.param:
            asyncio.run(work(book, 99))
            open_round(book)
            asyncio.run(work(book, 99))
        assert verify_run(book.path).damage == []
        yield book.path


def read_results(run: Path) -> tuple[object, ...] | None:
    """Return what a run says, its tokens included; None if it says that something is wrong."""
    try:
        status = read_exact_status(run)
        found = sorted(
            (r.task.id, r.sample, r.seed, repr(r.score), repr(r.turns)) for r in rollouts(Book(run), tokens=True)
        )
    except (BookError, TokenError):
        return None
    return None if status.damaged else (status.requested, status.scored, status.failed, status.pending, found)


@settings(max_examples=120)
@given(st.data())
def test_a_flipped_bit_changes_no_result_unless_verify_names_it(run: Path, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory(dir=run.parent) as folder:
        copy = Path(shutil.copytree(run, Path(folder) / "run"))
        files = sorted(p for p in copy.rglob("*") if p.is_file() and p.stat().st_size and p.suffix not in OVERWRITTEN)
        folders = sorted({path.parent for path in files})  # each as likely as any other, whatever it holds
        inside = data.draw(st.sampled_from(folders), label="folder")
        path = data.draw(st.sampled_from([path for path in files if path.parent == inside]), label="file")
        bit = data.draw(st.integers(0, 8 * path.stat().st_size - 1), label="bit")
        expected = read_results(copy)
        content = bytearray(path.read_bytes())
        content[bit // 8] ^= 1 << bit % 8
        os.unlink(path)  # a lease shares its content with others
        path.write_bytes(content)
        found = verify_run(copy)  # without its last newline, the last line is torn, and its rollout pending
        assert found.damage or found.torn or read_results(copy) == expected, (
            f"{path.relative_to(copy)}: {bytes(content)!r}"
        )
