"""A presence: what a worker says of itself while it is at a book."""

from __future__ import annotations

import msgspec


class Held(msgspec.Struct):
    """What a worker has marked so far in a chunk it holds."""

    scored: int = 0
    failed: dict[str, int] = {}


class Presence(msgspec.Struct):
    """A worker's own record. The counter moves with every heartbeat; `state` is "left" after an orderly end."""

    id: str
    host: str
    boot: str
    namespace: str
    pid: int
    born: str
    round: int
    started: float
    counter: int = 0
    state: str = "working"
    place: str = ""
    """Which folder it is at, by device and inode: in a copy of the book nobody of the original is at work."""
    in_flight: int = 0
    chunks: dict[int, Held] = {}
