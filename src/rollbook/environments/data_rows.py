"""Rows of the user's data files, read as a stream: JSON Lines, CSV, Parquet, Hugging Face datasets.

Every mistake is reported with file and line. `PromptTemplate` makes a prompt from the fields of a row: a text file in
which {field} is replaced by that field.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import parse_qsl

import msgspec

from rollbook.core import JSON, Message, Task, decode, encode, iterate_lines
from rollbook.environments.catalogue import TEMPLATE_SCHEME, find_entry
from rollbook.errors import UsageError

_FIELD = re.compile(r"\{\{|\}\}|\{([A-Za-z_]\w*(?:\.\w+)*)\}")


class PromptTemplate(msgspec.Struct, frozen=True):
    """The text of a template. Only {name} and {name.inner} are replaced; \\boxed{} stays, {{x}} gives {x}."""

    path: str
    text: str

    @classmethod
    def read(cls, path: str) -> PromptTemplate:
        """Read a template; a UsageError says what is wrong with the file. `catalogue:NAME` is that of an entry."""
        if entry := find_entry(path.removeprefix(TEMPLATE_SCHEME)) if path.startswith(TEMPLATE_SCHEME) else None:
            return cls(path, entry.template)
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
        """Return the prompt of a row; a missing field is a UsageError that names the row.

        >>> PromptTemplate("t", "Q: {question} Put it in \\\\boxed{}.").fill({"question": "1 + 1?"}, "rows.jsonl:1")
        'Q: 1 + 1? Put it in \\\\boxed{}.'
        """

        def value(match: re.Match[str]) -> str:
            return match[0][0] if match[1] is None else self._field_text(match[1], values, where)

        return _FIELD.sub(value, self.text)

    def _field_text(self, name: str, values: Mapping[str, JSON], where: str) -> str:
        value: JSON = values
        for part in name.split("."):
            if not isinstance(value, Mapping) or value.get(part) is None:
                has = ", ".join(values) or "nothing"
                raise UsageError(f"{where}: no {name!r}, which {self.path} uses; it has: {has}")
            value = value[part]
        return value if isinstance(value, str) else encode(value).decode()


def choose_template(path: str | None, own_text: str) -> PromptTemplate:
    """Return the template of a file, or, without one, the environment's own."""
    return PromptTemplate.read(path) if path else PromptTemplate("its own template", own_text)


PROMPT_FIELDS = ("messages", "prompt", "question", "problem")
ANSWER_FIELDS = ("answer", "expected_answer")
OTHER_PROMPT_FIELDS = ("Problem", "Question")
OTHER_ANSWER_FIELDS = ("Answer",)
ID_FIELDS = ("id", "unique_id", "uuid", "task_id", "ID")
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
GYM_PROMPT = "responses_create_params"
"""The field in which rows of NeMo Gym have the prompt, under `input`."""

ROW_BYTES = 128 << 20
"""The largest row: hidden tests of LiveCodeBench take tens of megabytes; a larger row has lost its line ends."""


class DataRow(msgspec.Struct, frozen=True):
    """One row of a file, and its place."""

    path: str
    line: int
    values: dict[str, JSON]

    @property
    def where(self) -> str:
        """The place of this row; every message about it begins with this."""
        return f"{self.path}:{self.line}"

    @property
    def id(self) -> str:
        """Its own `id` (or unique_id, uuid, task_id), else the name of the file and the number of the line."""
        field = self.first(*ID_FIELDS)
        return f"{_file_stem(self.path)}-{self.line}" if field is None else str(self.values[field])

    def first(self, *names: str) -> str | None:
        """Return the first of these fields that the row has."""
        return next((name for name in names if self.values.get(name) is not None), None)

    def decode_field(self, name: str | None) -> JSON:
        """Return a field that may be JSON text, as lists are in cells of a CSV file."""
        return None if name is None else decode_text(self.values[name])

    @property
    def field_names(self) -> str:
        """The names of its fields, for messages about missing ones."""
        return ", ".join(self.values) or "nothing"

    def task(self, instruction: str = "", template: PromptTemplate | None = None) -> Task:
        """Return the task of a row: a prompt, an answer if there is one, everything else as fields.

        `instruction` is appended to a prompt that is text; messages are left as they are. With a template, the template
        makes the whole prompt.
        """
        answer_field = self.first(*ANSWER_FIELDS, *OTHER_ANSWER_FIELDS)
        if template is not None:
            prompt_field, task = None, Task(self.id, template.fill(self.values, self.where))
        else:
            prompt_field = self.first(GYM_PROMPT, *PROMPT_FIELDS, *OTHER_PROMPT_FIELDS)
            if prompt_field is None:
                raise UsageError(f"{self.where}: no {' / '.join(PROMPT_FIELDS)}; it has: {self.field_names}")
            task = self._make_task(prompt_field, instruction)
        task.answer = self.values[answer_field] if answer_field else None
        task.fields = {k: v for k, v in self.values.items() if k not in ("id", prompt_field, answer_field)}
        return task

    def _make_task(self, field: str, instruction: str) -> Task:
        value = self.values[field]
        if field == GYM_PROMPT:
            value = _gym_messages(value) if isinstance(value, dict) else None
            field = f"{GYM_PROMPT}.input"
        if isinstance(value, str) and value.strip():
            return Task(self.id, f"{value}\n\n{instruction}" if instruction else value)
        if not isinstance(value, list) or not value:
            raise UsageError(f"{self.where}: {field} must be text or a list of messages, and not empty")
        try:
            task = Task(self.id, messages=value)
        except msgspec.ValidationError as error:
            raise UsageError(f"{self.where}: {field}: {error}") from None
        if (wrong := _find_message_error(task.messages)) is not None:
            raise UsageError(f"{self.where}: {field}: {wrong}")
        return task


