"""Which replica a rollout goes to, when long tasks start, how many rollouts run at once: what that saves.

.venv/bin/python benchmarks/routing.py            the simulation of 8 to 64 replicas: some minutes on one core
.venv/bin/python benchmarks/routing.py --quick    8 and 16 replicas, fewer draws
.venv/bin/python benchmarks/routing.py --vllm     two real vLLM on the processor (`make test-vllm` installs it)

The simulated servers and the clock are in `serving.py`. The routing and the control of the concurrency are Rollbook's
own classes; round robin and the cache-aware policy stand beside them. The latter is what vllm-router and SGLang
describe: the replica with the longest shared prefix if that is more than 0.3 of the prompt, else the one with the
smallest tree; where the loads differ by more than 64 and by more than 1.5 times, the least loaded one.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from concurrency import measure_concurrency
from serving import Call, Clock, Hardware, Rollout, Server, count_ideal_prefill, draw_rollouts

from engine import Figure, show
from rollbook.book import TaskLengths
from rollbook.core import Chunks, Plan, make_part
from rollbook.models.replica_choice import ReplicaChooser

CACHE = Hardware()
NO_CACHE = Hardware(cache_tokens=0)
PER_REPLICA = 64
SAMPLES = 16
TOOL_S = 1.0


class Policy(Protocol):
    """How a client chooses the server of a call."""

    def choose(self, rollout: Rollout, call: Call, servers: Sequence[Server]) -> Server: ...


@dataclass(eq=False)
class View:
    """A server as one worker sees it: only its own calls."""

    server: Server
    in_flight: int = 0

    @property
    def base(self) -> str:
        return self.server.base


class Rollbook:
    """The routing of one Rollbook worker."""

    def __init__(self, routing: str) -> None:
        self._chooser: ReplicaChooser[View] = ReplicaChooser(routing)  # type: ignore[arg-type]
        self._views: dict[Server, View] = {}

    def choose(self, rollout: Rollout, call: Call, servers: Sequence[Server]) -> Server:
        views = [self._views.setdefault(server, View(server)) for server in servers]
        return self._chooser.choose(f"{rollout.task}#{rollout.sample}", str(rollout.task), views).server

    def count(self, server: Server, change: int) -> None:
        self._views[server].in_flight += change


class RoundRobin:
    """Each call goes to the next server."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, rollout: Rollout, call: Call, servers: Sequence[Server]) -> Server:
        self._next += 1
        return servers[self._next % len(servers)]

    def count(self, server: Server, change: int) -> None:
        return


class CacheAware:
    """A router in front of all servers: the longest shared prefix, by a tree of what it has sent to each."""

    def __init__(self) -> None:
        self._trees: dict[Server, dict[str, int]] = {}
        self._sizes: Counter[Server] = Counter()

    def choose(self, rollout: Rollout, call: Call, servers: Sequence[Server]) -> Server:
        loads = [server.in_flight for server in servers]
        if max(loads) - min(loads) > 64 and max(loads) > 1.5 * min(loads):
            chosen = min(servers, key=lambda server: server.in_flight)
        else:
            shared = {server: self._match(server, call) for server in servers}
            best = max(servers, key=lambda server: shared[server])
            chosen = best if shared[best] > 0.3 * call.prompt else min(servers, key=lambda server: self._sizes[server])
        self._add(chosen, call)
        return chosen

    def _match(self, server: Server, call: Call) -> int:
        tree, held = self._trees.setdefault(server, {}), 0
        for name, end in call.prefixes:
            if name not in tree:
                break
            held = end
        return held

    def _add(self, server: Server, call: Call) -> None:
        tree, before = self._trees.setdefault(server, {}), 0
        for name, end in call.prefixes:
            if name not in tree:
                tree[name] = end
                self._sizes[server] += end - before
            before = end

    def count(self, server: Server, change: int) -> None:
        return


POLICIES: dict[str, Callable[[], Policy]] = {
    "affinity": lambda: Rollbook("affinity"),
    "least-loaded": lambda: Rollbook("least-loaded"),
    "cache-aware": CacheAware,
    "round robin": RoundRobin,
}


