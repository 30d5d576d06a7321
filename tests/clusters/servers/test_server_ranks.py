"""The step that starts a server on several nodes, word for word: pyxis and apptainer are read, not run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from rollbook.clusters.job_files import SubmissionOrder
from rollbook.clusters.job_scripts import make_container_argv
from rollbook.clusters.profile import ClusterProfile, RoleProfile
from rollbook.clusters.servers.launch import RankCommands, make_ranks_argv
from rollbook.clusters.servers.model_servers import find_last_line
from rollbook.clusters.servers.rank import make_rank_command
from rollbook.clusters.slurm import Slurm

SLURM = Slurm()
RANKS = [["serve", "0"], ["serve", "1"]]


def told(argv: list[str]) -> RankCommands:
    return msgspec.json.decode(argv[-1], type=RankCommands)


def test_one_step_has_a_process_on_every_node_and_ends_with_the_first_that_ends() -> None:
    argv = make_ranks_argv(SLURM, "n1", [], RANKS)
    step = ["srun", "--overlap", "--nodes=2", "--ntasks=2", "--cpu-bind=none", "--kill-on-bad-exit=1"]
    assert argv[:-2] == [*step, sys.executable, "-P", "-m", "rollbook.clusters.servers.rank"]
    assert argv[-2] == "n1"
    assert [make_rank_command(told(argv), rank, f"n{rank + 1}") for rank in range(2)] == RANKS


def test_the_word_of_the_server_counts_and_not_slurms() -> None:
    tail = "loading\nRuntimeError: no device\n----\nsrun: error: cpu1: task 0: Exited\nslurmstepd-cpu1: error: ***\n"
    assert find_last_line(tail, SLURM) == "RuntimeError: no device"
    assert find_last_line("srun: Force Terminated StepId=1.0\n", SLURM) == ""


def test_an_image_is_entered_on_each_node() -> None:
    server = RoleProfile(image_path="/images/vllm.sqsh")
    order = SubmissionOrder(profile=ClusterProfile(container="pyxis", server=server), workers=1)
    pyxis = make_container_argv(order, "server", Path("/runs/math"))
    assert make_rank_command(told(make_ranks_argv(SLURM, "n1", pyxis, RANKS)), 1, "n2") == [
        *(
            "srun",
            "--nodes=1",
            "--nodelist=n2",
            "--cpu-bind=none",
            "--overlap",
            "--ntasks=1",
            "--no-container-mount-home",
        ),
        *("--container-image=/images/vllm.sqsh", "--container-mounts=/runs/math:/runs/math", "serve", "1"),
    ]
    order = SubmissionOrder(profile=ClusterProfile(container="apptainer", server=server, gpus=8), workers=1)
    apptainer = make_container_argv(order, "server", Path("/runs/math"))
    assert make_rank_command(told(make_ranks_argv(SLURM, "n1", apptainer, RANKS)), 0, "n1") == [
        *("apptainer", "exec", "--nv", "--bind", "/runs/math:/runs/math", "/images/vllm.sqsh", "serve", "0"),
    ]


def test_a_process_becomes_the_command_of_its_rank() -> None:
    words = [[sys.executable, "-c", f"print({rank})"] for rank in range(2)]
    argv = make_ranks_argv(SLURM, "n1", [], words)[6:]

    def run(rank: int, node: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "SLURM_PROCID": str(rank), "SLURMD_NODENAME": node}
        return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60)

    assert run(1, "n2").stdout == "1\n"
    assert "rank 0 is on n2, but the first rank was expected on n1" in run(0, "n2").stderr
