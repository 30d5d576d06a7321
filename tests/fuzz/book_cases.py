"""Run directories that are known: their files are written here by the description of the format, without the code that
reads them, and must be read back as they were written. What counts among their lines is stated here a second time."""

from __future__ import annotations

import hashlib
import json
import math
import random
import struct
import zlib
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import msgspec

from fuzz.cases import (
    Case,
    JSONValue,
    MakeCase,
    draw_json,
    draw_name,
    draw_number,
    draw_object,
    draw_text,
    write_record,
)
from rollbook.book import Book, CountedLines, LineReader, is_source_edited, read_presences, rollouts, verify_run
from rollbook.book.counted_lines import ScoredLineHeader
from rollbook.book.leases import _read_lease
from rollbook.book.seals import read_seal
from rollbook.core import EnvironmentSpec, FailedLine, Manifest, Round, ScoredLine, Turn
from rollbook.environments import import_closure
from rollbook.reports import make_report
from rollbook.tokens.sidecar import decode_tokens, encode_tokens

Object: TypeAlias = dict[str, JSONValue]
Key: TypeAlias = tuple[int, int]
KINDS = ("verifier_error", "model_timeout", "sandbox_error", "invalid_reward")
INFRA = ("model_timeout", "sandbox_error")
RULES = ("infra", "data", "all", *KINDS)


def encode_value(value: object) -> JSONValue:
    """Return a value that was read as plain JSON."""
    return json.loads(msgspec.json.encode(value))


class Files:
    """A folder that is removed after use; files are written into it by name."""

    def __enter__(self) -> Files:
        self._folder = TemporaryDirectory(prefix="rollbook-fuzz-")
        self.path = Path(self._folder.name)
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def write(self, name: str, data: bytes) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path


def make_lease(draw: random.Random) -> Case:
    value: Object = {"worker": draw_text(draw), "round": draw.randint(1, 9)}
    with Files() as files:
        path = files.write("00001.1", write_record(value, draw.choice((2, None))))
        return Case(value, encode_value(_read_lease(path)), value)


def make_seal(draw: random.Random) -> Case:
    names = [f"{draw_name(draw)}.1.jsonl" for _ in range(draw.randint(0, 3))]
    value: Object = {
        "round": draw.randint(1, 9), "epoch": draw.randint(1, 9), "scored": draw.randint(0, 99),
        "failed": {kind: draw.randint(1, 9) for kind in draw.sample(KINDS, draw.randint(0, 3))},
        "dropped": draw.randint(0, 9),
        "files": {name: {"bytes": draw.randint(0, 99), "sha256": f"{draw.getrandbits(256):064x}"} for name in names},
        "damaged": {name: [draw.randint(0, 999)] for name in names[:1]},
    }  # fmt: skip
    with Files() as files:
        path = files.write("00001.json", write_record(value, draw.choice((2, None))))
        return Case(value, encode_value(read_seal(path)), value)


def make_worker(draw: random.Random) -> Case:
    worker = draw_name(draw)
    value: Object = {name: draw_text(draw) for name in ("host", "boot", "namespace", "born", "place", "outage")}
    value |= {name: draw.randint(0, 1 << 40) for name in ("pid", "round", "counter", "in_flight", "prompt_tokens")}
    value |= {"id": worker, "started": draw.random() * 1e9, "state": draw.choice(("working", "left"))}
    held = {str(draw.randint(0, 99)): {"scored": draw.randint(0, 9), "failed": {draw.choice(KINDS): 1}}}
    value |= {
        "cached_tokens": draw.randint(0, 9),
        "wire_names": {"max_tokens": "max_completion_tokens"},
        "chunks": held,
    }
    with Files() as files:
        files.write(f"workers/{worker}.json", json.dumps(value).encode())
        found = {name: encode_value(presence) for name, presence in read_presences(files.path).items()}
        return Case(value, found, {worker: value})


def write_tokens(shared: int, added: list[int], ids: list[int], logprobs: list[float]) -> bytes:
    """Return a token record: version, shared, added and sampled ids, checksum; ids as int32 and logprobs as float32."""
    packed = zlib.compress(struct.pack(f"<{len(added) + len(ids)}i{len(ids)}f", *added, *ids, *logprobs))
    head = struct.pack("<BIII", 1, shared, len(added), len(ids))
    return head + struct.pack("<I", zlib.crc32(packed, zlib.crc32(head))) + packed


