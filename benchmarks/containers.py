"""Containers against the bare runtime, side by side in the same run; then 200 rollouts with kills at random.

    .venv/bin/python benchmarks/containers.py [--quick] [--soak] [--rollouts N] [--seed N] [--image IMAGE]

Needs podman and the image of the tests (`make test-containers` makes it).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

from rollbook.containers import Container, ContainerHost, Owner, find_runtime
from rollbook.containers.container import limit_arguments
from rollbook.containers.owners import OWNER_LABEL
from rollbook.containers.runtime import Podman

IMAGE = "localhost/rollbook-test/debian:1"
START_RATIO, COMMAND_RATIO = 1.3, 0.1
TASK = {
    "task.toml": '[environment]\nnetwork_mode = "no-network"\nmemory_mb = 128\n',
    "instruction.md": "Write hello into /word.txt.\n",
    "environment/Dockerfile": "FROM {image}\n",
    "tests/test.sh": '[ "$(cat /word.txt)" = hello ]; echo $((1 - $?)) > /logs/verifier/reward.txt\n',
    "solution/solve.sh": "sleep 1; echo hello > /word.txt\n",
}


def bare(*words: str) -> float:
    """Run a command of podman, and return its seconds."""
    began = time.perf_counter()
    subprocess.run(["podman", *words], check=True, capture_output=True)
    return time.perf_counter() - began


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    """Await work, and return its seconds."""
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def measure_starts(image: str, rounds: int) -> tuple[list[float], list[float]]:
    """Start containers up to their first command, and with `podman run ... true`, in turns."""
    ours, theirs = [], []
    container = Container(image=image, memory_mb=128)
    options = [*limit_arguments(container), *Podman().host_options, "--network", "none"]
    host = ContainerHost()
    await host.open()
    try:
        for _ in range(rounds):
            theirs.append(await asyncio.to_thread(bare, "run", "--rm", *options, image, "true"))

            async def start() -> None:
                handle = await host.start(container)
                assert (await handle.run("true")).exit_code == 0

            ours.append(await timed(start))
            await host.close_containers()
    finally:
        await host.close()
    return ours, theirs


async def measure_commands(image: str, rounds: int) -> tuple[list[float], list[float]]:
    """Run `true` in the kept shell and by `podman exec`, in turns."""
    host = ContainerHost()
    await host.open()
    try:
        handle = await host.start(Container(image=image, memory_mb=128))
        ours, theirs = [], []
        for _ in range(rounds):
            theirs.append(await asyncio.to_thread(bare, "exec", handle.name, "true"))
            ours.append(await timed(lambda: handle.run("true")))
    finally:
        await host.close()
    return ours, theirs


def show(name: str, ours: list[float], theirs: list[float], allowed: float) -> bool:
    """Print both medians and their ratio; return whether it is allowed."""
    mine, bare_s = statistics.median(ours), statistics.median(theirs)
    ratio = mine / bare_s
    print(f"{name}: {1000 * mine:.1f} ms, bare {1000 * bare_s:.1f} ms, ratio {ratio:.3f} (allowed {allowed})")
    return ratio <= allowed


class Soak:
    """Rollouts, eight at once, while their worker, its podman processes and its containers are killed at random."""

    def __init__(self, folder: Path, image: str, rollouts: int, seed: int) -> None:
        self.run, self._rollouts = folder / "run", rollouts
        self._rng = random.Random(seed)
        self.kills: Counter[str] = Counter()
        self._task = folder / "task"
        for path, text in TASK.items():
            (self._task / path).parent.mkdir(parents=True, exist_ok=True)
            (self._task / path).write_text(text.replace("{image}", image))

    def play(self) -> None:
        """Start the run, and resume it after every kill, until every rollout is scored or failed for good."""
        process = self._start("run", f"harbor:{self._task}", "--agent", "oracle", "-c", "8", "-k", str(self._rollouts))
        while True:
            try:
                process.wait(self._rng.uniform(3, 9))
            except subprocess.TimeoutExpired:
                self._kill_something(process)
                continue
            if process.returncode in (0, 3):
                return
            process = self._start("resume", str(self.run))

    def retry_failures(self) -> None:
        """Run the rollouts that failed for good once more, without kills."""
        self._start("resume", str(self.run), "--retry", "all").wait()

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        where = ["-o", str(self.run)] if words[0] == "run" else []
        command = [sys.executable, "-m", "rollbook", *words, *where]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _kill_something(self, process: subprocess.Popen[bytes]) -> None:
        what = self._rng.choices(["worker", "ctrl-c", "podman", "conmon", "container"], [1, 1, 5, 3, 3])[0]
        pids = {"worker": [process.pid], "ctrl-c": [process.pid], "podman": find_children(process.pid, "podman")}
        pids |= {"conmon": find_monitors(process.pid), "container": find_monitors(process.pid)}
        if not pids[what]:
            return
        pid = self._rng.choice(pids[what])
        if what == "container":
            subprocess.run(["podman", "kill", monitored_name(pid)], capture_output=True, check=False)
        else:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT if what == "ctrl-c" else signal.SIGKILL)
        self.kills[what] += 1
        if what == "worker":
            process.wait()

    def account(self) -> tuple[int, int, int]:
        """Return how many keys are scored, failed and pending, counted in the journals."""
        command = [sys.executable, "-m", "rollbook", "status", str(self.run), "--exact", "--json"]
        status = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        assert status["requested"] == self._rollouts
        return status["scored"], sum(status["failed"].values()), status["pending"]

    def list_left(self) -> list[str]:
        """Return what podman and runc know of this run: containers, images, networks, volumes; monitors without any;
        and remains of containers in podman's storage."""
        podman = find_runtime("podman")
        objects = [*asyncio.run(podman.list_labelled(OWNER_LABEL)), *podman.list_states(OWNER_LABEL)]
        owned = [(each, Owner.from_label(each.owner)) for each in objects]
        left = [f"{each.kind} {each.id}" for each, owner in owned if owner and owner.run == str(self.run)]
        known = list_names()  # those have labels: others may be at work on this machine
        left += [f"in storage {name}" for name in list_names("--external") - known if name.startswith("rollbook-")]
        return left + [f"monitor {pid}" for pid in find_monitors() if monitored_name(pid) not in known]


