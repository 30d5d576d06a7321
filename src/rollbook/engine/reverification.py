"""Score a run's stored rollouts again, without inference, into a new book that records where it came from."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, get_args

import msgspec

from rollbook.book import Book, BookDraft, Claim, CountedLines, LineIndex, write_atomically
from rollbook.core import (
    FAILURE_KINDS,
    JSON,
    JUDGE,
    EnvironmentSpec,
    Failure,
    Manifest,
    ModelSpec,
    Rescored,
    Rollout,
    Round,
    Settings,
    encode_line,
)
from rollbook.engine.blends import load_environment
from rollbook.engine.book_worker import BookJobSource, open_environments
from rollbook.engine.concurrency import FixedLimit
from rollbook.engine.planning import package_versions
from rollbook.engine.progress import Display, ProgressCounter
from rollbook.engine.retries import AttemptResult
from rollbook.engine.worker import RolloutJob, Worker
from rollbook.environments import (
    EnvironmentRuntime,
    RoleClients,
    RunRoles,
    choose_verifying_roles,
    find_verifying_roles,
    open_roles,
    take_judge,
    write_snapshot,
)
from rollbook.environments import load_environment as load_stored_environment
from rollbook.errors import EndpointDown, RolloutFailed, UsageError
from rollbook.reports import Report, make_report

CONCURRENCY = 64
NO_JUDGE = "none"

ReverifyOnly = Literal["failed", "scored", "all"]


class RewardChange(msgspec.Struct, frozen=True):
    """A rollout whose reward changed; None where there is, or was, no reward."""

    task: str
    sample: int
    before: float | None
    after: float | None


class ReverifyResult(msgspec.Struct, frozen=True):
    """The result of scoring a run again; `changes` are in changes.jsonl of the new book too.

    `verified` counts this start; where the book was begun by an earlier one (`went_on`), that did the others.
    """

    path: Path
    report: Report
    verified: int
    changes: list[RewardChange]
    went_on: bool = False

    @property
    def changed(self) -> int:
        """How many rewards changed."""
        return len(self.changes)

    def __repr__(self) -> str:
        counts = f"{self.verified} verified, {self.changed} rewards changed"
        return f"ReverifyResult({str(self.path)!r}): {counts}; {self.report.describe()}"

    def _repr_html_(self) -> str:
        return f"<p>{self.verified} verified, {self.changed} rewards changed</p>{self.report._repr_html_()}"

    def json(self) -> dict[str, JSON]:
        """Return the new run's numbers, and every reward that changed."""
        found: dict[str, JSON] = {"verified": self.verified, "changed": self.changed, "went_on": self.went_on}
        return self.report.json() | found | {"changes": msgspec.to_builtins(self.changes)}


class Reverifier:
    """Runs a job by reading its stored rollout and calling the verifier: an AttemptRunner without a model."""

    def __init__(
        self, stored: LineIndex, artifacts: Path, environments: Mapping[str, EnvironmentRuntime], only: ReverifyOnly
    ) -> None:
        self._stored, self._artifacts, self._environments, self._only = stored, artifacts, environments, only
        self.verified = 0

    async def run_attempt(self, job: RolloutJob, round_number: int) -> AttemptResult:
        """Score a stored rollout again; one that never got an answer is unchanged."""
        stored = self._stored.read(job.task.id, job.sample)
        assert stored is not None, "what has nothing to verify is not handed out"
        rollout = msgspec.structs.replace(stored, task=job.task, round=round_number, attempt=job.past.attempts + 1)
        if not self._should_verify(stored):
            return rollout, _stored_error(stored)
        return await self._verify(rollout)

    def _should_verify(self, stored: Rollout) -> bool:
        if stored.failure is None:
            return self._only != "failed"
        failure = stored.failure
        return self._only != "scored" and (FAILURE_KINDS[failure.kind].in_verification or failure.where == "verify")

    async def _verify(self, rollout: Rollout) -> AttemptResult:
        self.verified += 1
        rollout.score = rollout.failure = None
        rollout.role_calls = [call for call in rollout.role_calls if not call.in_verification]
        environment = self._environments[rollout.task.env]
        try:
            rollout.outcome = await environment.repeat_outcome(rollout.task, rollout, self._artifacts)
            rollout.score = await environment.verify(rollout.task, rollout)
        except RolloutFailed as failed:
            rollout.failure = Failure.from_error(failed)
            return rollout, failed
        return rollout, None


def _stored_error(stored: Rollout) -> RolloutFailed | None:
    failure = stored.failure
    return RolloutFailed(failure.kind, failure.where, failure.message) if failure else None


