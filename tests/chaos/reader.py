"""An independent reader of a run directory after chaos: it imports nothing of Rollbook, and returns every violation.

    python tests/chaos/reader.py RUN EXPECTED.json

EXPECTED.json says what was asked (`tasks`: id to {a, b, broken}, `samples`, `seed`), which files were damaged
and not restored (`damaged`), what `rollbook report --json` and `rollbook verify --json` printed at the end (`report`,
`verify`), and which lines counted in chunks that were sealed earlier (`sealed`, by `count_sealed`).

The rules are those of the design: of a key the line of the lowest epoch counts, then of the lowest attempt; what a seal
covers does not change; a key without a scored line has the final failure that no later round has reopened.
"""

import hashlib
import json
import re
import struct
import sys
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

NEVER = 1 << 30
MOST_REPEATED = 8  # twice what a worker has in flight: it may have been stopped, and taken for gone, twice
INFRA = {"model_unavailable", "model_timeout", "bad_completion", "nonfinite_logprobs", "environment_error"} | {
    "sandbox_error", "container_error", "judge_error", "agent_error", "worker_lost"
}  # fmt: skip


class Run:
    """The files of a run directory, decoded; `wrong` collects what contradicts a guarantee, `damaged` bad files."""

    def __init__(self, path: Path) -> None:
        self.path, self.wrong, self.damaged = path, list[str](), set[str]()
        ids = [json.loads(line)["id"] for line in (path / "tasks.jsonl").read_bytes().splitlines()]
        self.chunk_of: dict[tuple[str, int], int] = {}
        self.sizes: list[int] = []
        for part in json.loads((path / "plan.json").read_bytes())["parts"]:
            keys = [(ids[row], sample) for row in range(*part["tasks"]) for sample in range(*part["samples"])]
            chunks = [len(self.sizes) + n for n, size in enumerate(part["chunks"]) for _ in range(size)]
            self.chunk_of.update(zip(keys, chunks, strict=True))
            self.sizes += part["chunks"]
        self.rounds = [json.loads(file.read_bytes()) for file in sorted((path / "rounds").glob("[0-9]*.json"))]
        self.owners: dict[int, dict[str, int]] = {}
        records = [path / "run.json", path / "plan.json", *(path / "rounds").glob("[0-9]*.json")]
        for file in [*records, *(path / "leases").glob("[0-9]*"), *(path / "done").glob("[0-9]*.json")]:
            found = re.fullmatch(rb'(.*),\s*"crc": ?"(\w{8})"\s*}\s*', file.read_bytes(), re.DOTALL)
            if found and b"%08x" % zlib.crc32(found[1]) != found[2]:
                self.damaged.add(file.name)
        for file in sorted((path / "leases").glob("[0-9]*"), key=lambda file: int(file.suffix[1:])):
            worker = json.loads(file.read_bytes())["worker"]
            self.owners.setdefault(int(file.stem), {}).setdefault(worker, int(file.suffix[1:]))
        self.seals: dict[int, dict[str, Any]] = {}
        for file in sorted((path / "done").glob("[0-9]*.json"), key=lambda file: (file.name[:5], len(file.name), file)):
            self.seals[int(file.name[:5])] = json.loads(file.read_bytes())
        self.scored: dict[tuple[str, int], tuple[tuple[int, int], str, dict[str, Any]]] = {}
        self.failed: dict[tuple[str, int], str] = {}
        self.seen: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.lines: list[tuple[tuple[str, int], str, dict[str, Any]]] = []
        self.scored_by: dict[tuple[str, tuple[str, int]], int] = {}
        for file in sorted((path / "journals").glob("[!.]*.jsonl")):
            self._read_journal(file)

    def _read_journal(self, file: Path) -> None:
        end, worker = 0, re.sub(r"\.\d+(\.failures)?\.jsonl$", "", file.name)
        for raw in file.read_bytes().split(b"\n")[:-1]:
            end += len(raw) + 1
            body, crc = raw[:-18], raw[-10:-2]
            if raw[-18:-10] != b',"crc":"' or b"%08x" % zlib.crc32(body) != crc:
                self.damaged.add(file.name)
                continue
            line = json.loads(raw)
            key = line["task"], line["sample"]
            if key not in self.chunk_of:
                self.wrong.append(f"{file.name}: {key} was never asked")
            elif worker not in self.owners.get(self.chunk_of[key], {}):
                self.wrong.append(f"{file.name}: {key} is in a chunk that its worker never owned")
            else:
                self._add(file, worker, end, key, line)

    def _add(self, file: Path, worker: str, end: int, key: tuple[str, int], line: dict[str, Any]) -> None:
        again = self.seen.setdefault((worker, key, line["status"], line["round"], line["attempt"]), line)
        if _without_refs(again) != _without_refs(line):  # a failed fsync repeats a line, token references apart
            self.wrong.append(f"{file.name}: {key} has two different lines of one attempt")
        seal, owners = self.seals.get(self.chunk_of[key]), self.owners[self.chunk_of[key]]
        epoch = owners[worker] if max(owners.values()) > 1 else 1
        if seal and epoch <= seal["epoch"] and end > seal["files"].get(file.name, {"bytes": 0})["bytes"]:
            return
        rank = epoch, line["attempt"]
        if line["status"] == "scored":
            self.lines.append((key, file.name, line))
            if self.scored_by.setdefault((worker, key), line["attempt"]) != line["attempt"]:
                self.wrong.append(f"{file.name}: {key} was scored, and run again by the same worker")
        if line["status"] == "scored":
            if key not in self.scored or rank < self.scored[key][0]:
                self.scored[key] = rank, file.name, line
        elif line["final"] and not any(_reopens(r, line) for r in self.rounds if r["number"] > line["round"]):
            self.failed[key] = line["failure"]["kind"]

    def check_seals(self) -> None:
        """Check that the sealed bytes are there, and that the counts of each seal are those of its lines."""
        for number, seal in self.seals.items():
            keys = [key for key, chunk in self.chunk_of.items() if chunk == number]
            failed = Counter(self.failed[key] for key in keys if key in self.failed and key not in self.scored)
            scored = sum(key in self.scored for key in keys)
            changed = [name for name, extent in seal["files"].items() if not self._is_as_sealed(name, extent)]
            self.damaged.update(changed)
            if changed:
                continue
            if (seal["scored"], seal["failed"]) != (scored, failed) or len(keys) != scored + failed.total():
                self.wrong.append(f"chunk {number}: sealed {seal['scored']} {seal['failed']}, has {scored} {failed}")

    def check_repeats(self) -> None:
        """Check that others repeated of a worker only what it had in flight: such rollouts end after the takeover."""
        workers: dict[tuple[str, int], set[str]] = {}
        for key, name, _ in self.lines:
            workers.setdefault(key, set()).add(name.split(".")[0])
        repeated = [(self.owners[self.chunk_of[key]], each) for key, each in workers.items() if len(each) > 1]
        first = [min(each, key=owners.__getitem__) for owners, each in repeated]
        for worker, count in Counter(first).items():
            if count > MOST_REPEATED:
                self.wrong.append(f"{worker}: {count} of its scored rollouts were run again by others")

    def _is_as_sealed(self, name: str, extent: dict[str, Any]) -> bool:
        file = self.path / "journals" / name
        data = file.read_bytes()[: extent["bytes"]] if file.exists() else b""
        return (len(data), hashlib.sha256(data).hexdigest()) == (extent["bytes"], extent["sha256"])

    def check_line(self, key: tuple[str, int], name: str, line: dict[str, Any], expected: dict[str, Any]) -> None:
        """Compute again what the model answers to the key's seed, what the verifier gives for it, and its tokens."""
        asked, text = expected["tasks"][key[0]], line["messages"][-1]["content"]
        digest = hashlib.blake2b(f"{expected['seed']}\0{key[0]}\0{key[1]}".encode(), digest_size=4).digest()
        seed, total = int.from_bytes(digest, "big") >> 1, asked["a"] + asked["b"]
        lucky = zlib.crc32(f"{seed}:{asked['a']} + {asked['b']}".encode()) % 1000 < 600
        answer = f"The answer is {total if lucky else total + 1 + seed % 7}."
        if asked["broken"]:
            self.wrong.append(f"{key} has a reward, but its verifier always raises")
        if (line["seed"], text) != (seed, answer):
            self.wrong.append(f"{key}: seed {line['seed']} and {text!r}, not {seed} and {answer!r}")
        if line["reward"] != float(text.endswith(f" {total}.")):
            self.wrong.append(f"{key}: reward {line['reward']} for {text!r}, {total} is right")
        ids = [self._read_ids(name.replace(".jsonl", ".tokens"), turn["tokens"]) for turn in line["turns"]]
        if ids != [[*answer.encode(), 256]] and name.replace(".jsonl", ".tokens") not in expected["damaged"]:
            self.wrong.append(f"{key}: its token ids are not those of {answer!r}")

    def _read_ids(self, name: str, ref: dict[str, int]) -> list[int]:
        record = (self.path / "journals" / name).read_bytes()[ref["at"] : ref["at"] + ref["size"]]
        _, _, rest, sampled, crc = struct.unpack_from("<BIIII", record)
        if zlib.crc32(record[17:], zlib.crc32(record[:13])) != crc:
            self.damaged.add(name)
            return []
        return [*struct.unpack_from(f"<{rest + sampled}i", zlib.decompress(record[17:]))[rest:]]


