"""An independent reader of a run directory after chaos: it imports nothing of Rollbook, and returns every violation.

    python tests/chaos/reader.py RUN EXPECTED.json

EXPECTED.json says what was asked (`tasks`: id to {env, a, b, broken, extracts}: the sum, whether its verifier raises,
whether that records the number as the answer; `samples`, `seed`), which files were damaged and not restored
(`damaged`), what `rollbook report --json` and `rollbook verify --json` printed at the end (`report`, `verify`), and
which lines counted in chunks that were sealed earlier (`sealed`, by `count_sealed`).

The rules are those of the design: of a key the line of the lowest epoch counts, then of the lowest attempt; what a seal
covers does not change; a key without a scored line has the final failure that no later round has reopened.
"""

import hashlib
import json
import math
import re
import struct
import sys
import zlib
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

NEVER = 1 << 30
MOST_REPEATED = 8  # twice what a worker has in flight: its chunks were taken over twice, and it went on in between
ATTEMPTS = {"environment_error": 3, "sandbox_error": 3, "model_unavailable": 4, "model_timeout": 4, "bad_completion": 4}
"""How many attempts a rollout has in one round before such a failure is final."""
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
        self.epochs: Counter[tuple[int, int]] = Counter()
        records = [path / "run.json", path / "plan.json", *(path / "rounds").glob("[0-9]*.json")]
        for file in [*records, *(path / "leases").glob("[0-9]*"), *(path / "done").glob("[0-9]*.json")]:
            found = re.fullmatch(rb'(.*),\s*"crc": ?"(\w{8})"\s*}\s*', file.read_bytes(), re.DOTALL)
            if found and b"%08x" % zlib.crc32(found[1]) != found[2]:
                self.damaged.add(file.name)
        for file in sorted((path / "leases").glob("[0-9]*"), key=lambda file: int(file.suffix[1:])):
            lease = json.loads(file.read_bytes())
            self.owners.setdefault(int(file.stem), {}).setdefault(lease["worker"], int(file.suffix[1:]))
            self.epochs[int(file.stem), lease["round"]] += 1
        self.seals: dict[int, dict[str, Any]] = {}
        for file in sorted((path / "done").glob("[0-9]*.json"), key=lambda file: (file.name[:5], len(file.name), file)):
            self.seals[int(file.name[:5])] = json.loads(file.read_bytes())
        self.scored: dict[tuple[str, int], tuple[tuple[int, int], str, dict[str, Any]]] = {}
        self.failed: dict[tuple[str, int], str] = {}
        self.seen: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.lines: list[tuple[tuple[str, int], str, dict[str, Any]]] = []
        self.failures: list[tuple[tuple[str, int], str, dict[str, Any]]] = []
        self.scored_by: dict[tuple[str, tuple[str, int]], int] = {}
        self.scored_lines = 0
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
        self.scored_lines += line["status"] == "scored"
        again = self.seen.setdefault((worker, key, line["status"], line["round"], line["attempt"]), line)
        if _without_refs(again) != _without_refs(line):  # a failed fsync repeats a line, token references apart
            self.wrong.append(f"{file.name}: {key} has two different lines of one attempt")
        seal, owners = self.seals.get(self.chunk_of[key]), self.owners[self.chunk_of[key]]
        epoch = owners[worker] if max(owners.values()) > 1 else 1
        if seal and epoch <= seal["epoch"] and end > seal["files"].get(file.name, {"bytes": 0})["bytes"]:
            return
        rank = epoch, line["attempt"]
        (self.lines if line["status"] == "scored" else self.failures).append((key, file.name, line))
        if line["status"] == "scored":
            if self.scored_by.setdefault((worker, key), line["attempt"]) != line["attempt"]:
                self.wrong.append(f"{file.name}: {key} was scored, and run again by the same worker")
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
        """Check that no worker runs again what the workers before it had scored when it took over their chunk.

        A seal has the lines of earlier owners as they were at the last takeover. Where a chunk was taken over twice in
        a round, its first owner may have gone on in between, and ended what it had in flight. A later round finds all
        lines of earlier ones.
        """
        workers: dict[tuple[str, int], set[str]] = {}
        rounds: dict[tuple[str, int], set[int]] = {}
        for key, name, line in self.lines:
            workers.setdefault(key, set()).add(name.split(".")[0])
            rounds.setdefault(key, set()).add(line["round"])
        first: Counter[str] = Counter()
        for key, each in workers.items():
            owners = self.owners[self.chunk_of[key]]
            if len(each) > 1 and self.epochs[self.chunk_of[key], min(rounds[key])] < 3:
                self.wrong.append(f"{key} was scored by {min(each, key=owners.__getitem__)}, and run again after it")
            elif len(each) > 1:
                first[min(each, key=owners.__getitem__)] += 1
        for worker, count in first.items():
            if count > MOST_REPEATED:
                self.wrong.append(f"{worker}: {count} of its scored rollouts were run again by others")
        again = [(min(each), max(each), key) for key, each in rounds.items() if len(each) > 1]
        self.wrong += [f"{key} was scored in round {first}, and run again in {last}" for first, last, key in again]

    def check_attempts(self) -> None:
        """Check that no failure is final before its attempts are used up."""
        for key, name, line in self.failures:
            kind = line["failure"]["kind"]
            if line["final"] and line["attempt"] < ATTEMPTS.get(kind, 1):
                self.wrong.append(f"{name}: {key} is given up after {line['attempt']} attempts: {kind}")

    def _is_as_sealed(self, name: str, extent: dict[str, Any]) -> bool:
        file = self.path / "journals" / name
        data = file.read_bytes()[: extent["bytes"]] if file.exists() else b""
        return (len(data), hashlib.sha256(data).hexdigest()) == (extent["bytes"], extent["sha256"])

    def check_tasks(self, expected: dict[str, Any]) -> None:
        """Check that the tasks are those that were planned: what is asked, and what only the verifier sees."""
        for line in (self.path / "tasks.jsonl").read_bytes().splitlines():
            task = json.loads(line)
            asked = expected["tasks"].get(task["id"], {"a": 0, "b": 0, "env": None})
            known = {"env": asked["env"], "messages": [_ask(asked)], "answer": str(asked["a"] + asked["b"])}
            self._compare(f"tasks.jsonl: {task['id']}", task, known)

    def check_line(self, key: tuple[str, int], name: str, line: dict[str, Any], expected: dict[str, Any]) -> None:
        """Compare a line with what model and verifier give for the seed of its key, and its tokens too."""
        asked = expected["tasks"][key[0]]
        known, tokens = _recompute(key, asked, expected["seed"])
        if line["status"] == "failed":  # it has what it got to
            known["messages"], known["turns"] = (known[field][: len(line[field])] for field in ("messages", "turns"))
            del known["reward"], known["answer"], known["parts"]
        elif asked["broken"]:
            self.wrong.append(f"{key} has a reward, but its verifier always raises")
        counts = "prompt_tokens", "completion_tokens"
        known["usage"] = {field: sum(turn[field] for turn in known["turns"]) for field in counts}
        turns = [{field: turn[field] for field in (*counts, "finish_reason")} for turn in line["turns"]]
        self._compare(str(key), {**line, "turns": turns}, known)
        sidecar = re.sub(r"(\.failures)?\.jsonl$", ".tokens", name)
        for turn in line["turns"] if sidecar not in expected["damaged"] else ():
            if turn["tokens"] or line["status"] == "scored":
                self._compare(str(key), self._read_tokens(sidecar, turn["tokens"]), tokens)

    def _compare(self, what: str, found: dict[str, Any], known: dict[str, Any]) -> None:
        for field, value in known.items():
            if found.get(field) != value:
                self.wrong.append(f"{what}: {field}: {found.get(field)!r}, not {value!r}")

    def _read_tokens(self, name: str, ref: dict[str, int]) -> dict[str, Any]:
        record = (self.path / "journals" / name).read_bytes()[ref["at"] : ref["at"] + ref["size"]]
        try:
            _, _, rest, sampled, crc = struct.unpack_from("<BIIII", record)
            values = [*struct.unpack(f"<{rest + sampled}i{sampled}f", zlib.decompress(record[17:]))]
        except (struct.error, zlib.error):
            rest = sampled = crc = -1
        if zlib.crc32(record[17:], zlib.crc32(record[:13])) != crc:
            self.damaged.add(name)
            return {}
        end = rest + sampled
        return {"prompt ids": values[:rest], "token ids": values[rest:end], "logprobs": values[end:]}

    def check_report(
        self, what: str, report: dict[str, Any], keys: set[tuple[str, int]], tasks: dict[str, Any]
    ) -> None:
        """Compute the counts, means, pass@k and pass^k of a report again, over all and for each environment."""
        names = {task["env"] for task in tasks.values()}
        if report["environments"].keys() != names:
            self.wrong.append(f"{what} has the environments {[*report['environments']]}, not {sorted(names)}")
        for name, numbers in [("all", report), ("all", report["overall"]), *report["environments"].items()]:
            own = {key for key in keys if name in ("all", tasks[key[0]]["env"])}
            rewards = [self.scored[key][2]["reward"] for key in own & self.scored.keys()]
            failed = Counter(self.failed[key] for key in (own & self.failed.keys()) - self.scored.keys())
            known = {"requested": len(own), "scored": len(rewards), "failed": failed, "pending": 0}
            if numbers is report:
                known["dropped"] = self.scored_lines - len(self.scored)
            else:
                known |= self._sum_usage(own)
            self._compare(f"{what}, {name}", numbers, known)
            mean = sum(rewards) / len(rewards) if rewards else None
            if "mean" in numbers and (None in (mean, numbers["mean"]) or abs(numbers["mean"] - mean) > 1e-9):
                self.wrong.append(f"{what}, {name}: mean {numbers['mean']}, not {mean}")
            if numbers is not report:
                self._check_estimates(f"{what}, {name}", numbers, own)

    def _sum_usage(self, keys: set[tuple[str, int]]) -> dict[str, int]:
        lines = [self.scored[key][2] for key in keys & self.scored.keys()]
        sums = {field: sum(line["usage"][field] for line in lines) for field in ("prompt_tokens", "completion_tokens")}
        return sums | {"turns": sum(len(line["turns"]) for line in lines)}

    def _check_estimates(self, what: str, numbers: dict[str, Any], keys: set[tuple[str, int]]) -> None:
        """Compute pass@k, pass^k and the intervals again; a bootstrap must be near the interval, if there are tasks."""
        rewards: dict[str, list[float]] = {}
        for key in keys & self.scored.keys():
            rewards.setdefault(key[0], []).append(self.scored[key][2]["reward"])
        shares = count_passes([*rewards.values()])
        known = {name: sum(values) / len(values) for name, values in shares.items()}
        for field, value in known.items():
            if abs(numbers.get(field, 9.0) - value) > 1e-9:
                self.wrong.append(f"{what}: {field} {numbers.get(field)}, not {value}")
        bounds = {f"{name}_interval": find_interval([[value] for value in shares[name]]) for name in shares}
        bounds = {field: each for field, each in bounds.items() if "@" in field}
        bounds["mean_interval"] = find_interval([*rewards.values()])
        if len(rewards) >= 20:
            bounds |= {"mean_bootstrap": bounds["mean_interval"], "pass@1_bootstrap": bounds["pass@1_interval"]}
        for field, each in bounds.items():
            if not _is_near(numbers.get(field), each, 0.25 if "bootstrap" in field else 1e-5):
                self.wrong.append(f"{what}: {field} {numbers.get(field)}, not {each}")