@cache
def _file_stem(path: str) -> str:
    return Path(path.partition("?")[0]).name.split(".")[0]


def _find_message_error(messages: list[Message]) -> str | None:
    """Return why messages cannot be a prompt, or None."""
    role = next((m.role for m in messages if m.role not in ROLES), None)
    if role is not None:
        return f"unknown role {role!r}; give one of {', '.join(ROLES)}"
    empty = next((n for n, m in enumerate(messages, 1) if m.content is None and not m.tool_calls), None)
    if empty is not None:
        return f"message {empty} has no content"
    return None if any(m.content for m in messages) else "all messages are empty"


def decode_text(value: JSON) -> JSON:
    """Decode a value that may be JSON text; return other text unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return decode(value)
    except (msgspec.DecodeError, RecursionError):
        return value


def _gym_messages(params: dict[str, JSON]) -> JSON:
    """Return the prompt of a Gym row as chat messages: text parts joined, its instructions first."""
    items, instructions = params.get("input"), params.get("instructions")
    if isinstance(items, str) and instructions:
        items = [{"role": "user", "content": items}]
    if not isinstance(items, list):
        return items
    messages = [
        {**item, "content": _join_text_parts(item.get("content"))} if isinstance(item, dict) else item for item in items
    ]
    return [{"role": "system", "content": str(instructions)}, *messages] if instructions else messages


def _join_text_parts(content: JSON) -> JSON:
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        return content
    if any(part.get("type") not in ("input_text", "output_text", "text") for part in content):
        return content
    return "".join(str(part.get("text", "")) for part in content)


def rows(path: str | Path) -> Iterator[DataRow]:
    """Yield the rows of a file or of `hf://org/name`, one at a time; a file without rows is a UsageError."""
    row, records = None, open_table(str(path))
    try:
        for row in records or _read_json_lines(Path(path)):
            yield row
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        hint = _suggest_source(str(path)) if isinstance(error, FileNotFoundError) else ""
        raise UsageError(f"{path}: cannot be read: {reason}{hint}") from None
    if row is None:
        raise UsageError(f"{path}: holds no rows{'' if records else '; put one JSON object on each line'}")


def _suggest_source(path: str) -> str:
    """Return what the user may have meant by the path of a file that does not exist."""
    if "://" in path:
        return f"; download it and give the file, or {HUB_SCHEME}org/name for a dataset on the Hugging Face hub"
    if re.fullmatch(r"[\w.-]+/[\w.-]+", path) and not Path(path.removesuffix(".gz")).suffix:
        return f"; for the dataset on the Hugging Face hub write {HUB_SCHEME}{path}"
    return ""


def read_tasks(
    path: str | Path, template: str | None, make_task: Callable[[DataRow, PromptTemplate | None], Task]
) -> Iterator[Task]:
    """Yield the task of each row of a file, in order; `template` is the path of a prompt template, if there is one."""
    prompt = PromptTemplate.read(template) if template else None
    for row in rows(path):
        yield make_task(row, prompt)


def _read_json_lines(path: Path) -> Iterator[DataRow]:
    """Yield the rows of a JSON Lines file (`.gz` too); blank lines are skipped."""
    with _open_binary(path) as stream:
        for number, _, line in iterate_lines(stream, ROW_BYTES + 1):
            if len(line) > ROW_BYTES:
                raise UsageError(f"{path}:{number}: a row of more than {ROW_BYTES >> 20} MiB; is it one object a line?")
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
    """Describe a lone surrogate: the decoder calls it truncated data, which is misleading."""
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
    """Return the rows of a path by its scheme or suffix; None for JSON Lines."""
    if path.startswith(HUB_SCHEME):
        return read_hub(path)
    suffix = Path(path.removesuffix(".gz")).suffix.lower()
    if suffix in _DELIMITERS:
        return read_csv(path, _DELIMITERS[suffix])
    return read_parquet(path) if suffix == ".parquet" else None


def read_csv(path: str, delimiter: str) -> Iterator[DataRow]:
    """Yield the rows of a CSV file, named by its first line; every value is text, empty cells are left out."""
    csv.field_size_limit(ROW_BYTES)
    open_file = gzip.open if path.endswith(".gz") else open
    with open_file(path, "rt", encoding="utf-8-sig", newline="") as stream:
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


def _check_names(path: str, names: list[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{path}:1: two columns are called {twice!r}; the first line must name each column once")


def _name_cells(path: str, number: int, names: list[str], cells: list[str]) -> dict[str, JSON]:
    if len(cells) != len(names):
        raise UsageError(f"{path}:{number}: {len(cells)} cells under {len(names)} columns; quote cells with commas")
    return {name: cell for name, cell in zip(names, cells, strict=True) if cell != ""}


def read_parquet(path: str) -> Iterator[DataRow]:
    """Yield the rows of a Parquet file, read in batches."""
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
    """Yield the rows of hf://org/name?split=test&config=main, streamed by the package `datasets`."""
    name, options = parse_hub_path(path)
    try:
        if find_spec("datasets") is None:  # its import takes a second, so the connection is tried before it
            raise ModuleNotFoundError("No module named 'datasets'")
        if not Path(name).is_dir():
            _check_hub_connection(import_module("huggingface_hub"), path)
        import datasets
    except ImportError as error:
        raise UsageError(f"{path} needs a package ({error}); pip install 'rollbook[hf]'") from None
    for number, values in enumerate(_stream_split(datasets, path, name, options), 1):
        yield DataRow(path, number, _as_json(values, f"{path}:{number}"))


