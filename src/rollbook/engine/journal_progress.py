"""The progress of a run from its journals, written by any process: this one, other workers, jobs on other machines.

A tail reads only what was added since it last looked. The numbers are those of a run in progress: where two workers
ran the same rollout, the line that is read first counts here, while the report decides by epoch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from rollbook.book import Book, KeyMap, LineReader, find_reopened_kinds, list_journals
from rollbook.core import FailedLine, Failure, ScoredLine, TokenCounts, Usage, parse_price
from rollbook.engine.progress import Progress, RecentRate

S = TypeVar("S", ScoredLine, "ScoredNumbers")
F = TypeVar("F", FailedLine, "FailedNumbers")


class TurnNumbers(msgspec.Struct, gc=False):
    """The counts of one model call that need not be decoded further."""

    prompt_tokens: int = 0
    cached_tokens: int = 0


class ScoredNumbers(msgspec.Struct, frozen=True, gc=False):
    """The fields of a scored line that progress needs: messages are most of a line, and are skipped."""

    task: str
    sample: int
    round: int
    reward: float
    usage: Usage
    turns: list[TurnNumbers]


class FailedNumbers(msgspec.Struct, frozen=True, gc=False):
    """The fields of a failed line that progress needs."""

    task: str
    sample: int
    round: int
    final: bool
    failure: Failure
    usage: Usage
    turns: list[TurnNumbers]


class JournalTail(Generic[S, F]):
    """Reads the lines that were added to the journals of a run since the last time."""

    def __init__(self, book: Book, scored: type[S], failed: type[F]) -> None:
        self._run = book.path
        self._scored: LineReader[S] = LineReader(scored, book.manifest.schema)
        self._failed: LineReader[F] = LineReader(failed, book.manifest.schema)
        self._offsets: dict[Path, int] = {}
        self._lines: dict[Path, int] = {}

    @property
    def journals(self) -> int:
        """How many journal files there are."""
        return len(self._offsets)

    def read(self) -> Iterator[S | F]:
        """Yield every new line; one that was not yielded yet comes next time."""
        yield from self._read_files(self._scored, failures=False)
        yield from self._read_files(self._failed, failures=True)

    def _read_files(self, reader: LineReader[S] | LineReader[F], *, failures: bool) -> Iterator[S | F]:
        for path in list_journals(self._run, failures=failures):
            start = self._offsets.setdefault(path, 0)
            if path.stat().st_size <= start:
                continue
            number = self._lines.get(path, 0)
            for end, line in reader.read(path, start=start, first_number=number + 1):
                number += 1
                self._offsets[path], self._lines[path] = end, number
                yield line
            reader.damaged.clear()  # a report names them; here they would be found again and again


class JournalCounter:
    """Adds up the lines of a run's journals."""

    def __init__(self, book: Book) -> None:
        self._keys = KeyMap(book)
        self._rounds = book.rounds()
        self._scored_places = bytearray(self._keys.keys // 8 + 1)
        self._failed_places: dict[int, str] = {}
        self._failed: dict[str, int] = {}
        self._scored, self._reward_sum = 0, 0.0
        self._prompt = self._cached = self._completion = 0
        price = book.last_settings().price
        self._price = parse_price(price) if price else None
        self._rate, self._token_rate = RecentRate(), RecentRate()
        self._began = time.monotonic()

    def add(self, line: ScoredLine | ScoredNumbers | FailedLine | FailedNumbers) -> int | None:
        """Count a line; return the row of its task if it is the outcome of a rollout that had none in its round."""
        self._add_tokens(line)
        found = self._keys.find(line.task, line.sample)
        if found is None:
            return None  # damage that a report names
        row, place, _ = found
        if isinstance(line, ScoredLine | ScoredNumbers):
            return row if self._add_score(place, line.reward) else None
        return row if self._add_failure(place, line) else None

    def _add_tokens(self, line: ScoredLine | ScoredNumbers | FailedLine | FailedNumbers) -> None:
        self._prompt += line.usage.prompt_tokens
        self._completion += line.usage.completion_tokens
        for turn in line.turns:
            cached = turn.cached_tokens
            if cached is not msgspec.UNSET:
                self._cached += max(0, min(cached, turn.prompt_tokens))  # some servers report more than all of it

    def _is_scored(self, place: int) -> bool:
        return bool(self._scored_places[place >> 3] >> (place & 7) & 1)

    def _add_score(self, place: int, reward: float) -> bool:
        if self._is_scored(place):
            return False
        self._scored_places[place >> 3] |= 1 << (place & 7)
        self._drop_failure(place)
        self._scored += 1
        self._reward_sum += reward
        return True

    def _add_failure(self, place: int, line: FailedLine | FailedNumbers) -> bool:
        kind = line.failure.kind
        if not line.final or self._is_scored(place) or find_reopened_kinds([kind], line.round, self._rounds):
            return False
        self._drop_failure(place)
        self._failed_places[place] = kind
        self._failed[kind] = self._failed.get(kind, 0) + 1
        return True

    def _drop_failure(self, place: int) -> None:
        """Forget the failure of a rollout that has another outcome now."""
        kind = self._failed_places.pop(place, None)
        if kind is not None:
            self._failed[kind] -= 1

    def progress(self, latest: Progress | None = None) -> Progress:
        """Return the progress; `latest` is what the workers last reported of the things that no journal has."""
        done = self._scored + len(self._failed_places)
        tokens = TokenCounts(self._prompt, self._cached, self._completion)
        return msgspec.structs.replace(
            latest or Progress(requested=self._keys.keys, seconds=time.monotonic() - self._began),
            scored=self._scored,
            failed={kind: count for kind, count in self._failed.items() if count},
            pending=self._keys.keys - done,
            rate=self._rate.update(done),
            mean_reward=self._reward_sum / self._scored if self._scored else None,
            tokens=tokens,
            tokens_per_s=self._token_rate.update(self._completion),
            cost=self._price.cost(tokens) if self._price else None,
        )