def _without_refs(line: dict[str, Any]) -> dict[str, Any]:
    return {**line, "crc": "", "turns": [{**turn, "tokens": None} for turn in line["turns"]]}


def _reopens(later: dict[str, Any], line: dict[str, Any]) -> bool:
    retry, kind = later["settings"]["retry"], line["failure"]["kind"]
    return "all" in retry or kind in retry or ("infra" if kind in INFRA else "data") in retry


def count_sealed(path: Path) -> dict[str, str]:
    """Return which line of each key of a sealed chunk counts, by its checksum; they may not change any more."""
    run = Run(path)
    kept = [key for key in run.scored if run.chunk_of[key] in run.seals]
    return {f"{key[0]} {key[1]}": run.scored[key][2]["crc"] for key in kept}


def check(path: Path, expected: dict[str, Any]) -> list[str]:
    """Return every violation of a guarantee in a run directory that claims to be complete."""
    run = Run(path)
    keys = {(task, sample) for task in expected["tasks"] for sample in range(expected["samples"])}
    run.wrong += [f"{key} was asked, and is not in the plan" for key in keys ^ run.chunk_of.keys()]
    run.wrong += [f"{key} is lost: neither scored nor failed" for key in keys - run.scored.keys() - run.failed.keys()]
    run.wrong += [f"chunk {number} is not sealed" for number in range(len(run.sizes)) if number not in run.seals]
    failed_keys = (run.failed.keys() - run.scored.keys()) & keys
    whole = [key for key in failed_keys if not expected["tasks"][key[0]]["broken"]]
    run.wrong += [f"{key} failed, although nothing is wrong with its verifier" for key in whole]
    run.check_seals()
    run.check_repeats()
    for key, name, line in run.lines:  # those that do not count too: nothing is ever fabricated
        if key in keys:
            run.check_line(key, name, line, expected)
    failed = Counter(kind for key, kind in run.failed.items() if key not in run.scored)
    report = expected["report"]
    counts = report["requested"], report["scored"], report["failed"], report["pending"]
    if counts != (len(keys), len(run.scored), failed, 0):
        run.wrong.append(f"the report counts {counts}, the journals have {len(run.scored)} scored, {dict(failed)}")
    now = {f"{key[0]} {key[1]}": line["crc"] for key, (_, _, line) in run.scored.items()}
    changed = [key for key, crc in expected["sealed"].items() if now.get(key) != crc]
    run.wrong += [f"{key} was sealed, and another line counts now" for key in changed]
    reported = {Path(damage["path"]).name for damage in expected["verify"]["damage"]}
    run.wrong += [f"{name} is damaged, and `verify` does not report it" for name in run.damaged - reported]
    run.wrong += [f"`verify` reports {name}, which nobody damaged" for name in reported - set(expected["damaged"])]
    return sorted(run.wrong)


if __name__ == "__main__":
    violations = check(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_bytes()))
    print("\n".join(violations) or "every guarantee holds")
    sys.exit(bool(violations))
