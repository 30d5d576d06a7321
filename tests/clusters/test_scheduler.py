"""A batch system that is not Slurm, registered by an installed package, goes through the whole command line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rollbook.clusters import find_scheduler, scheduler_names
from rollbook.clusters.job_files import SubmissionOrder, read_jobs, read_order
from rollbook.clusters.profile import ClusterProfile
from rollbook.core import encode_pretty
from rollbook.errors import UsageError
from support.alive import eventually
from support.book_assertions import assert_complete
from support.commands import Commands
from support.forked_command import SOURCE
from support.sums import write_script

HERE = Path(__file__).parent
SLURM_WORD = re.compile(r"sbatch|squeue|sacct\b|scancel|scontrol|srun|SLURM|slurmstepd")


class Bunched:
    """The command line on a machine with the fake batch system."""

    def __init__(self, commands: Commands, home: Path) -> None:
        self._commands, self.home, self.folder = commands, home, commands.folder
        package = home / "site" / "bunch-1.0.dist-info"
        package.mkdir(parents=True)
        (package / "METADATA").write_text("Metadata-Version: 2.1\nName: bunch\nVersion: 1.0\n")
        (package / "entry_points.txt").write_text("[rollbook.schedulers]\nbunch = fake_batch:Bunch\n")
        path = os.pathsep.join(map(str, (SOURCE, HERE, package.parent)))
        self.environ = {"PYTHONPATH": path, "BUNCH_HOME": str(home)}
        commands.environ |= self.environ

    def rollbook(self, *words: object) -> str:
        """Run a command to its end; return what it printed."""
        done = self._commands.run(*words, **self.environ)
        assert done.code == 0, done.stderr
        return done.stdout

    def refuse(self, *words: object) -> str:
        """Run a command that is refused; return the line that says why."""
        return self._commands.run(*words, **self.environ).complaint

    def bunch(self, *words: str) -> None:
        """Run a command of the batch system."""
        environ = {**os.environ, **self.environ}
        subprocess.run([sys.executable, str(HERE / "fake_batch.py"), *words], env=environ, check=True, timeout=60)

    def states(self, run: Path) -> list[list[str]]:
        """The kinds, states and numbers of jobs that `rollbook status` shows."""
        return [line.split()[:3] for line in self.rollbook("status", run).splitlines()]

    def wait_for_report(self, run: Path) -> None:
        """Wait until the report job has ended well."""
        assert eventually(lambda: ["report", "COMPLETED", "1"] in self.states(run), 60), self.states(run)


@pytest.fixture
def bunched(commands: Commands, tmp_path: Path) -> Iterator[Bunched]:
    (tmp_path / "bunch").mkdir()
    yield Bunched(commands, tmp_path / "bunch")
    commands.close()


def test_a_run_is_submitted_and_finished(bunched: Bunched, sums: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    out = bunched.rollbook("submit", *sums, "--on", "bunch", "--workers", 2, "-o", run)
    assert out.splitlines() == [str(run), "workers b1 (array of 2)", "report b2"]
    assert read_order(run, 1).scheduler == "bunch"
    assert [(job.kind, job.job, job.scheduler) for job in read_jobs(run)] == [
        ("workers", "b1", "bunch"),
        ("report", "b2", "bunch"),
    ]
    bunched.wait_for_report(run)
    assert ["workers", "COMPLETED", "2"] in bunched.states(run)
    assert_complete(run)
    listed = bunched.rollbook("logs", run)
    assert ["worker 0" in listed, "worker 1" in listed, "report b2" in listed] == [True] * 3
    assert "nothing is left to do" in bunched.rollbook("logs", run, "--worker", 0)
    assert "10/10 scored" in (run / "logs" / "bunch.b2.0.txt").read_text()


def test_waiting_jobs_are_cancelled_and_the_run_is_resumed_where_it_was(
    bunched: Bunched, sums: list[str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    (bunched.home / "closed").touch()
    bunched.rollbook("submit", *sums, "--on", "bunch", "--workers", 2, "-o", run)
    assert "closed" in bunched.rollbook("status", run)
    assert ["workers", "PENDING", "2"] in bunched.states(run)
    assert bunched.rollbook("cancel", run) == "cancelled 3 jobs\n"
    assert ["workers", "CANCELLED", "2"] in bunched.states(run)
    (bunched.home / "closed").unlink()
    assert "workers b3 (array of 2)" in bunched.rollbook("resume", run)
    bunched.wait_for_report(run)
    assert [job.scheduler for job in read_jobs(run)] == ["bunch"] * 6
    assert_complete(run)
    assert "workers b5" in bunched.rollbook("extend", run, "-k", 2)


def test_two_resumes_at_the_same_moment_submit_once(bunched: Bunched, sums: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    (bunched.home / "closed").touch()
    bunched.rollbook("submit", *sums, "--on", "bunch", "--workers", 2, "-o", run)
    bunched.rollbook("cancel", run)
    with ThreadPoolExecutor(2) as pool:
        printed = sorted(pool.map(lambda _: bunched.rollbook("resume", run), range(2)))
    assert [job.job for job in read_jobs(run) if job.kind == "workers"] == ["b1", "b3"], printed
    assert len(list((run / "rounds").glob("*.json"))) == 2


def test_a_task_is_requeued_and_goes_on(bunched: Bunched, sums: list[str], tmp_path: Path) -> None:
    run, slow = tmp_path / "run", write_script(tmp_path, delay_s=0.3)
    bunched.rollbook("submit", sums[0], "-m", slow, "-c", 1, "--on", "bunch", "-o", run)
    log = run / "logs" / "bunch.b1.0.txt"
    assert eventually(lambda: any(path.stat().st_size for path in run.glob("journals/*.1.jsonl")), 60)
    bunched.bunch("warn", "b1.0")
    assert eventually(lambda: "started again 1 times" in log.read_text(), 60), log.read_text()
    assert "requeued as b1.0, 1 of at most 20 times" in log.read_text()
    assert "job b1.0 on here, started again 1 times" in log.read_text()
    bunched.wait_for_report(run)
    assert_complete(run)


def test_limits_dependencies_and_scripts_are_the_schedulers(bunched: Bunched, sums: list[str], tmp_path: Path) -> None:
    (bunched.home / "closed").touch()
    shown = bunched.rollbook("submit", *sums, "--on", "bunch", "-o", "run", "--dry-run")
    assert f"#BUNCH out {tmp_path}/run/logs\nset -euo pipefail\n" in shown
    assert "SBATCH" not in shown
    out = bunched.rollbook("submit", *sums, "--on", "bunch", "--workers", 10, "-o", "run")
    assert "workers b1 (array of 8)\nworkers b2 (array of 2)\nreport b3\n" in out
    out = bunched.rollbook("submit", *sums, "--on", "bunch", "--workers", 8, "-o", "more", "--after", "b1")
    assert "workers b4 (array of 4)\nworkers b5 (array of 1)" in out, "the submit limit halves arrays"
    assert "Bunch does not know this job" in bunched.refuse(
        "submit", *sums, "--on", "bunch", "-o", "no", "--after", "b99"
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--on", "moon"], "--on moon: workers run on one of local, bunch, slurm, ray"),
        (["--on", "bunch", "--cluster", "time.yaml"], "time.yaml:1: time: '4:00:00': Bunch counts minutes"),
        (["--on", "bunch", "--cluster", "pyxis.yaml"], "container: pyxis: Bunch has no such runtime"),
        (
            ["--on", "bunch", "--serve", "command", "--server-command", "a {port} {rank}", "--nodes-per-server", 2],
            "--nodes-per-server 2: not on Bunch",
        ),
    ],
)
def test_what_the_scheduler_cannot_do_is_refused(
    words: list[object], why: str, bunched: Bunched, sums: list[str], tmp_path: Path
) -> None:
    (tmp_path / "time.yaml").write_text("time: 4:00:00\n")
    (tmp_path / "pyxis.yaml").write_text("container: pyxis\n")
    model = ["--model-name", "m"] if "--serve" in words else sums[1:]
    assert why in bunched.refuse("submit", sums[0], *model, *words, "-o", "run")
    assert not (tmp_path / "run").exists()


def test_slurm_is_known_without_any_installed_package() -> None:
    assert "slurm" in scheduler_names()
    assert find_scheduler("slurm").title == "Slurm"
    with pytest.raises(UsageError, match="no scheduler is called 'moon'; there are slurm"):
        find_scheduler("moon")


def test_a_submission_that_names_no_scheduler_was_made_with_slurm(tmp_path: Path) -> None:
    (tmp_path / "jobs" / "0001").mkdir(parents=True)
    text = encode_pretty(SubmissionOrder(profile=ClusterProfile(), workers=1)).decode()
    before = re.sub(r',\s*"scheduler": "slurm"', "", text)
    assert "scheduler" not in before
    (tmp_path / "jobs/0001/order.json").write_text(before)
    (tmp_path / "jobs.jsonl").write_text('{"kind":"workers","job":"101","submission":1,"count":4}\n')
    assert read_order(tmp_path, 1).scheduler == "slurm"
    assert read_jobs(tmp_path)[0].scheduler == "slurm"


def test_only_the_slurm_module_names_slurms_commands_and_variables() -> None:
    folder = SOURCE / "rollbook" / "clusters"
    named = {path.name for path in folder.rglob("*.py") if SLURM_WORD.search(path.read_text())}
    assert named == {"slurm.py"}