@dataclass
class Outcome:
    """What one simulated run came to."""

    makespan: float
    prefilled: int
    cached: float
    ended: list[float]
    servers: list[Server]
    worst_load: float
    """The most calls of one server, beside the mean of those that were alive."""
    trace: list[tuple[float, list[int]]] = field(default_factory=list)


class Run:
    """A run of so many workers on so many servers; the chunks are claimed in this order."""

    def __init__(
        self,
        chunks: Sequence[Sequence[Rollout]],
        policies: Sequence[Policy],
        replicas: int,
        hardware: Hardware = CACHE,
    ) -> None:
        self.clock = Clock()
        self.servers = [Server(f"http://replica-{number}/v1", hardware, self.clock) for number in range(replicas)]
        self._policies = policies
        self._limit = PER_REPLICA * replicas // len(policies)
        self._chunks = deque(chunks)
        self._jobs: list[deque[Rollout]] = [deque() for _ in policies]
        self._ended: list[float] = []
        self._worst = 0.0
        self._total = sum(map(len, chunks))
        self.trace: list[tuple[float, list[int]]] = []

    def kill(self, server: Server, at: float, back_at: float) -> None:
        """Let a server die and come back, with an empty cache."""

        def revive() -> None:
            server.alive = True

        self.clock.at(at, server.die)
        self.clock.at(back_at, revive)

    def watch(self, every_s: float) -> None:
        """Record the loads again and again."""

        def look() -> None:
            if len(self._ended) < self._total:
                self.trace.append((self.clock.now, [server.in_flight for server in self.servers]))
                self.clock.at(self.clock.now + every_s, look)

        self.clock.at(0.0, look)

    def go(self) -> Outcome:
        """Run all rollouts."""
        for worker in range(len(self._policies)):
            for _ in range(self._limit):
                self._start_next(worker)
        self.clock.run()
        prefilled, prompted = (sum(getattr(s, name) for s in self.servers) for name in ("prefilled", "prompted"))
        cached = 1 - prefilled / prompted
        return Outcome(max(self._ended), prefilled, cached, self._ended, self.servers, self._worst, self.trace)

    def _start_next(self, worker: int) -> None:
        jobs = self._jobs[worker]
        if not jobs and self._chunks:
            jobs.extend(self._chunks.popleft())
        if jobs:
            self._call(worker, jobs.popleft(), 0)

    def _call(self, worker: int, rollout: Rollout, turn: int) -> None:
        alive, policy, call = [s for s in self.servers if s.alive], self._policies[worker], rollout.calls[turn]
        server = policy.choose(rollout, call, alive)
        policy.count(server, 1)

        def on_end(answered: bool) -> None:
            policy.count(server, -1)
            if not answered:
                self._call(worker, rollout, turn)
            elif turn + 1 < len(rollout.calls):
                self.clock.at(self.clock.now + TOOL_S, lambda: self._call(worker, rollout, turn + 1))
            else:
                self._ended.append(self.clock.now)
                self._start_next(worker)

        server.enter(call, on_end)
        mean = sum(s.in_flight for s in alive) / len(alive)
        if mean >= PER_REPLICA / 2:
            self._worst = max(self._worst, server.in_flight / mean)


def run_policy(
    name: str, rollouts: Sequence[Rollout], replicas: int, hardware: Hardware = CACHE, workers: int = 1
) -> Outcome:
    """Run all rollouts with a policy; a router in front of the servers is one for all workers."""
    router = POLICIES[name]()
    own = [router if name == "cache-aware" else POLICIES[name]() for _ in range(workers)]
    return Run(order_by_profile(rollouts, (), workers), own, replicas, hardware).go()


