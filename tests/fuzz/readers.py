"""What is fuzzed: functions that read what others wrote, each with examples of what it should read.

A reader may refuse its input with a RollbookError, which is one clear line; functions on a model's text refuse nothing.
Anything else that it raises is a crash. Readers of checksummed data check themselves that nothing changed is accepted.
"""

from __future__ import annotations

import json
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypeVar

import msgspec

from fuzz.cases import write_record
from fuzz.record_cases import agree
from rollbook.agents.tool_formats import read_calls
from rollbook.book import Book, LineReader, digest_source, is_source_edited, read_presences, verify_run
from rollbook.book.leases import _read_lease
from rollbook.book.seals import read_seal
from rollbook.core import (
    JSON_ERRORS,
    EnvironmentSpec,
    Extent,
    Lease,
    Message,
    Seal,
    Turn,
    add_crc,
    encode,
    encode_record,
)
from rollbook.engine.blends import read_blend
from rollbook.environments import import_closure
from rollbook.environments.answers.choices import read_letter
from rollbook.environments.answers.comparison import is_same_answer, parse_number
from rollbook.environments.answers.extraction import extract_answer, extract_math_answer, find_last_number, last_block
from rollbook.environments.harbor import find_refusals, read_task
from rollbook.environments.harbor.rewards import parse_json, parse_text
from rollbook.errors import RollbookError
from rollbook.gym.responses import read_response
from rollbook.gym.rows import read_task as read_gym_task
from rollbook.models.chat_protocol import read_answer
from rollbook.models.responses_api import read_create_params, read_items, read_output
from rollbook.reports import make_report
from rollbook.stats.row_selection import Expression, rename_columns
from rollbook.tokens.sidecar import decode_tokens, encode_tokens

T = TypeVar("T")
GOLDEN = Path(__file__).parents[1] / "golden" / "book2"


class Reader(NamedTuple):
    """A function that is fuzzed, and examples of its input."""

    read: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    refuses: bool = True
    """Whether it may raise a RollbookError."""
    by_value: bool = False
    """Whether values of its JSON are changed, not bytes: a checksum that is right for the change is added."""


class Line(msgspec.Struct):
    """A journal line with little in it."""

    task: str
    reward: float


LINES = [Line("a", 1.0), Line("b", 0.0), Line("ü\n", 0.5)]
JOURNAL = b"".join(add_crc(msgspec.json.encode(line)) + b"\n" for line in LINES)
CHAT = {
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "4"}}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}},
}
TOKENS = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}
ITEMS = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    {"type": "function_call", "call_id": "c", "name": "add", "arguments": '{"a": 1}'},
    {"type": "function_call_output", "call_id": "c", "output": "3"},
    {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "so"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "3", "annotations": []}]},
]
PARAMS = {"input": ITEMS, "temperature": 0.5, "tools": [{"type": "function", "name": "add", "parameters": {}}]}
RESPONSE = {"id": "r", "output": ITEMS[4:], "usage": {"input_tokens": 1, "output_tokens": 2}, "status": "completed"}
TASK_TOML = b"""
version = "1.0"
[agent]
timeout_sec = 30.0
[verifier]
timeout_sec = 10
[environment]
cpus = 1
memory_mb = 256
storage_mb = 512
network_mode = "no-network"
"""
TEXTS = tuple(
    text.encode()
    for text in (
        "The answer is #### 42",
        r"So $x = \frac{3}{4}$, that is \boxed{\frac{3}{4}}.",
        "<think>maybe 3</think>**Answer:** (B) 1,234.5%",
        "```python\ndef f():\n    return 1\n```",
        "<answer>-1.5e3</answer>",
        r"\boxed{\sqrt[3]{2}+\text{ or }\{1,2\}}",
        "x^{2}+2x+1 = (x+1)^2",
    )
)


def decode_json(data: bytes) -> object:
    """Return the value of JSON text; what is none is its own text, so that every input reaches the reader."""
    try:
        return msgspec.json.decode(data)
    except JSON_ERRORS:
        return data.decode(errors="replace")


