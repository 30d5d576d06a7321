"""A cache in RUN/index of the columns of sealed journals, so that they need not be read again.

It may be deleted at any time. A cache file is used only for exactly the file it was made from, under exactly its seals
and with exactly its tasks, by the code that made it; if anything differs, the journal is read.
"""

from __future__ import annotations

import inspect
import os
import secrets
import struct
from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from functools import cache
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollbook.book import LineReader
from rollbook.core import Extent
from rollbook.reports import journal_columns
from rollbook.reports.journal_columns import JournalColumns, read_journal_columns
from rollbook.stats import SCALAR_COLUMNS, Columns, RewardParts

MIN_CACHED_BYTES = 1 << 20
"""A smaller journal is as quickly read."""

DIGEST_BYTES = sha256().digest_size
LENGTH_STRUCT = struct.Struct("<Q")
LINE_ARRAYS = ("sample", "attempt", "starts", "ends")
PART_ARRAYS = ("place", "name", "value")


class CacheOrigin(msgspec.Struct, frozen=True):
    """What a sheet was made of: code, journal and tasks; files by their size and the time of their last change."""

    maker: str
    journal: tuple[int, int]
    tasks: tuple[int, int]


class _ArrayHeader(msgspec.Struct, frozen=True, array_like=True):
    """Numbers of one kind, stored in as few bytes each as hold them."""

    kind: str
    stored: str
    size: int


class _CacheHeader(msgspec.Struct, frozen=True):
    """What stands before the bytes of the arrays."""

    origin: CacheOrigin
    extents: list[Extent]
    answers: list[str]
    parts: list[str]
    arrays: dict[str, _ArrayHeader]


_decoder = msgspec.msgpack.Decoder(_CacheHeader)


def load_cached_columns(path: Path, tasks: Path, sealed: Set[Extent]) -> JournalColumns | None:
    """The sheet of a journal, if one is kept that can be trusted."""
    if not _is_cacheable(path, sealed):
        return None
    try:
        data = memoryview(_cache_path(path).read_bytes())
        if sha256(data[:-DIGEST_BYTES]).digest() != data[-DIGEST_BYTES:]:
            return None
        start = LENGTH_STRUCT.size + LENGTH_STRUCT.unpack_from(data)[0]
        head = _decoder.decode(data[LENGTH_STRUCT.size : start])
    except (OSError, msgspec.DecodeError):
        return None
    trusted = head.origin == _make_origin(path, tasks) and sealed <= set(head.extents)
    return _decode_columns(path, head, data[start:]) if trusted else None


def read_and_cache_columns(path: Path, tasks: Path, rows: Mapping[str, int], sealed: Set[Extent]) -> JournalColumns:
    """The sheet of a journal from its lines, kept for the next time if all of the file is under seal."""
    origin = _make_origin(path, tasks)
    sheet = read_journal_columns(path, rows, sorted({extent.bytes for extent in sealed}))
    if _is_cacheable(path, sealed & sheet.extents):
        with suppress(OSError):  # no room, or a copy that one may only read
            _write_cache(sheet, origin)
    return sheet


def _is_cacheable(path: Path, sealed: Set[Extent]) -> bool:
    """Whether a file is worth keeping and sealed to its end."""
    size = path.stat().st_size
    return size >= MIN_CACHED_BYTES and any(extent.bytes == size for extent in sealed)


def _cache_path(path: Path) -> Path:
    return path.parent.parent / "index" / f"{path.stem}.sheet"


def _make_origin(path: Path, tasks: Path) -> CacheOrigin:
    stats = [os.stat(each) for each in (path, tasks)]
    journal, asked = ((stat.st_size, stat.st_mtime_ns) for stat in stats)
    return CacheOrigin(_code_digest(), journal, asked)


@cache
def _code_digest() -> str:
    """Identify the code that makes columns: another version may read the same lines differently."""
    sources = (journal_columns.__file__, inspect.getfile(LineReader), inspect.getfile(Columns), __file__)
    return sha256(b"".join(Path(source).read_bytes() for source in sources)).hexdigest()


def _write_cache(journal: JournalColumns, origin: CacheOrigin) -> None:
    arrays = {name: getattr(journal.columns, name) for name in SCALAR_COLUMNS}
    arrays |= {name: getattr(journal, name) for name in LINE_ARRAYS}
    arrays |= {f"parts.{name}": getattr(journal.columns.parts, name) for name in PART_ARRAYS}
    stored = {name: _smallest_dtype(values) for name, values in arrays.items()}
    sizes = {name: _ArrayHeader(values.dtype.str, stored[name].str, values.size) for name, values in arrays.items()}
    head = msgspec.msgpack.encode(_CacheHeader(origin, list(journal.extents), journal.answers, journal.parts, sizes))
    place = _cache_path(journal.path)
    place.parent.mkdir(exist_ok=True)
    aside = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    try:
        with open(aside, "wb") as file:
            _write_with_digest(
                file,
                chain([LENGTH_STRUCT.pack(len(head)), head], (v.astype(stored[n]).data for n, v in arrays.items())),
            )
        os.replace(aside, place)
    finally:
        aside.unlink(missing_ok=True)


def _write_with_digest(file: IO[bytes], pieces: Iterable[bytes | memoryview]) -> None:
    """One piece after another, so that no second copy of it all is ever held; the hash comes last."""
    digest = sha256()
    for piece in pieces:
        digest.update(piece)
        file.write(piece)
    file.write(digest.digest())


def _smallest_dtype(values: NDArray[np.generic]) -> np.dtype[Any]:
    """The kind of number that holds all of these in the fewest bytes."""
    if values.dtype.kind == "i" and len(values):
        return np.result_type(np.min_scalar_type(values.min()), np.min_scalar_type(values.max()))
    return values.dtype


def _decode_columns(path: Path, header: _CacheHeader, data: memoryview) -> JournalColumns:
    arrays, at = {}, 0
    for name, array in header.arrays.items():
        arrays[name] = np.frombuffer(data, array.stored, array.size, at).astype(array.kind)
        at += array.size * np.dtype(array.stored).itemsize
    parts = RewardParts(*(arrays[f"parts.{name}"] for name in PART_ARRAYS))
    columns = Columns(**{name: arrays[name] for name in SCALAR_COLUMNS}, parts=parts)
    beside = {name: arrays[name] for name in LINE_ARRAYS}
    return JournalColumns(path, set(header.extents), header.answers, header.parts, columns, **beside)