def compare_policies(replicas: int, tasks: int, seeds: int, turns: int = 1, workers: int = 1) -> Iterator[Figure]:
    """The work on prompts beside the ideal and the makespan beside that of least-loaded, on the same draws."""
    prefill: dict[str, list[float]] = {name: [] for name in POLICIES}
    cached: dict[str, list[float]] = {name: [] for name in POLICIES}
    uncached: dict[str, list[float]] = {name: [] for name in POLICIES}
    for seed in range(seeds):
        rollouts = draw_rollouts(replicas * tasks, SAMPLES, seed, turns=turns)
        ideal = count_ideal_prefill(rollouts, replicas)
        for name in POLICIES:
            with_caches = run_policy(name, rollouts, replicas, workers=workers)
            prefill[name].append(with_caches.prefilled / ideal)
            cached[name].append(with_caches.makespan)
            uncached[name].append(run_policy(name, rollouts, replicas, NO_CACHE, workers).makespan)
    what = f"{replicas} replicas, {tasks} tasks each" + (f", {turns} turns" if turns > 1 else "")
    what += f", {workers} workers" if workers > 1 else ""
    asked = workers == 1

    def compare(values: dict[str, list[float]]) -> tuple[float, str]:
        means = {name: statistics.mean(each) / statistics.mean(values["least-loaded"]) for name, each in values.items()}
        return means["affinity"], ", ".join(f"{name} {means[name]:.3f}" for name in means if name != "affinity")

    others = ", ".join(f"{name} {statistics.mean(prefill[name]):.2f}" for name in POLICIES if name != "affinity")
    yield Figure(f"{what}: prefill beside the ideal", statistics.mean(prefill["affinity"]), "x", 1.05, detail=others)
    value, others = compare(cached)
    yield Figure(f"{what}: makespan beside least-loaded", value, "x", 1.0 if asked else None, detail=others)
    value, others = compare(uncached)
    yield Figure(f"{what}: the same without caches", value, "x", 1.03 if asked else None, detail=others)


def survive_death(tasks: int, seed: int = 0, replicas: int = 8) -> Iterator[Figure]:
    """One of eight replicas dies at a fifth of the run and comes back at two fifths, its cache empty."""
    rollouts = draw_rollouts(replicas * tasks, SAMPLES, seed)
    calm = run_policy("affinity", rollouts, replicas)
    run = Run(order_by_profile(rollouts, (), 1), [POLICIES["affinity"]()], replicas)
    died, back = 0.2 * calm.makespan, 0.4 * calm.makespan
    run.kill(run.servers[3], died, back)
    run.watch(calm.makespan / 400)
    outcome = run.go()
    while_down = [loads for at, loads in outcome.trace if died < at < back]
    full = [(at, loads) for at, loads in outcome.trace if at > back and sum(loads) > 0.9 * PER_REPLICA * replicas]
    worst = max(max(loads) / (sum(loads) / (replicas - 1)) for loads in while_down)
    yield Figure("one of 8 dies: worst load of the others, beside their mean", worst, "x", 1.6)
    least = min(sorted(loads)[1] / (sum(loads) / (replicas - 1)) for loads in while_down)
    yield Figure("one of 8 dies: least load of the others, beside their mean", least, "x", 0.4, True)
    again = next(at for at, loads in full if loads[3] >= 0.8 * sum(loads) / replicas) - back
    yield Figure("it comes back: until it has 0.8 of the mean load", again / calm.makespan, "of the run", 0.1)
    worst = max(max(loads) / (sum(loads) / replicas) for _, loads in full)
    yield Figure("it comes back: worst load of any, beside the mean", worst, "x", 1.6)
    lost = (back - died) / replicas
    detail = f"{calm.makespan:.0f} s without; {lost:.0f} s are lost in any case"
    beside = outcome.makespan / (calm.makespan + lost)
    yield Figure("one of 8 dies: makespan beside a run without, and the loss", beside, "x", 1.05, detail=detail)


