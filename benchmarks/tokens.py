"""What exact tokens cost, and whether they are exact: batches, merging, and turn after turn of a real vLLM.

.venv/bin/python benchmarks/tokens.py                 batches and merging: about a minute
.venv/bin/python benchmarks/tokens.py --quick         the same at an eighth of the size
.venv/bin/python benchmarks/tokens.py --vllm tiny     10,000 turns of a real vLLM as well, with a tiny model of noise
.venv/bin/python benchmarks/tokens.py --vllm URL      the same of one that is up

A sequence makes arrays of its lists once, when it is made, which is as its rollout ends. What is timed of a batch is
`batch` on such sequences. Beside it numpy alone copies the rows of all five arrays, ready-made, into padded ones.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from engine import Figure, show
from rollbook import run
from rollbook.book import Book, rollouts
from rollbook.core import Sampling, Turn
from rollbook.tokens import Sequence, batch, merge

TESTS = Path(__file__).parents[1] / "tests"
TALKING = TESTS / "e2e/vllm/talking.py"
VOCABULARY = 150_000
PAD = 0
TURNS_EACH = 8
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}


def sequences(count: int, tokens: int) -> list[Sequence]:
    """As many, most of them a little shorter than the longest; a quarter of each is its prompt."""
    made = []
    for _ in range(count):
        total = random.randrange(tokens * 3 // 4, tokens + 1)
        prompt, response = total // 4, total - total // 4
        ids = ids_of(total)
        mask = [int(i % 100 < 80) for i in range(response)]
        logprobs = [-random.random() if trained else 0.0 for trained in mask]
        made.append(Sequence(ids[:prompt], ids[prompt:], mask, logprobs))
    return made


def ids_of(count: int) -> list[int]:
    """Ids as they come from a server: every one an object of its own."""
    found: list[int] = msgspec.json.decode(msgspec.json.encode(random.choices(range(VOCABULARY), k=count)))
    return found


Row = dict[str, tuple[int, np.ndarray]]


def ready(made: list[Sequence]) -> tuple[list[Row], int, int]:
    """What a batch of these holds, row by row: where each array begins in its row, and its numbers."""
    width = max(len(s.prompt_ids) for s in made)
    longest = max(len(s.response_ids) for s in made)
    rows = []
    for s in made:
        start, total = width - len(s.prompt_ids), len(s)
        rows.append(
            {
                "ids": (start, np.array(s.prompt_ids + s.response_ids)),
                "attention": (start, np.ones(total, np.int64)),
                "positions": (start, np.arange(total)),
                "mask": (0, np.array(s.mask)),
                "logprobs": (0, np.array(s.logprobs, np.float32)),
            }
        )
    return rows, width, longest


def copied(rows: list[Row], width: int, longest: int) -> dict[str, np.ndarray]:
    """The yardstick: numpy copies arrays into padded ones."""
    shapes = {"ids": width + longest, "attention": width + longest, "positions": width + longest}
    padded: dict[str, np.ndarray] = {name: np.zeros((len(rows), size), np.int64) for name, size in shapes.items()}
    padded |= {"mask": np.zeros((len(rows), longest), np.int64), "logprobs": np.zeros((len(rows), longest), np.float32)}
    for number, row in enumerate(rows):
        for name, (start, values) in row.items():
            padded[name][number, start : start + len(values)] = values
    return padded


def seconds(work: Callable[[], object]) -> float:
    """Of the processor: others may be at work."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def batching(count: int, tokens: int) -> Iterator[Figure]:
    begun = time.perf_counter()
    made = sequences(count, tokens)
    preparing = time.perf_counter() - begun
    rows, width, longest = ready(made)
    ours, theirs = [], []
    for _ in range(7):  # in turns, so that both see the same machine
        theirs.append(seconds(lambda: copied(rows, width, longest)))
        ours.append(seconds(lambda: batch(made, PAD)))
    one, other = statistics.median(ours), statistics.median(theirs)
    detail = f"{one:.3f} s, numpy {other:.3f} s; drawing and making the sequences before that {preparing:.1f} s"
    yield Figure(f"batch of {count:,} x {tokens:,} tokens against numpy's copy", one / other, "x", 2.0, detail=detail)


