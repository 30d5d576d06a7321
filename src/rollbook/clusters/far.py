"""RUN/jobs/far.json: a run that is worked on elsewhere. Its book is there, and what lies here is a copy of it.

A machine without Slurm plans, sends the run directory by rsync, and asks a Rollbook over there by ssh: to submit, how
things stand, to resume, to cancel. So there is one book with one kind of writer, and no state to bring together.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import join
from typing import TypeVar

import msgspec

from rollbook.book.durable import write_whole, writing
from rollbook.clusters.jobs import Job
from rollbook.clusters.order import Order
from rollbook.clusters.profile import Profile
from rollbook.clusters.slurm import Refused
from rollbook.collect.planning import versions
from rollbook.core.json import JSON, encode, pretty
from rollbook.errors import UsageError

T = TypeVar("T")
Say = Callable[[str], None]

NAME = "far.json"
THERE = "rollbook.clusters.there"
QUIET = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=20")
"""Nobody is there to type a password."""
ANSWER_S, COPY_S = 600.0, 24 * 3600.0
LEFT_THERE = (f"--exclude=/jobs/{NAME}", "--exclude=/jobs/venv-*", "--exclude=/endpoints/", "--exclude=/index/")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked over there; each verb reads what it needs."""

    version: str = ""
    order: Order | None = None
    given: dict[str, JSON] = {}
    retry: list[str] | None = None
    profile: Profile | None = None
    samples: int = 0


class Answer(msgspec.Struct, frozen=True):
    """What comes back: what is to be known besides, and the answer itself."""

    notes: list[str]
    value: msgspec.Raw


class Far(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run is: a host that ssh knows, the run directory there, the Python there that has Rollbook."""

    host: str
    path: str
    python: str
    order: Order

    def ask(self, verb: str, asked: Asked, kind: type[T], say: Say) -> T:
        """Have a Rollbook over there do something; what it cannot do, or cannot be asked, is one line."""
        command = join([self.python, "-P", "-m", THERE, verb, self.path])
        said = _said(["ssh", *QUIET, "--", self.host, command], self.host, ANSWER_S, encode(asked))
        try:
            answer = msgspec.json.decode(said.splitlines()[-1] if said else b"", type=Answer)
            value = msgspec.json.decode(answer.value, type=kind)
        except msgspec.DecodeError as error:
            raise Refused(f"{self.host}: the answer cannot be read: {error}") from None
        for note in answer.notes:
            say(note)
        return value

    def prepare(self, say: Say) -> None:
        """Whether all is well over there, before anything is planned here."""
        self.ask("prepare", Asked(version=versions()["rollbook"], order=self.order), type(None), say)

    def send(self, run: Path, say: Say) -> list[Job]:
        """Bring the run there, and submit it."""
        self._copy(f"{run}/", f"{self.host}:{self.path}/")
        return self.ask("send", Asked(order=self.order), list[Job], say)

    def resume(self, run: Path, asked: Asked, say: Say) -> list[Job] | None:
        """Submit what is missing; all of it, where it never got there."""
        if not self.ask("known", Asked(), bool, say):
            return self.send(run, say)
        sent = self.ask("resume", asked, list[Job] | None, say)  # type: ignore[arg-type]
        if sent is None:
            self.fetch(run)
        return sent

    def fetch(self, run: Path, *only: str) -> None:
        """Bring the book here as it is now, or only some of it."""
        chosen = [f"--include=/{name}" for name in only] + (["--exclude=*"] if only else [])
        self._copy(*chosen, f"{self.host}:{self.path}/", f"{run}/")

    def _copy(self, *words: str) -> None:
        shell = join(["ssh", *QUIET])
        _said(["rsync", "--archive", "-s", "-e", shell, *LEFT_THERE, *words], self.host, COPY_S)


def far_of(run: Path) -> Far | None:
    """Where a run is worked on; None if it is here."""
    path = run / "jobs" / NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=Far)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise UsageError(f"{path}: {error}") from None


def far_from(run: Path, order: Order) -> Far:
    """Where an order sends a run; over there the order is one like any other."""
    ssh = order.profile.ssh
    assert ssh
    there = msgspec.structs.replace(order, profile=msgspec.structs.replace(order.profile, ssh=None))
    return Far(host=ssh.host, path=f"{ssh.path.rstrip('/')}/{run.name}", python=ssh.python, order=there)


def keep_far(run: Path, far: Far) -> None:
    """Write down where a run goes, before it does."""
    (run / "jobs").mkdir(exist_ok=True)
    with writing(run):
        write_whole(run / "jobs" / NAME, pretty(far))


def _said(words: Sequence[str], host: str, within_s: float, given: bytes = b"") -> bytes:
    try:
        done = subprocess.run(words, input=given, capture_output=True, timeout=within_s)
    except FileNotFoundError:
        raise Refused(f"{words[0]}: not found; it is needed to reach {host}") from None
    except subprocess.TimeoutExpired:
        raise Refused(f"{host} did not answer in {within_s:g} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        told = [line for line in lines if line.startswith("rollbook: ")] or lines or [f"exit {done.returncode}"]
        raise Refused(f"{host}: {told[-1].removeprefix('rollbook: ')}")
    return done.stdout
