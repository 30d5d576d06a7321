"""`rollbook submit --on ray`: a driver stays on the cluster; it is looked at, cancelled and resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from raycluster import RayCluster, workers_of

from rollbook.clusters.job_files import read_jobs
from support.alive import eventually
from support.book_assertions import assert_complete
from support.commands import Commands, Served

Serve = Callable[..., Served]
HUSH = "hush-hush-hush"


def finished(run: Path) -> bool:
    return (run / "metrics.json").exists()


def test_a_driver_goes_on_by_itself_and_is_cancelled_and_resumed(
    commands: Commands, serve: Serve, sums: str, tmp_path: Path
) -> None:
    endpoint, run = serve("--delay-s", "0.3", "--mode", "slow"), tmp_path / "run"
    model = ["-m", endpoint.url, "--model-name", "mock"]
    sent = commands.run("submit", f"{sums}?tasks=100", *model, "--workers", 2, "-c", 2, "--on", "ray", "-o", "run")
    assert sent.code == 0, sent.stderr
    (driver,) = read_jobs(run)
    assert sent.stdout.splitlines() == [str(run), f"driver {driver.job} (workers: 2)"]
    assert eventually(lambda: len(workers_of(run)) == 2, 60)
    assert commands.run("status", "run", "--json").json["jobs"] == [
        {"kind": "driver", "state": "RUNNING", "tasks": 1, "reason": ""}
    ]
    assert "are running: rollbook cancel" in commands.run("resume", "run").complaint
    assert commands.run("cancel", "run").stdout == "cancelled 1 jobs\n"
    assert not workers_of(run)
    assert commands.run("status", "run", "--json").json["jobs"][0]["state"] == "ENDED"
    endpoint.switch("ok", delay_s=0.0)
    again = commands.run("resume", "run", "-c", 8)
    assert again.code == 0, again.stderr
    assert eventually(lambda: finished(run), 60)
    assert_complete(run)
    assert eventually(lambda: "100/100 scored" in commands.run("logs", "run").stdout, 30)
    assert json.loads((run / "rounds" / "0002.json").read_text())["settings"]["concurrency"] == 8


def test_the_values_of_secrets_are_nowhere_but_where_they_are_needed(
    cluster: RayCluster, commands: Commands, serve: Serve, sums: str, tmp_path: Path
) -> None:
    env, run = Path(sums.rpartition(":")[0]), tmp_path / "run"
    look = "import os; assert os.environ['MY_TOKEN'] == os.environ['MY_KEY']; return rollout"
    env.write_text(env.read_text().replace("return rollout", look))
    (tmp_path / "c.yaml").write_text("secrets: [MY_TOKEN]\ncpus: 1\n")
    words = ["submit", f"{sums}?tasks=4", "-m", serve().url, "--model-name", "mock", "--api-key-env", "MY_KEY"]
    words += ["--cluster", "c.yaml", "--on", "ray", "-o", "run"]
    assert "MY_TOKEN is not set here" in commands.run(*words).complaint
    sent = commands.run(*words, MY_KEY=HUSH, MY_TOKEN=HUSH)
    assert sent.code == 0, sent.stderr
    assert eventually(lambda: finished(run), 60)
    assert_complete(run)
    said = b"".join(path.read_bytes() for path in run.rglob("*") if path.is_file())
    assert b"MY_TOKEN" in said
    assert HUSH.encode() not in said
    assert HUSH not in sent.stdout + sent.stderr
    shown = commands.python("-c", DUMP, cluster.address).wait()
    assert "ProcessActor" in shown.stdout, shown.stderr
    assert HUSH not in shown.stdout
    logs = [path for path in cluster.session.rglob("*") if path.is_file()]
    assert logs
    assert [path for path in logs if HUSH.encode() in path.read_bytes()] == []


DUMP = """
import sys, ray
ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
print(ray._private.state.actors())
"""


def test_a_process_that_is_in_a_cluster_already_stays_in_it(
    cluster: RayCluster, commands: Commands, serve: Serve, sums: str, tmp_path: Path
) -> None:
    """What its own actors have of their job, those that work for it have too."""
    env, run = Path(sums.rpartition(":")[0]), tmp_path / "run"
    env.write_text(env.read_text().replace("return rollout", "import os; assert os.environ['SEEN']; return rollout"))
    script = tmp_path / "job.py"
    script.write_text(JOB)
    done = commands.python(script, cluster.address, f"{sums}?tasks=4", serve().url, run).wait()
    assert done.code == 0, done.stderr
    assert done.stdout == "2 still here\n"
    assert eventually(lambda: finished(run), 60)
    assert_complete(run)


JOB = """
import sys, ray, rollbook

address, env, url, out = sys.argv[1:]
ray.init(address, namespace="theirs", log_to_driver=False, runtime_env={"env_vars": {"SEEN": "yes"}})
sent = rollbook.submit(env, url, model_name="mock", on="ray", workers=2, out=out)

@ray.remote(num_cpus=0)
def still():
    return "still here"

print(sent.workers, ray.get(still.remote()))
"""
