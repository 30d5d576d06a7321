"""The cost of verification: mathematics in the worker pool relative to math-verify called in as many processes.

.venv/bin/python benchmarks/verify.py            both sides three times, taken in turns: about a minute on two cores
.venv/bin/python benchmarks/verify.py --quick    a quarter of the size, once
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Semaphore

from engine import Figure, show
from rollbook.core import Limits, Message, Rollout, Task
from rollbook.environments import EnvironmentRuntime, resolve

CONCURRENCY = 8
START_S = 120.0
WARM = 32
"""What each process verifies before it is timed; numbers that do not come again, for algebra systems remember."""
UNSEEN = 1_000_000
Pair = tuple[str, str]


def pairs(count: int, first: int = 2) -> list[Pair]:
    """Expected answers, and answers as short as can be: all of them need algebra, half of them are right."""
    return [(expected, f"\\boxed{{{given}}}") for expected, given in expressions(first, first + count)]


def expressions(first: int, last: int) -> Iterator[Pair]:
    """Roots, polynomials, fractions of pi and intervals, each written in two ways."""
    for i in range(first, last):
        wrong = i % 2
        forms = [
            (f"\\sqrt{{{4 * i}}}", f"2\\sqrt{{{i + wrong}}}"),
            (f"(x+{i})^2", f"x^2+{2 * i}x+{i * i + wrong}"),
            (f"\\frac{{{i}\\pi}}{{{2 * i + 2}}}", f"\\frac{{{i + wrong}}}{{{i + 1}}} \\cdot \\frac{{\\pi}}{{2}}"),
            (f"[{i}, {i + 3})", f"[\\frac{{{2 * i}}}{{2}}, {i + 3 + wrong})"),
        ]
        yield forms[i % len(forms)]


def warm(ready: Semaphore) -> None:
    """What a process of the bare side does before it is timed: import, and every form often enough to fill caches."""
    os.setsid()  # as ours have: where the kernel shares out time by session, one session of eight would starve
    for pair in pairs(WARM, UNSEEN):
        bare(pair)
    ready.release()


def bare(pair: Pair) -> bool:
    """math-verify on a text, its own timeouts off: they cost it time and guard nothing here."""
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    expected, text = pair
    gold = parse(f"${expected}$", parsing_timeout=None)
    return bool(verify(gold, parse(text, parsing_timeout=None), timeout_seconds=None))


def bare_rate(asked: list[Pair]) -> tuple[float, int]:
    """Verifications per second of as many processes, each with its share, and how many were right."""
    context = multiprocessing.get_context("spawn")
    ready = context.Semaphore(0)
    with context.Pool(CONCURRENCY, warm, (ready,)) as pool:
        for _ in range(CONCURRENCY):
            assert ready.acquire(timeout=START_S), "math-verify did not start"
        began = time.perf_counter()
        right = sum(pool.map(bare, asked))
        return len(asked) / (time.perf_counter() - began), right


async def our_rate(asked: list[Pair]) -> tuple[float, int]:
    """The same through the stage of the environment `math`, so many rollouts at a time."""
    loaded = resolve("math", data="unread.jsonl")
    stage = EnvironmentRuntime(loaded.spec, Limits(), environment=lambda: loaded.instance, max_processes=CONCURRENCY)
    await stage.open()
    try:
        while len(stage._pool._processes) < CONCURRENCY:  # type: ignore[union-attr]
            await verified(stage, pairs(WARM * CONCURRENCY, UNSEEN))
        await verified(stage, pairs(WARM * CONCURRENCY, UNSEEN))
        began = time.perf_counter()
        right = await verified(stage, asked)
        return len(asked) / (time.perf_counter() - began), right
    finally:
        await stage.close()


async def verified(stage: EnvironmentRuntime, asked: list[Pair]) -> int:
    """How many of the answers are right, by so many askers who each wait for their verdict."""
    left = iter(asked)

    async def asker() -> float:
        return sum([(await stage.verify(*rollout_of(pair))).reward for pair in left])

    return round(sum(await asyncio.gather(*(asker() for _ in range(CONCURRENCY)))))


def rollout_of(pair: Pair) -> tuple[Task, Rollout]:
    """A rollout that said this text."""
    expected, text = pair
    task = Task("t", "What is it?", answer=expected)
    return task, Rollout(task=task, sample=0, seed=0, messages=[*task.messages, Message("assistant", text)])


def figures(count: int, rounds: int) -> Iterator[Figure]:
    """Ours relative to the bare side's mean before and after, the median of all rounds."""
    asked, ratios, rates = pairs(count), [], []
    for _ in range(rounds):
        before, theirs = bare_rate(asked)
        rate, right = asyncio.run(our_rate(asked))
        ratios.append(rate / statistics.mean([before, bare_rate(asked)[0]]))
        rates.append(rate)
    detail = f"{statistics.median(rates):.0f}/s; right: ours {right}, theirs {theirs}, of {count}"
    what = f"{count} verifications of mathematics at concurrency {CONCURRENCY}, relative to math-verify"
    yield Figure(what, statistics.median(ratios), "x", 0.8, True, detail)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a quarter of the size, once")
    quick = parser.parse_args().quick
    found = list(figures(500 if quick else 2_000, 1 if quick else 3))
    show(found)
    return int(any("MISSED" in figure.verdict for figure in found))


if __name__ == "__main__":
    sys.exit(main())
