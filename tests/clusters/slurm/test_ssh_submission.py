"""Submitting from a machine that has no Slurm: a real sshd, a real rsync, and jobs of the private Slurm behind them."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster import Cluster
from login import Login, missing

from rollbook.clusters.job_files import read_jobs
from support.alive import eventually
from support.book_assertions import assert_complete
from support.commands import Commands, Served
from support.forked_command import SOURCE


@pytest.fixture
def login(cluster: Cluster, rollbook: Commands) -> Iterator[Login]:
    """A login node of the cluster; this machine knows no Slurm from now on."""
    why = missing()
    if why:
        pytest.skip(f"NO SSH HERE: {why}")
    folder = Path(tempfile.mkdtemp(prefix="rollbook-login-"))
    made = Login(folder, {"SLURM_CONF": str(cluster.conf), "PYTHONPATH": str(SOURCE)})
    rollbook.environ.pop("SLURM_CONF")
    rollbook.environ["PATH"] = f"{made.programs}:{rollbook.environ['PATH']}"
    try:
        yield made.start()
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def far_profile(profile: Callable[..., Path], folder: Path) -> Path:
    ssh = {"host": "login", "path": str(folder / "over there"), "python": sys.executable}
    return profile(ssh=json.dumps(ssh))


def test_a_run_is_sent_worked_on_and_brought_back(
    login: Login, rollbook: Commands, sums: str, far_profile: Path, serve: Callable[..., Served], folder: Path
) -> None:
    words = ["-m", serve().url, "--model-name", "mock", "--on", "slurm", "--wait-jobs", "--workers", 2]
    project = folder / "my project"
    project.mkdir()
    (project / "helping.py").write_text("right = str.endswith\n")
    env = Path(sums.rpartition(":")[0])
    lazily = "from helping import right; return right(rollout.text.strip(), task.answer)"
    env.write_text(env.read_text().replace("return rollout.text.strip().endswith(task.answer)", lazily))
    run = folder / "it's here"
    options = ["--cluster", far_profile, "--pack", project, "-o", run, "--json"]
    done = rollbook.run("run", f"{sums}?tasks=6", *words, *options, within_s=120)
    assert (done.code, done.json["scored"]) == (0, 6), (done.stderr, login.said())
    assert_complete(run)
    assert_complete(folder / "over there" / "it's here")
    assert f"job {read_jobs(run)[0].job}_1 on cpu" in rollbook.run("logs", run, "--worker", 1).stdout


def test_it_is_cancelled_and_resumed_from_here_and_a_dead_line_is_said(
    login: Login,
    rollbook: Commands,
    cluster: Cluster,
    sums: str,
    far_profile: Path,
    serve: Callable[..., Served],
    folder: Path,
) -> None:
    endpoint, run = serve("--delay-s", "0.5", "--mode", "slow"), folder / "run"
    words = [f"{sums}?tasks=60", "-m", endpoint.url, "--model-name", "mock", "-c", 2]
    sent = rollbook.run("submit", *words, "--cluster", far_profile, "-o", run)
    assert sent.code == 0, (sent.stderr, login.said())
    env = Path(sums.rpartition(":")[0])
    env.unlink()  # over there nobody knows this file
    assert eventually(lambda: rollbook.run("status", run, "--json").json["scored"] > 2, 60)
    assert rollbook.run("cancel", run).stdout == "cancelled 2 jobs\n"
    assert eventually(lambda: "RUNNING" not in cluster.jobs().values(), 30), cluster.jobs()
    endpoint.switch("ok", delay_s=0.0)
    assert "(array of 1)" in rollbook.run("resume", run, "-c", 8).stdout
    finished = lambda: rollbook.run("status", run, "--json").json["state"] == "finished"  # noqa: E731
    assert eventually(finished, 60)
    assert_complete(run)
    login.stop()
    assert "login: " in rollbook.run("status", run).complaint
    assert rollbook.run("report", run, "--json").json["scored"] == 60