def draw_tokens(draw: random.Random, previous: list[int]) -> tuple[int, list[int], list[int], list[float]]:
    """Return how many of the previous ids a prompt begins with, what it adds, the sampled ids and their logprobs."""
    shared = draw.randint(0, len(previous))
    added = [(1 << 30) + draw.randint(1, 9) for _ in range(draw.randint(0, 4))]  # not what follows in `previous`
    ids = [draw.randint(0, 1 << 30) for _ in range(draw.randint(0, 6))]
    return shared, added, ids, [struct.unpack("<f", struct.pack("<f", -draw.random()))[0] for _ in ids]


def make_token_record(draw: random.Random) -> Case:
    previous = [draw.randint(0, 1 << 30) for _ in range(draw.randint(0, 6))]
    shared, added, ids, logprobs = draw_tokens(draw, previous)
    prompt = previous[:shared] + added
    record, own = write_tokens(shared, added, ids, logprobs), encode_tokens(Turn(prompt, ids, logprobs), previous)
    expected = prompt, ids, logprobs
    return Case((previous, expected), (decode_tokens(record, previous), decode_tokens(own, previous)), (expected,) * 2)


def draw_line(draw: random.Random, key: Key, attempt: int, *, scored: bool) -> Object:
    turns = [
        {"prompt_tokens": draw.randint(0, 99), "completion_tokens": draw.randint(0, 99), "finish_reason": "stop",
         "seconds": draw.random(), "model_version": draw.choice((None, draw_name(draw))), "tokens": None}
        for _ in range(draw.randint(0, 2))
    ]  # fmt: skip
    line: Object = {
        "status": "scored" if scored else "failed", "task": f"t{key[0]}", "sample": key[1],
        "seed": draw.getrandbits(31), "round": draw.randint(1, 2), "attempt": attempt, "env": "Sums",
        "messages": [{"role": "user", "content": draw_text(draw)}, {"role": "assistant", "content": draw_text(draw)}],
        "turns": turns, "outcome": draw_json(draw), "ended": "",
        "usage": {"prompt_tokens": draw.randint(0, 99), "completion_tokens": draw.randint(0, 99)},
        "timing": {"start": 1.0, "seconds": 2.0, "model_s": 0.5, "environment_s": 0.0, "verify_s": draw.random()},
    }  # fmt: skip
    if scored:
        number, answer = draw.choice((0.0, 1.0, draw.random())), draw.choice((None, draw_text(draw)))
        return {**line, "reward": number, "parts": {"a": number}, "answer": answer, "info": draw_object(draw)}
    kind = draw.choice(KINDS)
    failure = {"kind": kind, "side": "infra" if kind in INFRA else "data", "where": "here", "message": draw_text(draw)}
    return {**line, "final": draw.random() < 0.7, "failure": failure}


def write_line(line: Object) -> bytes:
    return write_record(line, None) + b"\n"


def damage_line(draw: random.Random, line: bytes) -> bytes:
    """Change, cut or lengthen a line, or take its checksum away; it stays one line."""
    at = draw.randrange(len(line) - 30)
    changed = bytes([line[at] ^ (1 << draw.randrange(1, 5))]).replace(b"\n", b"\0")
    return draw.choice(
        (
            line[:at] + changed + line[at + 1 :],
            line[:at] + line[at + 2 :],
            line[:at] + b"\0" + line[at:],
            line[:-19] + b"}\n",
        )
    )


def make_journal(draw: random.Random) -> Case:
    """Whole lines are read in their order; a changed one is named by its number; an unterminated end is dropped."""
    scored = draw.random() < 0.5
    lines = [draw_line(draw, (0, n), 1, scored=scored) for n in range(draw.randint(0, 6))]
    written = [write_line(line) for line in lines]
    bad = {n for n in range(len(lines)) if draw.random() < 0.25}
    parts = [damage_line(draw, line) if n in bad else line for n, line in enumerate(written)]
    torn = draw.choice((b"", b"", write_line(draw_line(draw, (1, 0), 1, scored=scored))[:-1], b"\0" * 9, b'{"sta'))
    with Files() as files:
        path = files.write("w.1.jsonl", b"".join(parts) + torn)
        reader = LineReader(ScoredLine if scored else FailedLine, 2)
        found = [(end, encode_value(line)) for end, line in reader.read(path)]
        damaged = [(each.number, each.end) for each in reader.damaged]
    ends = [sum(map(len, parts[: n + 1])) for n in range(len(parts))]
    good = [(ends[n], json.loads(written[n])) for n in range(len(lines)) if n not in bad]
    return Case((parts, torn), (found, damaged), (good, [(n + 1, ends[n]) for n in sorted(bad)]))


