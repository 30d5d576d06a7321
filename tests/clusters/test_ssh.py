"""Submitting from a machine without Slurm, over an ssh that only pretends: what goes there, and what comes back."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from fakeslurm import Fakes

from rollbook.clusters.job_files import read_jobs
from rollbook.clusters.ssh import read_ssh_run
from support.commands import Commands

SSH = """#!{python}
import os, sys
here, words = os.path.dirname(__file__), sys.argv[1:]
while words[0].startswith("-"):
    words = words[2:] if words[0] == "-o" else words[1:]
with open(os.path.join(here, "asked"), "a") as log:
    print(words[0], *words[1:], file=log)
if os.path.exists(os.path.join(here, "down")):
    sys.exit("ssh: connect to host login port 22: Connection refused")
os.environ["PATH"] = os.path.join(here, "there") + ":" + os.environ["PATH"]
os.chdir("/")
os.execvp("sh", ["sh", "-c", " ".join(words[1:])])
"""

pytestmark = pytest.mark.skipif(shutil.which("rsync") is None, reason="NO RSYNC HERE: nothing can be sent")


class Afar:
    """A login node that is really a folder of this machine."""

    def __init__(self, commands: Commands, folder: Path) -> None:
        self.folder, self._programs = folder / "scratch of mine", folder / "bin"
        self._programs.mkdir()
        (self._programs / "ssh").write_text(SSH.format(python=sys.executable))
        (self._programs / "ssh").chmod(0o755)
        self.slurm = Fakes(self._programs / "there")
        commands.environ["PATH"] = f"{self._programs}:{os.environ['PATH']}"
        ssh = {"host": "login", "path": str(self.folder), "python": sys.executable}
        (folder / "c.yaml").write_text(json.dumps({"ssh": ssh, "partition": "batch"}))

    def hang_up(self) -> None:
        """From now on nobody answers."""
        (self._programs / "down").touch()

    def come_back(self) -> None:
        """They do again."""
        (self._programs / "down").unlink()


@pytest.fixture
def afar(commands: Commands, tmp_path: Path) -> Afar:
    return Afar(commands, tmp_path)


def test_the_plan_is_made_here_and_handed_in_there(
    commands: Commands, afar: Afar, sums: list[str], tmp_path: Path
) -> None:
    done = commands.run("submit", *sums, "--cluster", "c.yaml", "--workers", 4, "-o", "my run")
    assert done.code == 0, done.stderr
    assert done.stdout.splitlines() == [str(tmp_path / "my run"), "workers 101 (array of 4)", "report 102"]
    there = afar.folder / "my run"
    assert (there / "tasks.jsonl").read_bytes() == (tmp_path / "my run" / "tasks.jsonl").read_bytes()
    assert afar.slurm.calls("sbatch")[0] == ["--parsable", "--array=0-3", f"{there}/jobs/0001/workers.sh"]
    assert str(tmp_path / "my run") not in (there / "jobs/0001/workers.sh").read_text()
    assert [job.job for job in read_jobs(there)] == ["101", "102"]
    assert read_ssh_run(there) is None
    assert read_ssh_run(tmp_path / "my run").path == str(there)


@pytest.mark.slow
def test_what_is_asked_of_a_run_is_asked_there(commands: Commands, afar: Afar, sums: list[str], tmp_path: Path) -> None:
    commands.run("submit", *sums, "--cluster", "c.yaml", "--workers", 2, "-o", "run")
    there = afar.folder / "run"
    afar.slurm.say(squeue="101|0|RUNNING|None|n1\n101|1|PENDING|Resources|\n102|N/A|PENDING|Dependency|\n")
    shown = commands.run("status", "run")
    assert "workers  PENDING       1  Resources" in shown.stdout, shown.stderr
    assert shown.stdout.startswith("run: planned")
    assert [job.job for job in read_jobs(tmp_path / "run")] == ["101", "102"]
    (there / "logs" / "slurm-101_0.log").write_text("hello from there\n")
    assert "hello from there" in commands.run("logs", "run").stdout
    assert commands.run("cancel", "run").stdout == "cancelled 3 jobs\n"
    assert afar.slurm.calls("scancel") == [["101", "102"]]
    afar.slurm.say()
    again = commands.run("resume", "run", "-c", 3)
    assert again.stdout.splitlines() == [str(tmp_path / "run"), "workers 103 (array of 2)", "report 104"], again.stderr
    assert json.loads((there / "rounds/0002.json").read_text())["settings"]["concurrency"] == 3
    more = commands.run("extend", "run", "-k", 2)
    assert "workers 105 (array of 2)" in more.stdout, more.stderr


@pytest.mark.slow
def test_a_run_that_is_over_there_is_reported_here(
    commands: Commands, afar: Afar, sums: list[str], tmp_path: Path
) -> None:
    commands.run("submit", *sums, "--cluster", "c.yaml", "-o", "run")
    assert commands.run("resume", afar.folder / "run", "--on", "local").code == 0
    assert commands.run("status", "run", "--json").json["scored"] == 10
    assert commands.run("report", "run", "--json").json["scored"] == 10
    assert commands.run("resume", "run").stderr.startswith("nothing is left to do")


def test_what_cannot_be_read_there_stops_the_submit(
    commands: Commands, afar: Afar, sums: list[str], tmp_path: Path
) -> None:
    words = ["submit", *sums, "--cluster", "c.yaml", "-o", "run"]
    afar.hang_up()
    refused = commands.run(*words)
    assert refused.complaint == "rollbook: login: ssh: connect to host login port 22: Connection refused"
    afar.come_back()
    afar.slurm.say(config="nothing")
    assert "login: scontrol show config: returns no MaxArraySize" in commands.run(*words).complaint
    afar.slurm.say()
    (afar.folder / "run").mkdir(parents=True)
    assert "run exists there already: choose another --out" in commands.run(*words).complaint
    assert not (tmp_path / "run").exists()
    (tmp_path / "c.yaml").write_text((tmp_path / "c.yaml").read_text().replace(sys.executable, "/no/python"))
    assert "login: " in commands.run(*words).complaint
    assert "not found" in commands.run(*words).complaint


@pytest.mark.slow
def test_a_run_that_never_got_there_is_sent_by_resume(
    commands: Commands, afar: Afar, sums: list[str], tmp_path: Path
) -> None:
    afar.slurm.say(limit=0)
    refused = commands.run("submit", *sums, "--cluster", "c.yaml", "-o", "run")
    assert "AssocMaxSubmitJobLimit" in refused.complaint
    assert f"the plan stays: rollbook resume {tmp_path / 'run'}" in refused.complaint
    shutil.rmtree(afar.folder / "run")
    afar.slurm.say()
    done = commands.run("resume", "run")
    assert "workers 101 (array of 1)" in done.stdout, done.stderr
    assert "is worked on at login; this directory is a copy" in commands.run("resume", "run", "--on", "local").complaint
    afar.hang_up()
    assert "login: ssh: connect" in commands.run("status", "run").complaint


def test_scripts_can_be_seen_without_anybody_being_asked(commands: Commands, afar: Afar, sums: list[str]) -> None:
    afar.hang_up()
    done = commands.run("submit", *sums, "--cluster", "c.yaml", "-o", "run", "--dry-run")
    assert done.code == 0, done.stderr
    assert f"-m rollbook report '{afar.folder}/run'" in done.stdout


@pytest.mark.slow
def test_waiting_goes_on_until_the_jobs_there_are_over(commands: Commands, afar: Afar, sums: list[str]) -> None:
    words = ["--on", "slurm", "--wait-jobs", "--cluster", "c.yaml", "-o", "run"]
    short = commands.run("run", *sums, *words)
    assert short.code == 3, short.stderr
    assert "0 of 10 rollouts were scored" in short.complaint


@pytest.mark.parametrize(
    ("ssh", "why"),
    [
        ({"host": "-oProxyCommand=x", "path": "/a", "python": "/b"}, "is not a host for ssh"),
        ({"host": "login", "path": "runs", "python": "/b"}, "ssh: path: 'runs': give an absolute path on that host"),
        ({"host": "login", "path": "/a"}, "ssh: python: '': give an absolute path on that host"),
        ({"hots": "login"}, "ssh has no 'hots'; there are host, path, python"),
    ],
)
def test_mistakes_in_the_profile_are_one_line(
    ssh: dict[str, str], why: str, commands: Commands, sums: list[str], tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text(json.dumps({"ssh": ssh}))
    assert why in commands.run("submit", *sums, "--cluster", "c.yaml", "-o", "run").complaint
