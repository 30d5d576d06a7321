"""Books worth looking at: mathematics, code, tools, reasoning, failures, forks, and content that means harm."""

from __future__ import annotations

import random
from hashlib import sha256
from pathlib import Path

from rollbook.book import Book, BookDraft
from rollbook.core import (
    FAILURE_KINDS,
    SCHEMA_VERSION,
    EnvironmentSpec,
    Extent,
    Failure,
    Function,
    Lease,
    Limits,
    Manifest,
    Message,
    ModelSpec,
    Presence,
    Rollout,
    Sampling,
    Score,
    Seal,
    Settings,
    Task,
    Timing,
    TokenRef,
    ToolCall,
    Turn,
    derive_seed,
    encode,
    make_failed_line,
    make_part,
    make_scored_line,
)
from rollbook.tokens import encode_tokens as encode_tokens
from support.books import encode_journal_line

WORKER = "desk-1-00000000"
START = 1_790_000_000.0
HOSTILE = """<script>window.harmed = true; fetch("http://beacon.invalid/script")</script>
<img src="http://beacon.invalid/image.png" onerror="window.harmed = true">
![beacon](http://beacon.invalid/markdown.png)
[click me](javascript:window.harmed=true) and [here](http://beacon.invalid/link)
<a href="javascript:window.harmed=true">raw</a> <style>body { display: none }</style>
$\\href{javascript:window.harmed=true}{x}$ $\\includegraphics{http://beacon.invalid/tex.png}$
"""
MATHS = """## The area under the curve

We integrate **term by term**, using $\\int x^n\\,dx = \\frac{x^{n+1}}{n+1}$:

$$\\int_0^{%d} (3x^2 + 2x)\\,dx = \\left[x^3 + x^2\\right]_0^{%d} = %d$$

| term | antiderivative |
| --- | --- |
| $3x^2$ | $x^3$ |
| $2x$ | $x^2$ |

1. Evaluate at the upper bound.
2. Subtract the value at `0`, which is nothing.

```python
def area(bound: int) -> int:
    # the lower bound adds nothing
    return bound**3 + bound**2

print(area(%d))
```

The answer is \\(\\boxed{%d}\\).
"""


def make(path: Path, tasks: int = 24, samples: int = 8, model: str = "qwen-7b", run: str = "") -> Book:
    """A planned book: mathematics, and a few tasks for a tool."""
    spec = EnvironmentSpec("calculus.py:Calculus", "calculus:Calculus")
    manifest = Manifest(
        SCHEMA_VERSION,
        run or path.name,
        START,
        {"Calculus": spec},
        ModelSpec(model),
        Sampling(temperature=0.7),
        samples,
        7,
        Limits(),
        {"rollbook": "0"},
    )
    with BookDraft(path) as draft:
        count = draft.add_tasks((_task(i) for i in range(tasks)), "Calculus")
        settings = Settings(urls=["http://localhost:8000/v1"])
        return draft.finish(manifest, [make_part((0, count), (0, samples), 2)], settings)


def _task(i: int) -> Task:
    system = Message("system", "Reason step by step. Put the answer into a box.")
    asked = f"What is the area under $3x^2 + 2x$ between $0$ and ${i}$?"
    return Task(
        f"area-{i}", messages=[system, Message("user", asked)], answer=str(i**3 + i**2), level=i % 4, hint="x^3"
    )


class Pen:
    """Writes the lines of one worker, as a journal does, each at once on the disk."""

    def __init__(self, book: Book, worker: str = WORKER) -> None:
        self.book, self.worker = book, worker
        stem = book.path / "journals" / f"{worker}.1"
        self.scored_file, self.failed_file, self.tokens_file = (Path(f"{stem}{end}") for end in ENDS)
        self.failed: dict[tuple[str, int], str] = {}

    def score(self, rollout: Rollout) -> None:
        """A scored line."""
        _append(self.scored_file, encode_journal_line(make_scored_line(rollout, self._refs(rollout))))

    def fail(self, rollout: Rollout, final: bool) -> None:
        """A failed line."""
        if final:
            self.failed[rollout.key] = rollout.failure.kind
        _append(self.failed_file, encode_journal_line(make_failed_line(rollout, self._refs(rollout), final)))

    def _refs(self, rollout: Rollout) -> list[TokenRef | None]:
        refs, held = [], []
        for turn in rollout.turns:
            if turn.ids is None:
                refs.append(None)
                continue
            at = self.tokens_file.stat().st_size if self.tokens_file.exists() else 0
            record = encode_tokens(turn, held)
            _append(self.tokens_file, record)
            refs.append(TokenRef(at, len(record)))
            held = turn.prompt_ids + turn.ids
        return refs

    def seal(self, without: set[tuple[str, int]] = frozenset()) -> None:
        """Seal every chunk on what is written; `without` are the keys that were never played."""
        files = {path.name: _extent(path) for path in (self.scored_file, self.failed_file) if path.exists()}
        for number, chunk in enumerate(self.book.chunks):
            keys = [(self.book.tasks.read(row).id, sample) for row, sample in chunk]
            if without & set(keys):
                continue
            failed: dict[str, int] = {}
            for key in keys:
                if kind := self.failed.get(key):
                    failed[kind] = failed.get(kind, 0) + 1
            scored = len(keys) - sum(failed.values())
            (self.book.path / "leases" / f"{number:05}.1").write_bytes(encode(Lease(self.worker, 1)))
            seal = Seal(1, 1, scored, failed, 0, files)
            (self.book.path / "done" / f"{number:05}.json").write_bytes(encode(seal))
        gone = Presence(self.worker, "elsewhere", "", "", 1, "", 1, START, state="left")
        (self.book.path / "workers" / f"{self.worker}.json").write_bytes(encode(gone))


