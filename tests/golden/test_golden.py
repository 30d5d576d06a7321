"""The golden books: written once, read by every later version, valid by the frozen schemas.

Each holds four sums with three samples each: two rounds of a task whose verifier is broken (so chunks of two epochs),
then an extension; every turn has its tokens. `book` is of schema 1; `book2` has the same rollouts and is of schema 2:
its lines have checksums, and each round has its own seals.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from rollbook.book import Book, FinalFailures, read_status, rollouts, verify_run
from rollbook.core import is_crc_right
from rollbook.core.schema import SCHEMA_FOLDER, SCHEMA_TYPES, generate_schemas
from rollbook.engine import BookJobSource
from rollbook.reports import make_report
from rollbook.tokens import merge
from support.books import open_round, scored
from support.sums import write_script, write_sums

GOLDEN = {1: Path(__file__).parent / "book", 2: Path(__file__).parent / "book2"}


@pytest.fixture(params=GOLDEN)
def book(tmp_path: Path, request: pytest.FixtureRequest) -> Book:
    shutil.copytree(GOLDEN[request.param], tmp_path / "book")
    opened = Book(tmp_path / "book")
    assert opened.manifest.schema == request.param
    return opened


def test_its_numbers_are_what_they_were(book: Book) -> None:
    made = make_report(book.path)
    assert (made.requested, made.scored, made.failed, made.pending, made.dropped) == (
        12,
        9,
        {"verifier_error": 3},
        0,
        0,
    )
    metrics = made.json()["environments"]["Sums"]
    assert metrics["pass@1"] == pytest.approx(5 / 9)
    assert metrics["pass@3"] == 1.0
    assert metrics["truncated"] == 3


def test_its_rollouts_have_their_tokens_messages_and_scores(book: Book) -> None:
    found = {r.key: r for r in rollouts(book, tokens=True)}
    assert sorted(found) == [(f"sum-{i}", s) for i in range(3) for s in range(3)]
    one = found["sum-1", 2]
    assert (one.turns[0].prompt_ids, one.turns[0].ids) == ([1, 101, 7], [11, 22, 2])
    assert one.turns[0].logprobs == [-0.5, -0.5, -0.125]
    assert (one.text, one.reward, one.truncated) == ("The answer is 99", 0.0, True)
    (sequence,) = merge(one.turns)
    assert sequence.mask == [1, 1, 1]


def test_its_failures_stand_until_a_round_reopens_them(book: Book) -> None:
    standing = {(mark.task, mark.sample) for mark in FinalFailures(book)}
    assert standing == {("sum-3", 0), ("sum-3", 1), ("sum-3", 2)}


def test_its_status_adds_up(book: Book) -> None:
    status = read_status(book.path)
    assert status.state == "shortfall"
    assert status.requested == status.scored + sum(status.failed.values()) + status.pending


def test_it_is_undamaged_and_stays_so_when_it_is_extended(book: Book) -> None:
    """A book keeps its schema; every line that is added has a checksum, and the old lines stay as they are."""
    old = {path.name: path.read_bytes() for path in (book.path / "journals").iterdir()}
    assert book.extend(4, workers=1) == 4
    round_ = open_round(book, [])

    async def work() -> None:
        source = BookJobSource(book, round_)
        await source.join()
        while job := await source.next():
            await source.mark(job, scored(book, job.row, job.sample, tokens=True, round_number=round_.number), True)
        await source.leave()

    asyncio.run(work())
    assert verify_run(book.path).damage == []
    assert make_report(book.path).scored == 13
    schemas = [json.loads(path.read_text())["schema"] for path in (book.path / "rounds").iterdir()]
    assert {*schemas, Book(book.path).plan.schema, Book(book.path).manifest.schema} == {book.manifest.schema}
    for path in (book.path / "journals").glob("*.jsonl"):
        if path.name in old:
            assert path.read_bytes() == old[path.name]
        else:
            assert all(is_crc_right(line) for line in path.read_bytes().splitlines())


def read_frozen_schema(name: str) -> Any:
    return json.loads((SCHEMA_FOLDER / f"{name}.json").read_text())


def test_the_schemas_change_only_on_purpose() -> None:
    assert generate_schemas() == {name: read_frozen_schema(name) for name in SCHEMA_TYPES}


def documents(run: Path) -> Iterator[tuple[str, Any]]:
    """Every JSON value of a run directory with the name of its schema."""
    yield "run", json.loads((run / "run.json").read_text())
    yield "plan", json.loads((run / "plan.json").read_text())
    for folder, name, pattern in (
        ("rounds", "round", "*.json"),
        ("done", "done", "*.json"),
        ("workers", "worker", "*.json"),
        ("leases", "lease", "[0-9]*"),
    ):
        yield from ((name, json.loads(p.read_text())) for p in (run / folder).glob(pattern))
    yield from (("task", json.loads(line)) for line in (run / "tasks.jsonl").read_text().splitlines())
    for path in (run / "journals").glob("*.jsonl"):
        name = "failed" if path.name.endswith(".failures.jsonl") else "scored"
        yield from ((name, json.loads(line)) for line in path.read_text().splitlines())


def check(run: Path) -> set[str]:
    seen = set()
    for name, value in documents(run):
        jsonschema.validate(value, read_frozen_schema(name))
        seen.add(name)
    return seen


@pytest.mark.parametrize("schema", GOLDEN)
def test_the_golden_book_is_valid_by_an_independent_validator(schema: int) -> None:
    assert check(GOLDEN[schema]) == set(SCHEMA_TYPES)


def test_the_checksums_of_schema_2_are_right_by_an_independent_reader() -> None:
    lines = [line for path in (GOLDEN[2] / "journals").glob("*.jsonl") for line in path.read_bytes().splitlines()]
    assert len(lines) == 14
    for line in lines:
        body, _, _ = line.rpartition(b',"crc":"')
        assert json.loads(line)["crc"] == f"{zlib.crc32(body):08x}"


def test_the_runs_of_earlier_versions_are_valid_too() -> None:
    old = sorted(Path(__file__).parent.glob("runs/*/run"))
    assert len(old) == 7
    for run in old:
        assert check(run) >= set(SCHEMA_TYPES) - {"failed"}, run


def test_what_is_written_today_is_valid_too(tmp_path: Path) -> None:
    from rollbook import run

    run(write_sums(tmp_path), write_script(tmp_path), out=tmp_path / "run", samples=2)
    assert check(tmp_path / "run") == set(SCHEMA_TYPES) - {"failed"}
