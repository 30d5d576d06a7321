"""A run as an array of workers: submitted, looked at, finished by its report job."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from cluster import Cluster
from clustered import Serve, Stranger, Submit

from rollbook.clusters.job_files import read_jobs
from support.alive import eventually
from support.book_assertions import assert_complete
from support.commands import Commands
from support.trackers import Logged


def test_an_array_of_workers_fills_a_book_and_one_report_ends_it(
    submit: Submit, serve: Serve, sums: str, rollbook: Commands
) -> None:
    endpoint = serve("--delay-s", "0.05")
    sent = submit(f"{sums}?tasks=60", "-k", 4, "-m", endpoint.url, "--model-name", "mock", "--workers", 4)
    assert sent.over() == "COMPLETED", sent.logs()
    assert_complete(sent.run)
    assert set(endpoint.seeds.values()) == {1}
    assert "240/240 scored" in (sent.run / "logs" / f"slurm-{sent.ids['report']}.log").read_text()
    assert json.loads((sent.run / "metrics.json").read_text())["scored"] == 240
    status = rollbook.run("status", sent.run, "--json").json
    assert [(job["kind"], job["state"], job["tasks"]) for job in status["jobs"]] == [
        ("report", "COMPLETED", 1),
        ("workers", "COMPLETED", 4),
    ]
    assert [job.kind for job in read_jobs(sent.run)] == ["workers", "report"]
    assert rollbook.run("resume", sent.run).stderr.startswith("nothing is left to do")


def test_more_workers_than_an_array_holds_are_several_arrays(submit: Submit, serve: Serve, sums: str) -> None:
    endpoint = serve()
    sent = submit(f"{sums}?tasks=4", "-m", endpoint.url, "--model-name", "mock", "--workers", 40)
    arrays = [job for job in read_jobs(sent.run) if job.kind == "workers"]
    assert [(job.first, job.count) for job in arrays] == [(0, 33), (33, 7)]
    assert sent.over() == "COMPLETED", sent.logs()


def test_logs_are_found_by_the_number_of_the_worker(
    submit: Submit, serve: Serve, sums: str, rollbook: Commands
) -> None:
    endpoint = serve()
    sent = submit(f"{sums}?tasks=4", "-m", endpoint.url, "--model-name", "mock", "--workers", 2)
    sent.over()
    shown = rollbook.run("logs", sent.run, "--worker", 1)
    assert f"job {sent.ids['workers']}_1 on cpu" in shown.stdout
    assert "worker 0" in rollbook.run("logs", sent.run).stdout
    assert (
        "--worker 7: no log of that worker; there are workers 0 to 1"
        in rollbook.run("logs", sent.run, "--worker", 7).complaint
    )


def test_the_report_of_an_unfinished_run_is_partial_and_fails(
    submit: Submit, serve: Serve, sums: str, folder: Path
) -> None:
    env = folder / "broken.py"
    env.write_text(Path(sums.rpartition(":")[0]).read_text() + BROKEN)
    endpoint = serve()
    sent = submit(f"{env}:Broken?tasks=4", "-m", endpoint.url, "--model-name", "mock", "--workers", 2)
    assert sent.over() == "FAILED"
    assert json.loads((sent.run / "metrics.json").read_text())["scored"] == 3
    assert "3 of 4 rollouts were scored; 1 failed: verifier_error" in sent.logs()


BROKEN = """

class Broken(Sums):
    def verify(self, task, rollout):
        if task.id == "sum-0":
            raise RuntimeError("cannot say")
        return True
