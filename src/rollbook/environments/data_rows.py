"""Rows of the user's data files, read as a stream: JSON Lines, CSV, Parquet, Hugging Face datasets.

Every mistake is reported with file and line. `PromptTemplate` fills a prompt from the fields of a row: a text file in
which {field} stands for that field.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import count
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import parse_qsl

import msgspec

from rollbook.core import JSON, Message, Task, decode, encode
from rollbook.errors import UsageError

_FIELD = re.compile(r"\{\{|\}\}|\{([A-Za-z_]\w*(?:\.\w+)*)\}")


class PromptTemplate(msgspec.Struct, frozen=True):
    """The text of a template. Only {name} and {name.inner} are filled in; \\boxed{} is left alone, {{x}} gives {x}."""

    path: str
    text: str

    @classmethod
    def read(cls, path: str) -> PromptTemplate:
        """The template of a file; a UsageError says what is wrong with it."""
        try:
            text = Path(path).read_bytes().decode("utf-8-sig")
        except OSError as error:
            raise UsageError(f"--prompt-template {path}: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise UsageError(f"--prompt-template {path}: not UTF-8 (byte {error.start + 1})") from None
        if not any(match[1] for match in _FIELD.finditer(text)):
            raise UsageError(f"--prompt-template {path}: names no field; write {{question}} where the question goes")
        return cls(path, text.rstrip("\n"))

    def fill(self, values: Mapping[str, JSON], where: str) -> str:
        """The prompt of a row; a field that the row lacks is a UsageError that names the row.

        >>> PromptTemplate("t", "Q: {question} Put it in \\\\boxed{}.").fill({"question": "1 + 1?"}, "rows.jsonl:1")
        'Q: 1 + 1? Put it in \\\\boxed{}.'
        """

        def value(match: re.Match[str]) -> str:
            return match[0][0] if match[1] is None else self._field_text(match[1], values, where)

        return _FIELD.sub(value, self.text)

    def _field_text(self, name: str, values: Mapping[str, JSON], where: str) -> str:
        found: JSON = values
        for part in name.split("."):
            if not isinstance(found, Mapping) or found.get(part) is None:
                has = ", ".join(values) or "nothing"
                raise UsageError(f"{where}: no {name!r}, which {self.path} asks for; it has: {has}")
            found = found[part]
        return found if isinstance(found, str) else encode(found).decode()


PROMPT_FIELDS = ("messages", "prompt", "question", "problem")
ANSWER_FIELDS = ("answer", "expected_answer")
OTHER_PROMPT_FIELDS = ("Problem", "Question")
OTHER_ANSWER_FIELDS = ("Answer",)
ID_FIELDS = ("id", "unique_id", "uuid", "task_id", "ID")
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
GYM_PROMPT = "responses_create_params"
"""Where rows of NeMo Gym have what the model is shown: under `input`."""

ROW_BYTES = 128 << 20
"""The largest row: hidden tests of LiveCodeBench come to tens of megabytes; beyond, a file has lost its line ends."""


class DataRow(msgspec.Struct, frozen=True):
    """One object of a file, and where it stands."""

    path: str
    line: int
    values: dict[str, JSON]

    @property
    def where(self) -> str:
        """The place of this row, as every message about it begins."""
        return f"{self.path}:{self.line}"

    @property
    def id(self) -> str:
        """Its own `id` (or unique_id, uuid, task_id), else the name of the file and the number of the line."""
        given = self.first(*ID_FIELDS)
        return f"{_file_stem(self.path)}-{self.line}" if given is None else str(self.values[given])

    def first(self, *names: str) -> str | None:
        """The first of these fields that the row has."""
        return next((name for name in names if self.values.get(name) is not None), None)

    def decode_field(self, name: str | None) -> JSON:
        """A field that may be written as text of JSON, as lists are in cells of a CSV file."""
        return None if name is None else decode_text(self.values[name])

    @property
    def field_names(self) -> str:
        """The names of its fields, for messages about those that it lacks."""
        return ", ".join(self.values) or "nothing"

    def task(self, instruction: str = "", template: PromptTemplate | None = None) -> Task:
        """The task of a row: a prompt, an answer if there is one, everything else kept as fields.

        `instruction` is put after a prompt that is text; messages are taken as they are. A template makes the whole
        prompt instead.
        """
        answered = self.first(*ANSWER_FIELDS, *OTHER_ANSWER_FIELDS)
        if template is not None:
            asked, task = None, Task(self.id, template.fill(self.values, self.where))
        else:
            asked = self.first(GYM_PROMPT, *PROMPT_FIELDS, *OTHER_PROMPT_FIELDS)
            if asked is None:
                raise UsageError(f"{self.where}: no {' / '.join(PROMPT_FIELDS)}; it has: {self.field_names}")
            task = self._make_task(asked, instruction)
        task.answer = self.values[answered] if answered else None
        task.fields = {k: v for k, v in self.values.items() if k not in ("id", asked, answered)}
        return task

    def _make_task(self, asked: str, instruction: str) -> Task:
        value = self.values[asked]
        if asked == GYM_PROMPT:
            value = _gym_messages(value) if isinstance(value, dict) else None
            asked = f"{GYM_PROMPT}.input"
        if isinstance(value, str) and value.strip():
            return Task(self.id, f"{value}\n\n{instruction}" if instruction else value)
        if not isinstance(value, list) or not value:
            raise UsageError(f"{self.where}: {asked} must be text or a list of messages, and not empty")
        try:
            task = Task(self.id, messages=value)
        except msgspec.ValidationError as error:
            raise UsageError(f"{self.where}: {asked}: {error}") from None
        if (wrong := _find_message_error(task.messages)) is not None:
            raise UsageError(f"{self.where}: {asked}: {wrong}")
        return task


@cache
def _file_stem(path: str) -> str:
    return Path(path.partition("?")[0]).name.split(".")[0]


def _find_message_error(messages: list[Message]) -> str | None:
    """What keeps messages from being asked."""
    role = next((m.role for m in messages if m.role not in ROLES), None)
    if role is not None:
        return f"unknown role {role!r}; give one of {', '.join(ROLES)}"
    bare = next((n for n, m in enumerate(messages, 1) if m.content is None and not m.tool_calls), None)
    if bare is not None:
        return f"message {bare} has no content"
    return None if any(m.content for m in messages) else "all messages are empty"


def decode_text(value: JSON) -> JSON:
    """A value that may be written as text of JSON; other text is itself."""
    if not isinstance(value, str):
        return value
    try:
        return decode(value)
    except (msgspec.DecodeError, RecursionError):
        return value


def _gym_messages(params: dict[str, JSON]) -> JSON:
    """What a row of Gym shows the model, as chat messages: its parts of text as text, its instructions first."""
    given, first = params.get("input"), params.get("instructions")
    items = [{"role": "user", "content": given}] if isinstance(given, str) and first else given
    if not isinstance(items, list):
        return items
    shown = [
        {**item, "content": _join_text_parts(item.get("content"))} if isinstance(item, dict) else item for item in items
    ]
    return [{"role": "system", "content": str(first)}, *shown] if first else shown


def _join_text_parts(content: JSON) -> JSON:
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        return content
    if any(part.get("type") not in ("input_text", "output_text", "text") for part in content):
        return content
    return "".join(str(part.get("text", "")) for part in content)


def rows(path: str | Path) -> Iterator[DataRow]:
    """The rows of a file or of `hf://org/name`, one at a time; one without any is a UsageError."""

    row, records = None, open_table(str(path))
    try:
        for row in records or _read_json_lines(Path(path)):
            yield row
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"{path}: cannot be read: {reason}") from None
    if row is None:
        raise UsageError(f"{path}: holds no rows{'' if records else '; put one JSON object on each line'}")


def read_tasks(
    path: str | Path, template: str | None, make_task: Callable[[DataRow, PromptTemplate | None], Task]
) -> Iterator[Task]:
    """Yield the task of each row of a file, in order; `template` is the path of a prompt template, if there is one."""
    prompt = PromptTemplate.read(template) if template else None
    for row in rows(path):
        yield make_task(row, prompt)


def _read_json_lines(path: Path) -> Iterator[DataRow]:
    """The rows of a JSON Lines file (`.gz` too); blank lines are skipped."""
    with _open_binary(path) as stream:
        for number in count(1):
            line = stream.readline(ROW_BYTES + 1)
            if not line:
                return
            if len(line) > ROW_BYTES:
                raise UsageError(f"{path}:{number}: a row of more than {ROW_BYTES >> 20} MiB; is it one object a line?")
            if line.strip():
                yield _parse_row(str(path), number, line)


def _open_binary(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _parse_row(path: str, number: int, line: bytes) -> DataRow:
    try:
        value = decode(line.removeprefix(b"\xef\xbb\xbf").decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}:{number}: not UTF-8 (byte {error.start + 1}); save the file as UTF-8") from None
    except msgspec.DecodeError as error:
        raise UsageError(f"{path}:{number}: not JSON: {_describe_lone_surrogate(line) or error}") from None
    except RecursionError:
        raise UsageError(f"{path}:{number}: nested too deeply to be read") from None
    if not isinstance(value, dict):
        raise UsageError(f"{path}:{number}: a JSON object is needed, this is {type(value).__name__}")
    return DataRow(path, number, value)


def _describe_lone_surrogate(line: bytes) -> str | None:
    """Words for a lone surrogate: the decoder calls it truncated data, which sends people looking for another thing."""
    try:
        json.dumps(json.loads(line), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = ord(error.object[error.start])
        return f"\\u{half:x} is half a character (a lone surrogate); write the pair, or remove it"
    except (ValueError, RecursionError):
        return None
    return None


HUB_SCHEME = "hf://"
BATCH_ROWS = 256
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_HUB_OPTIONS = ("split", "config", "revision")


def open_table(path: str) -> Iterator[DataRow] | None:
    """The rows of a path by what it is called; None for JSON Lines."""
    if path.startswith(HUB_SCHEME):
        return read_hub(path)
    suffix = Path(path.removesuffix(".gz")).suffix.lower()
    if suffix in _DELIMITERS:
        return read_csv(path, _DELIMITERS[suffix])
    return read_parquet(path) if suffix == ".parquet" else None


def read_csv(path: str, delimiter: str) -> Iterator[DataRow]:
    """The lines of a CSV file under the names of its first one; every value is text, an empty one is not there."""
    csv.field_size_limit(ROW_BYTES)
    with _open_text(path) as stream:
        lines = csv.reader(stream, delimiter=delimiter, strict=True)
        try:
            names = next(lines, [])
            _check_names(path, names)
            cells = None
            for cells in filter(None, lines):
                yield DataRow(path, lines.line_num, _name_cells(path, lines.line_num, names, cells))
            if cells is None:
                raise UsageError(f"{path}: holds no rows; put them below a first line that names the columns")
        except csv.Error as error:
            raise UsageError(f"{path}:{lines.line_num}: not CSV: {error}") from None
        except UnicodeDecodeError as error:
            where = f"after line {lines.line_num}"
            raise UsageError(f"{path}: not UTF-8 {where} ({error.reason}); save the file as UTF-8") from None


def _open_text(path: str) -> IO[str]:
    if path.endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return open(path, encoding="utf-8-sig", newline="")


def _check_names(path: str, names: list[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{path}:1: two columns are called {twice!r}; the first line must name each column once")


def _name_cells(path: str, number: int, names: list[str], cells: list[str]) -> dict[str, JSON]:
    if len(cells) != len(names):
        raise UsageError(f"{path}:{number}: {len(cells)} cells under {len(names)} columns; quote cells with commas")
    return {name: cell for name, cell in zip(names, cells, strict=True) if cell != ""}


def read_parquet(path: str) -> Iterator[DataRow]:
    """The rows of a Parquet file, a batch at a time."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(f"{path} needs a package ({error}); pip install 'rollbook[parquet]'") from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                for values in batch.to_pylist():
                    number += 1
                    yield DataRow(path, number, _as_json(values, f"{path}:{number}"))
    except pyarrow.ArrowInvalid as error:
        raise UsageError(f"{path}: not a Parquet file: {str(error).splitlines()[0]}") from None


