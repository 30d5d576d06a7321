"""journals/: one worker's lines, appended and fsynced in groups. A line counts once its group is on the disk."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from rollbook.book.claims import Claim
from rollbook.book.durable_files import make_unwritable, sync_folder
from rollbook.core import Extent, Rollout, TokenRef, add_crc, encode, make_failed_line, make_scored_line
from rollbook.errors import BookUnwritable
from rollbook.tokens import encode_tokens

SEGMENT_BYTES = 64 << 20
COMMIT_S = 0.1
MAX_UNWRITTEN_BYTES = 32 << 20


class JournalEntry(msgspec.Struct, frozen=True):
    """One rollout to write; `final` matters for failed attempts only."""

    rollout: Rollout
    final: bool = True
    claim: Claim | None = None


class _AppendFile:
    """One append-only file: what is buffered, what is durable, and the hash of the durable bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._hash = hashlib.sha256()
        self._extent = Extent(0, self._hash.hexdigest())
        self._buffer: list[bytes] = []
        self._handle: int | None = None

    def add(self, data: bytes) -> int:
        """Buffer bytes; return the offset they will have."""
        at, self.size = self.size, self.size + len(data)
        self._buffer.append(data)
        return at

    def take(self) -> bytes:
        """Return the buffered bytes, which the caller now writes."""
        data = b"".join(self._buffer)
        self._buffer.clear()
        return data

    def write(self, data: bytes) -> None:
        """Append and fsync; on an error nothing is known about the end of this file."""
        if not data:
            return
        if self._handle is None:
            self._handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
            sync_folder(self.path.parent)
        view = memoryview(data)
        while view:
            view = view[os.write(self._handle, view) :]
        os.fdatasync(self._handle) if hasattr(os, "fdatasync") else os.fsync(self._handle)
        self._hash.update(data)
        self._extent = Extent(self._extent.bytes + len(data), self._hash.hexdigest())

    def extent(self) -> Extent:
        """Return the durable extent; size and hash change together, since another thread may be writing."""
        return self._extent

    @property
    def exists(self) -> bool:
        """Whether any byte of it is durable."""
        return self._extent.bytes > 0

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


class _Segment:
    """The three files of one segment. Ids are written before the lines that point at them."""

    def __init__(self, folder: Path, worker: str, number: int) -> None:
        self.number = number
        stem = f"{worker}.{number}"
        self.tokens = _AppendFile(folder / f"{stem}.tokens")
        self.failures = _AppendFile(folder / f"{stem}.failures.jsonl")
        self.scored = _AppendFile(folder / f"{stem}.jsonl")
        self.files = (self.tokens, self.failures, self.scored)

    @property
    def size(self) -> int:
        """The size of its largest file."""
        return max(file.size for file in self.files)

    def add(self, entry: JournalEntry) -> int:
        """Encode an entry into the buffers; return its size."""
        refs = self._add_tokens(entry.rollout)
        if entry.rollout.score is not None:
            file, line = self.scored, add_crc(encode(make_scored_line(entry.rollout, refs)))
        else:
            file, line = self.failures, add_crc(encode(make_failed_line(entry.rollout, refs, entry.final)))
        file.add(line + b"\n")
        return len(line)

    def _add_tokens(self, rollout: Rollout) -> list[TokenRef | None]:
        refs: list[TokenRef | None] = []
        previous_ids: list[int] = []
        for turn in rollout.turns:
            if turn.prompt_ids is None or turn.ids is None:
                refs.append(None)
                continue
            record = encode_tokens(turn, previous_ids)
            refs.append(TokenRef(self.tokens.add(record), len(record)))
            previous_ids = turn.prompt_ids + turn.ids
        return refs

    def extents(self) -> dict[str, Extent]:
        """Return the durable extents by file name."""
        return {f.path.name: f.extent() for f in self.files if f.exists}

    def close(self) -> None:
        """Close its files."""
        for file in self.files:
            file.close()


class Journal:
    """Appends a worker's lines. `add` does not wait for the disk; `on_durable` is called with each durable group."""

    def __init__(self, run: Path, worker: str, on_durable: Callable[[list[JournalEntry]], None]) -> None:
        self._folder, self._worker, self._on_durable = run / "journals", worker, on_durable
        self._segments = [_Segment(self._folder, worker, 1)]
        self._entries: list[JournalEntry] = []
        self._bytes = 0
        self._wake = asyncio.Event()
        self._flush_requested = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._closing = False
        self._failures = 0
        self._task: asyncio.Task[None] | None = None
        self.broken: BookUnwritable | None = None

    @property
    def segment(self) -> int:
        """The number of the segment being written."""
        return self._segments[-1].number

    def start(self) -> None:
        """Start committing in the background."""
        self._task = asyncio.create_task(self._commit_loop(), name="journal")

    async def add(self, entry: JournalEntry) -> None:
        """Add an entry; waits only while too much is unwritten."""
        await self._room.wait()
        if self.broken:
            raise self.broken
        self._bytes += self._segments[-1].add(entry)
        self._entries.append(entry)
        if self._bytes > MAX_UNWRITTEN_BYTES:
            self._room.clear()
        self._wake.set()

    async def _commit_loop(self) -> None:
        while not self.broken and not (self._closing and not self._entries):
            await self._wake.wait()
            if not self._closing and not self._flush_requested.is_set():
                await self._wait_for_group()
            self._wake.clear()
            if self._entries:
                await self._commit()

    async def _wait_for_group(self) -> None:
        """Wait for more entries to form a group, unless a flush is requested."""
        with suppress(TimeoutError):
            async with asyncio.timeout(COMMIT_S):
                await self._flush_requested.wait()

    def flush_soon(self) -> None:
        """Commit what is buffered without waiting for more entries."""
        self._flush_requested.set()

    async def _commit(self) -> None:
        self._flush_requested.clear()
        entries, self._entries, self._bytes = self._entries, [], 0
        segment = self._segments[-1]
        pending = [(file, file.take()) for file in segment.files]
        if segment.size >= SEGMENT_BYTES:
            self._rotate()
        try:
            await asyncio.to_thread(_write_all, pending)
        except OSError as error:
            self._rewrite(entries, error)
        else:
            self._failures = 0
            if segment is not self._segments[-1]:
                segment.close()
            self._on_durable(entries)
        self._room.set()

    def _rewrite(self, entries: list[JournalEntry], error: OSError) -> None:
        """Write the unacknowledged entries into a new segment, once: nothing is known about the end of the old one."""
        self._failures += 1
        if self._failures > 1:
            self.broken = make_unwritable(self._folder, error)
            return
        self._rotate()
        self._entries = [*entries, *self._entries]
        for entry in self._entries:
            self._segments[-1].add(entry)
        self._wake.set()

    def _rotate(self) -> None:
        self._segments.append(_Segment(self._folder, self._worker, self.segment + 1))

    def extents(self, since_segment: int) -> dict[str, Extent]:
        """Return the durable extents of the segments from `since_segment` on, for a seal."""
        extents: dict[str, Extent] = {}
        for segment in self._segments:
            if segment.number >= since_segment:
                extents |= segment.extents()
        return extents

    async def close(self) -> None:
        """Commit what is left and stop."""
        self._closing = True
        self._wake.set()
        if self._task:
            await self._task
            self._task = None
        for segment in self._segments:
            segment.close()


def _write_all(pending: list[tuple[_AppendFile, bytes]]) -> None:
    for file, data in pending:
        file.write(data)
