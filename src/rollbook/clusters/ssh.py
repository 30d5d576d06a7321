"""Runs that are worked on elsewhere (RUN/jobs/far.json): the book is there, what lies here is a copy of it.

A machine without Slurm plans, sends the run directory by rsync, and asks a Rollbook over there by ssh: to submit,
for the status, to resume, to cancel. So there is one book with one kind of writer, and no state to merge.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import join
from typing import TypeVar

import msgspec

from rollbook.book import explain_disk_errors, write_atomically
from rollbook.clusters.job_files import ClusterJob, SubmissionOrder
from rollbook.clusters.profile import ClusterProfile
from rollbook.clusters.scheduler import SchedulerError
from rollbook.core import JSON, encode, encode_pretty
from rollbook.engine import package_versions
from rollbook.errors import UsageError

T = TypeVar("T")
Say = Callable[[str], None]

FILE_NAME = "far.json"
REMOTE_MODULE = "rollbook.clusters.ssh_remote"
SSH_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=20")
"""Nobody is there to type a password."""
ANSWER_TIMEOUT_S, COPY_TIMEOUT_S = 600.0, 24 * 3600.0
RSYNC_EXCLUDES = (
    f"--exclude=/jobs/{FILE_NAME}",
    "--exclude=/jobs/venv-*",
    "--exclude=/endpoints/",
    "--exclude=/index/",
)


class SshRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked over there; each verb reads what it needs."""

    version: str = ""
    order: SubmissionOrder | None = None
    given: dict[str, JSON] = {}
    retry: list[str] | None = None
    profile: ClusterProfile | None = None
    samples: int = 0


class SshResponse(msgspec.Struct, frozen=True):
    """What comes back: what is to be known besides, and the answer itself."""

    notes: list[str]
    value: msgspec.Raw


class SshRun(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run is: a host that ssh knows, the run directory there, the Python there that has Rollbook."""

    host: str
    path: str
    python: str
    order: SubmissionOrder

    def call(self, verb: str, request: SshRequest, answer_type: type[T], say: Say) -> T:
        """Have a Rollbook over there do something; what it cannot do, or cannot be asked, is one line."""
        command = join([self.python, "-P", "-m", REMOTE_MODULE, verb, self.path])
        said = _run_command(
            ["ssh", *SSH_OPTIONS, "--", self.host, command], self.host, ANSWER_TIMEOUT_S, encode(request)
        )
        try:
            answer = msgspec.json.decode(said.splitlines()[-1] if said else b"", type=SshResponse)
            value = msgspec.json.decode(answer.value, type=answer_type)
        except msgspec.DecodeError as error:
            raise SchedulerError(f"{self.host}: the answer cannot be read: {error}") from None
        for note in answer.notes:
            say(note)
        return value

    def prepare(self, say: Say) -> None:
        """Whether all is well over there, before anything is planned here."""
        self.call("prepare", SshRequest(version=package_versions()["rollbook"], order=self.order), type(None), say)

    def submit(self, run: Path, say: Say) -> list[ClusterJob]:
        """Bring the run there, and submit it."""
        self._rsync(f"{run}/", f"{self.host}:{self.path}/")
        return self.call("send", SshRequest(order=self.order), list[ClusterJob], say)

    def resume(self, run: Path, request: SshRequest, say: Say) -> list[ClusterJob] | None:
        """Submit what is missing; all of it, where it never got there."""
        if not self.call("known", SshRequest(), bool, say):
            return self.submit(run, say)
        sent = self.call("resume", request, list[ClusterJob] | None, say)  # type: ignore[arg-type]
        if sent is None:
            self.fetch(run)
        return sent

    def fetch(self, run: Path, *only: str) -> None:
        """Bring the book here as it is now, or only some of it."""
        chosen = [f"--include=/{name}" for name in only] + (["--exclude=*"] if only else [])
        self._rsync(*chosen, f"{self.host}:{self.path}/", f"{run}/")

    def _rsync(self, *words: str) -> None:
        shell = join(["ssh", *SSH_OPTIONS])
        _run_command(["rsync", "--archive", "-s", "-e", shell, *RSYNC_EXCLUDES, *words], self.host, COPY_TIMEOUT_S)


def read_ssh_run(run: Path) -> SshRun | None:
    """Where a run is worked on; None if it is here."""
    path = run / "jobs" / FILE_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=SshRun)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise UsageError(f"{path}: {error}") from None


def make_ssh_run(run: Path, order: SubmissionOrder) -> SshRun:
    """Where an order sends a run; over there the order is one like any other."""
    ssh = order.profile.ssh
    assert ssh
    there = msgspec.structs.replace(order, profile=msgspec.structs.replace(order.profile, ssh=None))
    return SshRun(host=ssh.host, path=f"{ssh.path.rstrip('/')}/{run.name}", python=ssh.python, order=there)


def write_ssh_run(run: Path, remote: SshRun) -> None:
    """Write down where a run goes, before it does."""
    (run / "jobs").mkdir(exist_ok=True)
    with explain_disk_errors(run):
        write_atomically(run / "jobs" / FILE_NAME, encode_pretty(remote))


def _run_command(words: Sequence[str], host: str, timeout_s: float, stdin: bytes = b"") -> bytes:
    try:
        done = subprocess.run(words, input=stdin, capture_output=True, timeout=timeout_s)
    except FileNotFoundError:
        raise SchedulerError(f"{words[0]}: not found; it is needed to reach {host}") from None
    except subprocess.TimeoutExpired:
        raise SchedulerError(f"{host} did not answer in {timeout_s:g} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        told = [line for line in lines if line.startswith("rollbook: ")] or lines or [f"exit {done.returncode}"]
        raise SchedulerError(f"{host}: {told[-1].removeprefix('rollbook: ')}")
    return done.stdout
