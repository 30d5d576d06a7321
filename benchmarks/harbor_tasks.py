"""The task folders of the tests in Rollbook and in Harbor itself, with the oracle: rewards, wall time and CPU a trial.

    .venv/bin/python benchmarks/harbor_tasks.py --harbor BIN/harbor [--tasks FOLDER] [--only NAME ...]

Needs podman, the image of the tests (`make test-containers`), and Harbor with podman-compose beside it. Its podman
backend refuses tasks without a network, so both get copies with `network_mode = "public"`. Both build their images.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import rollbook
from rollbook.containers import ImageBuild

TASKS = Path(__file__).parents[1] / "tests" / "containers" / "tasks"
TIMEOUT_S = 240.0


class Trial(NamedTuple):
    """What one program made of a task: its rewards, or why there are none, and what that took."""

    rewards: dict[str, float]
    problem: str
    wall_s: float
    cpu_s: float


def measure(command: list[str], env: dict[str, str]) -> tuple[float, float, str]:
    """Run a command, and return its wall time, the CPU time of it and its children, and the end of its output."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    try:
        ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        said = (ran.stdout + ran.stderr).strip()[-300:]
    except subprocess.TimeoutExpired:
        said = f"it took longer than {TIMEOUT_S:g} s"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, cpu, said


def run_harbor(harbor: str, task: Path, folder: Path) -> Trial:
    """Run a task in Harbor; the first result of a trial counts."""
    # Harbor starts containers with the limits of podman's own configuration, which may be above what is allowed here.
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limits = f'[containers]\ndefault_ulimits = ["nofile={files}:{files}", "nproc=32768:32768"]\n'
    (folder / "containers.conf").write_text(limits)
    env = {**os.environ, "CONTAINERS_CONF": str(folder / "containers.conf"), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    env["PATH"] = f"{Path(harbor).absolute().parent}:{env['PATH']}"
    jobs = folder / "jobs" / task.name
    words = ["run", "-p", str(task), "-a", "oracle", "-e", "podman", "--no-delete", "-q", "-y", "-o", str(jobs)]
    wall, cpu, said = measure([harbor, *words], env)
    for path in jobs.glob("*/*/result.json"):
        result = json.loads(path.read_text())
        rewards = (result.get("verifier_result") or {}).get("rewards") or {}
        return Trial(rewards, str(result.get("exception_info") or "")[:200], wall, cpu)
    return Trial({}, said, wall, cpu)


def run_rollbook(task: Path, folder: Path) -> Trial:
    """Run a task in Rollbook."""
    out = folder / "runs" / task.name
    words = ["run", f"harbor:{task}", "--agent", "oracle", "--allow-network", "-o", str(out)]
    wall, cpu, said = measure([sys.executable, "-m", "rollbook", *words], dict(os.environ))
    for rollout in rollbook.load(out).rollouts():
        if rollout.score:
            return Trial({"reward": rollout.score.reward, **(rollout.score.parts or {})}, "", wall, cpu)
    return Trial({}, said, wall, cpu)


def copy_task(task: Path, folder: Path) -> Path:
    """Return a copy of a task that may use a network."""
    copy = folder / "tasks" / task.name
    shutil.copytree(task, copy)
    (copy / "environment").mkdir(exist_ok=True)  # Harbor takes a folder without it for no task at all
    text = (copy / "task.toml").read_text()
    (copy / "task.toml").write_text(text.replace('network_mode = "no-network"', 'network_mode = "public"'))
    return copy


def clean_up(task: Path) -> None:
    """Remove what both made of a task: Harbor's own clean-up would remove the base image too, and ours is a cache."""
    built = [ImageBuild(str(folder)).image for folder in (task / "environment", task / "tests") if folder.is_dir()]
    images = [name for name in list_names("images") if task.name in name]
    networks = [name for name in list_names("network", "ls") if task.name in name]
    # Not by force: other tasks may have the same image, and be at work with it.
    for command, names in (("image rm --force", images), ("network rm --force", networks), ("image rm", built)):
        if names:
            subprocess.run(["podman", *command.split(), *names], capture_output=True, check=False)


def list_names(*command: str) -> list[str]:
    """Return the names in a listing of podman."""
    form = "{{.Repository}}:{{.Tag}}" if command == ("images",) else "{{.Name}}"
    shown = subprocess.run(["podman", *command, "--format", form], capture_output=True, text=True, check=True)
    return shown.stdout.split()


def same(ours: Trial, theirs: Trial) -> bool:
    """Whether the values of the rewards are the same; a reward of another name is `reward` with us."""
    return bool(ours.rewards) and sorted(ours.rewards.values()) == sorted(theirs.rewards.values())


def main() -> None:
    """Compare every task, and exit with 1 if a reward differs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--harbor", required=True)
    parser.add_argument("--tasks", type=Path, default=TASKS)
    parser.add_argument("--only", nargs="*", default=[])
    given = parser.parse_args()
    good = True
    print("task                      rewards of ours and of Harbor                   wall s        CPU s")
    for task in sorted(path for path in given.tasks.iterdir() if not given.only or path.name in given.only):
        with tempfile.TemporaryDirectory(prefix="rollbook-harbor-") as name:
            copy = copy_task(task, Path(name))
            theirs, ours = run_harbor(given.harbor, copy, Path(name)), run_rollbook(copy, Path(name))
            clean_up(copy)
        good &= same(ours, theirs)
        what = f"{ours.rewards or ours.problem} {theirs.rewards or theirs.problem}"
        times = f"{ours.wall_s:.1f} {theirs.wall_s:.1f}   {ours.cpu_s:.1f} {theirs.cpu_s:.1f}"
        print(f"{task.name:<25} {'same' if same(ours, theirs) else 'OTHER'} {what:<45} {times}", flush=True)
    sys.exit(not good)


if __name__ == "__main__":
    main()
