"""From a request to a run directory: the environment pinned, its tasks written down, its keys cut into chunks."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from itertools import islice

from rollbook.book.book import Book, Draft
from rollbook.collect.request import Request
from rollbook.core.line import SCHEMA
from rollbook.core.manifest import EnvironmentSpec, Manifest, ModelSpec, Settings, ToolFormat
from rollbook.core.plan import part
from rollbook.core.task import Task
from rollbook.environments.environment import Environment
from rollbook.environments.registry import Loaded, of, resolve
from rollbook.environments.snapshot import changed, snapshot, tampered
from rollbook.environments.source import explain
from rollbook.errors import RollbookError, UsageError

PACKAGES = ("rollbook", "msgspec", "aiohttp", "math-verify", "reasoning-gym", "xllamacpp")


def plan(
    request: Request,
    loaded: Loaded,
    model: ModelSpec,
    settings: Settings | None = None,
    judge: ModelSpec | None = None,
) -> Book:
    """Write the run directory, with the settings of its first round if they are known; asks no model."""
    name = name_of(loaded)
    with Draft(request.out) as draft:
        spec = snapshot(loaded, draft.folder / "source")
        count = draft.add_tasks(chosen(loaded, request), name)
        if not count:
            raise UsageError(f"{name} has no tasks{' in ' + request.data if request.data else ''}")
        first, last = (0, request.samples) if request.sample is None else (request.sample, request.sample + 1)
        parts = [part((0, count), (first, last), request.settings.workers)]
        return draft.finish(manifest(request, {name: spec}, model, judge), parts, settings)


def found(env: str | Environment, data: str | None = None, template: str | None = None) -> Loaded:
    """The environment that was asked for."""
    return of(env) if isinstance(env, Environment) else resolve(env, data, template)


def tool_format_of(request: Request, model: ModelSpec) -> ToolFormat:
    """How tools are called: as asked for, else by what the model is known to take."""
    if request.tool_format == "auto":
        return "schema" if model.kind == "embedded" else "native"
    if request.tool_format == "native" and model.kind == "embedded":
        raise UsageError("--tool-format native: the embedded model parses no tool calls; use schema or text")
    return request.tool_format


def name_of(loaded: Loaded) -> str:
    """What the environment is called in the book: the class of the user's own source, else as it was asked for."""
    return loaded.cls.__name__ if loaded.path else loaded.spec.spec.partition("?")[0]


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


def chosen(loaded: Loaded, request: Request) -> Iterator[Task]:
    """The tasks that were asked for; what `tasks()` raises is the environment's mistake, told in one line."""
    tasks = given(loaded)
    if request.tasks is not None:
        yield from picked(tasks, request.tasks)
    else:
        yield from islice(tasks, request.limit)


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