def draw_parts(draw: random.Random, tasks: int, samples: int) -> list[Object]:
    """Return the parts of a plan: all tasks with the first samples, then all with the others; chunks of any size."""
    cut = draw.randint(1, samples)
    return [
        {"tasks": [0, tasks], "samples": [low, high], "chunks": draw_sizes(draw, tasks * (high - low))}
        for low, high in ((0, cut), (cut, samples))
        if low < high
    ]


def draw_sizes(draw: random.Random, keys: int) -> list[int]:
    sizes = []
    while keys:
        sizes.append(draw.randint(1, min(4, keys)))
        keys -= sizes[-1]
    return sizes


def list_chunks(parts: list[Object]) -> list[list[Key]]:
    """Return the keys of every chunk: those of a part task by task, cut into its sizes, part after part."""
    chunks = []
    for part in parts:
        keys = iter([(row, sample) for row in range(*part["tasks"]) for sample in range(*part["samples"])])
        chunks += [[next(keys) for _ in range(size)] for size in part["chunks"]]
    return chunks


def draw_manifest(draw: random.Random, tasks: bytes, samples: int) -> Object:
    spec = {name: draw_text(draw) for name in ("spec", "digest", "origin", "report_by")}
    spec |= {
        "target": "sums:Sums",
        "args": draw_object(draw),
        "snapshot": draw.choice((None, "source")),
        "container": "",
    }
    spec |= {"verify": "sync", "state": "none", "tools": [draw_object(draw)], "terms": None}
    spec |= {name: draw.random() < 0.5 for name in ("offers", "replies", "plays", "appeals")}
    sampling = {
        "temperature": draw.random(),
        "top_p": 0.5,
        "max_tokens": draw.randint(1, 99),
        "extra": draw_object(draw),
    }
    limits = {name: draw.random() * 99 for name in ("verify_s", "tool_s", "rollout_s")}
    limits |= {name: draw.randint(1, 99) for name in ("memory_mb", "max_turns", "tool_chars")}
    limits |= {name: draw.choice((None, 5)) for name in ("max_tokens_total", "stop_repeats", "max_response_tokens")}
    model = {"name": draw_text(draw), "kind": "chat", "digest": ""}
    return {
        "schema": 2, "run": draw_name(draw), "created": draw.random() * 1e9, "environments": {"Sums": spec},
        "model": model, "sampling": sampling, "samples": samples, "seed": draw.getrandbits(31), "limits": limits,
        "versions": {"rollbook": "0.2.0"}, "tasks": {"bytes": len(tasks), "sha256": hashlib.sha256(tasks).hexdigest()},
        "parent": draw_text(draw), "rescored": None, "tool_format": draw.choice(("native", "schema", "text")),
        "judge": draw.choice((None, model)), "agent": None, "continue_tokens": draw.random() < 0.5, "roles": {},
    }  # fmt: skip


def draw_round(draw: random.Random, number: int, manifest: bytes) -> Object:
    settings: Object = {"urls": [draw_text(draw)], "retry": draw.sample(RULES, draw.randint(0, 2))}
    settings |= {"concurrency": draw.choice((draw.randint(1, 99), "auto")), "workers": draw.randint(1, 9)}
    settings |= {"call_s": draw.random() * 99, "attempts": {"model_timeout": draw.randint(1, 9)}, "fail_fast": True}
    settings |= {"max_failures": draw.choice((None, "5%")), "judge_sampling": draw_object(draw), "hosts": None}
    meaning = hashlib.sha256(manifest).hexdigest()
    return {"schema": 2, "number": number, "started": draw.random() * 1e9, "settings": settings, "meaning": meaning}


