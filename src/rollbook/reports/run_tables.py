"""A run as Arrow tables: its rollouts, turns, messages and tasks.

`rollouts` is made from the columns of the journals (`RunColumns`). That of a big run is cached in `RUN/index`, which
may be deleted at any time. The other tables are read from the journal lines in batches. Texts that repeat (task ids,
environments, answers) are dictionary-encoded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from html import escape
from io import BufferedRandom
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args
from zlib import crc32

import msgspec
import numpy as np

from rollbook.book import Book, CountedLines, rollouts
from rollbook.core import JSON, Message, ScoredLine, encode
from rollbook.errors import UsageError
from rollbook.reports.column_cache import code_digest
from rollbook.reports.report import RunData, requested_by_task
from rollbook.reports.table_files import PART_PREFIX, replace_file
from rollbook.stats import NO_ANSWER, Columns, Ints, TaskStats

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

TableName: TypeAlias = Literal["rollouts", "turns", "messages", "tasks"]
TABLE_NAMES: tuple[TableName, ...] = get_args(TableName)
BATCH_ROWS = 10_000
CACHE_FILE = "index/rollouts.arrow"
STATE_KEY = b"rollbook"
CHECKSUM_BYTES = 4
MIN_CACHED_ROWS = 10_000
"""A smaller table is made as fast as its cache is read."""


class ReadState(NamedTuple):
    """The data of a run, and the state of its files before they were read."""

    state: str
    data: RunData


TURN_FIELDS = {
    "prompt_tokens": "integer",
    "completion_tokens": "integer",
    "finish_reason": "text",
    "seconds": "number",
    "model_version": "text",
}
TURN_TYPES = {"task": "text", "sample": "integer", "turn": "integer", **TURN_FIELDS}
MESSAGE_TYPES = {
    "task": "text",
    "sample": "integer",
    "message": "integer",
    "role": "text",
    "content": "text",
    "reasoning": "text",
    "tool_calls": "text",
    "tool_call_id": "text",
}


def make_table(book: Book, name: str, read: Callable[[], ReadState]) -> pyarrow.Table:
    """Return one of the tables; `read` reads the scored rollouts of the book as columns, where they are needed."""
    import_arrow()
    if name == "rollouts":
        return _load_cached_table(book) or _cache_table(book, read())
    if name == "turns":
        return _collect_batches(_turn_rows(book), TURN_TYPES)
    if name == "messages":
        return _collect_batches(_message_rows(book), MESSAGE_TYPES)
    if name == "tasks":
        return make_task_table(read().data)
    raise UsageError(f"no table is called {name!r}: the tables are {', '.join(TABLE_NAMES)}")


def import_arrow() -> Any:
    """Import pyarrow; without it, say how to install it."""
    try:
        import pyarrow
    except ImportError:
        raise UsageError("tables need pyarrow: pip install 'rollbook[dataframes]'") from None
    return pyarrow


def make_polars_frame(make: Callable[[], pyarrow.Table]) -> polars.DataFrame:
    """Return a table as a Polars data frame; without Polars, say how to install it before the table is made."""
    try:
        import polars
    except ImportError:
        raise UsageError("to_polars needs Polars: pip install 'rollbook[dataframes]'") from None
    frame = polars.from_arrow(make())
    assert isinstance(frame, polars.DataFrame)
    return frame


def make_pandas_frame(make: Callable[[], pyarrow.Table]) -> pandas.DataFrame:
    """Return a table as a pandas data frame; without pandas, say how to install it before the table is made."""
    try:
        import pandas  # noqa: F401
    except ImportError:
        raise UsageError("to_pandas needs pandas: pip install 'rollbook[dataframes]'") from None
    return make().to_pandas()


def make_html_table(lines: Sequence[str], names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return lines and a table as HTML, every text escaped."""
    header = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    caption = "<br>".join(map(escape, lines))
    return f"<p>{caption}</p><table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>"


def make_rollout_table(run: RunData) -> pyarrow.Table:
    """Return the scored rollouts, in no order. `answer` is the normalised one, as majority votes count it."""
    columns, found = run.scored.columns, run.scored
    arrays: dict[str, object] = {
        "task": _encode_texts(columns.task, _read_task_ids(run.book)),
        "sample": found.samples,
        "env": _encode_texts(run.envs[columns.task], run.names),
        "reward": columns.reward,
        "answer": _encode_texts(columns.answer, found.answers.texts),
        "prompt_tokens": columns.prompt_tokens,
        "completion_tokens": columns.completion_tokens,
        "turns": columns.turns,
        "truncated": columns.truncated,
        "seconds": columns.seconds,
    }
    table: pyarrow.Table = import_arrow().table(arrays | _part_arrays(columns, found.parts.texts))
    return table


def _load_cached_table(book: Book) -> pyarrow.Table | None:
    """Return the cached table of rollouts, if it was made from exactly these files by exactly this code."""
    arrow = import_arrow()
    try:
        data = memoryview((book.path / CACHE_FILE).read_bytes())
        if _checksum(data[:-CHECKSUM_BYTES]) != data[-CHECKSUM_BYTES:]:
            return None
        table: pyarrow.Table = arrow.ipc.open_file(arrow.py_buffer(data[:-CHECKSUM_BYTES])).read_all()
    except (OSError, arrow.ArrowInvalid):
        return None
    current = (table.schema.metadata or {}).get(STATE_KEY) == describe_state(book).encode()
    return table.replace_schema_metadata() if current else None


def _cache_table(book: Book, run: ReadState) -> pyarrow.Table:
    """Make the table of rollouts, and cache that of a big run."""
    table, path = make_rollout_table(run.data), book.path / CACHE_FILE
    if len(table) >= MIN_CACHED_ROWS:
        with suppress(OSError):  # a full disk, or a read-only copy
            path.parent.mkdir(exist_ok=True)
            with replace_file(path) as aside, open(aside, "w+b") as file:
                _write_with_checksum(file, table.replace_schema_metadata({STATE_KEY: run.state}))
    return table


