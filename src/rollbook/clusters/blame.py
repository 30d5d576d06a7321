"""RUN/jobs/nodes.jsonl: nodes on which a worker could not get its server to run. Two such words, and it is left out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from rollbook.core.json import to_line

ENOUGH = 2


class Blame(msgspec.Struct, frozen=True):
    """A node, and what went wrong there."""

    node: str
    why: str


_decoder = msgspec.json.Decoder(Blame)


def blame(run: Path, node: str, why: str) -> None:
    """Say that a node did not do."""
    handle = os.open(run / "jobs" / "nodes.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(handle, to_line(Blame(node, why)))
    finally:
        os.close(handle)


def bad_nodes(run: Path) -> list[str]:
    """The nodes that were blamed often enough."""
    try:
        lines = (run / "jobs" / "nodes.jsonl").read_bytes().splitlines()
    except FileNotFoundError:
        return []
    count: Counter[str] = Counter()
    for line in lines:
        try:
            count[_decoder.decode(line).node] += 1
        except msgspec.DecodeError:
            continue  # torn: one word less
    return sorted(node for node, times in count.items() if node and times >= ENOUGH)


def forgive(run: Path, say: Callable[[str], None]) -> None:
    """Where no server ever ran, it was not the nodes: all of them may try again."""
    if bad := bad_nodes(run):
        say(f"nothing was ever written, so no node is left out any more: {', '.join(bad)}")
    (run / "jobs" / "nodes.jsonl").unlink(missing_ok=True)