def conversation(tokens: int, turns: int = TURNS_EACH) -> list[Turn]:
    """Turns that continue one another up to so many tokens, each with a prompt of its own."""
    made, held, each = [], ids_of(tokens // 10), (tokens - tokens // 10) // turns
    for _ in range(turns):
        ids = ids_of(each * 4 // 5)
        made.append(Turn(held, ids, [-0.5] * len(ids)))
        between = ids_of(each - len(ids))
        held = msgspec.json.decode(msgspec.json.encode([*held, *ids, *between]))
    return made


def merging(largest: int) -> Iterator[Figure]:
    """The time of one token, in a short conversation and in one a hundred times as long."""
    costs = {}
    for tokens in (largest // 100, largest):
        turns = conversation(tokens)
        rounds = max(5, 2_000_000 // tokens)
        costs[tokens] = min(seconds(lambda turns=turns: merge(turns)) for _ in range(rounds)) / tokens
    small, large = costs.values()
    detail = f"{large * 1e9:.0f} ns a token at {largest:,} tokens, {small * 1e9:.0f} ns at {largest // 100:,}"
    yield Figure("merge: a token of a long conversation against one of a short", large / small, "x", 4.0, detail=detail)


@contextmanager
def server(where: str) -> Iterator[str]:
    if where != "tiny":
        yield where
        return
    sys.path.insert(0, str(TESTS))
    from support.tinyvllm import Server, tiny_model

    with tempfile.TemporaryDirectory(prefix="rollbook-vllm-") as folder:
        started = Server(tiny_model(), Path(folder) / "log")
        try:
            started.wait()
            yield started.url
        finally:
            started.stop()


def turns_of(url: str, turns: int) -> Iterator[Figure]:
    """Conversations of noise through the whole engine, with ids sent in and read back from the disk."""
    with tempfile.TemporaryDirectory(prefix="rollbook-bench-") as folder:
        begun = time.perf_counter()
        done = run(
            f"{TALKING}:Noise?tasks={turns // TURNS_EACH}&turns={TURNS_EACH}",
            url,
            out=Path(folder) / "run",
            concurrency=32,
            sampling=Sampling(max_tokens=12, extra=NO_THINKING),
            continue_tokens=True,
            allow_shortfall=True,
        )
        took = time.perf_counter() - begun
        found = list(rollouts(Book(Path(folder) / "run"), tokens=True))
    told = done.report
    played = sum(len(rollout.turns) for rollout in found)
    tokens = sum(len(turn.ids or ()) for rollout in found for turn in rollout.turns)
    junk = sum("\ufffd" in m.text for rollout in found for m in rollout.messages if m.role == "assistant")
    wrong = sum(told.failed.values()) + sum(mismatches(rollout.turns) for rollout in found)
    detail = f"{tokens:,} tokens in {took:.0f} s; {junk:,} answers hold bytes that are no text"
    yield Figure("turns of a real vLLM", played, "", turns // TURNS_EACH * TURNS_EACH, True, detail)
    yield Figure("  of which with a token mismatch", wrong, "", 0.0)


def mismatches(turns: list[Turn]) -> int:
    """Turns that do not begin with exactly what was seen and sampled before, or lack an id or a logprob."""
    held: list[int] = []
    wrong = 0
    for turn in turns:
        prompt, ids, logprobs = turn.prompt_ids or [], turn.ids or [], turn.logprobs or []
        wrong += prompt[: len(held)] != held or not ids or len(ids) != len(logprobs)
        held = prompt + ids
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="an eighth of the size")
    parser.add_argument("--vllm", metavar="URL|tiny", help="a vLLM to take turns with")
    given = parser.parse_args()
    random.seed(0)
    less = 8 if given.quick else 1
    figures = [*batching(1024 // less, 8192), *merging(1_000_000 // less)]
    if given.vllm:
        with server(given.vllm) as url:
            figures += turns_of(url, 10_000 // less)
    show(figures)
    return int(any("MISSED" in figure.verdict for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