def list_names(*options: str) -> set[str]:
    """Return the names of all containers that podman knows; with `--external` also those that only its storage has."""
    listing = ["podman", "ps", "--all", *options, "--format", "{{.Names}}"]
    return set(subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split())


def read_words(pid: int) -> list[str]:
    """Return the command line of a process."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    return []


def program_of(pid: int) -> str:
    """Return the name of the program that a process runs."""
    return Path(next(iter(read_words(pid)), "")).name


def find_children(parent: int, program: str) -> list[int]:
    """Return the children of a process that run a program."""
    with suppress(OSError):
        pids = [
            int(pid) for path in Path(f"/proc/{parent}/task").glob("*/children") for pid in path.read_text().split()
        ]
        return [pid for pid in pids if program_of(pid) == program]
    return []


def find_monitors(parent: int = 0) -> list[int]:
    """Return podman's monitors of our containers: all of them, or those that a process has a client for."""
    clients = {word for pid in find_children(parent, "podman") for word in read_words(pid)} if parent else set()
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    pids = [pid for pid in pids if program_of(pid) == "conmon"]
    ours = [pid for pid in pids if monitored_name(pid).startswith("rollbook-")]
    return [pid for pid in ours if not parent or monitored_name(pid) in clients]


def monitored_name(pid: int) -> str:
    """Return the name of the container that a monitor watches."""
    words = read_words(pid)
    return words[words.index("-n") + 1] if "-n" in words else ""


def soak(image: str, rollouts: int, seed: int) -> bool:
    """Run the soak, and print what became of every key and what is left."""
    with tempfile.TemporaryDirectory(prefix="rollbook-bench-") as name:
        work = Soak(Path(name), image, rollouts, seed)
        began = time.perf_counter()
        work.play()
        seconds = time.perf_counter() - began
        scored, failed, pending = work.account()
        print(f"{rollouts} rollouts, 8 at once, {seconds:.0f} s, kills {dict(work.kills)}")
        print(f"requested {rollouts} = scored {scored} + failed {failed} + pending {pending}")
        good = scored + failed == rollouts and pending == 0
        if failed:
            work.retry_failures()
            scored, failed, pending = work.account()
            print(f"after resume --retry all: scored {scored}, failed {failed}, pending {pending}")
        rewards = set(read_rewards(work.run))
        deadline = time.monotonic() + 60
        while (left := work.list_left()) and time.monotonic() < deadline:
            time.sleep(1)  # the guard of the last worker that was killed may still be at work
        print(f"rewards {rewards}, left {len(left)} {left}")
        return good and scored == rollouts and rewards == {1.0} and not left


def read_rewards(run: Path) -> Iterator[float]:
    """Yield the reward of every scored line."""
    for path in run.glob("journals/*.jsonl"):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if record.get("status") == "scored":
                yield record["reward"]


def main() -> None:
    """Measure, print, and exit with 1 if a figure is beyond what is allowed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--soak", action="store_true", help="only the rollouts with kills")
    parser.add_argument("--image", default=IMAGE)
    parser.add_argument("--rollouts", type=int, default=0)
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    rounds, good = 5 if given.quick else 15, True
    if not given.soak:
        good &= show("start to first command", *asyncio.run(measure_starts(given.image, rounds)), START_RATIO)
        good &= show("command in the kept shell", *asyncio.run(measure_commands(given.image, rounds)), COMMAND_RATIO)
    good &= soak(given.image, given.rollouts or (20 if given.quick else 200), given.seed)
    sys.exit(not good)


if __name__ == "__main__":
    main()
