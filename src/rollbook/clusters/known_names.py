"""Names that people know from other pipelines, and what they are called here."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rollbook.collect.yamlfile import Given, YamlFile
from rollbook.core.json import JSON
from rollbook.errors import UsageError

RENAMED = {
    "expname": "name",
    "num_random_seeds": "samples",
    "starting_seed": "seed",
    "num_chunks": "workers",
    "dependent_jobs": "restarts",
    "run_after": "after",
}
MOST = 1_000_000
RANGE = re.compile(r"(\d+)\.\.(\d+)")


def translated(file: YamlFile, found: Mapping[str, Given]) -> tuple[dict[str, Given], dict[str, JSON]]:
    """What a profile says under our names, and what `random_seeds` comes to."""
    ours: dict[str, Given] = {}
    for name, given in found.items():
        called = RENAMED.get(name, name)
        if called in ours or (called != name and called in found):
            raise file.wrong(given.line, f"{name} is called {called} here, and that is given as well")
        ours[called] = given
    _refuse(file, ours)
    return ours, _seeds(file, ours)


def _refuse(file: YamlFile, found: dict[str, Given]) -> None:
    """What has no counterpart, because the book knows it already."""
    if "chunk_ids" in found:
        way = "workers claim chunks themselves, and `rollbook resume RUN` does what is missing; leave it out"
        raise file.wrong(found["chunk_ids"].line, f"chunk_ids: {way}")
    if "rerun_done" in found:
        given = found.pop("rerun_done")
        if file.value(given) is not False:
            way = "what is scored stays scored; start a new run with another --out"
            raise file.wrong(given.line, f"rerun_done: {way}")


def _seeds(file: YamlFile, found: dict[str, Given]) -> dict[str, JSON]:
    if "random_seeds" not in found:
        return {}
    given = found.pop("random_seeds")
    for other in ("samples", "seed"):
        if other in found:
            raise file.wrong(given.line, f"random_seeds says {other} too: give one of them")
    try:
        seeds = seeds_of(file.value(given))
    except UsageError as error:
        raise file.wrong(given.line, error) from None
    return {"samples": len(seeds), "seed": seeds[0]}


def seeds_of(value: JSON) -> list[int]:
    """Seeds as a list, or as text: "0,1,2" or "0..2".

    >>> seeds_of("4..6"), seeds_of([0, 1])
    ([4, 5, 6], [0, 1])
    """
    words = value if isinstance(value, list) else str(value).split(",")
    span = RANGE.fullmatch(str(value))
    if span and int(span[2]) - int(span[1]) > MOST:
        raise UsageError(f"random_seeds: {value}: more than {MOST} samples of every task")
    seeds = list(range(int(span[1]), int(span[2]) + 1)) if span else [_whole(word) for word in words]
    if not seeds or seeds != list(range(seeds[0], seeds[0] + len(seeds))):
        raise UsageError("random_seeds: samples are numbered one after another; give seeds without gaps, such as 0..7")
    return seeds


def _whole(word: JSON) -> int:
    text = str(word).strip()
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"random_seeds: {word!r} is not a whole number")
    return int(text)
