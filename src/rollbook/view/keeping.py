"""The numbers of a run, kept in RUN/index under a hash of what they were worked out from; it may be deleted."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec

from rollbook import stats
from rollbook.book.book import Book
from rollbook.collect.report import Reading, Report, report_of
from rollbook.core.json import JSON
from rollbook.errors import BookError, TokenError
from rollbook.stats.columns import PLAIN
from rollbook.stats.profile import Profile
from rollbook.stats.tasks import PASS
from rollbook.view.folder import readable

WORTH_KEEPING = 10_000
"""Fewer rollouts are as quickly counted again."""

NAME = "numbers.msgpack"


def kept_numbers(reading: Reading) -> dict[str, JSON]:
    """The report of a run as JSON, and the columns of its tasks by row."""
    if len(reading.tally.columns) < WORTH_KEEPING:
        return worked_out(reading)
    place, key = reading.book.path / "index" / NAME, _key(reading)
    with suppress(OSError, msgspec.DecodeError):
        held = msgspec.msgpack.decode(place.read_bytes())
        if isinstance(held, dict) and held.get("key") == key:
            return held
    made = {**worked_out(reading), "key": key}
    if made["report"]["damaged"]:
        return made  # what is wrong may be put right
    with suppress(OSError):  # no room, or a copy that one may only read
        _keep(place, msgspec.msgpack.encode(made))
    return made


def profiled(reading: Reading, ks: Sequence[int] | None) -> dict[str, list[JSON]]:
    """The columns of a run's profile, each with one value a task."""
    tally = reading.tally
    profile = Profile(tally.columns, tally.answers.texts, ks, PASS, reading.groups)
    found = [numbers for _, numbers in profile.rows(reading.failed_by_task, range(len(reading.asked)))]
    return {name: [each[name] for each in found] for name in profile.names}


def worked_out(reading: Reading) -> dict[str, JSON]:
    """The same, counted now. Columns @k are left out: few ask for them, and they take as long as all the others."""
    report, damaged = _report(reading)
    columns = profiled(reading, [])
    asked = reading.asked.tolist()
    pending = [k - n - failed for k, n, failed in zip(asked, columns["n"], columns["failed"], strict=True)]
    told = {"missing": report.missing[:100], "path": readable(report.path), "damaged": damaged}
    plain = report.json() | told
    return {"report": msgspec.to_builtins(plain, str_keys=True), "columns": columns | {"pending": pending}}


def _report(reading: Reading) -> tuple[Report, str]:
    """The report; where token records are damaged, without the forks, and with what is wrong."""
    try:
        return report_of(reading, forks=not reading.live), ""  # what goes on is counted again and again
    except (TokenError, BookError) as error:
        where = readable(str(reading.book.path / "journals"))
        return report_of(reading, forks=False), f"forks are not counted: {readable(str(error))} (in {where}/*.tokens)"


def _key(reading: Reading) -> str:
    """Names what the numbers rest on, and the code that works them out."""
    digest = hashlib.blake2b(_maker(), digest_size=16)
    columns = reading.tally.columns
    arrays = [getattr(columns, name) for name in PLAIN]
    arrays += [getattr(columns.parts, name) for name in ("place", "name", "value")]
    for array in (*arrays, reading.asked, reading.envs):
        digest.update(array.tobytes())
    texts = [reading.tally.answers.texts, reading.tally.parts.texts, reading.names, reading.missing]
    rest = [reading.failed, reading.live, _named(reading.book), reading.tally.dropped, texts]
    digest.update(msgspec.msgpack.encode([rest, list(reading.failed_by_task.items())]))
    return digest.hexdigest()


def _named(book: Book) -> tuple[str, bytes]:
    """Which run, and where."""
    return book.manifest.run, os.fsencode(book.path)


@cache
def _maker() -> bytes:
    sources = sorted(Path(stats.__file__).parent.glob("*.py"))
    return hashlib.blake2b(b"".join(path.read_bytes() for path in [*sources, Path(__file__)])).digest()


def _keep(place: Path, data: bytes) -> None:
    place.parent.mkdir(exist_ok=True)
    aside = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    try:
        aside.write_bytes(data)
        os.replace(aside, place)
    finally:
        aside.unlink(missing_ok=True)
