"""A big scored book, made without asking any model: what the benchmark of the numbers reads."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

from rollbook.book import Book, BookDraft
from rollbook.core import (
    SCHEMA_VERSION,
    EnvironmentSpec,
    Extent,
    Lease,
    Limits,
    Manifest,
    ModelSpec,
    Sampling,
    Seal,
    Task,
    add_crc,
    encode,
    make_part,
)

SEGMENT = 64 << 20
WORKERS = 4
FILLER = "Let us think step by step about what is asked here and keep track of every quantity that we are given. "
LINE = (
    '{{"status":"scored","task":"{task}","sample":{sample},"seed":{seed},"round":1,"attempt":1,"env":"Sums",'
    '"reward":{reward},"parts":{{"right":{reward},"brief":{brief}}},"answer":{answer},"messages":[{{"role":"user",'
    '"content":"What is {row} + {row}?"}},{{"role":"assistant","content":"{text}"}}],"turns":[{{"prompt_tokens":31,'
    '"completion_tokens":{tokens},"finish_reason":"{finish}","seconds":{seconds},"model_version":null,"tokens":null}}],'
    '"outcome":null,"usage":{{"prompt_tokens":31,"completion_tokens":{tokens}}},"timing":{{"start":1790000000.5,'
    '"seconds":{seconds},"model_s":{seconds},"environment_s":0.0,"verify_s":0.0004}},"info":{{}}}}\n'
)


def big_book(path: Path, tasks: int, samples: int, seed: int = 0, said: int = 250) -> Book:
    """A finished book of sums whose tasks are from hopeless to easy, every chunk sealed.

    A line is about 700 bytes and the `said` characters of its answer.
    """
    spec = EnvironmentSpec("sums.py:Sums", "sums:Sums")
    run = f"bench-{tasks}x{samples}"
    manifest = Manifest(
        SCHEMA_VERSION, run, 1.0, {"Sums": spec}, ModelSpec("toy"), Sampling(), samples, 0, Limits(), {}
    )
    with BookDraft(path) as draft:
        asked = (Task(f"sum-{i}", f"What is {i} + {i}?", answer=str(2 * i), level=i % 5) for i in range(tasks))
        count = draft.add_tasks(asked, "Sums")
        book = draft.finish(manifest, [make_part((0, count), (0, samples), WORKERS)])
    extents = [_journals(book, worker, seed, said) for worker in range(WORKERS)]
    for chunk in range(len(book.chunks)):
        _seal(path, chunk, book.chunks[chunk].size, extents[chunk % WORKERS], chunk % WORKERS)
    return Book(path)


def _seal(path: Path, chunk: int, size: int, files: dict[str, Extent], worker: int) -> None:
    (path / "leases" / f"{chunk:05}.1").write_bytes(encode(Lease(f"bench-{worker}", 1)))
    (path / "done" / f"{chunk:05}.json").write_bytes(encode(Seal(1, 1, size, {}, 0, files)))


def _journals(book: Book, worker: int, seed: int, said: int) -> dict[str, Extent]:
    """One worker's segments."""
    extents: dict[str, Extent] = {}
    lines = _lines(book, worker, random.Random(seed + worker), said)
    for number in range(1, 10_000):
        path = book.path / "journals" / f"bench-{worker}.{number}.jsonl"
        if not (extent := _segment(path, lines)).bytes:
            path.unlink()
            return extents
        extents[path.name] = extent
    raise RuntimeError("more segments than anybody needs")


def _segment(path: Path, lines: Iterator[bytes]) -> Extent:
    size, digest = 0, hashlib.sha256()
    with open(path, "wb", buffering=1 << 20) as file:
        for line in lines:
            file.write(line)
            digest.update(line)
            size += len(line)
            if size >= SEGMENT:
                break
    return Extent(size, digest.hexdigest())


def _lines(book: Book, worker: int, rng: random.Random, said: int) -> Iterator[bytes]:
    """The keys of every fourth chunk; how hard a task is depends on the task alone."""
    for chunk in range(worker, len(book.chunks), WORKERS):
        for row, sample in book.chunks[chunk]:
            yield _line(row, sample, row * 0.618034 % 1, rng, said)


def _line(row: int, sample: int, rate: float, rng: random.Random, said: int) -> bytes:
    draw = rng.random()
    answer = 2 * row if draw < rate else 2 * row + rng.choice((-10, -2, -1, 1, 1, 2, 3, 10, 100))
    unanswered = draw > 0.97
    tokens = rng.randrange(80, 200)
    line = LINE.format(
        task=f"sum-{row}",
        sample=sample,
        seed=rng.getrandbits(31),
        reward="1.0" if draw < rate and not unanswered else "0.0",
        brief=f"{80 / tokens:.3f}",
        answer="null" if unanswered else f'"{answer}"',
        row=row,
        text=(FILLER * 20)[: said + tokens],
        tokens=tokens,
        finish="length" if unanswered else "stop",
        seconds=f"{tokens / 60:.6f}",
    )
    return add_crc(line.rstrip().encode()) + b"\n"