def from_file(read: Callable[[Path], object], name: str) -> Callable[[bytes], object]:
    """Return a reader of bytes for one of a file."""

    def call(data: bytes) -> object:
        with TemporaryDirectory(prefix="rollbook-fuzz-") as folder:
            path = Path(folder, name)
            path.write_bytes(data)
            return read(path)

    return call


def has_right_crc(data: bytes) -> bool:
    """Whether the checksum at the end of an object is right; a fuzzer that follows comparisons can find such ones."""
    found = re.fullmatch(rb'(.*),\s*"crc":\s*"(\w{8})"\s*}\s*', data, re.DOTALL)
    return found is not None and b"%08x" % zlib.crc32(found[1]) == found[2]


def read_journal(path: Path) -> None:
    """Read a journal; a line that was never written must not come out of it."""
    data = path.read_bytes()
    for end, line in LineReader(Line, 2).read(path):
        raw = data[:end].rstrip(b"\n").rpartition(b"\n")[2]
        assert line in LINES or has_right_crc(raw), f"a changed line was accepted: {line}"


def read_same(read: Callable[[Path], T], original: T) -> Callable[[Path], T]:
    """Return a reader of a file with a checksum: as long as it has one, no other value may come out of it."""

    def call(path: Path) -> T:
        value = read(path)
        data = path.read_bytes()
        is_checked = b'"crc"' in data[-32:]  # files of earlier versions have none
        assert not is_checked or value == original or has_right_crc(data), f"a changed file was accepted: {value}"
        return value

    return call


def in_run(name: str) -> Callable[[bytes], object]:
    """Return a reader that opens the golden run with another content of one file, as far as a start does."""

    def call(data: bytes) -> None:
        with TemporaryDirectory(prefix="rollbook-fuzz-") as folder:
            for each in ("run.json", "tasks.jsonl", "plan.json", "rounds/0001.json"):
                path = Path(folder, each)
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(data if each == name else RUN_FILES[each])
            book = Book(folder)
            book.last_settings()
            for row in range(len(book.tasks)):
                book.tasks.read(row)
            book.check_meaning()

    return call


def in_whole_run(name: str) -> Callable[[bytes], object]:
    """Return a reader of the golden run with another content of one file, whose checksum is right for it."""

    def call(data: bytes) -> object:
        value = decode_json(data)
        with TemporaryDirectory(prefix="rollbook-fuzz-") as folder:
            run = Path(folder, "run")
            shutil.copytree(GOLDEN, run)
            if isinstance(value, dict) and value:
                value.pop("crc", None)
                data = write_record(value)
            (run / name).write_bytes(data)
            if name == "run.json":
                agree(run, data)
            Book(run).check_meaning()
            report = make_report(run)
            counted = report.scored + sum(report.failed.values()) + report.pending
            assert report.requested == counted, f"{report.requested} rollouts are requested, {counted} counted"
            return verify_run(run)

    return call


def read_snapshot(path: Path) -> None:
    """Read the source of an environment: which files it imports, and whether it is as it was planned.

    It is never imported: what it does is up to its author.
    """
    folder = path.parent
    (folder / "helper.py").write_bytes(HELPER)
    found = import_closure(folder, path)
    assert path in found
    spec = EnvironmentSpec("x", "sums:Sums", {}, digest=SNAPSHOT_DIGEST, snapshot=".")
    assert is_source_edited(folder, spec) == (path.read_bytes() != SOURCE), "a changed snapshot was accepted"


def digest_snapshot() -> str:
    """Return the digest of the source that is fuzzed."""
    with TemporaryDirectory(prefix="rollbook-fuzz-") as folder:
        files = {"sums.py": SOURCE, "helper.py": HELPER}
        for name, data in files.items():
            Path(folder, name).write_bytes(data)
        return digest_source(Path(folder))