class KnownRun:
    """A run directory with a plan and rounds, and what was written into it."""

    def __init__(self, draw: random.Random, files: Files) -> None:
        self.tasks, self.samples = draw.randint(1, 4), draw.randint(1, 4)
        self.lines: list[Object] = [
            {"id": f"t{n}", "env": "Sums", "messages": [{"role": "user", "content": draw_text(draw)}],
             "answer": draw_json(draw), "fields": draw_object(draw)}
            for n in range(self.tasks)
        ]  # fmt: skip
        data = b"".join(json.dumps(line).encode() + b"\n" for line in self.lines)
        self.manifest = draw_manifest(draw, data, self.samples)
        if (spec := self.manifest["environments"]["Sums"])["snapshot"]:
            files.write("source/sums.py", draw_text(draw).encode())
            spec["digest"] = digest(files.path / "source", ["sums"])
        self.parts = draw_parts(draw, self.tasks, self.samples)
        manifest = write_record(self.manifest)
        self.rounds = [draw_round(draw, number, manifest) for number in range(1, draw.randint(1, 2) + 1)]
        files.write("tasks.jsonl", data)
        files.write("run.json", manifest)
        files.write("plan.json", write_record({"schema": 2, "parts": self.parts}))
        for number, each in enumerate(self.rounds, 1):
            files.write(f"rounds/{number:04}.json", write_record(each))


def fill_defaults(found: JSONValue, written: JSONValue) -> JSONValue:
    """Return what was read, without the fields of `settings` that were not written: those have their defaults."""
    if isinstance(found, dict) and isinstance(written, dict):
        return {name: fill_defaults(value, written[name]) for name, value in found.items() if name in written}
    return found


def make_records(draw: random.Random) -> Case:
    """run.json, plan.json, the rounds and tasks.jsonl are read back as they were written, and the plan as its keys."""
    with Files() as files:
        run = KnownRun(draw, files)
        book = Book(files.path)
        book.check_meaning()
        found = (
            encode_value(book.manifest),
            [encode_value(part) for part in book.plan.parts],
            [
                fill_defaults(encode_value(each), written)
                for each, written in zip(book.rounds(), run.rounds, strict=True)
            ],
            [encode_value(book.tasks.read(row).line()) for row in range(len(book.tasks))],
            [list(chunk) for chunk in book.chunks],
            (book.plan.requested, book.plan.samples),
        )
    chunks = list_chunks(run.parts)
    keys = sum(map(len, chunks))
    return Case(files.path, found, (run.manifest, run.parts, run.rounds, run.lines, chunks, (keys, run.samples)))


def is_reopened(line: Object, rounds: list[Object]) -> bool:
    """Whether a later round than that of a failure runs its kind again."""
    kind = line["failure"]["kind"]
    rules = {kind, "all", "infra" if kind in INFRA else "data"}
    later = [each["settings"]["retry"] for each in rounds if each["number"] > line["round"]]
    return any(rules & set(retry) for retry in later)


