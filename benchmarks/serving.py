"""A simulation of model servers: continuous batching, a prefix cache of finite size, several clients, virtual time.

A server either computes a prompt (as many tokens as its cache does not hold) or decodes all its running sequences, one
token each a step; a step takes longer the more sequences run. It knows no text: a prefix is named by the system prompt,
the task, and the rollout with its turn.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MIN_COMPUTED = 16
"""Tokens of a prompt that are always computed: the last block is never taken from the cache."""


@dataclass(frozen=True)
class Hardware:
    """What a server can do; by default about a model of 8 billion parameters on one large GPU."""

    step_s: float = 0.008
    per_sequence_s: float = 0.00006
    prefill_token_s: float = 0.00004
    max_running: int = 256
    cache_tokens: int = 400_000
    crowded_at: int = 1_000_000
    crowded_s: float = 0.0002
    """What every sequence above `crowded_at` adds to a step: it evicts others, whose prompts are computed again."""


@dataclass(frozen=True)
class Call:
    """One model call: its prompt as nested prefixes with the tokens up to their end, and how long its answer is."""

    prefixes: tuple[tuple[str, int], ...]
    answer: int
    after: tuple[tuple[str, int], ...] = ()
    """The prefixes that a server holds when it has answered."""

    @property
    def prompt(self) -> int:
        """The tokens of the prompt."""
        return self.prefixes[-1][1]


@dataclass(frozen=True)
class Rollout:
    """A key of the plan: its calls, one after another."""

    task: int
    sample: int
    calls: tuple[Call, ...]

    @property
    def tokens(self) -> int:
        """The tokens of all its answers."""
        return sum(call.answer for call in self.calls)


def draw_rollouts(
    tasks: int,
    samples: int,
    seed: int,
    *,
    system: int = 600,
    prompt: int = 1500,
    median: float = 600.0,
    task_sigma: float = 0.7,
    sigma: float = 0.5,
    turns: int = 1,
    tool_tokens: int = 200,
    longest: int = 16_384,
    first_sample: int = 0,
) -> list[Rollout]:
    """Draw a run in the order of its plan: lognormal lengths, that of a task and that of a sample.

    Another `first_sample` gives other samples of the same tasks.
    """
    draw, of_task = random.Random(f"{seed} {first_sample}"), random.Random(seed)
    made = []
    for task in range(tasks):
        task_median = median * math.exp(of_task.gauss(0, task_sigma))
        for sample in range(first_sample, first_sample + samples):
            calls, prefixes, end = [], [("system", system), (f"task {task}", prompt)], prompt
            for turn in range(turns):
                answer = max(1, min(longest, round(task_median / turns * math.exp(draw.gauss(0, sigma)))))
                end += answer
                after = (*prefixes, (f"answer {task}#{sample}.{turn}", end))
                calls.append(Call(tuple(prefixes), answer, after if turns > 1 else ()))
                prefixes = list(after)
                end += tool_tokens
                prefixes.append((f"tool {task}#{sample}.{turn}", end))
            made.append(Rollout(task, sample, tuple(calls)))
    return made


def count_ideal_prefill(rollouts: Sequence[Rollout], replicas: int) -> int:
    """Return the prompt tokens that are computed if each replica computes the system prompt and one each other prefix.

    The last tokens of a prompt are always computed, also where all of it is held.
    """
    held, computed = set[str](), 0
    for call in (call for rollout in rollouts for call in rollout.calls):
        matched, new = 0, False
        for name, end in call.prefixes:
            new = new or name not in held
            matched = matched if new else end
        computed += max(MIN_COMPUTED, call.prompt - matched)
        held.update(name for name, _ in (*call.prefixes, *call.after))
    system = rollouts[0].calls[0].prefixes[0][1]
    return computed + system * (replicas - 1)


class PrefixCache:
    """The prefixes that a server holds; the ones used longest ago are evicted first."""

    def __init__(self, tokens: int) -> None:
        self._room, self._held, self._sizes = tokens, 0, OrderedDict[str, int]()

    def match(self, call: Call) -> int:
        """Return how many tokens of the prompt are held."""
        held = 0
        for name, end in call.prefixes:
            if name not in self._sizes:
                break
            self._sizes.move_to_end(name)
            held = end
        return held

    def add(self, prefixes: Sequence[tuple[str, int]]) -> None:
        """Hold prefixes; the longer part of each is charged to it."""
        before = 0
        for name, end in prefixes:
            if name not in self._sizes:
                self._sizes[name] = end - before
                self._held += end - before
            self._sizes.move_to_end(name)
            before = end
        for name, _ in reversed(prefixes):  # a prefix outlives what continues it
            self._sizes.move_to_end(name)
        while self._held > self._room:
            self._held -= self._sizes.popitem(last=False)[1]


class Clock:
    """Virtual time: runs what is due, in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, when: float, do: Callable[[], None]) -> None:
        """Do something later."""
        self._count += 1
        heapq.heappush(self._events, (max(when, self.now), self._count, do))

    def run(self) -> None:
        """Run until nothing is left to do."""
        while self._events:
            self.now, _, do = heapq.heappop(self._events)
            do()