"""


def test_waiting_for_jobs_ends_like_a_local_run(
    rollbook: Commands, serve: Serve, sums: str, profile: Callable[..., Path], folder: Path
) -> None:
    endpoint = serve()
    words = ["-m", endpoint.url, "--model-name", "mock", "--on", "slurm", "--wait-jobs", "--cluster", profile()]
    good = rollbook.run("run", f"{sums}?tasks=6", *words, "-o", folder / "good", "--workers", 2, "--json")
    assert (good.code, good.json["scored"]) == (0, 6), good.stderr
    env = folder / "broken.py"
    env.write_text(Path(sums.rpartition(":")[0]).read_text() + BROKEN)
    short = rollbook.run("run", f"{env}:Broken?tasks=6", *words, "-o", folder / "short")
    assert short.code == 3
    assert "5 of 6 rollouts were scored" in short.complaint


def test_a_tracker_follows_jobs_that_are_waited_for(
    rollbook: Commands, serve: Serve, sums: str, profile: Callable[..., Path], folder: Path
) -> None:
    logged = Logged(folder, rollbook)
    words = ["-m", serve().url, "--model-name", "mock", "--on", "slurm", "--wait-jobs", "--cluster", profile()]
    done = logged.run("run", f"{sums}?tasks=6", *words, "-o", folder / "run", "--workers", 2, "--log", "diary")
    assert done.code == 0, done.stderr
    (closed,) = logged.read("close")
    assert (closed["state"], closed["metrics"]["final/scored"], len(closed["samples"]["rows"])) == ("finished", 6, 6)
    assert logged.read("metrics")[-1]["metrics"]["scored"] == 6


def test_two_reports_at_once_do_no_harm(submit: Submit, serve: Serve, sums: str, cluster: Cluster) -> None:
    endpoint = serve()
    sent = submit(f"{sums}?tasks=20", "-k", 2, "-m", endpoint.url, "--model-name", "mock", "--workers", 2)
    sent.over()
    again = [cluster.ask("sbatch", "--parsable", str(sent.run / "jobs/0001/report.sh")).strip() for _ in range(2)]
    for job in again:
        sent.ids["report"] = job
        assert sent.over() == "COMPLETED", sent.logs()
    assert json.loads((sent.run / "metrics.json").read_text())["scored"] == 40
    assert_complete(sent.run)


def test_a_job_that_is_unknown_or_failed_is_never_waited_for(
    rollbook: Commands, serve: Serve, sums: str, cluster: Cluster, profile: Callable[..., Path], folder: Path
) -> None:
    endpoint = serve()
    words = [
        f"{sums}?tasks=2",
        "-m",
        endpoint.url,
        "--model-name",
        "mock",
        "--cluster",
        profile(),
        "-o",
        folder / "late",
    ]
    assert "after: 999999: Slurm does not know this job" in rollbook.run("submit", *words, "--after", 999999).complaint
    failed = cluster.ask("sbatch", "--parsable", "--output=/dev/null", "--wrap", "exit 9").strip()
    waiting = cluster.ask("sbatch", "--parsable", "--output=/dev/null", "--hold", "--wrap", "true").strip()
    assert eventually(lambda: cluster.jobs(failed).get(failed) == "FAILED", 30)
    assert f"after: {failed}: that job is FAILED" in rollbook.run("submit", *words, "--after", failed).complaint
    assert not (folder / "late").exists()
    sent = rollbook.run("submit", *words, "--after", waiting)
    job = re.search(r"workers (\d+)", sent.stdout)
    assert job
    assert cluster.jobs(job[1]) == {f"{job[1]}_0": "PENDING"}
    assert f"afterok:{waiting}" in cluster.ask("scontrol", "show", "job", job[1])


def test_an_unprivileged_user_can_do_all_of_it(
    stranger: Stranger, serve: Serve, sums: str, profile: Callable[..., Path]
) -> None:
    endpoint, run = serve(), stranger.home / "run"
    cluster_file = profile(python=stranger.python)
    words = ["-m", endpoint.url, "--model-name", "mock", "--cluster", cluster_file, "--workers", 2, "-o", run]
    done = stranger.rollbook("run", f"{sums}?tasks=6", *words, "--on", "slurm", "--wait-jobs", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["scored"] == 6
    assert (run / "jobs.jsonl").stat().st_uid == stranger.uid
    assert stranger.rollbook("cancel", run).stdout == "no job was waiting or running\n"


def test_heterogeneous_jobs_are_refused_clearly(
    rollbook: Commands, cluster: Cluster, submit: Submit, serve: Serve, sums: str, profile: Callable[..., Path]
) -> None:
    endpoint, folder = serve(), rollbook.folder
    words = [f"{sums}?tasks=2", "-m", endpoint.url, "--model-name", "mock", "-o", folder / "het"]
    refused = rollbook.run("submit", *words, "--cluster", profile(options="['hetjob']"))
    assert refused.code == 2
    assert "a heterogeneous job cannot be an array" in refused.complaint
    sent = submit(f"{sums}?tasks=2", "-m", endpoint.url, "--model-name", "mock")
    sent.over()
    last = (sent.run / "jobs/0001/workers.sh").read_text().splitlines()[-1]
    (folder / "het.sh").write_text(HET.format(last=last))
    job = cluster.ask("sbatch", "--parsable", f"--chdir={folder}", str(folder / "het.sh")).strip()
    assert eventually(lambda: cluster.jobs(job).get(f"{job}+0") == "FAILED", 30), cluster.jobs()
    assert "this is a heterogeneous job" in (folder / "het.log").read_text()


HET = """#!/bin/bash
#SBATCH --ntasks=1 --partition=cpu --output=/dev/null
#SBATCH hetjob
#SBATCH --ntasks=1 --partition=cpu
{last} 2> het.log
"""
