"""workers/ID.gone: that a worker is gone, and which chunks it left. One notices, and nobody else has to."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from rollbook.book.durable import write_new
from rollbook.core.json import to_line

ENDING = ".gone"


class Obituary(msgspec.Struct):
    """The last heartbeat that was seen, and the epoch in which the dead held each chunk.

    If the heart beats again after all, the obituary is void.
    """

    counter: int
    chunks: dict[int, int]


_decoder = msgspec.json.Decoder(Obituary)


def publish_obituary(run: Path, worker: str, obituary: Obituary) -> None:
    """Tell everyone; who was first stands."""
    write_new(run / "workers" / f"{worker}{ENDING}", to_line(obituary))


def read_obituary(run: Path, worker: str) -> Obituary | None:
    """What was said of a worker; None where a power cut tore it: then its chunks are found by looking at each."""
    try:
        return _decoder.decode((run / "workers" / f"{worker}{ENDING}").read_bytes())
    except (msgspec.DecodeError, FileNotFoundError):
        return None


def workers_and_dead(run: Path) -> tuple[set[str], set[str]]:
    """The names of all who ever joined, and of those who have an obituary."""
    names = [name for name in os.listdir(run / "workers") if not name.startswith(".")]
    return _ending(names, ".json"), _ending(names, ENDING)


def _ending(names: list[str], ending: str) -> set[str]:
    return {name.removesuffix(ending) for name in names if name.endswith(ending)}
