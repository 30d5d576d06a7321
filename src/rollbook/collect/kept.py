"""Sheets kept in RUN/index: what the numbers need of a sealed journal, so that it need not be read again.

It is a cache and may be deleted at any time. A kept sheet is used only for the very file it was made of, under the
very seals and beside the very tasks, by the code that made it; if anything is off, the journal is read.
"""

from __future__ import annotations

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

from rollbook.collect import sheet as sheets
from rollbook.collect.sheet import Sheet, read_sheet
from rollbook.core.seal import Extent
from rollbook.stats import columns as stats
from rollbook.stats.columns import PLAIN, Columns, Parts

WORTH_KEEPING = 1 << 20
"""A smaller journal is as quickly read."""

DIGEST = sha256().digest_size
LENGTH = struct.Struct("<Q")
BESIDE = ("sample", "attempt", "starts", "ends")
PARTS = ("place", "name", "value")


class Origin(msgspec.Struct, frozen=True):
    """What a sheet was made of: code, journal and tasks; files by their size and the time of their last change."""

    maker: str
    journal: tuple[int, int]
    tasks: tuple[int, int]


class _Array(msgspec.Struct, frozen=True, array_like=True):
    """Numbers of one kind, stored in as few bytes each as hold them."""

    kind: str
    stored: str
    size: int


class _Head(msgspec.Struct, frozen=True):
    """What stands before the bytes of the arrays."""

    origin: Origin
    extents: list[Extent]
    answers: list[str]
    parts: list[str]
    arrays: dict[str, _Array]


_decoder = msgspec.msgpack.Decoder(_Head)


def kept_sheet(path: Path, tasks: Path, sealed: Set[Extent]) -> Sheet | None:
    """The sheet of a journal, if one is kept that can be trusted."""
    if not _whole(path, sealed):
        return None
    try:
        data = memoryview(_place(path).read_bytes())
        if sha256(data[:-DIGEST]).digest() != data[-DIGEST:]:
            return None
        start = LENGTH.size + LENGTH.unpack_from(data)[0]
        head = _decoder.decode(data[LENGTH.size : start])
    except (OSError, msgspec.DecodeError):
        return None
    trusted = head.origin == _origin(path, tasks) and sealed <= set(head.extents)
    return _opened(path, head, data[start:]) if trusted else None


def read_and_keep(path: Path, tasks: Path, rows: Mapping[str, int], sealed: Set[Extent]) -> Sheet:
    """The sheet of a journal from its lines, kept for the next time if all of the file is under seal."""
    origin = _origin(path, tasks)
    sheet = read_sheet(path, rows, sorted({extent.bytes for extent in sealed}))
    if _whole(path, sealed & sheet.extents):
        with suppress(OSError):  # no room, or a copy that one may only read
            _keep(sheet, origin)
    return sheet


def _whole(path: Path, sealed: Set[Extent]) -> bool:
    """Whether a file is worth keeping and sealed to its end."""
    size = path.stat().st_size
    return size >= WORTH_KEEPING and any(extent.bytes == size for extent in sealed)


def _place(path: Path) -> Path:
    return path.parent.parent / "index" / f"{path.stem}.sheet"


def _origin(path: Path, tasks: Path) -> Origin:
    stats = [os.stat(each) for each in (path, tasks)]
    journal, asked = ((stat.st_size, stat.st_mtime_ns) for stat in stats)
    return Origin(_maker(), journal, asked)


@cache
def _maker() -> str:
    """Names the code that makes sheets: another version may take the same lines for something else."""
    sources = (sheets.__file__, stats.__file__, __file__)
    return sha256(b"".join(Path(source).read_bytes() for source in sources)).hexdigest()


def _keep(sheet: Sheet, origin: Origin) -> None:
    arrays = {name: getattr(sheet.columns, name) for name in PLAIN}
    arrays |= {name: getattr(sheet, name) for name in BESIDE}
    arrays |= {f"parts.{name}": getattr(sheet.columns.parts, name) for name in PARTS}
    stored = {name: _smallest(values) for name, values in arrays.items()}
    sizes = {name: _Array(values.dtype.str, stored[name].str, values.size) for name, values in arrays.items()}
    head = msgspec.msgpack.encode(_Head(origin, list(sheet.extents), sheet.answers, sheet.parts, sizes))
    place = _place(sheet.path)
    place.parent.mkdir(exist_ok=True)
    aside = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    try:
        with open(aside, "wb") as file:
            _write(file, chain([LENGTH.pack(len(head)), head], (v.astype(stored[n]).data for n, v in arrays.items())))
        os.replace(aside, place)
    finally:
        aside.unlink(missing_ok=True)


def _write(file: IO[bytes], pieces: Iterable[bytes | memoryview]) -> None:
    """One piece after another, so that no second copy of it all is ever held; the hash comes last."""
    digest = sha256()
    for piece in pieces:
        digest.update(piece)
        file.write(piece)
    file.write(digest.digest())


def _smallest(values: NDArray[np.generic]) -> np.dtype[Any]:
    """The kind of number that holds all of these in the fewest bytes."""
    if values.dtype.kind == "i" and len(values):
        return np.result_type(np.min_scalar_type(values.min()), np.min_scalar_type(values.max()))
    return values.dtype


def _opened(path: Path, kept: _Head, data: memoryview) -> Sheet:
    arrays, at = {}, 0
    for name, array in kept.arrays.items():
        arrays[name] = np.frombuffer(data, array.stored, array.size, at).astype(array.kind)
        at += array.size * np.dtype(array.stored).itemsize
    parts = Parts(*(arrays[f"parts.{name}"] for name in PARTS))
    columns = Columns(**{name: arrays[name] for name in PLAIN}, parts=parts)
    beside = {name: arrays[name] for name in BESIDE}
    return Sheet(path, set(kept.extents), kept.answers, kept.parts, columns, **beside)
