"""Scoring a run's stored rollouts again, without inference, into a new book that says where it came from."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from rollbook.book.book import Book, Draft
from rollbook.book.stored import Stored
from rollbook.collect.account import Account
from rollbook.collect.concurrency import Fixed
from rollbook.collect.job import Job
from rollbook.collect.planning import found, versions
from rollbook.collect.progress import Display
from rollbook.collect.report import Report, report
from rollbook.collect.shift import Shift
from rollbook.collect.work import stages
from rollbook.collect.worker import Worker
from rollbook.core.failure import KINDS, Failure
from rollbook.core.json import to_line
from rollbook.core.manifest import EnvironmentSpec, Round
from rollbook.core.rollout import Rollout
from rollbook.environments.snapshot import snapshot
from rollbook.environments.stage import Stage
from rollbook.errors import RolloutFailed, UsageError

IN_VERIFICATION = ("verifier_error", "verifier_timeout", "invalid_reward", "judge_error")
AT_ONCE = 64
CHANGES_KEPT = 1000

Only = Literal["failed", "scored", "all"]


class Change(msgspec.Struct, frozen=True):
    """A rollout whose reward is not what it was; None where there is, or was, no reward."""

    task: str
    sample: int
    before: float | None
    after: float | None


class Reverified(msgspec.Struct, frozen=True):
    """What came of scoring a run again; `changes` holds the first of them, changes.jsonl in the new book all."""

    path: Path
    report: Report
    verified: int
    changed: int
    changes: list[Change]


class Judge:
    """Plays a job by looking up what was played and asking the verifier alone: a Player without a model."""

    def __init__(self, stored: Stored, stages: Mapping[str, Stage], only: Only, changes: BinaryIO) -> None:
        self._stored, self._stages, self._only, self._file = stored, stages, only, changes
        self.verified = self.changed = 0
        self.changes: list[Change] = []

    async def play(self, job: Job, round_number: int) -> tuple[Rollout, RolloutFailed | None]:
        """Score a kept rollout again; one that never got an answer stays what it was."""
        kept = self._stored.read(job.task.id, job.sample)
        if kept is None:
            error = RolloutFailed("worker_lost", "reverify", "there is no answer to verify: resume with the model")
            blank = Rollout(task=job.task, sample=job.sample, seed=0, round=round_number, failure=Failure.of(error))
            return blank, error
        rollout = msgspec.structs.replace(kept, task=job.task, round=round_number, attempt=job.past.attempts + 1)
        if not self._wanted(kept):
            return rollout, _kept_error(kept)
        return await self._verify(kept, rollout)

    def _wanted(self, kept: Rollout) -> bool:
        if kept.failure is None:
            return self._only != "failed"
        return self._only != "scored" and kept.failure.kind in IN_VERIFICATION

    async def _verify(self, kept: Rollout, rollout: Rollout) -> tuple[Rollout, RolloutFailed | None]:
        self.verified += 1
        rollout.score = rollout.failure = None
        error = None
        try:
            rollout.score = await self._stages[rollout.task.env].verify(rollout.task, rollout)
        except RolloutFailed as failed:
            error = failed
            rollout.failure = Failure.of(failed)
        before = kept.score.reward if kept.score else None
        after = rollout.score.reward if rollout.score else None
        if before != after:
            self._note(Change(rollout.task.id, rollout.sample, before, after))
        return rollout, error

    def _note(self, change: Change) -> None:
        self.changed += 1
        self._file.write(to_line(change))
        if len(self.changes) < CHANGES_KEPT:
            self.changes.append(change)


def _kept_error(kept: Rollout) -> RolloutFailed | None:
    failure = kept.failure
    return RolloutFailed(failure.kind, failure.where, failure.message) if failure else None


def copy_plan(old: Book, env: str | None, out: Path) -> Book:
    """A new book with the same tasks and keys, and either the run's own environments or another one."""
    with Draft(out) as draft:
        specs = dict(_environments(old, env, draft.folder))
        draft.copy_tasks(old)
        manifest = msgspec.structs.replace(
            old.manifest,
            run=os.urandom(8).hex(),
            environments=specs,
            versions=versions(),
            parent=old.manifest.run,
        )
        return draft.finish(manifest, old.plan.parts)


def _environments(old: Book, env: str | None, folder: Path) -> Iterator[tuple[str, EnvironmentSpec]]:
    names = list(old.manifest.environments)
    if env is not None:
        if len(names) > 1:
            raise UsageError(f"--env {env}: the run has {len(names)} environments; reverify them as they are")
        yield names[0], snapshot(found(env), folder / "source")
        return
    for name, spec in old.manifest.environments.items():
        if spec.snapshot:
            with suppress(FileExistsError):
                shutil.copytree(old.path / spec.snapshot, folder / spec.snapshot)
        yield name, spec


async def reverify(run: str | Path, out: str | Path, env: str | None, only: Only, display: Display) -> Reverified:
    """Score what is stored again; what failed in verification is completed where the verifier now can."""
    old = Book(run)
    stored = Stored(old)
    rounds = old.rounds()
    if not rounds:
        raise UsageError(f"{run} was planned but never worked on: there is nothing to verify")
    book = copy_plan(old, env, Path(out))
    round_ = book.open_round(msgspec.structs.replace(rounds[-1].settings, retry=[], workers=1))
    with open(book.path / "changes.jsonl", "wb") as changes:  # noqa: ASYNC230 - a local file, buffered
        judge = await _judge_all(book, round_, stored, only, changes, display)
    return Reverified(book.path, report(book.path), judge.verified, judge.changed, judge.changes)


async def _judge_all(
    book: Book, round_: Round, stored: Stored, only: Only, changes: BinaryIO, display: Display
) -> Judge:
    account = Account(book, round_.settings)
    shift = Shift(book, round_, listener=account.take, inherited=account.inherit)
    manifest = book.manifest
    async with stages(manifest.environments, manifest.limits, run=book.path, hosts=round_.settings.hosts) as on:
        judge = Judge(stored, on, only, changes)
        # Nothing is tried twice: the same text gives the same verifier the same verdict.
        worker = Worker(shift, judge, Fixed(AT_ONCE), round_.number, dict.fromkeys(KINDS, 1))
        display.start(account.requested)
        await shift.join()
        try:
            await worker.run(lambda: display.update(account.progress(worker)))
        finally:
            await shift.leave()
    if shift.trouble:
        raise shift.trouble
    return judge