def copy_plan(old: Book, envs: Sequence[str], only: ReverifyOnly, out: Path, roles: RunRoles) -> Book:
    """Create a book with the same tasks and keys, and the run's own environments or replacements."""
    with BookDraft(out) as draft:
        specs = dict(_copy_environments(old, parse_replacements(envs, list(old.manifest.environments)), draft.folder))
        if roles.judge and not any(spec.appeals for spec in specs.values()):
            raise UsageError(f"--judge: {', '.join(specs)} uses no judge")
        draft.copy_tasks(old)
        manifest = msgspec.structs.replace(
            old.manifest,
            run=os.urandom(8).hex(),
            environments=specs,
            versions=package_versions(),
            parent=old.manifest.run,
            rescored=Rescored(only, earlier_verifiers(old.manifest) if only == "failed" else {}),
            judge=roles.judge,
            roles={**old.manifest.roles, **roles.others},
        )
        return draft.finish(manifest, old.plan.parts)


def earlier_verifiers(old: Manifest) -> dict[str, list[EnvironmentSpec]]:
    """Return the verifiers that made the scores of a run."""
    before = old.rescored.kept if old.rescored else {}
    return {name: [*before.get(name, []), spec] for name, spec in old.environments.items()}


def parse_replacements(options: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Return which environments are replaced: `NAME=SPEC`, or `SPEC` if there is only one.

    >>> parse_replacements(["sums=new.py:Sums?top=9"], ["sums", "words"])
    {'sums': 'new.py:Sums?top=9'}
    """
    replacements: dict[str, str] = {}
    for text in options:
        name, equals, spec = text.partition("=")
        if not equals or name not in names:
            if len(names) > 1:
                raise UsageError(
                    f"--env {text}: name the environment it replaces: NAME={text}; there are {', '.join(names)}"
                )
            name, spec = names[0], text
        if name in replacements or not spec:
            raise UsageError(f"--env {text}: give one environment for {name}")
        replacements[name] = spec
    return replacements


def _copy_environments(old: Book, others: Mapping[str, str], folder: Path) -> Iterator[tuple[str, EnvironmentSpec]]:
    for name, spec in old.manifest.environments.items():
        if name in others:
            beneath = name if spec.terms else ""
            new = write_snapshot(load_environment(others[name]), folder / "source", beneath)
            yield name, msgspec.structs.replace(new, terms=spec.terms)
            continue
        if spec.snapshot:
            with suppress(FileExistsError):
                shutil.copytree(old.path / spec.snapshot, folder / spec.snapshot)
        yield name, spec


def open_or_create_book(
    old: Book, envs: Sequence[str], only: ReverifyOnly, out: Path, display: Display, roles: RunRoles
) -> Book:
    """Create the new book, or open one that an earlier try left unfinished, which keeps its verifier."""
    if not (out / "run.json").exists():
        return copy_plan(old, envs, only, out, roles)
    book = Book(out)
    if book.manifest.parent != old.manifest.run:
        raise UsageError(f"{out} is another run: choose another --out, or delete it")
    began = book.manifest.rescored.only if book.manifest.rescored else only
    if began != only:
        raise UsageError(f"{out} was started with --only {began}: continue with that, or choose another --out")
    if book.manifest.judge != roles.judge:
        named = book.manifest.judge.name if book.manifest.judge else "no judge"
        raise UsageError(f"{out} was started with {named}: continue with that, or choose another --out")
    if (meant := {**old.manifest.roles, **roles.others}) != book.manifest.roles:
        changed = next(role for role in meant if meant[role] != book.manifest.roles.get(role))
        was = book.manifest.roles[changed].model.name if changed in book.manifest.roles else "no model"
        raise UsageError(f"{out} was started with {was} as {changed}: continue with that, or choose another --out")
    display.note(f"{out} continues with the verifier it was started with")
    return book


def find_asked_roles(old: Book, envs: Sequence[str], settings: Settings) -> set[str]:
    """Return the roles that the verifiers may ask: those that they asked, and all of a new one; refuse other ones."""
    declared: set[str] = set()
    for spec in parse_replacements(envs, list(old.manifest.environments)).values():
        declared |= set(load_environment(spec).cls.roles)
    for role in settings.roles:
        if role not in {JUDGE, *declared, *old.manifest.roles}:
            known = ", ".join(sorted(declared | set(old.manifest.roles))) or "none"
            raise UsageError(f"--role {role}: nothing in {old.path} asks a model of that role; its roles: {known}")
    return (find_verifying_roles(old) | declared) - {JUDGE}


def check_judge_given(old: Book, settings: Settings) -> None:
    """Refuse to score a judged run without a judge unless that is requested."""
    before = old.manifest.judge
    if before and not settings.judge_urls:
        raise UsageError(
            f"{old.path} was judged by {before.name}: give --judge URL again, or --judge {NO_JUDGE} for the rule alone"
        )


def check_judge_not_needed(old: Book, envs: Sequence[str]) -> None:
    """Refuse to verify without a judge if an environment cannot score without one, as at the start of a run."""
    others = parse_replacements(envs, list(old.manifest.environments))
    for name, spec in old.manifest.environments.items():
        if name not in others and not spec.appeals:
            continue
        cls = load_environment(others[name]).cls if name in others else type(load_stored_environment(spec, old.path))
        if cls.needs_judge or JUDGE in cls.roles:
            raise UsageError(f"{cls.__name__} cannot score without a judge: give --judge URL")


def check_same_judge(old: Book, judge: ModelSpec | None, only: ReverifyOnly) -> None:
    """Refuse to mix scores of two judges."""
    before = old.manifest.judge
    if only == "failed" and before != judge:
        names = [spec.name if spec else "no judge" for spec in (before, judge)]
        raise UsageError(f"--only failed: the other scores are by {names[0]}, not by {names[1]}; leave --only out")


async def reverify(
    run: str | Path,
    out: str | Path | None,
    envs: Sequence[str],
    only: ReverifyOnly,
    display: Display,
    settings: Settings = Settings(retry=[]),  # noqa: B008 - frozen
    judge_name: str = "",
) -> ReverifyResult:
    """Score stored rollouts again, also those that failed in verification, into `out` or RUN-reverified.

    Of an unfinished run, `only` scored scores what there is, and the rest stays pending.
    """
    if only not in get_args(ReverifyOnly):
        raise UsageError(f"--only {only}: give failed, scored or all")
    out = Path(run).with_name(f"{Path(run).name}-reverified") if out is None else Path(out)
    old = Book(run)
    old.check_tasks()
    stored = LineIndex(old)
    if stored.missing and (only != "scored" or stored.missing == old.plan.requested):
        raise UsageError(
            f"{run}: {stored.missing} of {old.plan.requested} rollouts have no answer yet: rollbook resume {run} first"
        )
    taken, given_name = take_judge(settings.roles, settings.judge_urls)
    settings, judge_name = msgspec.structs.replace(settings, **taken), judge_name or given_name
    check_judge_given(old, settings)
    targets = [] if settings.judge_urls == [NO_JUDGE] else settings.judge_urls
    if not targets:
        check_judge_not_needed(old, envs)
    asked = find_asked_roles(old, envs, settings)
    meaning, judged = await choose_verifying_roles(old, asked, targets, judge_name, settings, display.note)
    went_on = (out / "run.json").exists()
    async with open_roles(meaning, judged) as roles:
        check_same_judge(old, roles.meaning.judge, only)
        book = open_or_create_book(old, envs, only, out, display, roles.meaning)
        round_ = book.open_round(judged)
        try:
            verifier = await _verify_all(book, round_, stored, old.path / "artifacts", only, display, roles)
        except EndpointDown as error:
            cause = str(error).partition("; check the server")[0]
            raise EndpointDown(f"{cause}; check the server, then run the same command again", error.reasons) from None
    changes = list(find_reward_changes(old, book))
    write_atomically(book.path / "changes.jsonl", b"".join(map(encode_line, changes)))
    if only == "failed" and not verifier.verified and not went_on:
        display.note(f"nothing in {run} failed in verification: no rollout changes")
    return ReverifyResult(book.path, make_report(book.path), verifier.verified, changes, went_on)


class _RewardLine(msgspec.Struct, frozen=True):
    task: str
    sample: int
    attempt: int
    reward: float


def find_reward_changes(old: Book, new: Book) -> Iterator[RewardChange]:
    """Yield every rollout whose reward changed, also to or from no reward."""
    before = {(line.task, line.sample): line.reward for _, _, line in CountedLines(old, _RewardLine)}
    for _, _, line in CountedLines(new, _RewardLine):
        was = before.pop((line.task, line.sample), None)
        if was != line.reward:
            yield RewardChange(line.task, line.sample, was, line.reward)
    for (task, sample), was in before.items():
        yield RewardChange(task, sample, was, None)


def attempt_budgets(only: ReverifyOnly) -> dict[str, int]:
    """Return one attempt per kind: the same text gets the same verdict. Only infrastructure may work later."""
    return {
        kind: row.attempts if row.side == "infra" and only != "scored" else 1 for kind, row in FAILURE_KINDS.items()
    }


async def _verify_all(
    book: Book,
    round_: Round,
    stored: LineIndex,
    artifacts: Path,
    only: ReverifyOnly,
    display: Display,
    roles: RoleClients | None = None,
) -> Reverifier:
    counter = ProgressCounter(book, round_.settings)

    def on_claim(claim: Claim) -> None:
        counter.add_claim(claim)
        if stored.missing:  # keys that have nothing to verify stay pending
            claim.todo = [todo for todo in claim.todo if stored.has(book.tasks.read(todo[0]).id, todo[1])]
            claim.keys_left = len(claim.todo)

    jobs = BookJobSource(book, round_, on_mark=counter.record, on_claim=on_claim)
    manifest = book.manifest
    hosts = round_.settings.hosts
    async with open_environments(
        manifest.environments, manifest.limits, run=book.path, hosts=hosts, roles=roles, playing=False
    ) as environments:
        verifier = Reverifier(stored, artifacts, environments, only)
        worker = Worker(jobs, verifier, FixedLimit(CONCURRENCY), round_.number, attempt_budgets(only))
        display.start(counter.requested)
        await jobs.run_worker(worker, lambda: display.update(counter.progress(worker)))
    return verifier