def order_by_profile(rollouts: Sequence[Rollout], profile: Sequence[Rollout], workers: int) -> list[list[Rollout]]:
    """Return the chunks of a plan as they are claimed: by the plan alone, or the longest of an earlier run first."""
    samples = len({rollout.sample for rollout in rollouts})
    tasks = len(rollouts) // samples
    chunks = Chunks(Plan(1, [make_part((0, tasks), (0, samples), workers, ordered=bool(profile))]))
    held = [rollouts[chunk.start : chunk.stop] for chunk in chunks]
    if not profile:
        return held
    seen: dict[int, list[int]] = {}
    for rollout in profile:
        seen.setdefault(rollout.task, []).append(rollout.tokens)
    lengths = TaskLengths("tokens", [statistics.mean(seen[task]) for task in range(tasks)])
    order = lengths.order_chunks(chunks)
    return [sorted(held[number], key=lambda rollout: -lengths.length(rollout.task)) for number in order]


def bound_makespan(rollouts: Sequence[Rollout], replicas: int, hardware: Hardware, cached: float) -> float:
    """Return what no order beats: all work spread evenly over full batches, or the longest rollout alone."""
    batch = min(hardware.max_running, PER_REPLICA)
    step_s = hardware.step_s + hardware.per_sequence_s * batch
    decoding = sum(rollout.tokens for rollout in rollouts) / batch * step_s
    prefill = (
        sum(call.prompt for rollout in rollouts for call in rollout.calls) * (1 - cached) * hardware.prefill_token_s
    )
    alone = max(rollout.tokens for rollout in rollouts) * (hardware.step_s + hardware.per_sequence_s)
    return max((decoding + prefill) / replicas, alone)


def shorten_tail(tasks: int, seeds: int, workers: int = 1, replicas: int = 8) -> Iterator[Figure]:
    """The makespan over the bound, in the order of the plan and with the longest first, on the same draws."""
    over: dict[str, list[float]] = {"plan": [], "longest first": []}
    tails: dict[str, list[float]] = {"plan": [], "longest first": []}
    for seed in range(seeds):
        rollouts = draw_rollouts(replicas * tasks, SAMPLES, seed)
        profile = draw_rollouts(replicas * tasks, 4, seed, first_sample=SAMPLES)
        for name, known in (("plan", []), ("longest first", profile)):
            chunks = order_by_profile(rollouts, known, workers)
            outcome = Run(chunks, [POLICIES["affinity"]() for _ in range(workers)], replicas).go()
            over[name].append(outcome.makespan / bound_makespan(rollouts, replicas, CACHE, outcome.cached))
            ended = sorted(outcome.ended)
            tails[name].append(1 - ended[round(0.95 * len(ended)) - 1] / outcome.makespan)
    before, after = (statistics.mean(each) for each in over.values())
    what = f"{replicas} replicas, {tasks} tasks each" + (f", {workers} workers" if workers > 1 else "")
    tail = ", ".join(f"{name} {statistics.mean(each):.0%}" for name, each in tails.items())
    detail = f"{before:.2f} in the order of the plan; of the makespan after 95% done: {tail}"
    yield Figure(f"{what}: makespan over the bound, longest first", after, "x", before, detail=detail)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer replicas and draws")
    parser.add_argument("--vllm", action="store_true", help="two real vLLM instead of the simulation")
    options = parser.parse_args()
    quick = options.quick
    figures: list[Figure] = []
    try:
        figures += measure_vllm(quick) if options.vllm else simulate(quick)
    finally:
        show(figures)
    return int(any("MISSED" in figure.verdict for figure in figures))


def measure_vllm(quick: bool) -> Iterator[Figure]:
    """With real servers."""
    from routing_vllm import measure

    return measure(quick)


def simulate(quick: bool) -> Iterator[Figure]:
    """All figures of the simulation."""
    for replicas in (8, 16) if quick else (8, 16, 32, 64):
        yield from compare_policies(replicas, 10, 4 if quick else 12)
    yield from compare_policies(8, 40, 2 if quick else 6)
    yield from compare_policies(8, 10, 8, turns=4)
    yield from compare_policies(8, 40, 2 if quick else 6, workers=4)
    yield from survive_death(120)
    yield from shorten_tail(40, 2 if quick else 6)
    yield from shorten_tail(120, 2 if quick else 6)
    yield from shorten_tail(120, 2 if quick else 6, workers=4)
    yield from measure_concurrency(quick)


if __name__ == "__main__":
    sys.exit(main())