def count_passes(rewards: list[list[float]]) -> dict[str, list[float]]:
    """Return pass@k and pass^k of every task with k scored samples, each over all choices of k of them."""
    values: dict[str, list[float]] = {}
    for k, each in ((k, each) for k in (1, 2, 4) for each in rewards if len(each) >= k):
        chosen = [sum(choice) for choice in combinations(each, k)]
        values.setdefault(f"pass@{k}", []).append(sum(total > 0 for total in chosen) / len(chosen))
        values.setdefault(f"pass^{k}", []).append(sum(total == k for total in chosen) / len(chosen))
    return values


def find_interval(values: list[list[float]]) -> tuple[float, float] | None:
    """Return the 95% interval of the mean of all values, where those of one task are one draw, within 0 and 1."""
    count, tasks = sum(map(len, values)), len(values)
    mean = sum(map(sum, values)) / count if count else 0.0
    squares = sum((sum(each) - len(each) * mean) ** 2 for each in values)
    if tasks < 2 or squares < 1e-20:
        return None
    half = find_quantile(tasks - 1) * math.sqrt(tasks / (tasks - 1) * squares) / count
    return max(mean - half, 0.0), min(mean + half, 1.0)


def find_quantile(freedom: int, steps: int = 2000) -> float:
    """Return Student's quantile of 0.975: where Simpson's rule of the density, from 0, gives 0.475."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)

    def integrate(end: float) -> float:
        heights = [(1 + (end * i / steps) ** 2 / freedom) ** (-(freedom + 1) / 2) for i in range(steps + 1)]
        weighted = heights[0] + heights[-1] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2])
        return scale * weighted * end / steps / 3

    low, high = 0.0, 20.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if integrate(middle) < 0.475 else (low, middle)
    return low


def _is_near(found: list[float] | None, known: tuple[float, float] | None, share: float) -> bool:
    """Whether two intervals are equal, but for a share of the width of one."""
    if found is None or known is None:
        return found is known
    return all(abs(one - other) <= share * (known[1] - known[0]) for one, other in zip(found, known, strict=True))


def _ask(asked: dict[str, Any]) -> dict[str, str]:
    return {"role": "user", "content": f"What is {asked['a']} + {asked['b']}?"}


def _recompute(key: tuple[str, int], asked: dict[str, Any], run_seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of the scored line of a key, and its tokens: the endpoint's reply depends on the seed alone."""
    digest = hashlib.blake2b(f"{run_seed}\0{key[0]}\0{key[1]}".encode(), digest_size=4).digest()
    seed, total = int.from_bytes(digest, "big") >> 1, asked["a"] + asked["b"]
    lucky = zlib.crc32(f"{seed}:{asked['a']} + {asked['b']}".encode()) % 1000 < 600
    number = total if lucky else total + 1 + seed % 7
    messages = [_ask(asked), {"role": "assistant", "content": f"The answer is {number}."}]
    prompt, ids = (
        [*f"<user>{_ask(asked)['content']}".encode(), 256, *b"<assistant>"],
        [*messages[1]["content"].encode(), 256],
    )
    logprobs = [-(zlib.crc32(f"{seed}:{at}:{i}".encode()) % 9999 + 1) / 10_000 for at, i in enumerate(ids)]
    logprobs = [*struct.unpack(f"<{len(ids)}f", struct.pack(f"<{len(ids)}f", *logprobs))]  # as the sidecar stores them
    turn = {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "finish_reason": "stop"}
    answer = str(number) if asked["extracts"] else None
    known = {"seed": seed, "env": asked["env"], "messages": messages, "turns": [turn], "reward": float(lucky)}
    return known | {"answer": answer, "parts": {}}, {"prompt ids": prompt, "token ids": ids, "logprobs": logprobs}


