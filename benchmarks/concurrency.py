"""What `-c auto` finds, in the simulation of `serving.py`: Rollbook's own controller beside every fixed number."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from serving import Call, Clock, Hardware, Server

from engine import Figure
from rollbook.engine.concurrency import AdaptiveLimit, FixedLimit

GRID = (8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
SERVERS = {
    "a server that batches": Hardware(max_running=1024),
    "one that runs 128 at once": Hardware(max_running=128),
    "one that slows down above 96": Hardware(max_running=1024, crowded_at=96),
    "one that slows down sharply above 96": Hardware(max_running=1024, crowded_at=96, crowded_s=0.0004),
    "one that runs 4 at once": Hardware(max_running=4),
}


class ClosedLoop:
    """Rollouts without end on some servers: as many in flight as a limiter allows."""

    def __init__(self, hardware: Hardware, replicas: int, seed: int) -> None:
        self.clock = Clock()
        self.servers = [Server(f"http://replica-{n}/v1", hardware, self.clock) for n in range(replicas)]
        self._draw = random.Random(seed)
        self._in_flight = self._number = 0
        self.ended: list[tuple[float, int]] = []
        self.limits: list[tuple[float, int]] = []

    def run(
        self, limiter: FixedLimit | AdaptiveLimit, until: float, changes: Sequence[tuple[float, float]] = ()
    ) -> None:
        """Run for so long; at the times of `changes` the servers get another speed."""
        for at, speed in changes:
            self.clock.at(at, partial(self._change_speed, speed))
        self._limiter, self._until = limiter, until
        self._start()
        self.clock.run()

    def _change_speed(self, speed: float) -> None:
        for server in self.servers:
            server.change_speed(speed)

    def _start(self) -> None:
        while self._in_flight < self._limiter.limit and self.clock.now < self._until:
            self._in_flight += 1
            self._number += 1
            answer = max(1, min(16_384, round(500 * self._draw.lognormvariate(0, 0.8))))
            server, began = min(self.servers, key=lambda server: server.in_flight), self.clock.now
            server.enter(Call((("system", 400), (f"task {self._number}", 600)), answer), self._on_end(began, answer))

    def _on_end(self, began: float, answer: int) -> Callable[[bool], None]:
        def end(_: bool) -> None:
            self._in_flight -= 1
            self._limiter.record_answer(began, answer)
            self.ended.append((self.clock.now, answer))
            self.limits.append((self.clock.now, self._limiter.limit))
            self._start()

        return end

    def throughput(self, since: float, until: float) -> float:
        """Return the tokens a second that ended between two times."""
        return sum(tokens for at, tokens in self.ended if since <= at < until) / (until - since)


LONG_S, STEADY_S = 2000.0, 400.0


def measure_fixed(hardware: Hardware, replicas: int, speed: float = 1.0) -> tuple[float, int]:
    """Return the best throughput of a fixed number, and that number."""
    found = []
    for limit in GRID:
        loop = ClosedLoop(hardware, replicas, 1)
        seconds = STEADY_S / speed
        loop.run(FixedLimit(limit * replicas), seconds, [(0.0, speed)])
        found.append((loop.throughput(seconds / 4, seconds), limit * replicas))
    return max(found)


def find_concurrency(name: str, replicas: int = 1, seed: int = 2) -> Iterator[Figure]:
    """The throughput of -c auto after the first 5% of a long run, beside that of the best fixed number."""
    hardware = SERVERS[name]
    best, best_limit = measure_fixed(hardware, replicas)
    loop = ClosedLoop(hardware, replicas, seed)
    loop.run(AdaptiveLimit(clock=lambda: loop.clock.now), LONG_S)
    share = loop.throughput(0.05 * LONG_S, LONG_S) / best
    limits = [limit for at, limit in loop.limits if at > 0.05 * LONG_S]
    detail = f"limits {min(limits)} to {max(limits)}, best fixed {best_limit}; {best:.0f} tokens/s"
    what = f"-c auto, {name}" if replicas == 1 else f"-c auto, {replicas} of: {name}"
    yield Figure(f"{what}: throughput after 5% beside the best fixed", share, "x", 0.95, True, detail)


def follow_load(name: str) -> Iterator[Figure]:
    """The servers lose two thirds of their speed for a third of the run."""
    hardware, third = SERVERS[name], LONG_S / 3
    loop = ClosedLoop(hardware, 1, 3)
    loop.run(AdaptiveLimit(clock=lambda: loop.clock.now), LONG_S, [(third, 1 / 3), (2 * third, 1.0)])
    for what, speed, since in (("a third of the speed", 1 / 3, third), ("the whole speed again", 1.0, 2 * third)):
        best, _ = measure_fixed(hardware, 1, speed)
        share = loop.throughput(since + 0.05 * LONG_S, since + third) / best
        yield Figure(f"-c auto, {name}: with {what}", share, "x", 0.95, True)


def measure_concurrency(quick: bool) -> Iterator[Figure]:
    """All figures on -c auto."""
    for name in list(SERVERS)[1:4] if quick else SERVERS:
        yield from find_concurrency(name)
    if not quick:
        yield from find_concurrency("a server that batches", replicas=4)
    yield from follow_load("one that slows down above 96")
