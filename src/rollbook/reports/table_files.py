"""Tables in files by suffix: JSON Lines, CSV or Parquet. A file is written completely or not at all."""

from __future__ import annotations

import csv
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import msgspec

from rollbook.core import JSON, decode, encode
from rollbook.errors import UsageError

SUFFIXES = (".jsonl", ".csv", ".parquet")
BATCH_ROWS = 5000
FORMULA_STARTS = "=+-@\t\r"
_is_whole = re.compile(r"-?(0|[1-9][0-9]{0,14})").fullmatch
_is_fraction = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+([eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)").fullmatch
_is_number = re.compile(r"[+-]?[0-9][0-9.,]*(e[+-]?[0-9]+)?", re.IGNORECASE).fullmatch


PART_PREFIX = "parts."
"""Precedes the names of reward parts, so that a part called `sample` is not taken for a column."""

ColumnKind: TypeAlias = Literal["null", "boolean", "integer", "number", "text"]
"""The kind of value of a column; nested values, and values of several kinds, are text."""

MAX_EXACT_DIGITS = 15
"""Digits of whole numbers that a float can represent exactly; longer ones are text."""


class TableRows(Protocol):
    """A table: rows of any JSON."""

    def __iter__(self) -> Iterator[dict[str, JSON]]: ...

    def fields(self) -> dict[str, ColumnKind]:
        """All columns, and what each of them holds."""
        ...


def value_kind(value: JSON) -> ColumnKind:
    """Return the kind of a value, from its JSON text if it is `msgspec.Raw`.

    >>> [value_kind(msgspec.Raw(text)) for text in (b"3", b"-0.5", b"true", b"null", b"[1]", b'"3"')]
    ['integer', 'number', 'boolean', 'null', 'text', 'text']
    """
    written = bytes(value) if isinstance(value, msgspec.Raw) else encode(value)
    if written in (b"null", b"true", b"false"):
        return "null" if written == b"null" else "boolean"
    if written[:1] not in b"-0123456789":
        return "text"
    if not written.lstrip(b"-").isdigit():
        return "number"
    return "integer" if len(written) <= MAX_EXACT_DIGITS else "text"


def widest_kind(one: ColumnKind, two: ColumnKind) -> ColumnKind:
    """Return the kind that can represent both kinds.

    >>> widest_kind("null", "integer"), widest_kind("integer", "number"), widest_kind("number", "boolean")
    ('integer', 'number', 'text')
    """
    if one == two or two == "null":
        return one
    if one == "null":
        return two
    return "number" if {one, two} == {"integer", "number"} else "text"


def check_suffix(path: Path) -> None:
    """Refuse an unknown suffix."""
    if path.suffix not in SUFFIXES:
        raise UsageError(f"-o {path}: the ending must be one of {', '.join(SUFFIXES)}")


def write_table(path: Path, rows: TableRows) -> int:
    """Write rows in the format of the suffix; return how many. CSV and Parquet store nested values as JSON."""
    check_suffix(path)
    if path.suffix == ".jsonl":
        return write_lines_atomically(path, map(encode, rows))
    if path.suffix == ".csv":
        return write_atomically(path, lambda aside: write_csv(aside, list(rows.fields()), rows))
    what = f"-o {path}: Parquet"
    return write_atomically(path, lambda aside: write_parquet(aside, rows.fields(), iter(rows), BATCH_ROWS, what))


def write_lines_atomically(path: Path, lines: Iterator[bytes]) -> int:
    """Write lines, given without newlines, to a file; return how many."""
    return write_atomically(path, lambda aside: _write_lines(aside, lines))


def write_atomically(path: Path, write: Callable[[Path], int]) -> int:
    """Write to a temporary file, then rename it."""
    try:
        with replace_file(path) as aside:
            return write(aside)
    except OSError as error:
        raise UsageError(f"-o {path}: cannot be written: {error.strerror}") from None


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, which gets the name of the file at the end; after an error it is removed."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        yield aside
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def _write_lines(path: Path, lines: Iterator[bytes]) -> int:
    count = 0
    with open(path, "wb", buffering=1 << 20) as file:
        for count, line in enumerate(lines, start=1):  # noqa: B007
            file.write(line + b"\n")
    return count


def write_csv(path: Path, names: Sequence[str], rows: Iterable[dict[str, JSON]]) -> int:
    """Write rows as CSV by RFC 4180, with a first line of names; return how many."""
    count = 0
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        for count, row in enumerate(rows, start=1):  # noqa: B007
            writer.writerow({name: _escape_formula(cell_text(value)) for name, value in row.items()})
    return count


def write_parquet(
    path: Path, fields: Mapping[str, ColumnKind], rows: Iterator[dict[str, JSON]], batch_rows: int, what: str
) -> int:
    """Write rows as Parquet, so many at a time; return how many. `what` begins the error if a package is missing."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise UsageError(f"{what} needs pyarrow: pip install 'rollbook[parquet]'") from None
    types = {"boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64()}
    kinds = {name: types.get(kind, pa.string()) for name, kind in fields.items()}
    schema = pa.schema(list(kinds.items()))
    count = 0
    with pq.ParquetWriter(path, schema) as writer:
        while some := list(islice(rows, batch_rows)):
            cells = [
                {k: cell_text(v) if kinds[k] == pa.string() else _decode_raw(v) for k, v in row.items()} for row in some
            ]
            writer.write_table(pa.Table.from_pylist(cells, schema))
            count += len(some)
    return count


def _escape_formula(text: str | None) -> str | None:
    """Put a ' before text that a spreadsheet would run as a formula: models write it, and people open it."""
    if not text or text[0] not in FORMULA_STARTS or _is_number(text):
        return text
    return f"'{text}"


def _decode_raw(value: JSON) -> JSON:
    return decode(value) if isinstance(value, msgspec.Raw) else value


def cell_text(value: JSON) -> str | None:
    """Return the text of a cell: plain values as they are, nested ones as JSON."""
    plain = _decode_raw(value)
    if plain is None or isinstance(plain, str):
        return plain
    return str(plain) if isinstance(plain, int | float) else encode(plain).decode()


TEXT_COLUMNS = ("id", "answer", "majority", "bucket")
"""Columns whose cells stay text in a CSV file, which does not distinguish 2 from "2"."""


def read_table(path: Path) -> Iterator[dict[str, JSON]]:
    """Read a table that `write_table` wrote, with null where a row has no value."""
    from rollbook.environments import rows

    if path.suffix == ".csv":
        return ({name: _read_cell(name, cell) for name, cell in row.items()} for row in _read_csv(path))
    if path.suffix == ".parquet":
        return ({name: _read_nested(name, cell) for name, cell in row.values.items()} for row in rows(path))
    return (row.values for row in rows(path))


def _read_csv(path: Path) -> Iterator[dict[str, str]]:
    """Read CSV with the reader of `--data`, which omits empty cells."""
    from rollbook.environments import rows

    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            names = next(csv.reader(file), [])
    except (OSError, ValueError, csv.Error) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    for row in rows(path):
        yield dict.fromkeys(names, "") | row.values


def _read_cell(name: str, cell: str) -> JSON:
    """Parse a cell of CSV: null, a number, JSON where it was nested, else text."""
    if not cell:
        return None
    text = cell[1:] if cell[0] == "'" and _escape_formula(cell[1:]) == cell else cell
    if name in TEXT_COLUMNS or name.endswith("majority"):
        return _read_nested(name, text)
    if text in ("True", "False"):
        return text == "True"
    if _is_whole(text):
        return int(text)
    return float(text) if _is_fraction(text) and isfinite(float(text)) else _read_nested(name, text)


def _read_nested(name: str, cell: JSON) -> JSON:
    """Parse a value that was stored as JSON text."""
    if name == "bucket" or not isinstance(cell, str) or cell[:1] not in ("[", "{"):
        return cell
    try:
        return decode(cell)
    except ValueError:
        return cell
