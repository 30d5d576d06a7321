"""Progress of a run: what is scored, failed and pending, the numbers a display shows, when failures stop a run."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from rollbook.book import Book, Claim, JournalEntry, Seals, find_reopened_kinds, read_exact_status, read_status
from rollbook.core import Presence, Settings, TokenCounts
from rollbook.engine.retries import parse_max_failures
from rollbook.engine.worker import Worker
from rollbook.errors import BookError


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run: requested = scored + failed + pending; `failed` counts by kind, times are recent means.

    What is not known is None: a pool knows no times and no rewards.
    """

    requested: int
    scored: int = 0
    failed: dict[str, int] = {}
    pending: int = 0
    rate: float = 0.0
    """Rollouts finished per second, recently."""
    mean_reward: float | None = None
    in_flight: int = 0
    concurrency: int = 0
    loop_lag_ms: float | None = None
    model_ms: float | None = None
    verify_ms: float | None = None
    seconds: float = 0.0
    """Since the start of this round."""
    cost: float | None = None
    """What all attempts have cost so far, those of earlier rounds too; None without a price."""
    outage: str = ""
    """How long no endpoint has answered, and why; empty while one does."""
    tokens: TokenCounts | None = None
    """The tokens of all attempts so far, those of earlier rounds too; None where they are not counted."""
    tokens_per_s: float | None = None
    """Tokens of answers per second, recently."""
    prompt_tokens: int = 0
    """The prompt tokens so far of the calls whose server reports how many were cached."""
    cached_tokens: int = 0
    """Of these, the tokens that the server had cached."""

    @property
    def done(self) -> int:
        """How many rollouts are scored or failed."""
        return self.scored + sum(self.failed.values())

    @property
    def cached_share(self) -> float | None:
        """The share of the prompt tokens that were cached; None while no server reports them."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def eta_s(self) -> float | None:
        """Seconds until nothing is pending at this rate; None while there is no rate."""
        return self.pending / self.rate if self.rate > 0 else None


class Display(Protocol):
    """Shows progress: `start` is called once, `update` any number of times, `stop` at least once.

    `start` gets the number of rollouts, and how many are left if that is fewer.
    """

    def start(self, total: int, pending: int | None = None) -> None:
        return

    def update(self, progress: Progress) -> None:
        return

    def note(self, line: str) -> None:
        return

    def stop(self) -> None:
        return


class SilentDisplay(Display):
    """Shows nothing: the display of a call from Python."""


class LineDisplay(Display):
    """Notes the progress on one line, at most every `every_s` seconds, and the last numbers at the end."""

    def __init__(
        self, describe: Callable[[Progress], str], every_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._describe, self._every_s, self._clock = describe, every_s, clock
        self._next = 0.0
        self._unseen: Progress | None = None
        self._shows_outage = False

    def update(self, progress: Progress) -> None:
        """Note these numbers if the next line is due, or if an outage begins or ends."""
        self._unseen = progress
        changed, self._shows_outage = bool(progress.outage) != self._shows_outage, bool(progress.outage)
        if changed or self._clock() >= self._next:
            self._next = self._clock() + self._every_s
            self.stop()

    def stop(self) -> None:
        """Note the last numbers if they have not been noted."""
        if self._unseen is not None:
            self.note(self._describe(self._unseen))
        self._unseen = None


def count_pending(book: Book) -> int:
    """Return how many rollouts of a run are left, by its journals."""
    if not any((book.path / "journals").iterdir()):
        return book.plan.requested
    try:
        return read_exact_status(book.path).pending
    except BookError:  # whoever works on the run names the damage
        return read_status(book.path).pending


RATE_WINDOW_S = 10.0


class RecentRate:
    """How fast a count has grown over the last seconds, so that a stall is visible."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._recent: deque[tuple[float, int]] = deque()

    def update(self, count: int) -> float:
        """Take the present count; return the rate per second."""
        now = self._clock()
        self._recent.append((now, count))
        while self._recent[0][0] < now - RATE_WINDOW_S:
            self._recent.popleft()
        since, before = self._recent[0]
        return (count - before) / (now - since) if now > since else 0.0


class ProgressCounter:
    """Counts what is durable: sealed chunks at the start, the history of others when they are claimed."""

    def __init__(self, book: Book, settings: Settings) -> None:
        self.requested = book.plan.requested
        self.scored = 0
        self.failed: dict[str, int] = {}
        self.stop_reason = ""
        self._fail_fast = settings.fail_fast
        self._allowed = parse_max_failures(settings.max_failures, self.requested)
        self._max_failures = settings.max_failures
        self._reward_sum, self._reward_count = 0.0, 0
        self._began = time.monotonic()
        self._rate = RecentRate()
        rounds = book.rounds()
        for seal in Seals(book.path).refresh().values():
            if not find_reopened_kinds(seal.failed, seal.round, rounds):
                self._add(seal.scored, seal.failed)
        self._done_at_start = self.scored + sum(self.failed.values())

    def _add(self, scored: int, failed: dict[str, int]) -> None:
        self.scored += scored
        for kind, count in failed.items():
            self.failed[kind] = self.failed.get(kind, 0) + count

    def add_claim(self, claim: Claim) -> None:
        """Add what earlier owners did in a chunk."""
        self._add(claim.scored, claim.failed)
        self._done_at_start += claim.scored + sum(claim.failed.values())

    def record(self, mark: JournalEntry) -> None:
        """Count an attempt that is durable. The rewards of earlier rounds and of other workers are not known."""
        if not mark.final:
            return
        failure = mark.rollout.failure
        self._add(not failure, {failure.kind: 1} if failure else {})
        if mark.rollout.score:
            self._reward_sum += mark.rollout.score.reward
            self._reward_count += 1
        elif failure:
            self._check_failures(f"{mark.rollout.task.id}#{mark.rollout.sample}: {failure.kind}: {failure.message}")

    def _check_failures(self, last: str) -> None:
        if self._fail_fast:
            self.stop_reason = self.stop_reason or f"stopped by --fail-fast at {last}"
        elif sum(self.failed.values()) > self._allowed:
            self.stop_reason = (
                self.stop_reason or f"stopped by --max-failures {self._max_failures}, the last one {last}"
            )

    def progress(
        self, worker: Worker, outage: str = "", cost: float | None = None, presence: Presence | None = None
    ) -> Progress:
        """Return the current state."""
        done = self.scored + sum(self.failed.values())
        stats = worker.stats
        return Progress(
            requested=self.requested,
            scored=self.scored,
            failed=dict(self.failed),
            pending=self.requested - done,
            rate=self._rate.update(done - self._done_at_start),
            mean_reward=self._reward_sum / self._reward_count if self._reward_count == self.scored > 0 else None,
            in_flight=stats.in_flight,
            concurrency=worker.concurrency,
            loop_lag_ms=stats.loop_lag_ms,
            model_ms=stats.model_ms,
            verify_ms=stats.verify_ms,
            seconds=time.monotonic() - self._began,
            outage=outage,
            cost=cost,
            prompt_tokens=presence.prompt_tokens if presence else 0,
            cached_tokens=presence.cached_tokens if presence else 0,
        )
