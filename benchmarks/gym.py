"""Rollbook relative to NeMo Gym: the same multiple choice rows, the same mock model of 50 ms, the same concurrency.

.venv/bin/python benchmarks/gym.py                                        ours alone, in process and over HTTP
.venv/bin/python benchmarks/gym.py --gym-python .venv-gym/0.4.0/bin/python  and NeMo Gym itself, in turns

Rollouts per second are counted from the first rollout to the last; memory is what the whole process tree holds for
itself (PSS); a server is ready when it answers.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

from engine import ROLLBOOK, Figure, show, work_seconds
from processes import TICKS, members

HERE = Path(__file__).parent
AGENT, HEAD = "mcqa_simple_agent", "http://127.0.0.1:11000"
SERVERS = ("resources_servers/mcqa", "responses_api_agents/simple_agent", "responses_api_models/vllm_model")
READY_S = 300.0


@dataclass(frozen=True)
class Result:
    """What one way of collecting took."""

    rate: float
    cpu_ms: float
    memory_mb: float
    ready_s: float


@dataclass(frozen=True)
class Load:
    """How much is run, and against what."""

    rollouts: int = 10_000
    gym_rollouts: int = 1000
    concurrency: int = 256
    latency_ms: float = 50.0
    rounds: int = 3


def rows(path: Path, count: int) -> Path:
    """So many questions with four choices, as rows of NeMo Gym."""
    with path.open("w") as file:
        for number in range(count):
            letters = "ABCD"
            text = "\n".join(f"{letter}: choice {letter} of {number}" for letter in letters)
            asked = f"Answer with the letter of the right choice inside \\boxed{{}}. Which one is it?\n{text}"
            row = {
                "responses_create_params": {"input": [{"role": "user", "content": asked}]},
                "options": [{letter: f"choice {letter} of {number}"} for letter in letters],
                "expected_answer": letters[number % 4],
                "grading_mode": "strict_single_letter_boxed",
                "uuid": f"question-{number}",
                "agent_ref": {"type": "responses_api_agents", "name": AGENT},
            }
            file.write(json.dumps(row) + "\n")
    return path


@contextmanager
def mock(latency_ms: float) -> Iterator[str]:
    """The model."""
    command = [sys.executable, str(HERE / "mock.py"), "--latency-ms", str(latency_ms), "--says", "It is \\boxed{B}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        try:
            yield child.stdout.readline().strip()
        finally:
            child.terminate()


class Watch:
    """The memory that some process trees hold for themselves, at its highest, and the processor time they used."""

    def __init__(self, *roots: int) -> None:
        self._roots, self._peak, self._cpu = roots, 0, {}
        self._stop = threading.Event()
        self._look()
        self._before = sum(self._cpu.values())
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            self._look()

    def _look(self) -> None:
        held = 0
        for pid in {pid for root in self._roots for pid in members(root)}:
            try:
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            held += next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)
            self._cpu[pid] = (int(fields[11]) + int(fields[12])) / TICKS
        self._peak = max(self._peak, held)

    def end(self) -> tuple[float, float]:
        """Processor seconds since the beginning, and MiB at the highest."""
        self._look()
        self._stop.set()
        self._thread.join()
        return sum(self._cpu.values()) - self._before, self._peak / 1024


def collect(words: list[str], roots: tuple[int, ...], cwd: Path | None = None) -> tuple[float, float]:
    """Run a command to its end next to servers; the processor seconds and the memory of all of them."""
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen(words, stdout=said, stderr=said, cwd=cwd)
        watch = Watch(child.pid, *roots)
        _, status, usage = os.wait4(child.pid, 0)
        cpu, memory = watch.end()
        if status:
            said.seek(0)
            raise RuntimeError(f"{' '.join(words)} failed: {said.read()[-2000:]}")
    return max(cpu, usage.ru_utime + usage.ru_stime), memory


def ours(folder: Path, env: str, url: str, data: Path, count: int, at_once: int, roots: tuple[int, ...] = ()) -> Result:
    """`rollbook run`."""
    out = folder / f"run-{time.monotonic_ns()}"
    words = [*ROLLBOOK, "run", env, "-m", url, "--model-name", "mock", "-c", str(at_once), "--data", str(data)]
    cpu, memory = collect([*words, "-o", str(out), "--json"], roots)
    rate = count / work_seconds(out)
    shutil.rmtree(out)
    return Result(rate, 1000 * cpu / count, memory, 0.0)


@contextmanager
def served(data: Path) -> Iterator[tuple[str, int, float]]:
    """`rollbook serve mcqa`: its address, its process, and how long it took to answer."""
    began = time.perf_counter()
    words = [*ROLLBOOK, "serve", "mcqa", "--data", str(data)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        try:
            url = child.stdout.readline().strip()
            answers(url)
            yield url, child.pid, time.perf_counter() - began
        finally:
            child.terminate()


def split(folder: Path, url: str, data: Path, count: int, at_once: int) -> Result:
    """Our worker here, our server over HTTP."""
    with served(data) as (address, pid, ready_s):
        found = ours(folder, address, url, written(folder, data), count, at_once, (pid,))
    return Result(found.rate, found.cpu_ms, found.memory_mb, ready_s)


def written(folder: Path, data: Path) -> Path:
    """The rows as our server wants them: with what its verifier knows of each."""
    out = folder / "config.yaml"
    if not out.exists():
        words = ["gym-config", "mcqa", "--data", str(data), "--model", "http://none/v1", "--model-name", "mock"]
        subprocess.run([*ROLLBOOK, *words, "-o", str(out)], check=True, stdout=subprocess.DEVNULL)
    (found,) = (path for path in folder.rglob("*.jsonl") if path.name.startswith("mcqa"))
    return found


def answers(url: str) -> bool:
    """Whether somebody answers there."""
    try:
        with build_opener(ProxyHandler({})).open(url, timeout=5) as reply:
            return bool(reply.read() is not None)
    except OSError:
        return False


@contextmanager
def gym_servers(home: Path, python: Path, folder: Path, url: str) -> Iterator[tuple[int, float]]:
    """NeMo Gym's own servers; its per-server environments are taken to be the one that is given."""
    for name in SERVERS:
        (folder / "venvs" / name).mkdir(parents=True)
        (folder / "venvs" / name / ".venv").symlink_to(python.parent.parent)
    words = [str(python.parent / "gym"), "env", "start", "--config", "resources_servers/mcqa/configs/mcqa.yaml"]
    words += ["--config", "responses_api_models/vllm_model/configs/vllm_model.yaml", "--model", "mock"]
    words += ["--model-url", url, "--model-api-key", "none", "+skip_venv_if_present=true"]
    words += [f"+uv_venv_dir={folder / 'venvs'}"]
    environ = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}
    began = time.perf_counter()
    with open(folder / "gym.log", "w") as log:
        child = subprocess.Popen(words, cwd=home, env=environ, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for_all(child, folder / "gym.log")
        yield child.pid, time.perf_counter() - began
    finally:
        left = members(child.pid)
        child.send_signal(signal.SIGINT)
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def wait_for_all(child: subprocess.Popen[bytes], log: Path) -> None:
    """Until every server that the head server names answers."""
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        if child.poll() is not None:
            break
        try:
            with build_opener(ProxyHandler({})).open(f"{HEAD}/server_instances", timeout=5) as reply:
                urls = [server["url"] for server in json.load(reply)]
        except OSError:
            urls = []
        if len(urls) == len(SERVERS) and all(answers(url) for url in urls):
            return
        time.sleep(0.25)
    raise RuntimeError(f"NeMo Gym did not start: {log.read_text()[-2000:]}")


def theirs(python: Path, folder: Path, url: str, data: Path, count: int, at_once: int) -> Result:
    """NeMo Gym: its servers, its collector."""
    home = find_gym(python)
    with gym_servers(home, python, folder, url) as (pid, ready_s):
        out = folder / "gym" / "run.jsonl"
        out.parent.mkdir()
        words = [str(python.parent / "gym"), "eval", "run", "--no-serve", "--input", str(data), "--output", str(out)]
        cpu, memory = collect([*words, "--concurrency", str(at_once), "+disable_aggregation=true"], (pid,), home)
    inputs = out.with_name("run_materialized_inputs.jsonl")
    written = sum(1 for _ in out.open())
    if written != count:
        raise RuntimeError(f"NeMo Gym wrote {written} of {count} rollouts")
    return Result(count / (out.stat().st_mtime - inputs.stat().st_mtime), 1000 * cpu / count, memory, ready_s)


def find_gym(python: Path) -> Path:
    """Return the folder that has NeMo Gym's package and servers: a checkout, or where it is installed."""
    code = "import nemo_gym, pathlib; print(pathlib.Path(nemo_gym.__file__).parents[1])"
    return Path(subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True).stdout.strip())


