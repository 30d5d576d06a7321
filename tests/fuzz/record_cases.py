"""Changed plans, rounds and run.json with a checksum that is right for the change: what is valid must be read as it is
written, and what contradicts itself must be refused. Here no checksum helps."""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path

from fuzz.book_cases import Files, KnownRun, Object, draw_sizes, encode_value, fill_defaults, list_chunks
from fuzz.cases import Case, JSONValue, MakeCase, draw_name, write_record
from rollbook.book import Book
from rollbook.errors import RollbookError

REFUSED = "it is refused in one line"
WRONG_TYPES: tuple[JSONValue, ...] = (None, "text", [], {}, 1.5, True)


def read_or_refuse(read: Callable[[], object]) -> object:
    """Return what is read, or that it is refused."""
    try:
        return read()
    except RollbookError as error:
        return REFUSED if "\n" not in str(error) else f"a message of several lines: {error}"


def spoil_type(draw: random.Random, record: Object, names: dict[str, type]) -> None:
    """Give one of these fields a value of another type, or remove it."""
    name = draw.choice(list(names))
    wrong = [value for value in WRONG_TYPES if type(value) is not names[name]]
    if names[name] is float:
        wrong.remove(1.5) if 1.5 in wrong else None
    record[name] = draw.choice(wrong)
    if draw.random() < 0.3:
        del record[name]


def spoil_schema(draw: random.Random, record: Object) -> None:
    record["schema"] = draw.choice((0, 3, -1, 99, "2", None))


def keep_plan(draw: random.Random, plan: Object) -> None:
    """Cut the keys of a part into other chunks, or list the parts in another order."""
    part = draw.choice(plan["parts"])
    part["chunks"] = draw_sizes(draw, sum(part["chunks"]))
    draw.shuffle(plan["parts"])


def change_size(draw: random.Random, plan: Object) -> None:
    """A chunk has one rollout more or less than there are, none, or fewer than none."""
    chunks = draw.choice(plan["parts"])["chunks"]
    at = draw.randrange(len(chunks))
    wrong = draw.choice(([chunks[at] + 1], [chunks[at] - 1], [chunks[at], 0], [chunks[at] + 2, -2], []))
    chunks[at : at + 1] = wrong


def change_range(draw: random.Random, plan: Object) -> None:
    """A part begins before the first task or sample, ends after the last task, or ends before it begins."""
    part = draw.choice(plan["parts"])
    side = draw.choice(("tasks", "samples"))
    low, high = part[side]
    part[side] = draw.choice(([low - high - 1, high], [high, low], [high + 1, low]))
    if draw.random() < 0.3:
        part |= {"tasks": [part["tasks"][0], 9], "samples": [0, 1]}
    keys = (part["tasks"][1] - part["tasks"][0]) * (part["samples"][1] - part["samples"][0])
    part["chunks"] = draw_sizes(draw, abs(keys))


def repeat_keys(draw: random.Random, plan: Object) -> None:
    """Two parts have a rollout in common: it would be requested twice."""
    part = copy.deepcopy(draw.choice(plan["parts"]))
    first, end = part["tasks"]
    low, high = part["samples"]
    task, sample = draw.randrange(first, end), draw.randrange(low, high)
    extra = {"tasks": [task, task + 1], "samples": [sample, sample + 1], "chunks": [1]}
    plan["parts"].insert(draw.randrange(len(plan["parts"]) + 1), draw.choice((part, extra)))


def spoil_plan(draw: random.Random, plan: Object) -> None:
    draw.choice(
        (
            change_size,
            change_range,
            repeat_keys,
            spoil_schema,
            lambda draw, plan: spoil_type(draw, plan, {"parts": list, "schema": int}),
            lambda draw, plan: spoil_type(draw, plan["parts"][0], {"tasks": list, "samples": list, "chunks": list}),
        )
    )(draw, plan)


