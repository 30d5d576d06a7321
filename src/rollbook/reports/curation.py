"""Select tasks of a profile, or of a run, into a file for `--data`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rollbook.core import encode
from rollbook.errors import UsageError
from rollbook.reports.profile import profile_lines
from rollbook.reports.report import check_measures
from rollbook.reports.table_files import read_table, write_lines_atomically
from rollbook.stats import PASS_THRESHOLD, CuratedRows, CurateOptions, curate


def write_curated(
    source: str | Path,
    out: str | Path,
    options: CurateOptions,
    ks: Sequence[int] | None = None,
    threshold: float = PASS_THRESHOLD,
    prefix: str = "",
) -> CuratedRows:
    """Write the selected rows of a profile, or of a run directory; where none is selected, write nothing."""
    source, out = Path(source), Path(out)
    if out.suffix != ".jsonl":
        raise UsageError(f"-o {out}: the ending must be .jsonl, which --data reads")
    if out.exists() and out.samefile(source):
        raise UsageError(f"-o {out}: this is the input file; choose another file")
    at, least = check_measures(ks, threshold)
    rows = curate(_read_lines(source, at, least, prefix), options)
    if rows.lines:  # --data refuses a file without rows
        write_lines_atomically(out, iter(rows.lines))
    return rows


def _read_lines(source: Path, ks: list[int] | None, threshold: float, prefix: str) -> Iterator[bytes]:
    """Read the rows of a profile, or make them from a run."""
    if source.is_dir():
        return profile_lines(source, ks, threshold, prefix)
    return map(encode, read_table(source))
