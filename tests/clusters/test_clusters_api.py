from __future__ import annotations

from pathlib import Path

import pytest
from fakeslurm import Fakes

import rollbook
from rollbook.clusters.job_files import read_order
from rollbook.clusters.profile import ClusterProfile
from support.commands import Commands


@pytest.fixture(autouse=True)
def _path(fakes: Fakes, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", commands.environ["PATH"])


def test_a_run_is_submitted_from_python(fakes: Fakes, sums: list[str], tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("workers: 3\nsamples: 2\n")
    sent = rollbook.submit(sums[0], sums[2], cluster=tmp_path / "c.yaml", out=tmp_path / "run", concurrency=8)
    assert (sent.path, sent.workers) == (tmp_path / "run", 3)
    assert [(job.kind, job.job) for job in sent.jobs] == [("workers", "101"), ("report", "102")]
    assert len(fakes.calls("sbatch")) == 2


def test_servers_are_ordered_from_python(sums: list[str], tmp_path: Path) -> None:
    serve = {"kind": "vllm", "model_path": "/models/m", "tensor_parallel": 2}
    sent = rollbook.submit(sums[0], cluster=ClusterProfile(gpus=4), serve=serve, workers=2, out=tmp_path / "run")
    order = read_order(sent.path, 1)
    assert order.serve
    assert (order.serve.name, order.serve.tensor_parallel, order.profile.gpus) == ("/models/m", 2, 4)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"serve": {"kind": "tgi", "name": "m"}}, "serve: Invalid enum value"),
        ({"serve": {"kind": "vllm", "model_path": "m"}, "model": "http://h/v1"}, "`serve` serves the model itself"),
        ({"cluster": ClusterProfile(gpus=1, gres="gpu:1")}, "gpus and gres both set"),
        ({"concurency": 4}, "no setting is called concurency"),
        ({"on": "local"}, "on='local': slurm or ray"),
        ({"workers": 0}, "workers=0: give a number from 1 on"),
        ({"samples": 0}, "samples=0: give a number from 1 on"),
        ({"serve": {"kind": "vllm", "model_path": "m", "foo": 1}}, "unknown field `foo`"),
    ],
)
def test_mistakes_are_refused(given: dict[str, object], why: str, sums: list[str], tmp_path: Path) -> None:
    with pytest.raises(rollbook.UsageError) as caught:
        rollbook.submit(sums[0], **{"out": tmp_path / "run", **given})
    assert why in str(caught.value)
    assert not (tmp_path / "run").exists()