def read_hub(path: str) -> Iterator[DataRow]:
    """The rows of hf://org/name?split=test&config=main, streamed by the package `datasets`."""
    name, options = parse_hub_path(path)
    try:
        import datasets
    except ImportError as error:
        raise UsageError(f"{path} needs a package ({error}); pip install 'rollbook[hf]'") from None
    for number, values in enumerate(_stream_split(datasets, path, name, options), 1):
        yield DataRow(path, number, _as_json(values, f"{path}:{number}"))


def _stream_split(datasets: Any, path: str, name: str, options: dict[str, str]) -> Iterator[dict[str, JSON]]:
    """What goes wrong with a hub is many things; each is told in one line."""
    config, revision = options.get("config"), options.get("revision")
    try:
        found = datasets.load_dataset(name, config, streaming=True, revision=revision)
        splits = {str(split): rows for split, rows in found.items()}
        yield from splits[_pick_split(path, list(splits), options.get("split"))]
    except (UsageError, GeneratorExit):
        raise
    except Exception as error:
        words = " ".join(str(error).split())[:300]
        raise UsageError(f"{path}: cannot be read: {type(error).__name__}: {words}") from error


def parse_hub_path(path: str) -> tuple[str, dict[str, str]]:
    """The name of a dataset, and which part of it.

    >>> parse_hub_path("hf://openai/gsm8k?config=main&split=test")
    ('openai/gsm8k', {'config': 'main', 'split': 'test'})
    """
    name, _, query = path.removeprefix(HUB_SCHEME).partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    unknown = next((key for key in options if key not in _HUB_OPTIONS), None)
    if not name or unknown is not None:
        what = f"unknown {unknown!r}" if name else "no name"
        raise UsageError(f"--data {path}: {what}; write hf://org/name?split=test&config=main")
    return name, options


def _pick_split(path: str, splits: list[str], wanted: str | None) -> str:
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
