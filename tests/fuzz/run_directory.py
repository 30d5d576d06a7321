"""Damage of a run directory: whatever changes in whatever file, it is refused, named, or of no consequence."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from fuzz.findings import Finding, Hang, deadline
from fuzz.mutation import mutate
from rollbook.book import verify_run
from rollbook.errors import RollbookError
from rollbook.reports import make_report

WITHOUT_MEANING = ("cache", "workers", "source")
"""Folders that no result depends on, or that are checked when they are used."""


def summarize(run: Path) -> tuple[object, ...]:
    """Return what a user takes from a report."""
    report = make_report(run)
    return report.requested, report.scored, report.failed, report.pending, report.overall.mean


def list_files(run: Path) -> list[Path]:
    """Return the files whose damage must not go unnoticed."""
    files = (path for path in run.rglob("*") if path.is_file())
    return sorted(path for path in files if path.relative_to(run).parts[0] not in WITHOUT_MEANING)


def fuzz_run(run: Path, scratch: Path, draw: random.Random, count: int) -> Iterator[Finding]:
    """Yield the damage of one file each that changes a report without a word, or breaks a reader."""
    expected, files = summarize(run), list_files(run)
    for _ in range(count):
        path = draw.choice(files)
        data = path.read_bytes()
        changed = mutate(data, [data], draw)
        if changed == data:
            continue
        copy = scratch / "run"
        shutil.copytree(run, copy)
        (copy / path.relative_to(run)).write_bytes(changed)
        if error := find_fault(copy, expected):
            yield Finding(str(path.relative_to(run)), changed, error)
        shutil.rmtree(copy)


def find_fault(run: Path, expected: tuple[object, ...]) -> str | None:
    """Return what is wrong with how a damaged run is read, if anything is."""
    try:
        with deadline(20.0):
            found = summarize(run)
            if found != expected and not verify_run(run).damage:
                return f"{expected} became {found}, and no damage is named"
    except RollbookError as error:
        return f"a message of several lines: {error}" if "\n" in str(error).strip() else None
    except (Exception, Hang) as error:
        return f"{type(error).__name__}: {error}"
    return None
