"""What a book says after something broke: by the readers that count, not by the code that wrote it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec

from rollbook.book import Book, CountedLines
from rollbook.book.counted_lines import ScoredLineHeader
from rollbook.core import derive_seed

Key = tuple[str, int]


def scored_keys(run: Path) -> Counter[Key]:
    """How often the reader counts each key as scored."""
    return Counter((line.task, line.sample) for _, _, line in CountedLines(Book(run), ScoredLineHeader))


def all_keys(run: Path) -> set[Key]:
    """Every key the plan asks for."""
    book = Book(run)
    return {(book.tasks.read(row).id, sample) for chunk in book.chunks for row, sample in chunk}


def assert_complete(run: Path) -> None:
    """Every key is scored exactly once: none lost, none doubled, none that was not requested."""
    assert scored_keys(run) == Counter(all_keys(run))


def seeds_of(keys: set[Key], run_seed: int = 0) -> set[int]:
    """What the endpoint knows keys by."""
    return {derive_seed(run_seed, task, sample) for task, sample in keys}


def assert_adds_up(counts: Mapping[str, object], requested: int) -> None:
    """Law 1: requested = scored + failed + pending."""
    failed = msgspec.convert(counts["failed"], dict[str, int])
    parts = msgspec.convert([counts["scored"], counts["pending"], *failed.values()], list[int])
    assert counts["requested"] == requested
    assert min(parts) >= 0, counts
    assert sum(parts) == requested, counts