Done = Callable[[bool], None]
"""Is told that a call has ended, and whether it was answered."""


class Server:
    """One replica. `base` and `in_flight` are what a router that sees all calls knows of it."""

    def __init__(self, base: str, hardware: Hardware, clock: Clock) -> None:
        self.base, self.hardware, self._clock = base, hardware, clock
        self.in_flight = self.most_in_flight = 0
        self.alive, self.speed = True, 1.0
        self.prefilled = self.prompted = self.decoded = 0
        self._cache = PrefixCache(hardware.cache_tokens)
        self._waiting: deque[tuple[Call, Done]] = deque()
        self._running: list[tuple[float, int, Call, Done]] = []
        self._prefilling: tuple[Call, Done] | None = None
        self._steps, self._since, self._epoch, self._count = 0.0, 0.0, 0, 0

    @property
    def _step_s(self) -> float:
        hardware, running = self.hardware, len(self._running)
        crowded_s = hardware.crowded_s * max(0, running - hardware.crowded_at)
        return (hardware.step_s + hardware.per_sequence_s * running + crowded_s) / self.speed

    def enter(self, call: Call, done: Done) -> None:
        """Take a call."""
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self._waiting.append((call, done))
        if self._prefilling is None:
            self._advance()
            self._begin()

    def _advance(self) -> None:
        """Count the steps since the last look."""
        if self._running and self._prefilling is None:
            self._steps += (self._clock.now - self._since) / self._step_s
        self._since = self._clock.now

    def _begin(self) -> None:
        """Begin to compute a prompt if one waits, else decode until the first sequence ends."""
        self._epoch += 1
        epoch = self._epoch
        if self._waiting and len(self._running) < self.hardware.max_running:
            call, _ = self._prefilling = self._waiting.popleft()
            computed = max(min(MIN_COMPUTED, call.prompt), call.prompt - self._cache.match(call))
            self._cache.add(call.prefixes)
            self.prefilled += computed
            self.prompted += call.prompt
            seconds = computed * self.hardware.prefill_token_s / self.speed
        elif self._running:
            seconds = max(0.0, self._running[0][0] - self._steps) * self._step_s
        else:
            return
        self._clock.at(self._clock.now + seconds, lambda: self._look(epoch))

    def _look(self, epoch: int) -> None:
        """Finish what is due, unless something else was begun since."""
        if epoch != self._epoch:
            return
        self._advance()
        ended = []
        if self._prefilling is not None:
            (call, done), self._prefilling = self._prefilling, None
            self._count += 1
            heapq.heappush(self._running, (self._steps + call.answer, self._count, call, done))
        while self._running and self._running[0][0] <= self._steps + 1e-6:
            _, _, call, done = heapq.heappop(self._running)
            self._cache.add(call.after)
            self.decoded += call.answer
            ended.append(done)
        self.in_flight -= len(ended)
        self._begin()
        for done in ended:
            done(True)

    def change_speed(self, speed: float) -> None:
        """Let somebody else take a share of the machine, or give it back."""
        if self._prefilling is None:
            self._advance()
            self.speed = speed
            self._begin()
        self.speed = speed

    def die(self) -> None:
        """Lose all calls and the cache."""
        lost = [done for _, done in self._waiting] + [done for *_, done in self._running]
        lost += [self._prefilling[1]] if self._prefilling else []
        self._waiting.clear()
        self._running.clear()
        self._prefilling, self.alive, self.in_flight = None, False, 0
        self._epoch += 1
        self._cache = PrefixCache(self.hardware.cache_tokens)
        for done in lost:
            done(False)
