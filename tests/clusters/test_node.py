"""A job on its node, with a Slurm that only pretends: what it does, how it ends, and what it asks Slurm for then."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from pathlib import Path

import pytest
from fakeslurm import Fakes

from rollbook.clusters.job_files import report_bad_node
from support.alive import eventually
from support.book_assertions import assert_complete
from support.commands import Commands, Process
from support.sums import write_script

TINY = Path(__file__).with_name("tinyserver.py")
SEAT = {
    "SLURM_JOB_ID": "9",
    "SLURM_ARRAY_JOB_ID": "7",
    "SLURM_ARRAY_TASK_ID": "2",
    "SLURMD_NODENAME": "n1",
}
RUNNING = "7|2|RUNNING|None|n1\n"


def submit(commands: Commands, *words: object) -> Path:
    done = commands.run("submit", *words, "-o", "run")
    assert done.code == 0, done.stderr
    return commands.folder / "run"


def node(commands: Commands, run: Path, role: str = "worker", **environ: str) -> Process:
    return commands.python("-P", "-m", "rollbook.clusters.node", role, run, 1, **{**SEAT, **environ})


def served(*words: str) -> list[object]:
    command = [sys.executable, str(TINY), "--host={host}", "--port={port}", "--name={name}", *words]
    return ["--serve", "command", "--server-command", shlex.join(command), "--model-name", "tiny"]


def test_a_worker_works_until_nothing_is_left(commands: Commands, fakes: Fakes, sums: list[str]) -> None:
    run = submit(commands, *sums)
    done = node(commands, run).wait()
    assert done.code == 0, done.stderr
    assert "job 7_2 on n1" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("nothing is left to do")
    assert_complete(run)
    again = node(commands, run, SLURM_RESTART_COUNT="1").wait()
    assert "started again 1 times" in again.stderr
    assert again.code == 0


@pytest.mark.parametrize("first", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_drains_and_the_task_goes_back_to_the_queue(
    first: signal.Signals, commands: Commands, fakes: Fakes, sums: list[str], tmp_path: Path
) -> None:
    fakes.say(squeue=RUNNING)
    run = submit(commands, sums[0], "-m", write_script(tmp_path, delay_s=0.2), "-c", 2)
    worker = node(commands, run)
    assert eventually(lambda: any(path.stat().st_size for path in run.glob("journals/*.1.jsonl")), 30), worker.stderr
    worker.signal(first)
    assert worker.wait().code == 75, worker.stderr
    assert "draining: 2 in flight" in worker.stderr
    assert "requeued as 7_2, 1 of at most 20 times" in worker.stderr
    assert ["requeue", "7_2"] in fakes.calls("scontrol")
    kept = sum(path.read_bytes().count(b"\n") for path in run.glob("journals/*.1.jsonl"))
    assert kept >= 4, "what was in flight was finished"
    assert node(commands, run, SLURM_RESTART_COUNT="1").wait().code == 0
    assert_complete(run)


@pytest.mark.parametrize(
    ("said", "environ", "why"),
    [
        ({"squeue": "7|2|COMPLETING|None|n1\n"}, {}, "Slurm is ending it, and requeues it itself if it was preempted"),
        ({"squeue": ""}, {}, "Slurm reports it as unknown"),
        ({"squeue": RUNNING}, {"SLURM_RESTART_COUNT": "20"}, "started again 20 times already (restarts: 20)"),
    ],
)
def test_a_task_that_may_not_go_back_says_why(
    said: dict[str, str], environ: dict[str, str], why: str, commands: Commands, fakes: Fakes, sums: list[str]
) -> None:
    fakes.say(**said)
    run = submit(commands, sums[0], "-m", write_script(commands.folder, delay_s=0.3), "-c", 1)
    worker = node(commands, run, **environ)
    assert eventually(lambda: "rollouts in all" in worker.stderr, 30), worker.stderr
    worker.signal(signal.SIGUSR1)
    assert worker.wait().code == 75
    assert f"not requeued: {why}; continue with rollbook resume {run}" in worker.stderr
    assert not [words for words in fakes.calls("scontrol") if words[0] == "requeue"]


def test_a_heterogeneous_job_is_refused(commands: Commands, fakes: Fakes, sums: list[str]) -> None:
    done = node(commands, submit(commands, *sums), SLURM_HET_SIZE="2").wait()
    assert done.code == 2
    assert "this is a heterogeneous job" in done.complaint


def test_a_worker_brings_its_server_along(commands: Commands, fakes: Fakes, sums: list[str]) -> None:
    run = submit(commands, sums[0], *served())
    done = node(commands, run).wait()
    assert done.code == 0, done.stderr
    assert_complete(run)
    assert list(run.glob("endpoints/*.json")) == []
    listed = commands.run("logs", run).stdout
    assert "model server" in listed
    late = node(commands, run).wait()
    assert "is served at" not in late.stderr, "no server is loaded when nothing is left to do"


def test_where_no_server_runs_the_node_is_blamed_and_left(commands: Commands, fakes: Fakes, sums: list[str]) -> None:
    fakes.say(squeue=RUNNING)
    run = submit(commands, sums[0], *served("--sick-on=n1"))
    done = node(commands, run).wait()
    assert done.code == 1
    assert "(start 3 of at most 3)" in done.stderr
    assert json.loads((run / "jobs" / "nodes.jsonl").read_text())["node"] == "n1"
    report_bad_node(run, "n1", "another worker says so too")
    again = node(commands, run).wait()
    assert "leaving n1: servers have failed here before" in again.stderr
    assert ["update", "JobId=7", "ExcNodeList=n1"] in fakes.calls("scontrol")
    elsewhere = node(commands, run, SLURMD_NODENAME="n2").wait()
    assert elsewhere.code == 0, elsewhere.stderr
    assert_complete(run)


def test_too_many_failures_cancel_the_other_workers(commands: Commands, fakes: Fakes, sums: list[str]) -> None:
    env = Path(sums[0].rpartition(":")[0])
    env.write_text(env.read_text().replace("return rollout", "raise RuntimeError; return rollout"))
    run = submit(commands, *sums, "--fail-fast", "--workers", 2)
    fakes.say(squeue="101|0|RUNNING|None|n1\n101|1|RUNNING|None|n2\n")
    done = node(commands, run).wait()
    assert done.code == 3
    assert "stopped by --fail-fast" in done.stderr
    assert fakes.calls("scancel") == [["101"]]


def test_shared_servers_serve_until_the_run_is_over(commands: Commands, fakes: Fakes, sums: list[str]) -> None:
    run = submit(commands, sums[0], *served(), "--shared-servers", 1, "--ready-within", 60)
    names = [Path(words[-1]).name for words in fakes.calls("sbatch")]
    assert names == ["servers.sh", "workers.sh", "report.sh"]
    fakes.say(squeue="102|0|RUNNING|None|n1\n")
    server = node(commands, run, "server", SLURMD_NODENAME="n2")
    assert eventually(lambda: bool(list(run.glob("endpoints/[!.]*.json"))), 30), server.stderr
    (published,) = [json.loads(path.read_text()) for path in run.glob("endpoints/[!.]*.json")]
    assert (published["shared"], published["name"]) == (True, "tiny")
    worker = node(commands, run).wait()
    assert worker.code == 0, worker.stderr
    assert_complete(run)
    assert server.wait().code == 0, server.stderr
    assert list(run.glob("endpoints/*.json")) == []
