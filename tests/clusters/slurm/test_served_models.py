"""Model servers that jobs bring along: one of each worker, or shared; their death, and nodes that cannot run them."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster import Cluster
from clustered import Submit

from support.alive import eventually
from support.book_assertions import assert_complete
from support.commands import Commands, Served

TINY = Path(__file__).parents[1] / "tinyserver.py"


def served(*words: str) -> list[object]:
    command = [sys.executable, str(TINY), "--host={host}", "--port={port}", "--name={name}", *words]
    return ["--serve", "command", "--server-command", shlex.join(command), "--model-name", "tiny"]


def endpoints(run: Path) -> list[dict[str, object]]:
    found = []
    for path in (run / "endpoints").glob("[!.]*.json"):
        try:
            found.append(json.loads(path.read_text()))
        except FileNotFoundError:
            continue
    return found


def test_each_worker_brings_its_own_server(submit: Submit, sums: str) -> None:
    sent = submit(f"{sums}?tasks=30", "-k", 2, *served(), "--replicas", 2, "--workers", 2)
    assert sent.over() == "COMPLETED", sent.logs()
    assert_complete(sent.run)
    assert sent.logs().count("tiny is served at http://127.0.0.1:") == 4
    assert endpoints(sent.run) == []
    assert json.loads((sent.run / "metrics.json").read_text())["overall"]["mean"] == 1.0


def test_a_server_that_dies_in_the_middle_of_a_chunk_costs_no_rollout(submit: Submit, sums: str) -> None:
    sent = submit(f"{sums}?tasks=60", *served("--slow=0.3"), "-c", 2)
    sent.wait_scored(6)
    (serving,) = endpoints(sent.run)
    os.kill(int(str(serving["pid"])), signal.SIGKILL)
    assert eventually(lambda: "ended while it was needed" in sent.logs(), 30), sent.logs()
    assert sent.over() == "COMPLETED", sent.logs()
    assert_complete(sent.run)
    assert "(start 1 of at most 3)" in sent.logs()
    assert sent.logs().count("tiny is served at") == 2
    failed = b"".join(path.read_bytes() for path in (sent.run / "journals").glob("*.failures.jsonl"))
    assert b'"final":true' not in failed


def test_a_job_that_is_told_to_end_while_its_server_loads_goes_back(
    submit: Submit, sums: str, cluster: Cluster
) -> None:
    sent = submit(f"{sums}?tasks=4", *served("--loading=600"))
    array = sent.ids["workers"]
    assert eventually(lambda: any((sent.run / "logs").glob("server-*.log")), 30), sent.logs()
    cluster.ask("scancel", "--signal=USR1", "--batch", f"{array}_0")
    assert eventually(lambda: f"requeued as {array}_0" in sent.logs(), 30), (cluster.jobs(), sent.logs())
    assert eventually(lambda: not cluster.processes(lambda environ: b"SLURM_ARRAY_JOB_ID" in environ), 30)


def test_a_project_goes_along_and_is_imported_on_the_nodes(
    submit: Submit, rollbook: Commands, sums: str, serve: Callable[..., Served]
) -> None:
    project = rollbook.folder / "my project"
    project.mkdir()
    (project / "helping.py").write_text("def right(text, answer):\n    return text.strip().endswith(answer)\n")
    env = Path(sums.rpartition(":")[0])
    lazily = "from helping import right; return right(rollout.text, task.answer)"
    env.write_text(env.read_text().replace("return rollout.text.strip().endswith(task.answer)", lazily))
    sent = submit(f"{sums}?tasks=4", "-m", serve().url, "--model-name", "mock", "--pack", project)
    assert sent.over() == "COMPLETED", sent.logs()
    assert_complete(sent.run)
    assert (sent.run / "jobs" / "pack" / "my project" / "helping.py").exists()


def test_a_node_on_which_no_server_runs_is_left_out(
    submit: Submit, sums: str, cluster: Cluster, rollbook: Commands
) -> None:
    """Two workers fail on gpu1; what still waits does not start there, and gpu2 does the work."""
    keys: dict[str, object] = {"partition": "batch", "gpus": 4}
    words = [*served("--sick-on=gpu1", "--slow=0.5"), "--workers", 6, "-c", 1, "--replicas", 2]
    sent = submit(f"{sums}?tasks=20", *words, profile_keys=keys)
    assert sent.over() == "COMPLETED", sent.logs()
    assert_complete(sent.run)
    assert "leaving gpu1: the command server" in sent.logs()
    assert "no working GPU here" in sent.logs()
    blamed = [json.loads(line)["node"] for line in (sent.run / "jobs" / "nodes.jsonl").read_text().splitlines()]
    assert set(blamed) == {"gpu1"}
    assert len(blamed) >= 2
    again = rollbook.run("extend", sent.run, "-k", 2)
    assert "#SBATCH --exclude=gpu1" in (sent.run / "jobs" / "0002" / "workers.sh").read_text(), again.stderr
    assert "devices 0,1" in "".join(path.read_text() for path in (sent.run / "logs").glob("server-*.log"))


def test_servers_with_jobs_of_their_own_serve_all_workers_and_end_with_them(
    submit: Submit, sums: str, cluster: Cluster
) -> None:
    keys: dict[str, object] = {"partition": "batch", "cpu_partition": "cpu", "gpus": 8}
    words = [*served("--slow=0.05"), "--shared-servers", 2, "--workers", 3]
    sent = submit(f"{sums}?tasks=100", "-k", 2, *words, profile_keys=keys)
    assert sent.over() == "COMPLETED", sent.logs()
    assert_complete(sent.run)
    array = sent.ids["servers"]
    assert eventually(lambda: set(cluster.jobs(array).values()) == {"COMPLETED"}, 60), (cluster.jobs(), sent.logs())
    assert endpoints(sent.run) == []
    assert sent.logs().count("this server is no longer needed") == 2


def test_the_loss_of_a_shared_server_costs_no_rollout(submit: Submit, sums: str, cluster: Cluster) -> None:
    keys: dict[str, object] = {"partition": "batch", "cpu_partition": "cpu"}
    words = [*served("--slow=0.2"), "--shared-servers", 2, "--workers", 2, "-c", 4]
    sent = submit(f"{sums}?tasks=100", *words, profile_keys=keys)
    sent.wait_scored(10)
    os.kill(int(str(endpoints(sent.run)[0]["pid"])), signal.SIGKILL)
    assert sent.over() == "COMPLETED", sent.logs()
    assert_complete(sent.run)
    assert "ended while it was needed" in sent.logs()


@pytest.mark.model
def test_the_real_embedded_model_is_served_by_a_worker(
    submit: Submit, rollbook: Commands, profile: Callable[..., Path]
) -> None:
    """A llama.cpp server with real weights, started by a command as people would start any other."""
    from rollbook.models import weights

    if not weights.has_weights():
        pytest.skip("needs the embedded model: rollbook local pull")
    script = rollbook.folder / "llama.py"
    script.write_text(LLAMA.format(weights=str(weights.weights_path())))
    command = shlex.join([sys.executable, str(script), "{host}", "{port}", "{name}"])
    words = ["--serve", "command", "--server-command", command, "--model-name", "smol", "--max-tokens", 8]
    sent = submit("reasoning_gym:chain_sum?min_terms=2&max_terms=2", "-n", 4, *words, "-c", 4)
    assert sent.over(180) == "COMPLETED", sent.logs()
    assert_complete(sent.run)


LLAMA = """
import signal, sys, xllamacpp

params = xllamacpp.CommonParams()
params.model.path = {weights!r}
params.hostnames, params.port, params.model_alias = [sys.argv[1]], int(sys.argv[2]), {{sys.argv[3]}}
params.n_parallel, params.n_ctx, params.ui = 4, 4096, False
server = xllamacpp.Server(params)
while True:
    signal.pause()
"""