class KnownLines:
    """The lines of a run and which of them count, as they are written."""

    def __init__(self, draw: random.Random, files: Files, run: KnownRun) -> None:
        self._draw, self._files, self._run = draw, files, run
        self.best: dict[Key, tuple[tuple[int, int], float, list[JSONValue]]] = {}
        """Of each scored key the epoch and attempt of the line that counts, its reward, and the tokens of its turns."""
        self.failed: dict[Key, str] = {}
        self.journals: dict[str, list[bytes]] = {}
        self.lost = {True: 0, False: 0}
        """The damaged lines in the journals of scored lines, and in those of failed ones."""
        self.dropped = 0
        self._ended: set[Key] = set()
        self._sidecars: dict[str, bytes] = {}
        self._chunks: dict[int, tuple[list[str], list[Key]]] = {}
        self._damage = draw.choice((0.0, 0.1))  # a seal lists damaged lines, which is not done here
        self._least = draw.randint(0, 1)
        for number, keys in enumerate(list_chunks(run.parts)):
            owners = draw.sample(("w1", "w2", "w3"), draw.choice((0, 1, 1, 1, 2)))
            for epoch, worker in enumerate(owners, 1):
                files.write(f"leases/{number:05}.{epoch}", write_record({"worker": worker, "round": 1}, None))
                for key in keys:
                    for attempt in range(1, draw.randint(self._least, 2) + 1):
                        self._add(key, worker, epoch, attempt)
            self._chunks[number] = owners, keys
        if not self._damage:
            self._seal_chunks()
        for worker, records in self._sidecars.items():
            files.write(f"journals/{worker}.1.tokens", records)
        for name, lines in self.journals.items():
            torn = lines[0][: draw.randint(1, len(lines[0]) - 1)] if draw.random() < 0.3 else b""
            files.write(f"journals/{name}", b"".join(lines) + torn)

    def _seal_chunks(self) -> None:
        """Seal chunks in which nothing is pending, then add a line to one that would count, were it not sealed."""
        for number, (owners, keys) in self._chunks.items():
            if not owners or not all(key in self.best or key in self.failed for key in keys):
                continue
            names = [name for name in self.journals if name.partition(".")[0] in owners]
            data = {name: b"".join(self.journals[name]) for name in names}
            extents = {name: {"bytes": len(d), "sha256": hashlib.sha256(d).hexdigest()} for name, d in data.items()}
            failed = Counter(self.failed[key] for key in keys if key not in self.best)
            seal = {"round": len(self._run.rounds), "epoch": len(owners), "scored": len(keys) - failed.total()}
            seal |= {"failed": failed, "dropped": 0, "files": extents, "damaged": {}}
            self._files.write(f"done/{number:05}.json", write_record(seal))
            late = draw_line(self._draw, self._draw.choice(keys), 0, scored=True) | {"reward": 99.0, "round": 1}
            self.journals.setdefault(f"{owners[0]}.1.jsonl", []).append(write_line(late))
            self.dropped += 1

    def _add_tokens(self, worker: str, line: Object) -> list[JSONValue]:
        """Write the ids of some turns to the sidecar of their segment; return those of every turn, or None."""
        found, previous = [], list[int]()
        for turn in line["turns"]:
            if self._draw.random() < 0.3:
                found.append(None)
                continue
            shared, added, ids, logprobs = draw_tokens(self._draw, previous)
            record, before = write_tokens(shared, added, ids, logprobs), self._sidecars.get(worker, b"")
            turn["tokens"] = {"at": len(before), "size": len(record)}
            self._sidecars[worker] = before + record
            found.append((previous[:shared] + added, ids, logprobs))
            previous = [*previous[:shared], *added, *ids]
        return found

    def _add(self, key: Key, worker: str, epoch: int, attempt: int) -> None:
        scored = self._draw.random() < 0.6
        line = draw_line(self._draw, key, attempt, scored=scored)
        tokens = self._add_tokens(worker, line)
        line["round"] = self._draw.randint(1, len(self._run.rounds))
        if not scored and key in self._ended:
            line["final"] = False  # a round gives up a rollout once
        written, lines = (
            write_line(line),
            self.journals.setdefault(f"{worker}.1{'' if scored else '.failures'}.jsonl", []),
        )
        if self._draw.random() < self._damage:
            lines.append(damage_line(self._draw, written))
            self.lost[scored] += 1
            return
        lines.append(written)
        if scored:
            self.dropped += key in self.best
            rank = (epoch, attempt), float(line["reward"]), tokens
            self.best[key] = min(self.best.get(key, rank), rank, key=lambda each: each[0])
        elif line["final"]:
            self._ended.add(key)
            if not is_reopened(line, self._run.rounds):
                self.failed[key] = line["failure"]["kind"]