def _without_refs(line: dict[str, Any]) -> dict[str, Any]:
    return {**line, "crc": "", "turns": [{**turn, "tokens": None} for turn in line["turns"]]}


def _reopens(later: dict[str, Any], line: dict[str, Any]) -> bool:
    retry, kind = later["settings"]["retry"], line["failure"]["kind"]
    return "all" in retry or kind in retry or ("infra" if kind in INFRA else "data") in retry


def count_pending(path: Path) -> int:
    """Return how many keys are neither scored nor failed for good."""
    run = Run(path)
    return len(run.chunk_of.keys() - run.scored.keys() - run.failed.keys())


def count_reported(path: Path) -> tuple[list[str], int, int] | None:
    """Return which leases and seals there are, and how much they and the last heartbeats count as scored and as failed.

    Only in the first round. None while a heartbeat is written.
    """
    run, scored, failed = Run(path), 0, 0
    for number in range(len(run.sizes)):
        counts = run.seals.get(number)
        if counts is None and (owners := run.owners.get(number)):
            file = path / "workers" / f"{max(owners, key=owners.__getitem__)}.json"
            try:
                counts = json.loads(file.read_bytes())["chunks"].get(str(number))
            except (FileNotFoundError, ValueError):
                return None
        scored += counts["scored"] if counts else 0
        failed += sum(counts["failed"].values()) if counts else 0
    return sorted(file.name for folder in ("leases", "done") for file in (path / folder).iterdir()), scored, failed


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
    run.check_attempts()
    for key, name, line in [*run.lines, *run.failures]:  # those that do not count too: nothing is ever fabricated
        if key in keys:
            run.check_line(key, name, line, expected)
    run.check_tasks(expected)
    run.check_report("the report", expected["report"], keys, expected["tasks"])
    run.check_report("metrics.json", json.loads((path / "metrics.json").read_bytes()), keys, expected["tasks"])
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