def compare(load: Load, gym_python: Path | None) -> tuple[Result, Result, Result | None]:
    """Run ours in process, ours over HTTP and, where it is given, NeMo Gym, in turns; return the middle ones."""
    here: list[Result] = []
    there: list[Result] = []
    peer: list[Result] = []
    with tempfile.TemporaryDirectory() as name, mock(load.latency_ms) as url:
        folder, count, at_once = Path(name), load.rollouts, load.concurrency
        data, few = rows(folder / "rows.jsonl", count), rows(folder / "few.jsonl", load.gym_rollouts)
        for number in range(load.rounds):
            ways = [(here, partial(ours, folder, "mcqa", url, data, count, at_once))]
            ways.append((there, partial(split, folder, url, data, count, at_once)))
            if gym_python:
                home = folder / f"gym-{number}"
                home.mkdir()
                ways.append((peer, partial(theirs, gym_python.absolute(), home, url, few, load.gym_rollouts, at_once)))
            start = number % len(ways)  # each round starts with another one
            for results, collect_once in ways[start:] + ways[:start]:
                results.append(collect_once())
    return middle(here), middle(there), middle(peer) if peer else None


def middle(results: list[Result]) -> Result:
    """The middle one by rate."""
    return sorted(results, key=lambda result: result.rate)[len(results) // 2]


def figures(here: Result, there: Result, gym: Result | None) -> Iterator[Figure]:
    """The table."""
    for what, result in (("in process", here), ("worker and server", there), ("NeMo Gym", gym)):
        if result:
            detail = (
                f"{result.cpu_ms:.2f} ms CPU a rollout, {result.memory_mb:.0f} MiB, ready in {result.ready_s:.1f} s"
            )
            yield Figure(what, result.rate, "rollouts/s", detail=detail)
    yield Figure("CPU a rollout, over HTTP relative to in process", there.cpu_ms / here.cpu_ms, "x", 2.5)
    yield Figure("rollbook serve, ready", there.ready_s, "s", 2.0)
    if gym:
        yield Figure("rollouts/s in process, relative to NeMo Gym", here.rate / gym.rate, "x", 20, True)
        yield Figure("rollouts/s over HTTP, relative to NeMo Gym", there.rate / gym.rate, "x", 8, True)
        yield Figure("memory in process, relative to NeMo Gym", here.memory_mb / gym.memory_mb, "x", 0.1)
        yield Figure("memory over HTTP, relative to NeMo Gym", there.memory_mb / gym.memory_mb, "x", 0.1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gym-python", type=Path, help="a Python that has NeMo Gym installed")
    parser.add_argument("--rollouts", type=int, default=Load.rollouts, help="of ours")
    parser.add_argument("--gym-rollouts", type=int, default=Load.gym_rollouts, help="of NeMo Gym")
    parser.add_argument("--concurrency", type=int, default=Load.concurrency)
    parser.add_argument("--latency-ms", type=float, default=Load.latency_ms)
    parser.add_argument("--rounds", type=int, default=Load.rounds, help="the middle one counts")
    given = parser.parse_args()
    load = Load(given.rollouts, given.gym_rollouts, given.concurrency, given.latency_ms, given.rounds)
    found = list(figures(*compare(load, given.gym_python)))
    show(found)
    return int(any("MISSED" in figure.verdict for figure in found))


if __name__ == "__main__":
    sys.exit(main())