def read_worker(data: bytes) -> object:
    """Read the heartbeat of a worker."""
    with TemporaryDirectory(prefix="rollbook-fuzz-") as folder:
        Path(folder, "workers").mkdir()
        Path(folder, "workers", "w.json").write_bytes(data)
        return read_presences(Path(folder))


def read_harbor_task(path: Path) -> object:
    """Read a task folder as far as a run does before its start."""
    return find_refusals(read_task(path.parent), allow_network=False)


def read_tokens(data: bytes) -> None:
    """Read a token record; ids that were never written must not come out of it."""
    found = decode_tokens(data, [1, 2])
    assert found == ([1, 2, 3], [4, 5], [-0.5, -1.0]), f"a changed record was accepted: {found}"


def read_turns(data: bytes) -> None:
    """Read the items of an answer; no token id that comes out of them is negative."""
    for turn in read_output(decode_json(data))[1]:
        ids = [*(turn.prompt_ids or ()), *(turn.ids or ())]
        assert all(type(each) is int and each >= 0 for each in ids), f"ids that no tokenizer has: {ids}"


def read_gym_row(data: bytes) -> object:
    """Read a row, which is an object: its file was decoded before."""
    row = decode_json(data)
    return read_gym_task(row if isinstance(row, dict) else {"responses_create_params": row})


def select_row(text: str) -> bool:
    """Read an expression and use it."""
    return Expression(text).matches(ROW)


def read_chat_answer(data: bytes) -> None:
    """Read an answer and what its server counted; what is believed is a number of tokens, or unknown."""
    usage = read_answer(data)[0].usage
    for count in (*usage.read_counts(), usage.read_cached()) if usage else ():
        assert count is None or (type(count) is int and count >= 0), f"{count} tokens are believed"


def compare_answers(data: bytes) -> object:
    """Compare two answers, one a line."""
    given, _, expected = data.decode(errors="replace").partition("\n")
    return is_same_answer(given, expected), is_same_answer(expected, given)


def on_text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: read(data.decode(errors="replace"))


def on_json(read: Callable[..., object]) -> Callable[[bytes], object]:
    return lambda data: read(decode_json(data))


def dump(*values: object) -> tuple[bytes, ...]:
    return tuple(json.dumps(value).encode() for value in values)


SEAL = Seal(1, 2, 2, {"model_timeout": 1}, 0, {"w.1.jsonl": Extent(9, "00")})
LEASE = Lease("host-1-2", 1)
RUN_FILES = {
    name: (GOLDEN / name).read_bytes() for name in ("run.json", "tasks.jsonl", "plan.json", "rounds/0001.json")
}
HELPER = b"import os\n"
SOURCE = b"""from rollbook import Environment
from . import helper
import sums.other as other


class Sums(Environment):
    def verify(self, task, rollout):
        from helper import os
        return "\xc3\xbc" in rollout.text
"""
SNAPSHOT_DIGEST = digest_snapshot()
BLEND = b"""tasks: 10
roles:
  judge: http://localhost:1/v1
environments:
  - env: gsm8k
    weight: 2
    samples: 4
  - env: reasoning_gym:chain_sum?min_terms=2
    name: sums
    limits: {max_turns: 3}
"""
WORKER = b'{"id":"w","host":"h","boot":"b","namespace":"n","pid":1,"born":"2","counter":3}'
TURN = Turn(prompt_ids=[1, 2, 3], ids=[4, 5], logprobs=[-0.5, -1.0])
RECORD = encode_tokens(TURN, [1, 2])
ROW = rename_columns({"mean": 0.5, "n": 8, "std": 0.0, "pass@4": 0.9, "level": 3, "majority": "42"})
OPTIONS = {"A": "one", "B": "two", "C": "three"}

