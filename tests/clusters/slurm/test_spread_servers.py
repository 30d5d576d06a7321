"""One model server on several nodes, really joined, by a step of the private Slurm."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path

from cluster import Cluster
from clustered import Submit

from rollbook.clusters.servers.launch import make_ranks_argv
from rollbook.clusters.slurm import Slurm
from support.alive import eventually
from support.book_assertions import assert_complete
from support.commands import Commands

TINY = Path(__file__).parents[1] / "tinyserver.py"


def spread(*words: str) -> list[object]:
    command = [sys.executable, str(TINY), "--host={host}", "--port={port}", "--name={name}"]
    command += ["--rank={rank}", "--nodes={nodes}", "--join={head}:{head_port}", *words]
    served = ["--serve", "command", "--server-command", shlex.join(command), "--model-name", "tiny"]
    return [*served, "--nodes-per-server", 2]


def said(run: Path) -> str:
    return "".join(path.read_text() for path in (run / "logs").glob("server-*.log"))


def test_a_worker_brings_a_server_on_two_nodes_and_outlives_its_loss(
    submit: Submit, sums: str, cluster: Cluster
) -> None:
    sent = submit(f"{sums}?tasks=40", *spread("--slow=0.2"), "-c", 2)
    sent.wait_scored(4)
    assert "joined by 1 on cpu2" in said(sent.run)
    others = cluster.processes(lambda environ: b"SLURM_PROCID=1" in environ and b"SLURMD_NODENAME=cpu2" in environ)
    tiny = [pid for pid in others if b"tinyserver" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(tiny[0], signal.SIGKILL)
    assert eventually(lambda: "ended while it was needed" in sent.logs(), 30), sent.logs()
    assert sent.over() == "COMPLETED", (sent.logs(), said(sent.run))
    assert_complete(sent.run)
    assert said(sent.run).count("joined by 1") == 2
    assert "#SBATCH --nodes=2" in (sent.run / "jobs/0001/workers.sh").read_text()


def test_a_shared_server_on_two_nodes_serves_workers_on_others(submit: Submit, sums: str, cluster: Cluster) -> None:
    keys: dict[str, object] = {"partition": "batch", "cpu_partition": "cpu", "gpus": 4}
    sent = submit(f"{sums}?tasks=20", *spread(), "--shared-servers", 1, "--workers", 2, profile_keys=keys)
    assert sent.over() == "COMPLETED", (sent.logs(), said(sent.run))
    assert_complete(sent.run)
    assert "joined by 1 on gpu2" in said(sent.run)
    assert said(sent.run).count("devices 0,1,2,3") == 1
    array = sent.ids["servers"]
    assert eventually(lambda: set(cluster.jobs(array).values()) == {"COMPLETED"}, 60), (cluster.jobs(), sent.logs())


def test_a_step_within_a_step_is_on_the_node_it_names(cluster: Cluster, rollbook: Commands) -> None:
    """What stands before a server in pyxis's images: not pyxis, but that Slurm starts such a step where it is to be."""
    argv = make_ranks_argv(Slurm(), "cpu1", ["srun", "--overlap", "--ntasks=1"], [["printenv", "SLURMD_NODENAME"]] * 2)
    out = rollbook.folder / "nested.out"
    (rollbook.folder / "nested.sh").write_text(f"#!/bin/bash\nexec {shlex.join(argv)}\n")
    options = ["--partition=cpu", "--nodes=2", "--ntasks=2", f"--output={str(out).replace('%', '%%')}"]
    job = cluster.ask("sbatch", "--parsable", *options, str(rollbook.folder / "nested.sh")).strip()
    assert eventually(lambda: cluster.jobs(job).get(job) in ("COMPLETED", "FAILED"), 30), cluster.jobs()
    said = [line for line in out.read_text().splitlines() if not line.startswith("srun: cluster configuration lacks")]
    assert sorted(said) == ["cpu1", "cpu2"]
