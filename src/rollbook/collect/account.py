"""The account of a worker's round: what is scored, failed and pending, and whether it is time to stop."""

from __future__ import annotations

import time
from collections import deque

from rollbook.book.book import Book
from rollbook.book.claims import Claim
from rollbook.book.journal import Mark
from rollbook.book.seal import Seals, reopened
from rollbook.collect.progress import Progress
from rollbook.collect.retry import failures_allowed
from rollbook.collect.worker import Worker
from rollbook.core.manifest import Settings

RATE_S = 10.0


class Account:
    """Counts what is durable. Starts with the chunks that are closed; others bring their past when they are claimed."""

    def __init__(self, book: Book, settings: Settings) -> None:
        self.requested = book.plan.requested
        self.scored = 0
        self.failed: dict[str, int] = {}
        self.verdict = ""
        self._fail_fast = settings.fail_fast
        self._allowed = failures_allowed(settings.max_failures, self.requested)
        self._rule = settings.max_failures
        self._rewards, self._rewarded = 0.0, 0
        self._began = time.monotonic()
        self._recent: deque[tuple[float, int]] = deque()
        rounds = book.rounds()
        for seal in Seals(book.path).refresh().values():
            if not reopened(seal.failed, seal.round, rounds):
                self._add(seal.scored, seal.failed)
        self._start = self.scored + sum(self.failed.values())

    def _add(self, scored: int, failed: dict[str, int]) -> None:
        self.scored += scored
        for kind, count in failed.items():
            self.failed[kind] = self.failed.get(kind, 0) + count

    def inherit(self, claim: Claim) -> None:
        """A chunk comes with what its earlier owners did."""
        self._add(claim.scored, claim.failed)
        self._start += claim.scored + sum(claim.failed.values())

    def take(self, mark: Mark) -> None:
        """A mark is durable."""
        if not mark.final:
            return
        failure = mark.rollout.failure
        self._add(not failure, {failure.kind: 1} if failure else {})
        if mark.rollout.score:
            self._rewards += mark.rollout.score.reward
            self._rewarded += 1
        elif failure:
            self._judge(f"{mark.rollout.task.id}#{mark.rollout.sample}: {failure.kind}: {failure.message}")

    def _judge(self, last: str) -> None:
        if self._fail_fast:
            self.verdict = self.verdict or f"stopped by --fail-fast at {last}"
        elif sum(self.failed.values()) > self._allowed:
            self.verdict = self.verdict or f"stopped by --max-failures {self._rule}, the last one {last}"

    def progress(self, worker: Worker) -> Progress:
        """How it stands now."""
        done = self.scored + sum(self.failed.values())
        pulse = worker.pulse
        return Progress(
            requested=self.requested,
            scored=self.scored,
            failed=dict(self.failed),
            pending=self.requested - done,
            rate=self._rate(done - self._start),
            mean_reward=self._rewards / self._rewarded if self._rewarded else None,
            in_flight=pulse.in_flight,
            concurrency=worker.concurrency,
            loop_lag_ms=pulse.loop_lag_ms,
            model_ms=pulse.model_ms,
            verify_ms=pulse.verify_ms,
            seconds=time.monotonic() - self._began,
        )

    def _rate(self, done: int) -> float:
        """Over the last seconds, so that a stall shows."""
        now = time.monotonic()
        self._recent.append((now, done))
        while self._recent[0][0] < now - RATE_S:
            self._recent.popleft()
        since, before = self._recent[0]
        return (done - before) / (now - since) if now > since else 0.0
