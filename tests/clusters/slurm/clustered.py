"""What the tests on a cluster share: runs that were submitted, and a user without privileges."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from cluster import Cluster

from support.alive import eventually
from support.commands import Process, Served

UNDER_WAY = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")


class Submitted:
    """A run that was submitted."""

    def __init__(self, cluster: Cluster, run: Path, said: Process) -> None:
        assert said.code == 0, said.stderr
        self.cluster, self.run = cluster, run
        self.ids = dict(line.split()[:2] for line in said.stdout.splitlines()[1:])

    def over(self, within_s: float = 90.0) -> str:
        """Wait for the report job; gives its state."""
        job = self.ids["report"]

        def ended() -> bool:
            self.cluster.hasten()
            return self.cluster.jobs(job).get(job, "") not in UNDER_WAY

        assert eventually(ended, within_s), (self.cluster.jobs(), self.logs())
        return self.cluster.jobs(job)[job]

    def logs(self) -> str:
        """All that the jobs said."""
        return "\n".join(path.read_text() for path in sorted((self.run / "logs").glob("slurm-*.log")))

    @property
    def scored(self) -> int:
        """How many scores have been written."""
        return sum(path.read_bytes().count(b"\n") for path in (self.run / "journals").glob("*.[0-9].jsonl"))

    def wait_scored(self, count: int, within_s: float = 60.0) -> None:
        """Until so many are there."""
        assert eventually(lambda: self.scored >= count, within_s), (self.scored, self.cluster.jobs(), self.logs())


Serve: TypeAlias = Callable[..., Served]
Submit: TypeAlias = Callable[..., Submitted]


class Stranger:
    """The user nobody, with a home and with a Python that everyone may run."""

    uid = gid = 65534

    def __init__(self, home: Path, environ: Mapping[str, str]) -> None:
        self.home = home
        packages = sysconfig.get_path("purelib")
        self.environ = {**environ, "HOME": str(home), "PYTHONPATH": f"{environ['PYTHONPATH']}:{packages}"}
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        several = (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}")
        self.python = next((python for python in several if self._can_run(python)), "")

    def _can_run(self, python: str) -> bool:
        try:
            return self._run(python, "-c", "import rollbook, msgspec, aiohttp").returncode == 0
        except OSError:
            return False

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            cwd=self.home,
            env=self.environ,
            user=self.uid,
            group=self.gid,
            extra_groups=[],
            capture_output=True,
            text=True,
            timeout=120,
        )

    def rollbook(self, *words: object) -> subprocess.CompletedProcess[str]:
        """The command line, run by them."""
        return self._run(self.python, "-m", "rollbook", *map(str, words))
