"""Two real vLLM on the processor, one core each: what the prefix caches hold under each routing, and how long it takes.

`benchmarks/routing.py --vllm` runs it, with the Python that ROLLBOOK_VLLM_PYTHON names (`make test-vllm` installs one).
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from engine import Figure
from rollbook import Environment, Rollout, Task, run
from rollbook.book import Book, rollouts
from rollbook.core import Sampling

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

PROMPT_TOKENS, SAMPLES = 1500, 16


class LongPrompts(Environment):
    """Tasks whose prompts are so many words; another seed gives other ones, which no cache holds."""

    def __init__(self, seed: int, tasks: int, words: int) -> None:
        self._draw, self._tasks, self._words = random.Random(seed), tasks, words

    def tasks(self) -> Iterator[Task]:
        for number in range(self._tasks):
            yield Task(id=f"long-{number}", prompt=self.draw_prompt())

    def draw_prompt(self) -> str:
        return "noise " + " ".join(str(self._draw.randrange(10_000)) for _ in range(self._words))

    async def verify(self, task: Task, rollout: Rollout) -> float:
        return 1.0


def count_words(server) -> int:
    """How many words make a prompt of PROMPT_TOKENS tokens."""
    messages = [{"role": "user", "content": LongPrompts(0, 1, 400).draw_prompt()}]
    tokens = server.ask("/tokenize", {"model": "tiny", "messages": messages})["count"]
    return round(400 * PROMPT_TOKENS / tokens)


def run_once(
    servers: Sequence, seed: int, tasks: int, words: int, concurrency: int | str, folder: Path, **settings
) -> tuple[float, float, float]:
    """Run so many tasks; return the cached share of the prompts by the servers' own metrics, the seconds, and ours."""
    before = [server.cached_tokens() for server in servers]
    began = time.perf_counter()
    done = run(
        LongPrompts(seed, tasks, words),
        [server.url for server in servers],
        samples=SAMPLES,
        out=folder / f"run-{seed}",
        concurrency=concurrency,
        sampling=Sampling(max_tokens=16, extra={"ignore_eos": True}),
        probe=False,
        **settings,
    )
    seconds = time.perf_counter() - began
    changes = [(a - c, b - d) for (a, b), (c, d) in zip((s.cached_tokens() for s in servers), before, strict=True)]
    hits, queries = (sum(each) for each in zip(*changes, strict=True))
    assert done.report.scored == tasks * SAMPLES
    return hits / queries, seconds, tasks * SAMPLES / seconds


def compare_routing(servers: Sequence, folder: Path, tasks: int, rounds: int) -> Iterator[Figure]:
    """One replica alone, both with affinity, both without, in turns."""
    words, seed = count_words(servers[0]), 1
    kinds = {"alone": (servers[:1], "affinity"), "affinity": (servers, "affinity"), "least": (servers, "least-loaded")}
    shares: dict[str, list[float]] = {kind: [] for kind in kinds}
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for server in servers:
        run_once([server], seed := seed + 1, 1, words, 16, folder)
    for _ in range(rounds):
        for kind, (there, routing) in kinds.items():
            share, took, _ = run_once(there, seed := seed + 1, tasks, words, 16 * len(there), folder, routing=routing)
            shares[kind].append(share)
            seconds[kind].append(took)
    median = {kind: statistics.median(each) for kind, each in shares.items()}
    detail = ", ".join(f"{kind} {value:.3f}" for kind, value in median.items())
    what = f"two vLLM, prompts of {PROMPT_TOKENS} tokens, k = {SAMPLES}: cached"
    yield Figure(f"{what} beside one alone", median["affinity"] / median["alone"], "x", 0.95, True, detail)
    yield Figure(f"{what} beside one alone, least-loaded", median["least"] / median["alone"], "x")
    took = {kind: statistics.median(each) for kind, each in seconds.items()}
    spread = max(seconds["least"]) / took["least"]
    detail = "; ".join(f"{kind} {min(each):.1f} to {max(each):.1f} s" for kind, each in seconds.items())
    yield Figure(
        "two vLLM: wall time beside least-loaded", took["affinity"] / took["least"], "x", spread, detail=detail
    )


ANSWER_TOKENS, FIXED = 16, (8, 32, 128)


def run_short(server, seed: int, tasks: int, concurrency: int | str, folder: Path) -> float:
    """Run short prompts on one server; return its tokens a second after the first 5% of the time."""
    out = folder / f"short-{seed}"
    run(
        LongPrompts(seed, tasks, 20),
        server.url,
        samples=SAMPLES,
        out=out,
        concurrency=concurrency,
        sampling=Sampling(max_tokens=ANSWER_TOKENS, extra={"ignore_eos": True}),
        probe=False,
    )
    times = [(each.timing.start, each.timing.start + each.timing.seconds) for each in rollouts(Book(out))]
    began, end = min(start for start, _ in times), max(stop for _, stop in times)
    since = began + 0.05 * (end - began)
    return sum(stop > since for _, stop in times) * ANSWER_TOKENS / (end - since)


def find_concurrency(server, folder: Path, tasks: int, rounds: int) -> Iterator[Figure]:
    """-c auto beside fixed numbers, in turns."""
    found: dict[int | str, list[float]] = {concurrency: [] for concurrency in (*FIXED, "auto")}
    seed = 1000
    for _ in range(rounds):
        for concurrency, each in found.items():
            each.append(run_short(server, seed := seed + 1, tasks, concurrency, folder))
    medians = {concurrency: statistics.median(each) for concurrency, each in found.items()}
    detail = ", ".join(f"-c {concurrency} {value:.0f} tokens/s" for concurrency, value in medians.items())
    share = medians["auto"] / max(medians[concurrency] for concurrency in FIXED)
    yield Figure("one vLLM: -c auto after 5% beside the best fixed", share, "x", 0.95, True, detail)


def measure(quick: bool) -> Iterator[Figure]:
    """All figures with real servers."""
    from support.tinyvllm import Server, tiny_model

    with tempfile.TemporaryDirectory(prefix="rollbook-vllm-") as name:
        folder = Path(name)
        servers = []
        try:
            for core in (0, 1):
                servers.append(Server(tiny_model(), folder / f"vllm-{core}.log", core))
            for server in servers:
                server.wait()
            yield from compare_routing(servers, folder, 8 if quick else 24, 3 if quick else 5)
            servers.pop().stop()
            yield from find_concurrency(servers[0], folder, 150 if quick else 300, 1 if quick else 3)
        finally:
            for server in servers:
                server.stop()
