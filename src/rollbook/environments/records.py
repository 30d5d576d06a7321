"""Rows from files that are not JSON Lines: CSV, Parquet, and datasets of the Hugging Face hub, all as a stream."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qsl

import msgspec

from rollbook.core.json import JSON, decode, encode
from rollbook.environments.rows import ROW_BYTES, Row
from rollbook.errors import UsageError

HUB = "hf://"
BATCH = 256
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_HUB_OPTIONS = ("split", "config", "revision")


def reader(path: str) -> Iterator[Row] | None:
    """The rows of a path by what it is called; None for JSON Lines."""
    if path.startswith(HUB):
        return hub_rows(path)
    suffix = Path(path.removesuffix(".gz")).suffix.lower()
    if suffix in _DELIMITERS:
        return csv_rows(path, _DELIMITERS[suffix])
    return parquet_rows(path) if suffix == ".parquet" else None


def csv_rows(path: str, delimiter: str) -> Iterator[Row]:
    """The lines of a CSV file under the names of its first one; every value is text, an empty one is not there."""
    csv.field_size_limit(ROW_BYTES)
    with _text(path) as stream:
        lines = csv.reader(stream, delimiter=delimiter, strict=True)
        try:
            names = next(lines, [])
            _check_names(path, names)
            cells = None
            for cells in filter(None, lines):
                yield Row(path, lines.line_num, _cells(path, lines.line_num, names, cells))
            if cells is None:
                raise UsageError(f"{path}: holds no rows; put them below a first line that names the columns")
        except csv.Error as error:
            raise UsageError(f"{path}:{lines.line_num}: not CSV: {error}") from None
        except UnicodeDecodeError as error:
            where = f"after line {lines.line_num}"
            raise UsageError(f"{path}: not UTF-8 {where} ({error.reason}); save the file as UTF-8") from None


def _text(path: str) -> IO[str]:
    if path.endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return open(path, encoding="utf-8-sig", newline="")


def _check_names(path: str, names: list[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{path}:1: two columns are called {twice!r}; the first line must name each column once")


def _cells(path: str, number: int, names: list[str], cells: list[str]) -> dict[str, JSON]:
    if len(cells) != len(names):
        raise UsageError(f"{path}:{number}: {len(cells)} cells under {len(names)} columns; quote cells with commas")
    return {name: cell for name, cell in zip(names, cells, strict=True) if cell != ""}


def parquet_rows(path: str) -> Iterator[Row]:
    """The rows of a Parquet file, a batch at a time."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(f"{path} needs a package ({error}); pip install 'rollbook[parquet]'") from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=BATCH):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(path, number, _as_json(values, f"{path}:{number}"))
    except pyarrow.ArrowInvalid as error:
        raise UsageError(f"{path}: not a Parquet file: {str(error).splitlines()[0]}") from None


def hub_rows(path: str) -> Iterator[Row]:
    """The rows of hf://org/name?split=test&config=main, streamed by the package `datasets`."""
    name, options = hub_name(path)
    try:
        import datasets
    except ImportError as error:
        raise UsageError(f"{path} needs a package ({error}); pip install 'rollbook[hf]'") from None
    for number, values in enumerate(_streamed(datasets, path, name, options), 1):
        yield Row(path, number, _as_json(values, f"{path}:{number}"))


def _streamed(datasets: Any, path: str, name: str, options: dict[str, str]) -> Iterator[dict[str, JSON]]:
    """What goes wrong with a hub is many things; each is told in one line."""
    config, revision = options.get("config"), options.get("revision")
    try:
        found = datasets.load_dataset(name, config, streaming=True, revision=revision)
        splits = {str(split): rows for split, rows in found.items()}
        yield from splits[_split(path, list(splits), options.get("split"))]
    except (UsageError, GeneratorExit):
        raise
    except Exception as error:
        words = " ".join(str(error).split())[:300]
        raise UsageError(f"{path}: cannot be read: {type(error).__name__}: {words}") from error


def hub_name(path: str) -> tuple[str, dict[str, str]]:
    """The name of a dataset, and which part of it.

    >>> hub_name("hf://openai/gsm8k?config=main&split=test")
    ('openai/gsm8k', {'config': 'main', 'split': 'test'})
    """
    name, _, query = path.removeprefix(HUB).partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    unknown = next((key for key in options if key not in _HUB_OPTIONS), None)
    if not name or unknown is not None:
        what = f"unknown {unknown!r}" if name else "no name"
        raise UsageError(f"--data {path}: {what}; write hf://org/name?split=test&config=main")
    return name, options


def _split(path: str, splits: list[str], wanted: str | None) -> str:
    if wanted in splits:
        return str(wanted)
    if wanted is None and len(splits) == 1:
        return splits[0]
    said = f"has no split {wanted!r}" if wanted else "has several splits"
    raise UsageError(f"{path}: {said}; give ?split= one of {', '.join(splits)}")


def _as_json(values: JSON, where: str) -> dict[str, JSON]:
    """A row of a table as JSON holds it: dates as text, numbers as numbers."""
    try:
        found: dict[str, JSON] = decode(encode(values))
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise UsageError(f"{where}: does not fit JSON: {error}") from None
    return found
