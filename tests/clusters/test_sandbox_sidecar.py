"""A sandbox server beside a worker: real processes on this machine; the worker is any command."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from rollbook.clusters.job_files import SubmissionOrder, write_order
from rollbook.clusters.profile import ClusterProfile
from rollbook.sandbox.backends import RemoteSandbox
from support.alive import alive, eventually
from support.commands import Commands, Process

TELL = """
import json, os
from rollbook.sandbox import Sandbox
from rollbook.sandbox.grading import Grader
with Sandbox(size=1) as box:
    names = ("ROLLBOOK_SANDBOX", "NEMO_SKILLS_SANDBOX_HOST", "NEMO_SKILLS_SANDBOX_PORT")
    value = box.run_sync("6 * 7").value
    passed = Grader(box).function_sync("def f(x): return x", "assert f(1) == 1", "f").passed
    print(json.dumps([value, passed, box.isolation[0], *map(os.environ.get, names)]))
raise SystemExit(5)
"""
WAIT = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
pathlib.Path("address").write_text(os.environ["ROLLBOOK_SANDBOX"])
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made = tmp_path / "run"
    made.mkdir()
    write_order(made, SubmissionOrder(profile=ClusterProfile(), workers=1, sandbox=True))
    return made


def beside(commands: Commands, run: Path, code: str, **environ: str) -> Process:
    return commands.python(
        "-m", "rollbook.clusters.sandbox_sidecar", run, 1, "--", sys.executable, "-c", code, **environ
    )


def test_the_worker_uses_the_server_and_its_exit_code_is_the_jobs(commands: Commands, run: Path) -> None:
    done = beside(commands, run, TELL).wait()
    assert done.code == 5, done.stderr
    value, passed, wall, address, host, port = json.loads(done.stdout)
    assert (value, passed, wall, host) == ("42", True, "remote", "127.0.0.1")
    assert address.startswith(f"http://127.0.0.1:{port}/")
    assert address.rpartition("/")[2] not in "".join(path.read_text() for path in (run / "logs").iterdir())
    assert commands.nothing_left()


def test_a_server_that_dies_is_started_again_at_its_address_and_at_most_twice(commands: Commands, run: Path) -> None:
    job = beside(commands, run, WAIT)
    told = run.parent / "address"
    assert eventually(lambda: told.exists() and told.read_text(), 30), job.stderr
    for died in range(3):
        assert eventually(lambda n=died + 1: job.stderr.count("a sandbox is served at") == n, 30), job.stderr
        assert RemoteSandbox(told.read_text()).isolation
        (server,) = servers(told.read_text())
        os.kill(server, signal.SIGKILL)
        assert eventually(lambda n=died + 1: f"(start {n} of at most 3)" in job.stderr, 30), job.stderr
    assert job.wait().code == 75
    assert commands.nothing_left()


def test_signals_are_the_workers_and_a_killed_job_leaves_nothing(commands: Commands, run: Path) -> None:
    told = run.parent / "address"
    for number, code in ((signal.SIGUSR1, 75), (signal.SIGKILL, -9)):
        told.unlink(missing_ok=True)
        job = beside(commands, run, WAIT)
        assert eventually(told.exists, 30), job.stderr
        job.signal(number)
        assert job.wait().code == code
        assert commands.nothing_left()


def test_walls_that_cannot_be_had_are_said_in_one_line(commands: Commands, run: Path) -> None:
    write_order(
        run, SubmissionOrder(profile=ClusterProfile(), workers=1, sandbox=True, sandbox_packages=["no_such_package"])
    )
    words = ["-m", "rollbook.clusters.sandbox_sidecar", run, 2, "--", sys.executable, "-c", TELL]
    done = commands.python(*words).wait()
    assert done.code == 1
    assert "the sandbox server ended before it was ready: rollbook: " in done.complaint
    assert "no_such_package" in done.complaint


def servers(address: str) -> list[int]:
    """The processes that serve there: their command names the port."""
    port = address.split(":")[2].partition("/")[0].encode()
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"serve" in words and port in words and alive(pid):
            found.append(pid)
    return found
