"""Model servers on Ray: each worker brings its own, on the GPUs that Ray gives it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from pathlib import Path

from raycluster import RayCluster

from support.alive import eventually
from support.book_assertions import assert_complete
from support.commands import Commands

TINY = Path(__file__).parents[1] / "tinyserver.py"


def served(*words: str) -> list[object]:
    command = [sys.executable, str(TINY), "--host={host}", "--port={port}", "--name={name}", *words]
    return ["--serve", "command", "--server-command", shlex.join(command), "--model-name", "tiny"]


def server_logs(run: Path) -> str:
    return "".join(path.read_text() for path in (run / "logs").glob("server-*.log"))


def test_each_worker_brings_its_own_server_on_its_gpus(
    cluster: RayCluster, commands: Commands, sums: str, tmp_path: Path
) -> None:
    node = cluster.add(num_cpus=2, num_gpus=4)
    try:
        words = [*served(), "--replicas", 2, "--gpus", 2, "--workers", 2]
        done = commands.run("run", f"{sums}?tasks=40", *words, "--on", "ray", "-o", "run", "--json")
    finally:
        cluster.remove(node)
    assert (done.code, done.json["scored"]) == (0, 40), done.stderr
    assert_complete(tmp_path / "run")
    used = sorted(line.split()[1] for line in server_logs(tmp_path / "run").splitlines() if line.startswith("devices"))
    assert set(used) <= {"0", "1", "2", "3"}
    assert len(used) >= 2, "one GPU for each replica"
    assert list((tmp_path / "run" / "endpoints").glob("[!.]*.json")) == []


def test_a_server_that_dies_costs_no_rollout(commands: Commands, sums: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    going = commands.start("run", f"{sums}?tasks=40", *served("--slow=0.3"), "-c", 2, "--on", "ray", "-o", "run")

    def endpoints() -> list[Path]:
        return list((run / "endpoints").glob("[!.]*.json"))

    assert eventually(lambda: bool(endpoints()), 60), going.stderr
    os.kill(json.loads(endpoints()[0].read_text())["pid"], signal.SIGKILL)
    assert going.wait(90).code == 0, going.stderr
    assert_complete(run)
    assert "ended while it was needed" in (run / "logs" / "worker-1-0.log").read_text()


def test_a_server_that_never_runs_ends_the_run(commands: Commands, sums: str, tmp_path: Path) -> None:
    words = ["--serve", "command", "--server-command", "false {port}", "--model-name", "tiny"]
    done = commands.run("run", f"{sums}?tasks=4", *words, "--on", "ray", "-o", "run", within_s=90)
    assert done.code == 3, done.stderr
    assert "gave up: rollbook: the command server" in done.stderr
    assert (tmp_path / "run" / "jobs" / "nodes.jsonl").exists()