def make_counts(draw: random.Random) -> Case:
    """Of a key the line of the lowest epoch counts, then of the lowest attempt; without a scored one, a final failure
    that no later round reopens; a changed line counts for nothing and is named, an unterminated one is dropped."""
    with Files() as files:
        run = KnownRun(draw, files)
        lines = KnownLines(draw, files, run)
        report, verified = make_report(files.path), verify_run(files.path)
        book = Book(files.path)
        headers = CountedLines(book, ScoredLineHeader)
        read = sorted((line.task, line.sample, line.attempt) for _, _, line in headers)
        played = {(rollout.task.id, rollout.sample): rollout for rollout in rollouts(book, tokens=True)}
    best, requested = lines.best, run.tasks * run.samples
    failed = Counter(lines.failed[key] for key in lines.failed.keys() - best.keys())
    mean = sum(reward for _, reward, _ in best.values()) / len(best) if best else None
    found_mean = report.overall.mean
    is_close = mean is not None and found_mean is not None and math.isclose(mean, found_mean, abs_tol=1e-9)
    numbers = report.requested, report.scored, report.failed, report.pending, report.dropped
    pending = requested - len(best) - failed.total()
    # Where every rollout is scored, no report depends on the journals of failures; `verify` reads them all the same.
    named = lines.lost[True] + (lines.lost[False] if len(best) < requested else 0)
    counted = sorted((f"t{row}", sample, attempt) for (row, sample), ((_, attempt), _, _) in best.items())
    tokens = {key: (rollout.reward, [list_tokens(turn) for turn in rollout.turns]) for key, rollout in played.items()}
    return Case(
        (run.parts, lines.journals),
        (
            (numbers, mean if is_close else found_mean, len(report.damaged), len(verified.damage)),
            (read, headers.dropped, len(headers.damaged)),
            tokens,
        ),
        (
            ((requested, len(best), failed, pending, lines.dropped), mean, named, sum(lines.lost.values())),
            (counted, lines.dropped, lines.lost[True]),
            {(f"t{row}", sample): (reward, own) for (row, sample), (_, reward, own) in best.items()},
        ),
    )


def list_tokens(turn: Turn) -> JSONValue:
    return None if turn.ids is None else (turn.prompt_ids, turn.ids, turn.logprobs)


def make_snapshot(draw: random.Random) -> Case:
    """The files that a file imports, and those that these import; a changed byte, or another file, is noticed."""
    names = ["main", *draw.sample(("alpha", "beta", "gamma", "delta", "omega"), draw.randint(1, 4))]
    imports = {name: draw.sample(names, draw.randint(0, min(2, len(names)))) for name in names}
    with Files() as files:
        forms = ("import %s\n", "from %s import x\n", "def f():\n    import %s as y\n", "import os, %s\n")
        for name in names:
            text = "".join(draw.choice(forms) % each for each in imports[name])
            files.write(f"{name}.py", f"# {draw_name(draw)}\n{text}".encode())
        reached, queue = set[str](), ["main"]
        while queue:
            if (name := queue.pop()) not in reached:
                reached.add(name)
                queue += imports[name]
        found = {path.stem for path in import_closure(files.path, files.path / "main.py")}
        spec = EnvironmentSpec("x", "main:X", {}, digest=digest(files.path, names), snapshot=".")
        before = is_source_edited(files.path, spec)
        changed = files.path / f"{draw.choice((*names, 'other'))}.py"
        changed.write_bytes((changed.read_bytes() if changed.exists() else b"") + draw.choice((b" ", b"#")))
        after = is_source_edited(files.path, spec)
    return Case(imports, (found, before, after), (reached, False, True))


def digest(folder: Path, names: list[str]) -> str:
    """Return the sha256 over `LENGTH NAME LENGTH CONTENT` of every file, in the order of their names."""
    total = hashlib.sha256()
    for name in sorted(f"{each}.py" for each in names):
        content = (folder / name).read_bytes()
        total.update(b"%d %b %d %b" % (len(name), name.encode(), len(content), content))
    return total.hexdigest()


def make_old_records(draw: random.Random) -> Case:
    """Files of earlier versions have no checksum, and are read all the same."""
    value: Object = {"worker": draw_text(draw), "round": draw.randint(1, 9)}
    manifest = draw_manifest(draw, b"", 2)
    each = draw_round(draw, 1, b"")
    found = (
        encode_value(msgspec.json.decode(json.dumps(manifest), type=Manifest)),
        fill_defaults(encode_value(msgspec.json.decode(json.dumps(each), type=Round)), each),
    )
    with Files() as files:
        lease = encode_value(
            _read_lease(files.write("00001.1", json.dumps(value, indent=draw.choice((None, 2))).encode()))
        )
    return Case((value, manifest, each, draw_number(draw)), (lease, *found), (value, manifest, each))


CASES: dict[str, MakeCase] = {
    "lease": make_lease,
    "seal": make_seal,
    "worker": make_worker,
    "token record": make_token_record,
    "journal": make_journal,
    "run.json, plan.json, rounds, tasks": make_records,
    "files without a checksum": make_old_records,
    "counted lines": make_counts,
    "snapshot": make_snapshot,
}