def _write_with_checksum(file: BufferedRandom, table: pyarrow.Table) -> None:
    with import_arrow().ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    file.seek(0)
    checksum = 0
    while block := file.read(1 << 20):
        checksum = crc32(block, checksum)
    file.write(checksum.to_bytes(CHECKSUM_BYTES))


def _checksum(data: memoryview) -> bytes:
    """Return the CRC-32, as journal lines have one: it finds damage by accident in a third of the time of SHA-256."""
    return crc32(data).to_bytes(CHECKSUM_BYTES)


def describe_state(book: Book) -> str:
    """Return a digest of everything that decides which lines count: names, sizes and times of files, and our code.

    Leases and seals are never changed once they have their name, so that their names are enough: a big run has
    thousands of them, and asking for the size of each takes longer than reading the table.
    """
    digest = sha256(f"{code_digest()} {Path(__file__).read_text()}".encode())
    with os.scandir(book.path / "journals") as entries:
        digest.update(encode(sorted((entry.name, *_size_and_time(entry)) for entry in entries)))
    for name in ("leases", "done"):
        digest.update(encode(sorted(os.listdir(book.path / name))))
    digest.update(encode([_size_and_time(book.path / name) for name in ("run.json", "plan.json", "tasks.jsonl")]))
    return digest.hexdigest()


def _size_and_time(path: Path | os.DirEntry[str]) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


def _read_task_ids(book: Book) -> Sequence[str]:
    return list(book.tasks.rows)


def _encode_texts(numbers: Ints, texts: Sequence[str]) -> pyarrow.DictionaryArray:
    """Return texts given by number; NO_ANSWER is null."""
    arrow = import_arrow()
    small = numbers.astype(np.int32, copy=False)
    return arrow.DictionaryArray.from_arrays(
        arrow.array(small, mask=small == NO_ANSWER), arrow.array(texts, arrow.string())
    )


def _part_arrays(columns: Columns, names: Sequence[str]) -> dict[str, object]:
    """Return a column for each reward part; null where a rollout does not have it."""
    arrow, parts = import_arrow(), columns.parts
    arrays: dict[str, object] = {}
    for number, name in enumerate(names):
        mine = parts.name == number
        values, absent = np.zeros(len(columns)), np.ones(len(columns), np.bool_)
        values[parts.place[mine]], absent[parts.place[mine]] = parts.value[mine], False
        arrays[PART_PREFIX + name] = arrow.array(values, mask=absent)
    return arrays


def make_task_table(run: RunData) -> pyarrow.Table:
    """Return one row for each task: what was asked, what is known of it, and how its rollouts scored."""
    arrow, book = import_arrow(), run.book
    stats = TaskStats(run.scored.columns)
    scored, mean = np.zeros(len(book.tasks), np.int64), np.zeros(len(book.tasks))
    scored[stats.rows], mean[stats.rows] = stats.n, stats.means
    failed = np.array([run.failed_by_task[row] for row in range(len(book.tasks))], np.int64)
    described = [*_describe_tasks(book)]
    texts = {name: [row[name] for row in described] for name in ("task", "env", "prompt", "answer", "fields")}
    table: pyarrow.Table = arrow.table(
        {name: arrow.array(values, arrow.string()) for name, values in texts.items()}
        | {"requested": requested_by_task(book), "scored": scored, "failed": failed}
        | {"mean_reward": arrow.array(mean, mask=scored == 0)}
    )
    return table


def _describe_tasks(book: Book) -> Iterator[dict[str, str | None]]:
    for task in book.tasks:
        yield {
            "task": task.id,
            "env": task.env,
            "prompt": "\n\n".join(message.text for message in task.messages),
            "answer": None if task.answer is None else _to_text(task.answer),
            "fields": _to_text(task.fields),
        }


def _turn_rows(book: Book) -> Iterator[dict[str, JSON]]:
    for _, _, line in CountedLines(book, ScoredLine):
        for number, turn in enumerate(line.turns):
            fields = {name: getattr(turn, name) for name in TURN_FIELDS}
            yield {"task": line.task, "sample": line.sample, "turn": number, **fields}


def _message_rows(book: Book) -> Iterator[dict[str, JSON]]:
    for rollout in rollouts(book):
        for number, message in enumerate(rollout.messages):
            yield {"task": rollout.task.id, "sample": rollout.sample, "message": number, **_describe_message(message)}


def _describe_message(message: Message) -> dict[str, JSON]:
    return {
        "role": message.role,
        "content": message.content if message.content is None else _to_text(message.content),
        "reasoning": message.reasoning,
        "tool_calls": _to_text(msgspec.to_builtins(message.tool_calls)) if message.tool_calls else None,
        "tool_call_id": message.tool_call_id,
    }


def _to_text(value: JSON) -> str:
    return value if isinstance(value, str) else encode(value).decode()


def _collect_batches(rows: Iterable[Mapping[str, JSON]], types: Mapping[str, str]) -> pyarrow.Table:
    """Return rows as a table. Only one batch at a time exists as Python objects."""
    arrow, waiting = import_arrow(), iter(rows)
    kinds = {"text": arrow.string(), "integer": arrow.int64(), "number": arrow.float64()}
    schema = arrow.schema({name: kinds[kind] for name, kind in types.items()})
    batches = []
    while batch := list(islice(waiting, BATCH_ROWS)):
        batches.append(arrow.RecordBatch.from_pylist(batch, schema))
    table: pyarrow.Table = arrow.Table.from_batches(batches, schema)
    return table