ENDS = (".jsonl", ".failures.jsonl", ".tokens")


def _append(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


def _extent(path: Path) -> Extent:
    data = path.read_bytes()
    return Extent(len(data), sha256(data).hexdigest())


def fill(book: Book, skill: float = 0.6, pending: int = 0, seed: int = 0) -> Pen:
    """Play every key of a book but the last `pending` ones, well or badly, and seal what is complete."""
    pen, rng = Pen(book), random.Random(seed)
    keys = [key for chunk in book.chunks for key in chunk]
    for row, sample in keys[: len(keys) - pending]:
        _play(pen, row, sample, skill, rng)
    pen.seal({(book.tasks.read(row).id, sample) for row, sample in keys[len(keys) - pending :]})
    return pen


def _play(pen: Pen, row: int, sample: int, skill: float, rng: random.Random) -> None:
    if rng.random() < 0.06:
        for attempt in (1, 2):
            final = attempt == 2 and rng.random() < 0.5
            pen.fail(rollout(pen.book, row, sample, attempt=attempt, failure="model_timeout"), final)
            if final:
                return
    hard = (row * 0.618) % 1
    right = rng.random() < skill + 0.5 - hard
    pen.score(rollout(pen.book, row, sample, right=right, rng=rng))


def rollout(
    book: Book,
    row: int,
    sample: int,
    *,
    right: bool = True,
    attempt: int = 1,
    failure: str = "",
    text: str = "",
    rng: random.Random | None = None,
) -> Rollout:
    """One rollout: a tool call first where the row is a multiple of three, with exact tokens that fork on the last."""
    task, rng = book.tasks.read(row), rng or random.Random(row * 100 + sample)
    value = row**3 + row**2 if right else row**3 + rng.choice((row, 2 * row + 1, row + 1))
    answer = text or MATHS % (row, row, value, row, value)
    said = [Message("assistant", answer, reasoning=f"The user wants the area up to {row}. Both terms are powers.")]
    if row % 3 == 0:
        call = ToolCall("c1", Function("python", encode({"code": f"print({row}**3 + {row}**2)"}).decode()))
        said = [
            Message("assistant", "Let me check that.", tool_calls=[call]),
            Message("tool", str(row**3 + row**2), tool_call_id="c1", name="python"),
            *said,
        ]
    turns = _turns(row, sample, 2 if row % 3 == 0 else 1, rng)
    seconds = sum(turn.seconds for turn in turns) + 0.3
    start = START + (row * 8 + sample) * 0.8 + rng.random()
    broken = (
        Failure(failure, FAILURE_KINDS[failure].side, "turn 1", "no answer within 600 s: <b>bold</b>")
        if failure
        else None
    )
    parts = {"right": float(right), "brief": round(rng.random(), 2)}
    return Rollout(
        task=task,
        sample=sample,
        seed=derive_seed(7, task.id, sample),
        attempt=attempt,
        messages=[*task.messages, *([] if broken else said)],
        turns=[] if broken else turns,
        score=None if broken else Score(float(right), parts, str(value), {"checked": "by rule"}),
        failure=broken,
        timing=Timing(start, seconds, seconds - 0.3, 0.1, 0.2),
    )


def _turns(row: int, sample: int, count: int, rng: random.Random) -> list[Turn]:
    """Turns that continue each other, but for the rows divisible by six: there the second one forks."""
    prompt = [1, 2, 3, 100 + row, *range(200, 230)]
    turns = []
    for number in range(count):
        ids = [rng.randrange(1000, 50_000) for _ in range(rng.randrange(40, 120))]
        logprobs = [-rng.expovariate(1.2) for _ in ids]
        turns.append(Turn(list(prompt), ids, logprobs, len(prompt), len(ids), "stop", 0.5 + rng.random() * 2, "v1"))
        kept = [] if row % 6 == 0 and number == 0 else ids
        prompt = [*prompt, *kept, 7, 8, 9]
    return turns


def showcase(folder: Path, tasks: int = 24, samples: int = 8) -> Path:
    """A folder of three runs: two of the same tasks, one that was stopped half-way."""
    folder.mkdir(parents=True, exist_ok=True)
    fill(make(folder / "baseline", tasks, samples, "qwen-7b"), 0.35, seed=1)
    fill(make(folder / "tuned", tasks, samples, "qwen-7b-tuned"), 0.65, seed=2)
    fill(make(folder / "stopped", tasks, samples, "qwen-7b"), 0.5, pending=tasks * samples // 3, seed=3)
    return folder
