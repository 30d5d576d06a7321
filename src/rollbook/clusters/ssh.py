"""Runs on another host (RUN/jobs/far.json): the book is there, the run directory here is a copy of it.

A machine without a scheduler plans, sends the run directory by rsync, and calls Rollbook on the other host by ssh: to
submit, for the status, to resume, to cancel. So there is one book with one kind of writer, and no state to merge.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from shlex import join
from typing import TypeVar

import msgspec

from rollbook.book import explain_disk_errors, write_atomically
from rollbook.clusters.job_files import ClusterJob, SubmissionOrder
from rollbook.clusters.profile import ClusterProfile
from rollbook.clusters.scheduler import Say
from rollbook.core import JSON, JSON_ERRORS, encode, encode_pretty
from rollbook.engine import package_versions
from rollbook.errors import SchedulerError, UsageError

T = TypeVar("T")

FILE_NAME = "far.json"
REMOTE_MODULE = "rollbook.clusters.there"
"""The name on the wire of `ssh_remote`: a peer of the previous version has no other; newer ones find it by `_moved`."""
SSH_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=20")
"""No password can be typed."""
ANSWER_TIMEOUT_S, COPY_TIMEOUT_S = 600.0, 24 * 3600.0
RSYNC_EXCLUDES = (
    f"--exclude=/jobs/{FILE_NAME}",
    "--exclude=/jobs/venv-*",
    "--exclude=/endpoints/",
    "--exclude=/index/",
)


class SshRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the other host; each verb reads the fields that it needs."""

    version: str = ""
    order: SubmissionOrder | None = None
    given: dict[str, JSON] = {}
    retry: list[str] | None = None
    profile: ClusterProfile | None = None
    samples: int = 0
    scheduler: str | None = None


class SshResponse(msgspec.Struct, frozen=True):
    """The answer of the other host, with notes for the user."""

    notes: list[str]
    value: msgspec.Raw


class SshRun(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run is: a host name for ssh, the run directory there, the Python there that has Rollbook."""

    host: str
    path: str
    python: str
    order: SubmissionOrder

    def call(self, verb: str, request: SshRequest, answer_type: type[T], say: Say) -> T:
        """Call Rollbook on the other host; a refusal, or a host that cannot be reached, is an error of one line."""
        command = join([self.python, "-P", "-m", REMOTE_MODULE, verb, self.path])
        output = _run_command(
            ["ssh", *SSH_OPTIONS, "--", self.host, command], self.host, ANSWER_TIMEOUT_S, encode(request)
        )
        try:
            answer = msgspec.json.decode(output.splitlines()[-1] if output else b"", type=SshResponse)
            value = msgspec.json.decode(answer.value, type=answer_type)
        except JSON_ERRORS as error:
            raise SchedulerError(f"{self.host}: the answer cannot be read: {error}") from None
        for note in answer.notes:
            say(note)
        return value

    def prepare(self, say: Say) -> None:
        """Check that the other host can submit this order, before anything is planned here."""
        self.call("prepare", SshRequest(version=package_versions()["rollbook"], order=self.order), type(None), say)

    def submit(self, run: Path, say: Say) -> list[ClusterJob]:
        """Copy the run to the other host, and submit it there."""
        self._rsync(f"{run}/", f"{self.host}:{self.path}/")
        return self.call("send", SshRequest(order=self.order), list[ClusterJob], say)

    def resume(self, run: Path, request: SshRequest, say: Say) -> list[ClusterJob] | None:
        """Submit what is missing; all of it, where the run was never copied."""
        if not self.call("known", SshRequest(), bool, say):
            return self.submit(run, say)
        jobs = self.call("resume", request, list[ClusterJob] | None, say)  # type: ignore[arg-type]
        if jobs is None:
            self.fetch(run)
        return jobs

    def fetch(self, run: Path, *only: str) -> None:
        """Copy the run directory from the other host, all of it or only some files."""
        chosen = [f"--include=/{name}" for name in only] + (["--exclude=*"] if only else [])
        self._rsync(*chosen, f"{self.host}:{self.path}/", f"{run}/")

    def _rsync(self, *words: str) -> None:
        shell = join(["ssh", *SSH_OPTIONS])
        _run_command(["rsync", "--archive", "-s", "-e", shell, *RSYNC_EXCLUDES, *words], self.host, COPY_TIMEOUT_S)


def read_ssh_run(run: Path) -> SshRun | None:
    """Return where a run is, if it is on another host; else None."""
    path = run / "jobs" / FILE_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=SshRun)
    except (FileNotFoundError, NotADirectoryError):  # the code that opens the run explains what is not a run
        return None
    except JSON_ERRORS as error:
        raise UsageError(f"{path}: {error}") from None


def make_ssh_run(run: Path, order: SubmissionOrder) -> SshRun:
    """Return where an order sends a run, with the order as the other host has to execute it."""
    ssh = order.profile.ssh
    assert ssh
    own = msgspec.structs.replace(order, profile=msgspec.structs.replace(order.profile, ssh=None))
    return SshRun(host=ssh.host, path=f"{ssh.path.rstrip('/')}/{run.name}", python=ssh.python, order=own)


def write_ssh_run(run: Path, remote: SshRun) -> None:
    """Record where a run goes, before it is copied."""
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
        reasons = [line for line in lines if line.startswith("rollbook: ")] or lines or [f"exit {done.returncode}"]
        raise SchedulerError(f"{host}: {reasons[-1].removeprefix('rollbook: ')}")
    return done.stdout
