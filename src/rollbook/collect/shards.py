"""Several directories of one run: shards that were filled apart and are read as one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rollbook.book.book import Book
from rollbook.core.json import decode
from rollbook.errors import BookError, UsageError

COMPARED = 1 << 20


def by_run(paths: Sequence[str | Path]) -> list[list[Path]]:
    """The directories grouped by their run's id, in the order given; each directory once, by whatever paths."""
    groups: dict[str, list[Path]] = {}
    for path in _once(paths):
        groups.setdefault(_run_of(path), []).append(path)
    return list(groups.values())


def _once(paths: Sequence[str | Path]) -> list[Path]:
    """Each directory under the first of the paths that lead to it."""
    places: dict[Path, Path] = {}
    for path in map(Path, paths):
        places.setdefault(path.resolve(), path)
    return list(places.values())


def _run_of(path: Path) -> str:
    try:
        held = decode((path / "run.json").read_bytes())
    except OSError:
        raise UsageError(f"{path} is not a run directory: it has no run.json") from None
    except ValueError as error:
        raise BookError(f"{path / 'run.json'}: {error}") from None
    if not isinstance(held, dict) or not isinstance(held.get("run"), str):
        raise BookError(f"{path / 'run.json'} does not describe a run: restore it from a copy of the run")
    return str(held["run"])


def open_shards(paths: Sequence[str | Path]) -> list[Book]:
    """The books of one run, the one that asks for most first; a UsageError if they are not of one run."""
    books = sorted((Book(path) for path in _once(paths)), key=lambda book: -book.plan.requested)
    for other in books[1:]:
        if other.manifest.run != books[0].manifest.run:
            raise UsageError(f"{books[0].path} and {other.path} are different runs: they cannot be merged")
        if not _begins_alike(books[0].path / "tasks.jsonl", other.path / "tasks.jsonl"):
            raise UsageError(f"{books[0].path} and {other.path} have one run id and other tasks: they cannot be merged")
    return books


def _begins_alike(longer: Path, shorter: Path) -> bool:
    """Whether one file is the beginning of the other."""
    with open(longer, "rb") as one, open(shorter, "rb") as two:
        while block := two.read(COMPARED):
            if one.read(len(block)) != block:
                return False
    return True
