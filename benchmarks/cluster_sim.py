"""A cluster of hundreds of nodes on a simulated clock: real planning, leases, presences, journals' marks and seals.

Each node is a worker that takes chunks of a real run directory by the code that real workers run; only time, the
rollouts and the nodes' deaths are made up. A worker plays one rollout at a time, or as many as `--at-once` says: the
more, the shorter the run, and the more of it is waiting for the last long rollouts. Rollouts last as language models'
do: most are short, a few last fifty times as long (lognormal, cut off at the deadline). A node that dies says nothing:
its chunk is taken over when its heartbeat has been missed for long enough, its rollouts in flight are lost, and another
worker comes in its place when a scheduler would have started the job again.

.venv/bin/python benchmarks/cluster_sim.py           400 nodes, 320,000 rollouts: some minutes
.venv/bin/python benchmarks/cluster_sim.py --quick   40 nodes, 32,000 rollouts
"""

from __future__ import annotations

import argparse
import heapq
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from math import log
from pathlib import Path
from typing import Any

from engine import Figure, show
from rollbook.book import (
    REFRESH_S,
    Book,
    BookDraft,
    ChunkClaimer,
    Claim,
    PeerMonitor,
    WorkerMonitor,
    next_heartbeat_s,
    write_heartbeat,
)
from rollbook.core import (
    SCHEMA_VERSION,
    EnvironmentSpec,
    Limits,
    Manifest,
    ModelSpec,
    Presence,
    Round,
    Sampling,
    Seal,
    Settings,
    Task,
    make_part,
)

SAMPLES = 16
MEAN_S, SPREAD, DEADLINE_S = 60.0, 1.0, 600.0
DEATHS_PER_HOUR = 0.02
BACK_AFTER_S = 180.0
NAMES = ("os.link", "os.rename", "os.remove")


class World:
    """The clock, and what will happen."""

    def __init__(self, seed: int) -> None:
        self.now, self.random = 0.0, random.Random(seed)
        self._order = count()
        self._coming: list[tuple[float, int, Callable[[], None]]] = []

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Have something happen later."""
        heapq.heappush(self._coming, (self.now + seconds, next(self._order), act))

    def run(self, over: Callable[[], bool]) -> None:
        """Let time go by."""
        while self._coming and not over():
            self.now, _, act = heapq.heappop(self._coming)
            act()


class Node:
    """A worker, from its start to its death."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster, self._world, self.name = cluster, cluster.world, name
        self._presence = Presence(name, name, "boot", "ns", 1, "1", 1, 0.0)
        self._watch = WorkerMonitor(clock=lambda: self._world.now)
        self._claims = ChunkClaimer(cluster.book, cluster.round, name, self._watch, lambda: self._world.now)
        self._neighbours, self._began = PeerMonitor(cluster.book.path, name, self._watch), cluster.world.now
        self._jobs: list[tuple[Claim, int, int]] = []
        self._busy, self.alive, self._waiting = 0, True, False
        self._journal = (cluster.book.path / "journals" / f"{name}.1.jsonl").open("ab", buffering=0)
        self._beat()
        self._fill()
        self._world.after(self._world.random.expovariate(DEATHS_PER_HOUR / 3600), self._die)

    def _beat(self) -> None:
        if self.alive:
            write_heartbeat(self._cluster.book.path, self._presence)
            self._neighbours.check()
            self._world.after(next_heartbeat_s(self._world.now - self._began), self._beat)

    def _fill(self) -> None:
        """Begin as many rollouts as there is room for."""
        while self.alive and self._busy < self._cluster.at_once:
            if not self._jobs and not self._take():
                return
            claim, row, sample = self._jobs.pop()
            self._busy += 1
            seconds = self._cluster.seconds(row, sample)
            self._world.after(seconds, lambda c=claim, r=row, s=sample: self._end(c, r, s))  # type: ignore[misc]

    def _take(self) -> bool:
        claim = self._claims.claim_next()
        if claim is not None:
            self._cluster.claims += 1
            self._jobs = [(claim, row, sample) for row, sample, _ in claim.todo][::-1]
            if not self._jobs:
                self._seal(claim)
            return bool(self._jobs) or self._take()
        if not self._waiting:
            self._waiting = True
            self._world.after(REFRESH_S, self._look_again)
        return False

    def _look_again(self) -> None:
        self._waiting = False
        self._fill()

    def _end(self, claim: Claim, row: int, sample: int) -> None:
        if not self.alive:
            return
        self._busy -= 1
        self._journal.write(self._cluster.line(row, sample))
        self._cluster.finished(row, sample)
        claim.keys_left -= 1
        claim.scored += 1
        if not claim.keys_left:
            self._seal(claim)
        self._fill()

    def _seal(self, claim: Claim) -> None:
        if not self._claims.leases.is_lost(claim.chunk.number, claim.epoch):
            seal = Seal(1, claim.epoch, claim.scored, {}, claim.dropped, {})
            self._claims.seal([(claim, seal)])

    def _die(self) -> None:
        if self.alive:
            self.alive = False
            self._journal.close()
            self._cluster.died()


