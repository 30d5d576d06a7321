"""`--serve vllm` on a real GPU: the script of a worker, as Slurm would start it, with a vLLM that it brings along."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from fakeslurm import Fakes

from support.book_assertions import assert_complete
from support.commands import Commands
from support.tinyvllm import PYTHON, installed, tiny_model

WITHIN_S = 900
pytestmark = pytest.mark.slow


def gpus() -> list[str]:
    """The GPUs of this machine."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


@pytest.fixture(scope="module")
def weights() -> Path:
    """A model that vLLM can load: the one that ROLLBOOK_GPU_MODEL names, or a tiny one that is made on the spot."""
    if not gpus():
        pytest.skip("NO GPU HERE: nothing was proven about --serve vllm on one")
    if installed() is None:
        pytest.skip(f"NO VLLM in {PYTHON}: nothing was proven about --serve vllm (make test-gpu installs one)")
    given = os.environ.get("ROLLBOOK_GPU_MODEL")
    return Path(given) if given else tiny_model()


@pytest.mark.parametrize(
    ("options", "needed"),
    [([], 1), (["--replicas", 2], 2), (["--tensor-parallel", 2], 2), (["--data-parallel", 2], 2)],
    ids=["one", "replicas", "tensor", "data"],
)
def test_a_worker_serves_the_model_itself_and_leaves_nothing(
    options: list[object],
    needed: int,
    weights: Path,
    commands: Commands,
    fakes: Fakes,
    sums: list[str],
    tmp_path: Path,
) -> None:
    if len(gpus()) < needed:
        pytest.skip(f"{len(gpus())} GPU HERE: {needed} are needed for this one")
    commands.environ["PATH"] = f"{Path(PYTHON).parent}:{commands.environ['PATH']}"
    words = ["--serve", "vllm", "--model-path", weights, "--model-name", "policy", "--gpus", needed, *options]
    words += ["--server-arg=--max-model-len=2048", "--server-arg=--enforce-eager", "--max-tokens", 16]
    sent = commands.run("submit", sums[0], *words, "-o", "run")
    assert sent.code == 0, sent.stderr
    environ = {**commands.environ, "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(needed)))}
    script = ["bash", str(tmp_path / "run/jobs/0001/workers.sh")]
    done = subprocess.run(script, env=environ, capture_output=True, text=True, timeout=WITHIN_S)
    assert done.returncode == 0, done.stderr
    assert "policy is served at http://127.0.0.1:" in done.stderr
    assert_complete(tmp_path / "run")
    report = commands.run("report", tmp_path / "run", "--json")
    assert report.json["scored"] == 10
    assert json.loads((tmp_path / "run/metrics.json").read_text())["scored"] == 10
    assert commands.nothing_left(30), commands.left()
