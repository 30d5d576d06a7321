"""A cache in RUN/index of the columns of sealed journals, so that they need not be read again.

It may be deleted at any time. A cache file is used only for exactly the file it was made from, under exactly its seals
and with exactly its tasks, by the code that made it; if anything differs, the journal is read.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Set
from contextlib import suppress
from functools import cache
from hashlib import file_digest, sha256
from io import BytesIO
from pathlib import Path
from zipfile import BadZipFile

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollbook.book import LineReader
from rollbook.core import JSON_ERRORS, Extent
from rollbook.reports import journal_columns
from rollbook.reports.journal_columns import JournalColumns, read_journal_columns
from rollbook.reports.table_files import replace_file
from rollbook.stats import SCALAR_COLUMNS, Columns, RewardParts

MIN_CACHED_BYTES = 1 << 20
"""A smaller journal is read as fast as its cache."""

DIGEST_BYTES = sha256().digest_size
LINE_ARRAYS = ("sample", "attempt", "starts", "cached", "ends", "damaged")
PART_ARRAYS = ("place", "name", "value")


class CacheOrigin(msgspec.Struct, frozen=True):
    """What columns were made of: code, the book's schema, journal and tasks.

    Files are identified by their size and the time of their last change.
    """

    maker: str
    schema: int
    journal: tuple[int, int]
    tasks: tuple[int, int]


class _CacheHeader(msgspec.Struct, frozen=True):
    """Everything in a cache file that is not an array of numbers; `kinds` are the arrays' types when they are used."""

    origin: CacheOrigin
    extents: list[Extent]
    answers: list[str]
    parts: list[str]
    kinds: dict[str, str]


_decoder = msgspec.msgpack.Decoder(_CacheHeader)


def load_cached_columns(path: Path, schema: int, tasks: Path, sealed: Set[Extent]) -> JournalColumns | None:
    """Return the columns of a journal, if a cache file exists that can be trusted."""
    if not _is_cacheable(path, sealed):
        return None
    try:
        data = memoryview(_cache_path(path).read_bytes())
        if sha256(data[:-DIGEST_BYTES]).digest() != data[-DIGEST_BYTES:]:
            return None
        arrays = np.load(BytesIO(data[:-DIGEST_BYTES]), allow_pickle=False)
        header = _decoder.decode(arrays["header"])
    except (OSError, EOFError, ValueError, LookupError, BadZipFile, *JSON_ERRORS):  # another version wrote it
        return None
    trusted = header.origin == _make_origin(path, schema, tasks) and sealed <= set(header.extents)
    return _build_columns(path, header, arrays) if trusted else None


def read_and_cache_columns(
    path: Path, schema: int, tasks: Path, rows: Mapping[str, int], sealed: Set[Extent]
) -> JournalColumns:
    """Read the columns of a journal from its lines, and cache them if the whole file is sealed."""
    origin = _make_origin(path, schema, tasks)
    columns = read_journal_columns(path, schema, rows, sorted({extent.bytes for extent in sealed}))
    if _is_cacheable(path, sealed & columns.extents):
        with suppress(OSError):  # a full disk, or a read-only copy
            _write_cache(columns, origin)
    return columns


def _is_cacheable(path: Path, sealed: Set[Extent]) -> bool:
    """Return whether a file is large enough for a cache and sealed to its end."""
    size = path.stat().st_size
    return size >= MIN_CACHED_BYTES and any(extent.bytes == size for extent in sealed)


def _cache_path(path: Path) -> Path:
    return path.parent.parent / "index" / f"{path.stem}.sheet"


def _make_origin(path: Path, schema: int, tasks: Path) -> CacheOrigin:
    stats = [os.stat(each) for each in (path, tasks)]
    journal, task_file = ((stat.st_size, stat.st_mtime_ns) for stat in stats)
    return CacheOrigin(code_digest(), schema, journal, task_file)


@cache
def code_digest() -> str:
    """Identify the code that makes columns: another version may read the same lines differently."""
    sources = (journal_columns.__file__, inspect.getfile(LineReader), inspect.getfile(Columns), __file__)
    return sha256(b"".join(Path(source).read_bytes() for source in sources)).hexdigest()


def _write_cache(journal: JournalColumns, origin: CacheOrigin) -> None:
    arrays = {name: getattr(journal.columns, name) for name in SCALAR_COLUMNS}
    arrays |= {name: getattr(journal, name) for name in LINE_ARRAYS}
    arrays |= {f"parts.{name}": getattr(journal.columns.parts, name) for name in PART_ARRAYS}
    kinds = {name: values.dtype.str for name, values in arrays.items()}
    header = _CacheHeader(origin, list(journal.extents), journal.answers, journal.parts, kinds)
    encoded = np.frombuffer(msgspec.msgpack.encode(header), np.uint8)
    place = _cache_path(journal.path)
    place.parent.mkdir(exist_ok=True)
    with replace_file(place) as aside, open(aside, "w+b") as file:
        np.savez(file, allow_pickle=False, header=encoded, **{name: _narrow(values) for name, values in arrays.items()})
        file.seek(0)
        file.write(file_digest(file, "sha256").digest())


def _narrow(values: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return whole numbers in the type that holds all of them in the fewest bytes."""
    if values.dtype.kind != "i" or not len(values):
        return values
    return values.astype(np.result_type(np.min_scalar_type(values.min()), np.min_scalar_type(values.max())))


def _build_columns(path: Path, header: _CacheHeader, stored: Mapping[str, NDArray[np.generic]]) -> JournalColumns:
    arrays = {name: stored[name].astype(kind) for name, kind in header.kinds.items()}
    parts = RewardParts(*(arrays[f"parts.{name}"] for name in PART_ARRAYS))
    columns = Columns(**{name: arrays[name] for name in SCALAR_COLUMNS}, parts=parts)
    by_line = {name: arrays[name] for name in LINE_ARRAYS}
    return JournalColumns(path, set(header.extents), header.answers, header.parts, columns, **by_line)