class Cluster:
    """The run directory, its nodes, and what came of them."""

    def __init__(self, folder: Path, nodes: int, tasks: int, seed: int, at_once: int) -> None:
        self.world, self.at_once = World(seed), at_once
        self.book = _book(folder / "run", tasks, nodes)
        self.round: Round = self.book.open_round(Settings())
        self._done: set[tuple[int, int]] = set()
        self._asked, self._seed = tasks * SAMPLES, seed
        self.claims = self.deaths = self.twice = 0
        self._names = count()
        for _ in range(nodes):
            self._start()

    def _start(self) -> None:
        Node(self, f"node-{next(self._names)}")

    def seconds(self, row: int, sample: int) -> float:
        """How long a rollout takes: the same whoever does it."""
        chance = random.Random(f"{self._seed} {row} {sample}")
        return min(DEADLINE_S, chance.lognormvariate(_middle(), SPREAD))

    def line(self, row: int, sample: int) -> bytes:
        """What a journal says of a rollout, as far as heirs read it."""
        return b'{"status":"scored","task":"t%d","sample":%d,"round":1,"attempt":1}\n' % (row, sample)

    def finished(self, row: int, sample: int) -> None:
        """A rollout came to its end."""
        self.twice += (row, sample) in self._done
        self._done.add((row, sample))

    def died(self) -> None:
        """A node is gone; its place is filled in a while."""
        self.deaths += 1
        self.world.after(BACK_AFTER_S, self._start)

    def play(self) -> float:
        """How long it took until everything was done."""
        self.world.run(lambda: len(self._done) == self._asked)
        assert len(self._done) == self._asked, "the work stopped before its end"
        return self.world.now


def _middle() -> float:
    """What makes the mean come out, before the deadline cuts it."""
    return log(MEAN_S) - SPREAD**2 / 2


def _book(path: Path, tasks: int, workers: int) -> Book:
    spec = EnvironmentSpec("sim.py:Sim", "sim:Sim")
    manifest = Manifest(
        SCHEMA_VERSION, "sim", 1.0, {"Sim": spec}, ModelSpec("toy"), Sampling(), SAMPLES, 0, Limits(), {}
    )
    with BookDraft(path) as draft:
        rows = draft.add_tasks((Task(f"t{i}", "?") for i in range(tasks)), "Sim")
        return draft.finish(manifest, [make_part((0, rows), (0, SAMPLES), workers)])


def counted() -> Counter[str]:
    """How often names are made, linked, moved, removed and looked up from now on: what a shared file system has to ask
    its one metadata server for. Python tells of all but the last."""
    made: Counter[str] = Counter()
    stat = os.stat

    def heard(event: str, given: tuple[Any, ...]) -> None:
        if event in NAMES:
            made[event.removeprefix("os.")] += 1
        elif event == "open" and isinstance(given[2], int):
            made["create"] += bool(given[2] & os.O_CREAT)

    def looked(*given: Any, **named: Any) -> os.stat_result:
        made["stat"] += 1
        return stat(*given, **named)

    sys.addaudithook(heard)
    os.stat = looked  # type: ignore[assignment]
    return made


def measured(nodes: int, tasks: int, seed: int, at_once: int) -> Iterator[Figure]:
    """All figures."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # time is made up here, so a disk need not be waited for
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        operations = counted()
        cluster = Cluster(Path(folder), nodes, tasks, seed, at_once)
        took = cluster.play()
        operations = operations.copy()
        rollouts = tasks * SAMPLES
        work = sum(cluster.seconds(row, sample) for row in range(tasks) for sample in range(SAMPLES))
        bound = work / (nodes * at_once)
        detail = f"{took / 3600:.2f} h, {bound / 3600:.2f} h; {cluster.deaths} nodes died, {cluster.twice} done twice"
        yield Figure(
            "total work / workers, relative to the time it took", bound / took, "x", 0.95, at_least=True, detail=detail
        )
        chunks = len(cluster.book.chunks)
        detail = f"{chunks} chunks, {cluster.claims} claims; " + ", ".join(f"{k} {v}" for k, v in operations.items())
        yield Figure("operations on names, per rollout", operations.total() / rollouts, "", 0.2, detail=detail)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="rollouts that a node plays at a time")
    options = parser.parse_args()
    nodes, tasks = (40, 2000) if options.quick else (400, 20_000)
    figures = list(measured(nodes, tasks, options.seed, options.at_once))
    show(figures)
    return int(any("MISSED" in figure.verdict for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
