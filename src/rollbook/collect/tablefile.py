"""Rows into a file by its ending: JSON Lines, CSV or Parquet; whole, or not at all."""

from __future__ import annotations

import csv
import os
import re
import secrets
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Protocol

import msgspec

from rollbook.core.json import JSON, decode, encode
from rollbook.errors import UsageError

ENDINGS = (".jsonl", ".csv", ".parquet")
BATCH = 5000
FORMULA = "=+-@\t\r"
_is_number = re.compile(r"[+-]?[0-9][0-9.,]*(e[+-]?[0-9]+)?", re.IGNORECASE).fullmatch


class Rows(Protocol):
    """A table: rows whose numbers have names, and may have columns of any JSON besides."""

    names: list[str]
    prefix: str

    def __iter__(self) -> Iterator[dict[str, JSON]]: ...

    def fields(self) -> list[str]:
        """All columns."""
        ...


def check_ending(path: Path) -> None:
    """Refuse a kind of file that is not known."""
    if path.suffix not in ENDINGS:
        raise UsageError(f"-o {path}: the ending must be one of {', '.join(ENDINGS)}")


def write_table(path: Path, rows: Rows) -> int:
    """Write rows to a file of the kind its name says; returns how many. CSV and Parquet hold nested values as JSON."""
    check_ending(path)
    writers = {".jsonl": _write_jsonl, ".csv": _write_csv, ".parquet": _write_parquet}
    return write_whole(path, lambda aside: writers[path.suffix](aside, rows))


def write_whole_lines(path: Path, lines: Iterator[bytes]) -> int:
    """Write lines without newlines to a file; returns how many."""
    return write_whole(path, lambda aside: write_lines(aside, lines))


def write_whole(path: Path, write: Callable[[Path], int]) -> int:
    """Write aside, then put in place."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        count = write(aside)
        os.replace(aside, path)
    except OSError as error:
        raise UsageError(f"-o {path}: cannot be written: {error.strerror}") from None
    finally:
        aside.unlink(missing_ok=True)
    return count


def _write_jsonl(path: Path, rows: Rows) -> int:
    return write_lines(path, map(encode, rows))


def write_lines(path: Path, lines: Iterator[bytes]) -> int:
    """Lines without newlines, one after the other."""
    count = 0
    with open(path, "wb", buffering=1 << 20) as file:
        for count, line in enumerate(lines, start=1):  # noqa: B007
            file.write(line + b"\n")
    return count


def _write_csv(path: Path, rows: Rows) -> int:
    fields = rows.fields()
    count = 0
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fields, restval="")
        writer.writeheader()
        for count, row in enumerate(rows, start=1):  # noqa: B007
            writer.writerow({name: _unformulated(cell_text(value)) for name, value in row.items()})
    return count


def _write_parquet(path: Path, rows: Rows) -> int:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise UsageError(f"-o {path}: Parquet needs pyarrow: pip install 'rollbook[parquet]'") from None
    fields, numbers = rows.fields(), set(rows.names)
    kinds = {"n": pa.int64(), "failed": pa.int64(), "majority": pa.string()}
    kind = {name: kinds.get(name.removeprefix(rows.prefix), pa.float64()) for name in numbers}
    schema = pa.schema([(name, kind.get(name, pa.string())) for name in fields])
    count, left = 0, iter(rows)
    with pq.ParquetWriter(path, schema) as writer:
        while some := list(islice(left, BATCH)):
            cells = [{k: v if k in numbers else cell_text(v) for k, v in row.items()} for row in some]
            writer.write_table(pa.Table.from_pylist(cells, schema))
            count += len(some)
    return count


def _unformulated(text: str | None) -> str | None:
    """Text that a spreadsheet would run as a formula gets a ' before it: models write it, and people open it."""
    if not text or text[0] not in FORMULA or _is_number(text):
        return text
    return f"'{text}"


def cell_text(value: JSON) -> str | None:
    """A cell: plain values as they are, nested ones as JSON."""
    plain = decode(value) if isinstance(value, msgspec.Raw) else value
    if plain is None or isinstance(plain, str):
        return plain
    return str(plain) if isinstance(plain, int | float) else encode(plain).decode()