def make_plan(draw: random.Random) -> Case:
    with Files() as files:
        run = KnownRun(draw, files)
        plan: Object = {"schema": 2, "parts": copy.deepcopy(run.parts)}
        is_valid = draw.random() < 0.4
        (keep_plan if is_valid else spoil_plan)(draw, plan)
        files.write("plan.json", write_record(plan))

        def read() -> object:
            book = Book(files.path)
            return [encode_value(part) for part in book.plan.parts], [list(chunk) for chunk in book.chunks]

        found = read_or_refuse(read)
    return Case((run.parts, plan), found, (plan["parts"], list_chunks(plan["parts"])) if is_valid else REFUSED)


def keep_round(draw: random.Random, record: Object) -> None:
    settings = record["settings"]
    settings |= {"retry": draw.sample(("infra", "data", "all", "model_timeout"), 2), "workers": draw.randint(1, 99)}
    settings |= {"urls": [draw_name(draw)], "attempts": {"verifier_error": draw.randint(1, 9)}}


def spoil_round(draw: random.Random, record: Object) -> None:
    draw.choice(
        (
            lambda draw, record: record.update(number=record["number"] + draw.choice((-1, 1, 9))),
            lambda draw, record: record["settings"].update(
                retry=["infra", draw.choice(("model_timeoux", "", "Infra"))]
            ),
            spoil_schema,
            lambda draw, record: spoil_type(draw, record, {"number": int, "settings": dict, "started": float}),
            lambda draw, record: record["settings"].update(
                draw.choice(({"retry": "all"}, {"workers": "1"}, {"urls": 1}))
            ),
        )
    )(draw, record)


def make_round(draw: random.Random) -> Case:
    with Files() as files:
        run = KnownRun(draw, files)
        at = draw.randrange(len(run.rounds))
        written = copy.deepcopy(run.rounds)
        is_valid = draw.random() < 0.4
        (keep_round if is_valid else spoil_round)(draw, written[at])
        files.write(f"rounds/{at + 1:04}.json", write_record(written[at]))

        def read() -> object:
            rounds = Book(files.path).rounds()
            return [fill_defaults(encode_value(each), known) for each, known in zip(rounds, written, strict=True)]

        found = read_or_refuse(read)
    return Case(written[at], found, written if is_valid else REFUSED)


def keep_manifest(draw: random.Random, record: Object) -> None:
    record |= {"seed": draw.getrandbits(31), "run": draw_name(draw), "created": draw.random()}
    record["sampling"]["temperature"] = draw.random()


def spoil_manifest(draw: random.Random, record: Object) -> None:
    required = {"environments": dict, "model": dict, "sampling": dict, "samples": int, "seed": int, "limits": dict}
    draw.choice(
        (
            spoil_schema,
            lambda draw, record: spoil_type(draw, record, required),
            lambda draw, record: record["tasks"].update(bytes=record["tasks"]["bytes"] + draw.choice((-1, 1))),
            lambda draw, record: record["tasks"].update(sha256="00" * 32),
            lambda draw, record: record.update(tool_format="nativ"),
            lambda draw, record: record["environments"]["Sums"].update(draw.choice(({"target": 1}, {"args": []}))),
        )
    )(draw, record)


def make_manifest(draw: random.Random) -> Case:
    """The rounds agree with the change, or do not: then the meaning of the run was edited."""
    with Files() as files:
        run = KnownRun(draw, files)
        record = copy.deepcopy(run.manifest)
        is_valid = draw.random() < 0.5
        (keep_manifest if is_valid else spoil_manifest)(draw, record)
        data = write_record(record)
        files.write("run.json", data)
        is_agreed = draw.random() < 0.8
        if is_agreed:
            agree(files.path, data)

        def read() -> object:
            book = Book(files.path)
            book.check_meaning()
            return encode_value(book.manifest)

        found = read_or_refuse(read)
    return Case(record, found, record if is_valid and is_agreed else REFUSED)


def agree(run: Path, manifest: bytes) -> None:
    """Let the rounds of a run say that they began with this run.json."""
    for path in (run / "rounds").iterdir():
        value = json.loads(path.read_bytes())
        value.pop("crc", None)
        path.write_bytes(write_record(value | {"meaning": hashlib.sha256(manifest).hexdigest()}))


CASES: dict[str, MakeCase] = {"changed plan": make_plan, "changed round": make_round, "changed run.json": make_manifest}
