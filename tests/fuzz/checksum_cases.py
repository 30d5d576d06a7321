"""Checksums with one wrong digit: what they protect is as it was written, and must be refused all the same.

A change of the protected bytes changes most digits of a checksum, so that a reader which compares a few of them seems
to work. Here each digit is the only wrong one in some cases.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections.abc import Callable
from pathlib import Path

from fuzz.book_cases import (
    Files,
    KnownLines,
    KnownRun,
    Object,
    digest,
    draw_line,
    draw_tokens,
    write_line,
    write_tokens,
)
from fuzz.cases import Case, MakeCase, draw_name, draw_text, write_record
from fuzz.record_cases import REFUSED, agree, read_or_refuse
from rollbook.book import Book, LineReader, SealedExtents, is_source_edited, verify_run
from rollbook.book.leases import _read_lease
from rollbook.book.seals import read_seal
from rollbook.core import EnvironmentSpec, Extent, ScoredLine, Seal
from rollbook.reports import make_report
from rollbook.tokens.sidecar import decode_tokens

CRC_OFFSET = struct.calcsize("<BIII")
"""Where the checksum of a token record begins."""


def change_digit(draw: random.Random, digits: str) -> str:
    """Return hexadecimal digits with one of them replaced by another."""
    at = draw.randrange(len(digits))
    return digits[:at] + draw.choice([each for each in "0123456789abcdef" if each != digits[at]]) + digits[at + 1 :]


def change_crc(draw: random.Random, record: bytes) -> bytes:
    """Return a record whose checksum, the text before its last quote, has one wrong digit."""
    end = record.rindex(b'"')
    return record[: end - 8] + change_digit(draw, record[end - 8 : end].decode()).encode() + record[end:]


def make_line(draw: random.Random) -> Case:
    """A line of a journal is damaged, and the lines around it are read."""
    lines = [write_line(draw_line(draw, (0, n), 1, scored=True)) for n in range(3)]
    at = draw.randrange(3)
    given = [change_crc(draw, line) if n == at else line for n, line in enumerate(lines)]
    with Files() as files:
        reader = LineReader(ScoredLine, 2)
        found = [line.sample for _, line in reader.read(files.write("w.1.jsonl", b"".join(given)))]
        damaged = [each.number for each in reader.damaged]
    return Case(given, (found, damaged), ([n for n in range(3) if n != at], [at + 1]))


def make_file(draw: random.Random) -> Case:
    """A lease, a seal, run.json, plan.json or a round is refused."""
    lease: Object = {"worker": draw_text(draw), "round": 1}
    seal: Object = {"round": 1, "epoch": 1, "scored": 1, "failed": {}, "dropped": 0, "files": {}, "damaged": {}}
    with Files() as files:
        if draw.random() < 0.5:
            written: tuple[Object, Callable[[Path], object]] = draw.choice(((lease, _read_lease), (seal, read_seal)))
            path = files.write("file", change_crc(draw, write_record(written[0], draw.choice((2, None)))))
            return Case(path.read_bytes(), read_or_refuse(lambda: written[1](path)), REFUSED)
        KnownRun(draw, files)
        path = files.path / draw.choice(("run.json", "plan.json", "rounds/0001.json"))
        path.write_bytes(data := change_crc(draw, path.read_bytes()))
        if path.name == "run.json":
            agree(files.path, data)
        found = read_or_refuse(lambda: open_run(files.path))
        return Case((path.name, path.read_bytes()), found, REFUSED)


def open_run(path: Path) -> None:
    book = Book(path)
    book.rounds()
    book.check_meaning()


def make_tokens(draw: random.Random) -> Case:
    """A token record is refused."""
    record = write_tokens(*draw_tokens(draw, []))
    crc = bytes.fromhex(change_digit(draw, record[CRC_OFFSET : CRC_OFFSET + 4].hex()))
    changed = record[:CRC_OFFSET] + crc + record[CRC_OFFSET + 4 :]
    return Case(changed, read_or_refuse(lambda: decode_tokens(changed, [])), REFUSED)


def make_digest(draw: random.Random) -> Case:
    """The sha256 of tasks, of run.json, of sealed bytes or of an environment differs in one digit."""
    with Files() as files:
        kinds = spoil_tasks, spoil_meaning, spoil_seal, spoil_sealed_run, spoil_snapshot
        kind, read = draw.choice(kinds)(draw, files)
        return Case(kind, read_or_refuse(read), REFUSED)


def spoil_tasks(draw: random.Random, files: Files) -> tuple[str, Callable[[], object]]:
    manifest = KnownRun(draw, files).manifest
    manifest["tasks"]["sha256"] = change_digit(draw, manifest["tasks"]["sha256"])
    data = write_record(manifest)
    files.write("run.json", data)
    agree(files.path, data)
    return "tasks", lambda: open_run(files.path)


def spoil_meaning(draw: random.Random, files: Files) -> tuple[str, Callable[[], object]]:
    rounds = KnownRun(draw, files).rounds
    wrong = change_digit(draw, rounds[0]["meaning"])
    for number, each in enumerate(rounds, 1):
        files.write(f"rounds/{number:04}.json", write_record(each | {"meaning": wrong}))
    return "run.json", lambda: open_run(files.path)


def spoil_seal(draw: random.Random, files: Files) -> tuple[str, Callable[[], object]]:
    data = write_line(draw_line(draw, (0, 0), 1, scored=True))
    path = files.write("journals/w.1.jsonl", data)
    extent = Extent(len(data), change_digit(draw, hashlib.sha256(data).hexdigest()))
    seals = {1: Seal(1, 1, 1, {}, 0, {path.name: extent})}
    return "sealed bytes", lambda: SealedExtents(files.path, seals).check_read(path, len(data))


def spoil_sealed_run(draw: random.Random, files: Files) -> tuple[str, Callable[[], object]]:
    lines = KnownLines(draw, files, KnownRun(draw, files))
    seals = [(path, json.loads(path.read_bytes())) for path in sorted(files.path.glob("done/*.json"))]
    if not seals:
        return spoil_seal(draw, files)
    path, seal = draw.choice(seals)
    name = draw.choice([name for name in seal["files"] if name in lines.journals])
    seal["files"][name]["sha256"] = change_digit(draw, seal["files"][name]["sha256"])
    seal.pop("crc")
    path.write_bytes(write_record(seal))
    if draw.random() < 0.5 or "failures" in name:  # a report without failures does not read those
        return "sealed run, verified", lambda: REFUSED if verify_run(files.path).damage else "no damage"
    return "sealed run, reported", lambda: make_report(files.path)


def spoil_snapshot(draw: random.Random, files: Files) -> tuple[str, Callable[[], object]]:
    files.write("main.py", draw_name(draw).encode())
    wrong = change_digit(draw, digest(files.path, ["main"]))
    spec = EnvironmentSpec("x", "main:X", {}, digest=wrong, snapshot=".")
    return "environment", lambda: REFUSED if is_source_edited(files.path, spec) else "it is used"


CASES: dict[str, MakeCase] = {
    "changed checksum of a line": make_line,
    "changed checksum of a file": make_file,
    "changed checksum of tokens": make_tokens,
    "changed digest": make_digest,
}
