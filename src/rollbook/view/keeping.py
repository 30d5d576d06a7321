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
from rollbook.collect.report import Reading, report_of
from rollbook.core.json import JSON
from rollbook.stats.columns import PLAIN
from rollbook.stats.profile import Profile
from rollbook.stats.tasks import PASS

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
    report = report_of(reading, forks=not reading.live)  # what goes on is counted again and again
    columns = profiled(reading, [])
    asked = reading.asked.tolist()
    pending = [k - n - failed for k, n, failed in zip(asked, columns["n"], columns["failed"], strict=True)]
    plain = report.json() | {"missing": report.missing[:100]}
    return {"report": msgspec.to_builtins(plain, str_keys=True), "columns": columns | {"pending": pending}}


def _key(reading: Reading) -> str:
    """Names what the numbers rest on, and the code that works them out."""
    digest = hashlib.blake2b(_maker(), digest_size=16)
    columns = reading.tally.columns
    arrays = [getattr(columns, name) for name in PLAIN]
    arrays += [getattr(columns.parts, name) for name in ("place", "name", "value")]
    for array in (*arrays, reading.asked, reading.envs):
        digest.update(array.tobytes())
    texts = [reading.tally.answers.texts, reading.tally.parts.texts, reading.names, reading.missing]
    rest = [reading.failed, reading.live, str(reading.book.path), reading.tally.dropped, texts]
    digest.update(msgspec.msgpack.encode([rest, list(reading.failed_by_task.items())]))
    return digest.hexdigest()


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