READERS: dict[str, Reader] = {
    "journal": Reader(from_file(read_journal, "w.1.jsonl"), (JOURNAL, JOURNAL[:-5])),
    "seal": Reader(from_file(read_same(read_seal, SEAL), "00001"), (encode_record(SEAL), encode(SEAL))),
    "lease": Reader(from_file(read_same(_read_lease, LEASE), "00001.1"), (add_crc(encode(LEASE)), encode(LEASE))),
    "worker": Reader(read_worker, (WORKER,)),
    "run.json": Reader(in_run("run.json"), (RUN_FILES["run.json"],)),
    "tasks.jsonl": Reader(in_run("tasks.jsonl"), (RUN_FILES["tasks.jsonl"],)),
    "plan.json": Reader(in_run("plan.json"), (RUN_FILES["plan.json"],)),
    "round": Reader(in_run("rounds/0001.json"), (RUN_FILES["rounds/0001.json"],)),
    "run.json with a right checksum": Reader(in_whole_run("run.json"), (RUN_FILES["run.json"],), by_value=True),
    "plan.json with a right checksum": Reader(in_whole_run("plan.json"), (RUN_FILES["plan.json"],), by_value=True),
    "round with a right checksum": Reader(
        in_whole_run("rounds/0001.json"), (RUN_FILES["rounds/0001.json"],), by_value=True
    ),
    "snapshot": Reader(from_file(read_snapshot, "sums.py"), (SOURCE,)),
    "blend": Reader(from_file(read_blend, "blend.yaml"), (BLEND,)),
    "token record": Reader(read_tokens, (RECORD,)),
    "curate expression": Reader(
        on_text(select_row),
        (b"0 < mean < 1 and pass_4 >= 0.5", b"not (std == 0) or level in (1, 3)", b'"4" in majority'),
    ),
    "chat answer": Reader(read_chat_answer, dump(CHAT, {"error": {"message": "no"}})),
    "responses items": Reader(on_json(read_items), dump(ITEMS, "hello")),
    "responses output": Reader(read_turns, dump(ITEMS[4:], ITEMS[1:2], [ITEMS[4] | TOKENS])),
    "responses request": Reader(on_json(read_create_params), dump(PARAMS)),
    "gym response": Reader(on_json(read_response), dump(RESPONSE)),
    "gym row": Reader(read_gym_row, dump({"responses_create_params": PARAMS, "expected_answer": "3"})),
    "harbor task": Reader(from_file(read_harbor_task, "task.toml"), (TASK_TOML,)),
    "harbor rewards": Reader(on_text(parse_json), dump({"reward": 1.0}, {"a": 0, "b": 1})),
    "harbor reward text": Reader(on_text(parse_text), (b"1", b"0.5\n")),
    "tool calls": Reader(
        lambda data: read_calls(Message("assistant", data.decode(errors="replace")), 0),
        (b'I add. {"calls": [{"name": "add", "arguments": {"a": 1}}]}', b'{"answer": "42"}'),
        refuses=False,
    ),
    "answer": Reader(on_text(extract_answer), TEXTS, refuses=False),
    "math answer": Reader(on_text(extract_math_answer), TEXTS, refuses=False),
    "last number": Reader(on_text(find_last_number), TEXTS, refuses=False),
    "number": Reader(on_text(parse_number), (b"1,234.5%", b"-3/4", b"2e10", b"1 million"), refuses=False),
    "code block": Reader(on_text(last_block), TEXTS, refuses=False),
    "letter": Reader(on_text(lambda text: read_letter(text, OPTIONS, lenient=True)), TEXTS, refuses=False),
    "comparison": Reader(compare_answers, tuple(b"%b\n%b" % (a, b) for a in TEXTS for b in TEXTS[:3]), refuses=False),
}


def is_refusal(reader: Reader, error: BaseException) -> bool:
    """Return whether an error is the reader's way to refuse its input: one line."""
    return reader.refuses and isinstance(error, RollbookError)


def list_seeds() -> Iterator[tuple[str, bytes]]:
    """Yield every example with the name of its reader."""
    for name, reader in READERS.items():
        for seed in reader.seeds:
            yield name, seed
