"""From a request to a run directory: the environment pinned, its tasks written down, its keys cut into chunks."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path

import msgspec

from rollbook.agents.choice import check_agent, spec_of
from rollbook.book.book import Book, Draft
from rollbook.collect.blend import limited, sampled
from rollbook.collect.member import Member, taking_part
from rollbook.collect.request import Request
from rollbook.core.line import SCHEMA
from rollbook.core.manifest import EnvironmentSpec, Manifest, ModelSpec, Settings, Terms, ToolFormat
from rollbook.core.plan import Part, part
from rollbook.core.task import Task
from rollbook.environments import source
from rollbook.environments.registry import Loaded
from rollbook.environments.snapshot import changed, root_of, snapshot, tampered
from rollbook.environments.source import explain
from rollbook.errors import RollbookError, UsageError

PACKAGES = ("rollbook", "msgspec", "aiohttp", "math-verify", "reasoning-gym", "verifiers", "mcp", "xllamacpp")


def plan(
    request: Request,
    members: Sequence[Member],
    model: ModelSpec,
    settings: Settings | None = None,
    judge: ModelSpec | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Book:
    """Write the run directory, with the settings of its first round if they are known; asks no model."""
    with Draft(request.out) as draft:
        specs: dict[str, EnvironmentSpec] = {}
        parts: list[Part] = []
        several = taking_part(members, request, say)
        takers = request.settings.workers * len(several)  # small chunks, so that environments get ahead side by side
        for member in several:
            first = parts[-1].tasks[1] if parts else 0
            specs[member.name] = pinned(member, request, model, draft.folder / "source")
            rows = first, first + written(member, request, draft, say)
            parts.append(part(rows, samples_of(member, request), takers))
        return draft.finish(manifest(request, specs, model, judge), parts, settings)


def pinned(member: Member, request: Request, model: ModelSpec, folder: Path) -> EnvironmentSpec:
    """What an environment of the run is, with its source kept, and in a blend the terms that it has of its own."""
    if member.entry is None:
        return snapshot(member.loaded, folder)
    try:
        terms = terms_of(member, request, model)
    except UsageError as error:
        raise member.wrong(error) from None
    return msgspec.structs.replace(snapshot(member.loaded, folder, member.name), terms=terms)


def terms_of(member: Member, request: Request, model: ModelSpec) -> Terms:
    """The run's terms with what the blend says of this environment."""
    entry = member.entry
    assert entry is not None
    wanted = msgspec.structs.replace(request, tool_format=entry.tool_format or request.tool_format)
    return Terms(
        prefix=member.prefix,
        samples=entry.samples or request.samples,
        sampling=sampled(request.sampling, entry.sampling),
        limits=limited(request.limits, entry.limits),
        tool_format=tool_format_of(wanted, model),
    )


def samples_of(member: Member, request: Request) -> tuple[int, int]:
    """Which samples of its tasks are asked for."""
    if request.sample is not None:
        return request.sample, request.sample + 1
    return 0, (member.entry.samples if member.entry else None) or request.samples


def written(member: Member, request: Request, draft: Draft, say: Callable[[str], None]) -> int:
    """Write an environment's tasks down; gives how many, and says it where they are fewer than its share."""
    root = root_of(member.loaded) if member.entry else None
    if root is not None:
        source.enter(root)  # since this one, others of the blend have been imported
    count = draft.add_tasks(chosen(member, request), member.name)
    for note in member.loaded.instance.notes:
        say(f"{member.name}: {note}")
    if not count:
        raise UsageError(f"{member.name} has no tasks{' in ' + request.data if request.data else ''}")
    if member.share is not None and request.tasks is None and count < member.share:
        why = "its limit" if count == member.most else "it has no more"
        say(f"{member.name}: {count} tasks instead of its share of {member.share}: {why}")
    return count


def tool_format_of(request: Request, model: ModelSpec) -> ToolFormat:
    """How tools are called: as asked for, else by what the model is known to take."""
    if request.tool_format == "auto":
        return "schema" if model.kind == "embedded" else "native"
    if request.tool_format == "native" and model.kind == "embedded":
        raise UsageError("--tool-format native: the embedded model parses no tool calls; use schema or text")
    return request.tool_format


def manifest(
    request: Request, environments: dict[str, EnvironmentSpec], model: ModelSpec, judge: ModelSpec | None = None
) -> Manifest:
    """What produced the numbers."""
    return Manifest(
        schema=SCHEMA,
        run=secrets.token_hex(8),
        created=round(time.time(), 3),
        environments=environments,
        model=model,
        sampling=request.sampling,
        samples=request.samples,
        seed=request.seed,
        limits=request.limits,
        versions=versions(),
        tool_format=tool_format_of(request, model),
        judge=judge,
        agent=spec_of(request.agent, environments),
        continue_tokens=request.continue_tokens,
    )


def versions() -> dict[str, str]:
    """The versions of what can change a number."""
    known = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in PACKAGES:
        try:
            known[package] = version(package)
        except PackageNotFoundError:
            continue
    return known


def chosen(member: Member, request: Request) -> Iterator[Task]:
    """The tasks that were asked for; what `tasks()` raises is the environment's mistake, told in one line."""
    tasks = renamed(given(member.loaded), member.prefix)
    if request.tasks is not None:
        yield from picked(tasks, [task for task in request.tasks if task.startswith(member.prefix)])
    else:
        yield from islice(tasks, member.most)


def renamed(tasks: Iterator[Task], prefix: str) -> Iterator[Task]:
    """Tasks under the ids that they have in the book; the environment keeps its own objects as they are."""
    for task in tasks:
        if not prefix or not isinstance(task, Task):
            yield task
            continue
        line = task.line()
        yield Task.from_line(msgspec.structs.replace(line, id=f"{prefix}{line.id}"))


def given(loaded: Loaded) -> Iterator[Task]:
    """The environment's own tasks."""
    try:
        yield from loaded.instance.tasks()
    except RollbookError:
        raise
    except (Exception, SystemExit) as error:
        root = loaded.path.parent if loaded.path else None
        raise UsageError(f"{loaded.cls.__name__}.tasks() raised {explain(error, root)}") from error


def picked(tasks: Iterable[Task], wanted: list[str]) -> Iterator[Task]:
    """The tasks with these ids, or a UsageError that names the first that is not there."""
    left = set(wanted)
    for task in tasks:
        if task.id in left:
            left.discard(task.id)
            yield task
        if not left:
            return
    raise UsageError(f"--task {sorted(left)[0]}: the environment has no task of that id")


def check_unchanged(book: Book) -> list[str]:
    """A run goes on with the source it was planned with: names edits; refuses if that source is no longer to be had."""
    book.check_meaning()
    check_agent(book.manifest.agent)
    notes = []
    for name, spec in book.manifest.environments.items():
        if tampered(spec, book.path):
            raise UsageError(
                f"{name}: {book.path / 'source'} was edited, so scores would change: restore it from a copy"
            )
        edited = changed(spec, book.path)
        if edited and spec.snapshot is None:
            then, now = book.manifest.versions, versions()
            moved = [f"{k}: {then[k]} then, {now.get(k, 'absent')} now" for k in then if now.get(k) != then[k]]
            detail = f" ({'; '.join(moved)})" if moved else ""
            raise UsageError(f"{name}: {edited} is not what {book.path} was planned with{detail}; start a new run")
        if edited:
            notes.append(f"{edited} was edited since; this run goes on with its own copy in {book.path / 'source'}")
    return notes
