"""RUN/jobs.jsonl: every job that was submitted for a run, one a line, in the order in which they were taken."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal

import msgspec

from rollbook.book.durable import alone, sync_folder, writing
from rollbook.core.json import to_line
from rollbook.errors import BookError

Kind = Literal["workers", "servers", "report", "crew", "cancelled"]


class Job(msgspec.Struct, frozen=True):
    """A job, or the word that one was cancelled. An array has `count` tasks: workers `first` and following.

    A `crew` is on Ray: a foreman, an actor with this name, and `count` workers.
    """

    kind: Kind
    job: str
    submission: int
    count: int = 1
    first: int = 0
    script: str = ""
    """The sha256 of its script."""
    at: float = 0.0


_decoder = msgspec.json.Decoder(Job)


def add_job(run: Path, job: Job) -> Job:
    """Write a job down, durably."""
    stamped = msgspec.structs.replace(job, at=round(time.time(), 3))
    with writing(run), alone(run):  # what another is writing must not be taken for half a line
        handle = os.open(run / "jobs.jsonl", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            _cut_torn(handle)
            os.write(handle, to_line(stamped))
            os.fsync(handle)
        finally:
            os.close(handle)
        sync_folder(run)
    return stamped


def _cut_torn(handle: int) -> None:
    """Half a line is left where the power went; what is written next must not be taken for its end."""
    size = os.fstat(handle).st_size
    tail = os.pread(handle, size, 0)
    os.ftruncate(handle, tail.rfind(b"\n") + 1)


def read_jobs(run: Path) -> list[Job]:
    """Every job of a run, those that were cancelled too; none for a run that was never submitted."""
    try:
        lines = (run / "jobs.jsonl").read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    jobs = []
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            break  # torn when the power went
        try:
            jobs.append(_decoder.decode(line))
        except msgspec.DecodeError as error:
            raise BookError(f"{run / 'jobs.jsonl'}:{number}: {error}") from None
    return jobs


def submitted(jobs: list[Job], kind: Kind | None = None) -> list[Job]:
    """The jobs themselves, all or of one kind."""
    return [job for job in jobs if job.kind != "cancelled" and kind in (None, job.kind)]


def of_slurm(jobs: list[Job]) -> list[Job]:
    """The jobs that Slurm knows."""
    return [job for job in submitted(jobs) if job.kind != "crew"]


def cancelled(jobs: list[Job]) -> set[str]:
    """The ids that somebody cancelled."""
    return {job.job for job in jobs if job.kind == "cancelled"}
