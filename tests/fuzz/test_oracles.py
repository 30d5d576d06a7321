"""Cases with a known result find readers that return wrong values, and find nothing in ours."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import msgspec
import pytest

from fuzz import answer_cases, book_cases, checksum_cases, config_cases, message_cases, score_cases
from fuzz.cases import Case
from fuzz.fuzzer import fuzz_cases
from fuzz.oracles import CASES, try_case
from rollbook.book import book, counted_lines, json_lines
from rollbook.core import checksums, manifest
from rollbook.environments.answers import comparison
from rollbook.errors import TokenError, UsageError
from rollbook.models import responses_api
from rollbook.models.chat_protocol import AnswerUsage
from rollbook.stats import row_selection
from rollbook.tokens import sidecar

ENOUGH = 400
"""Cases of each kind within which a wrong reader must be found: `make fuzz` tries more of each in its default time."""

Read = Callable[..., Any]


def always(value: object) -> Callable[[Read], Read]:
    """Return a constant."""
    return lambda read: lambda *args, **more: value


def after(change: Callable[[Any], Any]) -> Callable[[Read], Read]:
    """Return something else wherever the reader returns anything."""
    return lambda read: lambda *args, **more: None if (value := read(*args, **more)) is None else change(value)


def before(change: Callable[[Any], Any]) -> Callable[[Read], Read]:
    """Read something else than was given."""
    return lambda read: lambda first, *args, **more: read(change(first), *args, **more)


def alter(**changes: Callable[[Any], Any]) -> Callable[[Read], Read]:
    """Return the struct that was read with other values."""

    def change(value: Any) -> Any:
        return msgspec.structs.replace(value, **{name: make(getattr(value, name)) for name, make in changes.items()})

    return after(change)


def without_sign(text: str) -> str:
    return text.lstrip("-")


def without_first(values: Any) -> Any:
    return values[1:]


def one_more(number: Any) -> Any:
    return number + 1


def without_first_message(found: tuple[list[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
    return found[0][1:], found[1]


def count_more(turns: list[Any]) -> list[Any]:
    return [msgspec.structs.replace(turn, prompt_tokens=turn.prompt_tokens + 1) for turn in turns]


def negate(value: dict[str, float]) -> dict[str, float]:
    return {name: -number for name, number in value.items()}


def accept_negative(read: Read) -> Read:
    """Return a reader of token fields that takes a negative id for the same one without its sign."""

    def accept(item: dict[str, Any], where: str) -> Any:
        ids = item["prompt_token_ids"]
        is_list = isinstance(ids, list) and all(type(each) is int for each in ids)
        return read({**item, "prompt_token_ids": [*map(abs, ids)]} if is_list else item, where)

    return accept


def compare_end(line: bytes) -> bool:
    """Compare the last two digits of the checksum of a line."""
    return zlib.crc32(line[: -checksums.CRC_BYTES]) & 255 == int(line[-4:-2], 16)


def compare_byte(record: bytes) -> None:
    """Compare the last two digits of the checksum of a token record."""
    crc = zlib.crc32(record[17:], zlib.crc32(record[:13]))
    if crc & 255 != record[13]:
        raise TokenError("its checksum does not match")


def compare_start(data: bytes) -> bool:
    """Compare the first two digits of the checksum of a file."""
    body, _, end = data.rpartition(b",")
    return b'"crc"' not in end or (b"%08x" % zlib.crc32(body))[:2] == end.split(b'"')[-2][:2]


BROKEN: list[tuple[str, ModuleType, str, Callable[[Read], Read]]] = [
    ("number", answer_cases, "parse_number", after(abs)),
    ("number", answer_cases, "parse_number", always(Fraction(1))),
    ("number", answer_cases, "canonicalize", after(without_sign)),
    ("no number", answer_cases, "parse_number", always(Fraction(2))),
    ("last number", answer_cases, "find_last_number", before(lambda text: text[: len(text) // 2])),
    (
        "number",
        comparison,
        "_improper_fraction",
        lambda read: lambda mixed: f"{int(mixed[1].replace(',', '')) + int(mixed[2])}/{mixed[3]}",
    ),
    ("answer", answer_cases, "extract_answer", always("42")),
    ("answer", answer_cases, "extract_answer", after(without_sign)),
    ("answer", answer_cases, "extract_answer", after(without_first)),
    ("answer", answer_cases, "extract_answer", before(lambda text: text.replace("####", ""))),
    ("boxed expression", answer_cases, "find_boxed", after(lambda text: text.partition("}")[0])),
    ("math answer", answer_cases, "extract_math_answer", before(lambda text: text.replace("</think>", ""))),
    ("marked number", answer_cases, "extract_math_answer", after(without_sign)),
    ("answer tags", answer_cases, "find_tagged", after(without_first)),
    ("thoughts", answer_cases, "strip_thinking", after(lambda text: text[:-1])),
    ("code block", answer_cases, "last_block", after(lambda text: text.lstrip())),
    ("letter", answer_cases, "read_letter", always("A")),
    ("comparison", answer_cases, "is_same_answer", always(True)),
    ("comparison", answer_cases, "is_same_answer", before(without_sign)),
    ("comparison", answer_cases, "is_equal", always(False)),
    ("units", answer_cases, "is_same_answer", always(True)),
    ("units", answer_cases, "is_same_answer", before(lambda text: text.rstrip("%"))),
    ("hedge", answer_cases, "is_same_answer", before(lambda text: text.removeprefix("not ").partition(" or ")[0])),
    ("algebra", answer_cases, "is_same_answer", before(without_sign)),
    ("tool calls", answer_cases, "read_calls", alter(tool_calls=lambda calls: calls and calls[1:])),
    ("said answer", answer_cases, "read_calls", alter(content=lambda text: text and text.strip())),
    ("reward text", score_cases, "parse_text", after(negate)),
    ("reward json", score_cases, "parse_json", after(lambda rewards: dict(list(rewards.items())[1:]))),
    ("invalid reward", score_cases, "parse_text", always({"reward": 0.0})),
    ("reward files", score_cases, "read_rewards", after(negate)),
    ("chosen reward", score_cases, "choose_reward", after(lambda found: (found[0], {}))),
    ("rewards of steps", score_cases, "misses_reward", always(False)),
    ("score", score_cases, "as_score", alter(reward=abs)),
    ("verified row", score_cases, "read_score", alter(reward=one_more)),
    ("failed verdict", score_cases, "read_failure", always(None)),
    ("curated rows", score_cases, "curate", before(lambda lines: lines[1:])),
    ("responses conversation", message_cases, "read_items", after(without_first)),
    ("responses items", message_cases, "read_items", after(lambda found: found[::-1])),
    ("responses output", message_cases, "read_output", after(without_first_message)),
    ("gym response", message_cases, "read_response", alter(turns=without_first)),
    ("gym response without tokens", message_cases, "read_response", alter(turns=count_more)),
    ("invalid tokens", responses_api, "read_tokens", accept_negative),
    ("responses request", message_cases, "read_create_params", alter(seed=always(0)(str))),
    ("tools", message_cases, "to_chat_tools", after(without_first)),
    ("chat answer", message_cases, "make_message", alter(reasoning=always(None)(str))),
    ("text answer", message_cases, "read_answer", after(lambda found: (*found[:2], "stop"))),
    ("chat request", message_cases, "chat_body", after(lambda body: body.replace(b'"seed":', b'"seed":1'))),
    ("sent calls", message_cases, "prepare_messages", lambda read: lambda messages: messages),
    ("gym row", message_cases, "read_gym_task", after(lambda task: type(task)("x", messages=task.messages))),
    ("unfinished answer", message_cases, "read_answer", always(None)),
    ("responses instructions", message_cases, "read_create_params", alter(messages=without_first)),
    (
        "curate condition",
        row_selection,
        "_compare_chain",
        lambda read: lambda links, values: read(links[:2], values[:3]),
    ),
    ("curate columns", score_cases, "rename_columns", after(lambda row: dict(list(row.items())[1:]))),
    ("curate buckets", score_cases, "curate", before(lambda lines: lines[:-1])),
    ("files without a checksum", book_cases, "_read_lease", alter(worker=lambda name: name.strip())),
    ("task.toml", config_cases, "read_task", alter(config=lambda config: type(config)())),
    ("size", config_cases, "parse_size_mb", after(one_more)),
    ("blend", config_cases, "task_shares", after(lambda shares: sorted(shares))),
    ("lease", book_cases, "_read_lease", alter(round=one_more)),
    ("seal", book_cases, "read_seal", alter(scored=one_more)),
    ("seal", book_cases, "read_seal", alter(files=lambda files: {})),
    ("worker", book_cases, "read_presences", after(lambda found: {})),
    ("token record", book_cases, "decode_tokens", after(lambda found: (found[0], found[1][1:], found[2]))),
    ("token record", book_cases, "decode_tokens", after(lambda found: (*found[:2], [abs(n) for n in found[2]]))),
    ("snapshot", book_cases, "import_closure", after(lambda found: set(list(found)[:1]))),
    ("snapshot", book_cases, "is_source_edited", always(False)),
    ("journal", json_lines, "is_crc_right", always(True)),
    ("journal", json_lines, "has_crc", always(False)),
    ("counted lines", json_lines, "is_crc_right", always(True)),
    ("counted lines", book_cases, "make_report", alter(pending=one_more)),
    ("counted lines", counted_lines, "Seals", lambda seals: type("NoSeals", (seals,), {"refresh": lambda self: {}})),
    ("counted lines", book_cases, "rollouts", lambda read: lambda book, tokens: read(book, tokens=False)),
    ("counted lines", counted_lines, "decode_tokens", after(lambda found: (found[0][1:], *found[1:]))),
    ("changed checksum of a line", json_lines, "is_crc_right", lambda read: compare_end),
    ("changed checksum of a file", checksums, "is_record_intact", lambda read: compare_start),
    ("changed checksum of tokens", sidecar, "_check_crc", lambda read: compare_byte),
    ("changed digest", checksum_cases, "is_source_edited", always(False)),
    ("changed digest", book, "is_manifest_edited", always(False)),
    ("changed digest", book, "are_tasks_edited", always(False)),
    ("changed digest", checksum_cases, "make_report", always(None)),
    ("changed digest", checksum_cases, "SealedExtents", lambda read: lambda run, seals: read(run, {})),
]  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_no_reader_returns_a_wrong_value(name: str) -> None:
    assert list(fuzz_cases(name, Random(name), 60)) == []


@pytest.mark.parametrize(("name", "module", "function", "spoil"), BROKEN)
def test_a_reader_that_returns_wrong_values_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, module: ModuleType, function: str, spoil: Callable[[Read], Read]
) -> None:
    monkeypatch.setattr(module, function, spoil(getattr(module, function)))
    assert next(fuzz_cases(f"known {name}", Random(7), ENOUGH), None) is not None


@pytest.mark.parametrize(
    ("owner", "method", "spoil"),
    [
        (manifest.Plan, "requested", property(lambda plan: sum(part.keys for part in plan.parts[:1]))),
        (
            manifest.Chunk,
            "__iter__",
            lambda chunk: iter([(position, 0) for position in range(chunk.start, chunk.stop)]),
        ),
        (book_cases.Book, "rounds", lambda book: []),
        (book_cases.Book, "check_meaning", lambda book: (_ for _ in ()).throw(UsageError("refused"))),
    ],
)
def test_a_book_that_is_read_wrongly_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: type, method: str, spoil: object
) -> None:
    monkeypatch.setattr(owner, method, spoil)
    assert next(fuzz_cases("known run.json, plan.json, rounds, tasks", Random(7), 60), None) is not None


@pytest.mark.parametrize(
    ("name", "owner", "method", "spoil"),
    [
        ("changed plan", manifest.Plan, "describe_damage", lambda plan: ""),
        ("changed plan", manifest, "find_repeated_part", lambda parts: 0),
        ("changed plan", manifest, "describe_unknown_schema", lambda schema: ""),
        ("changed round", book, "describe_round_damage", lambda path, found: ""),
        ("changed round", book, "find_unknown_rules", lambda rules: []),
        ("changed run.json", book.Book, "check_meaning", lambda book: None),
        ("changed run.json", book, "describe_unknown_schema", lambda schema: ""),
    ],
)
def test_a_change_that_only_the_checksum_would_refuse_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, owner: object, method: str, spoil: object
) -> None:
    monkeypatch.setattr(owner, method, spoil)
    assert next(fuzz_cases(f"known {name}", Random(7), ENOUGH), None) is not None


@pytest.mark.parametrize(
    "believe",
    [
        lambda usage: usage.prompt_tokens_details.cached_tokens,
        lambda usage: None if (count := usage.prompt_tokens_details.cached_tokens) is None else max(0, int(count)),
    ],
)
def test_an_impossible_number_of_cached_tokens_that_is_believed_is_found(
    monkeypatch: pytest.MonkeyPatch, believe: Callable[[Any], Any]
) -> None:
    monkeypatch.setattr(AnswerUsage, "read_cached", believe)
    assert next(fuzz_cases("known chat answer", Random(7), ENOUGH), None) is not None


def test_an_expression_that_is_evaluated_wrongly_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = score_cases.Expression.__call__
    monkeypatch.setattr(score_cases.Expression, "__call__", lambda self, row: whole(self, row) or None)
    for name in ("known curate condition", "known curate arithmetic"):
        assert next(fuzz_cases(name, Random(7), ENOUGH), None) is not None


def test_every_kind_of_case_is_proven_to_find_something() -> None:
    proven = {f"known {name}" for name, *_ in BROKEN}
    others = {"known curate arithmetic", "known run.json, plan.json, rounds, tasks"}
    changed = {"known changed plan", "known changed round", "known changed run.json"}
    assert proven | others | changed == set(CASES)


def test_a_finding_names_its_case_which_can_be_tried_again() -> None:
    def make(draw: Random) -> Case:
        return Case("given", draw.random(), 2.0)

    finding = try_case("x", make, 5)
    assert finding is not None
    assert "wrong value: 0.6" in finding.error
    assert finding.data == b"5"
    assert finding == try_case("x", make, 5)
    assert try_case("x", lambda draw: Case("given", 1, 1), 5) is None


def test_the_cases_are_independent_of_the_code_that_they_test() -> None:
    """What is expected is never computed by a function of the package."""
    text = Path(answer_cases.__file__).with_name("cases.py").read_text()
    assert "rollbook" not in text.replace("rollbook-fuzz", "")