HUB_CONNECT_S = 5.0
HUB_ANSWER_S = 15.0


def _check_hub_connection(hub: Any, path: str) -> None:
    """Ask the hub once, without a retry: the package itself tries a dead connection for half a minute.

    Any answer will do, an error's too. The thread bounds the look-up of the name, which takes no timeout.
    """
    failures: list[Exception] = []
    asking = threading.Thread(target=_ask_hub, args=(hub, failures), daemon=True)
    asking.start()
    asking.join(HUB_ANSWER_S)
    if asking.is_alive() or failures:
        words = (
            " ".join(str(failures[0]).split())[:200].rstrip(".") if failures else f"no answer within {HUB_ANSWER_S:g} s"
        )
        way = "check the network, or download the rows elsewhere and give them as a file"
        raise UsageError(f"{path}: cannot be read: {hub.constants.ENDPOINT} does not answer: {words}; {way}")


def _ask_hub(hub: Any, failures: list[Exception]) -> None:
    try:
        hub.get_session().head(hub.constants.ENDPOINT, timeout=HUB_CONNECT_S)
    except Exception as error:  # noqa: BLE001  the classes depend on the package's version
        failures.append(error)


def _stream_split(datasets: Any, path: str, name: str, options: dict[str, str]) -> Iterator[dict[str, JSON]]:
    """Yield the rows of one split; whatever goes wrong with the hub is a UsageError of one line."""
    config, revision = options.get("config"), options.get("revision")
    try:
        dataset = datasets.load_dataset(name, config, streaming=True, revision=revision)
        splits = {str(split): rows for split, rows in dataset.items()}
        yield from splits[_pick_split(path, list(splits), options.get("split"))]
    except (UsageError, GeneratorExit):
        raise
    except Exception as error:
        words = " ".join(str(error).split())[:300]
        raise UsageError(f"{path}: cannot be read: {type(error).__name__}: {words}") from error


def parse_hub_path(path: str) -> tuple[str, dict[str, str]]:
    """Return the name of a dataset, and which part of it is wanted.

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
    problem = f"has no split {wanted!r}" if wanted else "has several splits"
    raise UsageError(f"{path}: {problem}; give ?split= one of {', '.join(splits)}")


def _as_json(values: JSON, where: str) -> dict[str, JSON]:
    """Return a row of a table as JSON: dates as text, numbers as numbers."""
    try:
        row: dict[str, JSON] = decode(encode(values))
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise UsageError(f"{where}: cannot be stored as JSON: {error}") from None
    return row
