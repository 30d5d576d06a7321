"""The Slurm script of examples/verl says in one line what is missing, before anything is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples/verl"


def submit(folder: Path, name: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run it as the first lines of a job would."""
    (folder / "python").symlink_to(sys.executable)
    environ = {"PATH": f"{folder}:{os.environ['PATH']}", "EXAMPLES": str(EXAMPLES), "SLURM_JOB_NUM_NODES": "1"}
    command = ["bash", str(EXAMPLES / "submit.slurm"), name]
    return subprocess.run(command, env=environ | variables, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("name", "variables", "error"),
    [
        ("maths", {}, "no example is called maths"),
        ("math", {"ROWS": "x"}, "name the model: export MODEL="),
        ("math", {"MODEL": "x"}, "name the folder of the rows: export ROWS="),
        ("math", {"MODEL": "x", "ROWS": "/nowhere"}, "/nowhere/train.jsonl is not there"),
    ],
)
def test_what_is_missing_is_said_at_the_start(tmp_path: Path, name: str, variables: dict[str, str], error: str) -> None:
    ended = submit(tmp_path, name, **variables)
    assert ended.returncode != 0
    assert error in ended.stderr


def test_other_versions_than_the_pinned_ones_are_refused_with_the_way_out(tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    rows.mkdir()
    for file in ("train.jsonl", "test.jsonl"):
        (rows / file).write_text("{}\n")
    ended = submit(tmp_path, "math", MODEL="x", ROWS=str(rows))
    assert ended.returncode == 2
    assert "vllm==0.24.0 is needed: pip install 'vllm==0.24.0'" in ended.stderr


FAKES = {
    "scontrol": "printf 'node1\\nnode2\\n'",
    "srun": 'while [ $# -gt 0 ] && [[ ! "$1" =~ ^(ray|python|bash)$ ]]; do shift; done; exec "$@"',
    "ray": 'echo "ray $*" >> "$LOG"',
    "python": 'case "$*" in *check.py) ;; *ray.nodes*) echo 2 ;; *) echo "python $*" >> "$LOG" ;; esac',
}


def test_ray_is_started_on_every_node_and_verl_with_the_example(tmp_path: Path) -> None:
    for name, script in FAKES.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)
    for file in ("train.jsonl", "test.jsonl"):
        (tmp_path / file).write_text("{}\n")
    variables = {"MODEL": "m", "ROWS": str(tmp_path), "LOG": str(tmp_path / "log"), "EXAMPLES": str(EXAMPLES)}
    slurm = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-2]"}
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **variables, **slurm}
    command = ["bash", "-c", f"source {EXAMPLES}/submit.slurm blend; wait"]
    subprocess.run(command, env=environ, check=True, timeout=60)
    done = sorted((tmp_path / "log").read_text().splitlines())
    assert f"python -m verl.trainer.main_ppo --config-path {EXAMPLES} --config-name blend" in done
    assert "ray start --head --port 20007 --num-gpus 8 --block" in done
    assert "ray start --address node1:20007 --num-gpus 8 --block" in done
