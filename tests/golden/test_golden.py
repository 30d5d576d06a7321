"""The golden book: written once, read by every later version, valid by the frozen schemas.

It holds four sums with three samples each: two rounds of a task whose verifier is broken (so chunks of two epochs),
then an extension; every turn has its tokens.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from rollbook.book import Book, FinalFailures, read_status, rollouts
from rollbook.core.schema import SCHEMA_FOLDER, SCHEMA_TYPES, generate_schemas
from rollbook.reports import make_report
from rollbook.tokens import merge
from support.sums import write_script, write_sums

GOLDEN = Path(__file__).parent / "book"


@pytest.fixture
def book(tmp_path: Path) -> Book:
    shutil.copytree(GOLDEN, tmp_path / "book")
    return Book(tmp_path / "book")


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


def test_the_golden_book_is_valid_by_an_independent_validator() -> None:
    assert check(GOLDEN) == set(SCHEMA_TYPES)


def test_the_runs_of_earlier_versions_are_valid_too() -> None:
    old = sorted(GOLDEN.parent.glob("runs/*/run"))
    assert len(old) == 7
    for run in old:
        assert check(run) >= set(SCHEMA_TYPES) - {"failed"}, run


def test_what_is_written_today_is_valid_too(tmp_path: Path) -> None:
    from rollbook import run

    run(write_sums(tmp_path), write_script(tmp_path), out=tmp_path / "run", samples=2)
    assert check(tmp_path / "run") == set(SCHEMA_TYPES) - {"failed"}
