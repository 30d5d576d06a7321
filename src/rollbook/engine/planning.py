"""From a request to a run directory: resolve the model, pin the environments, write their tasks, cut keys into chunks.

Also `check_unchanged`: a run continues only with the source and the packages it was planned with.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path

import msgspec

from rollbook.agents import REFERENCE_AGENTS, check_agent_unchanged, resolve_agent
from rollbook.book import Book, BookDraft, find_lengths, write_lengths
from rollbook.core import (
    JSON,
    SCHEMA_VERSION,
    EnvironmentSpec,
    Manifest,
    ModelSpec,
    Part,
    Settings,
    Task,
    Terms,
    ToolFormat,
    make_part,
    read_roles,
)
from rollbook.engine.blends import RunEnvironment, merge_limits, merge_sampling, select_environments
from rollbook.engine.request import Request, check_sampling_secrets, check_stored_secrets, update_settings
from rollbook.environments import (
    LoadedEnvironment,
    RunRoles,
    change_roles,
    endpoint_kind,
    explain_error,
    find_changed_file,
    merge_roles,
    overrides,
    put_first_on_path,
    require_unedited,
    resolve_judge,
    source_root,
    take_judge,
    write_snapshot,
)
from rollbook.errors import RollbookError, UsageError
from rollbook.models import ENDPOINT_KINDS, REMOTE_MODEL_SPEC, is_provider_target, resolve_model

RECORDED_PACKAGES = ("rollbook", "msgspec", "aiohttp", "math-verify", "reasoning-gym", "verifiers", "mcp", "xllamacpp")


def plan(
    request: Request,
    environments: Sequence[RunEnvironment],
    model: ModelSpec,
    settings: Settings | None = None,
    roles: RunRoles = RunRoles(),  # noqa: B008 - frozen
    say: Callable[[str], None] = lambda _: None,
) -> Book:
    """Write the run directory, with the settings of its first round if they are known; calls no model."""
    request = omit_unknown_parameters(request, model)
    if request.sampling.omits("seed"):
        say("no seed is sent: the same run gives different answers next time")
    check_stored_secrets(request.sampling, settings or request.settings)
    with BookDraft(request.out) as draft:
        specs: dict[str, EnvironmentSpec] = {}
        parts: list[Part] = []
        several = select_environments(environments, request, say)
        require_solutions(request.agent, several)
        workers = request.settings.workers * len(several)  # small chunks, so that environments advance side by side
        for member in several:
            first = parts[-1].tasks[1] if parts else 0
            specs[member.name] = pin_environment(member, request, model, draft.folder / "source")
            terms = specs[member.name].terms
            if terms is not None:
                check_sampling_secrets(terms.sampling.extra, settings or request.settings, f"{member.name}: sampling")
            rows = first, first + write_tasks(member, request, draft, say)
            parts.append(make_part(rows, sample_range(member, request), workers, ordered=bool(request.settings.order)))
        order = settings.order if settings is not None else ""
        lengths = find_lengths(draft.read_rows(), order) if order else None
        book = draft.finish(make_manifest(request, specs, model, roles), parts, settings)
        write_lengths(book, 1, lengths)
        return book


def require_solutions(agent: str, environments: Sequence[RunEnvironment]) -> None:
    """Refuse the oracle for an environment that knows no solutions."""
    for member in environments:
        if agent == "oracle" and member.loaded.spec.container and not overrides(member.loaded.cls, "solve"):
            raise UsageError(f"--agent oracle: {member.name} has no solve(task, state), so it knows no solutions")


def omit_unknown_parameters(request: Request, model: ModelSpec) -> Request:
    """Return the request without the seed where the model's API has none, so that the run records what is sent."""
    if model.kind != "anthropic" or request.sampling.omits("seed"):
        return request
    sampling = msgspec.structs.replace(request.sampling, extra={**request.sampling.extra, "seed": None})
    return msgspec.structs.replace(request, sampling=sampling)


def pin_environment(environment: RunEnvironment, request: Request, model: ModelSpec, folder: Path) -> EnvironmentSpec:
    """Return an environment's spec after storing its source, in a blend with its own settings."""
    if environment.entry is None:
        return write_snapshot(environment.loaded, folder)
    try:
        terms = make_terms(environment, request, model)
    except UsageError as error:
        raise environment.make_error(error) from None
    return msgspec.structs.replace(write_snapshot(environment.loaded, folder, environment.name), terms=terms)


def make_terms(environment: RunEnvironment, request: Request, model: ModelSpec) -> Terms:
    """Return the run's settings with the blend's values for this environment."""
    entry = environment.entry
    assert entry is not None
    wanted = msgspec.structs.replace(request, tool_format=entry.tool_format or request.tool_format)
    return Terms(
        prefix=environment.prefix,
        samples=entry.samples or request.samples,
        sampling=merge_sampling(request.sampling, entry.sampling),
        limits=merge_limits(request.limits, entry.limits),
        tool_format=choose_tool_format(wanted, model),
    )


def sample_range(environment: RunEnvironment, request: Request) -> tuple[int, int]:
    """Return which samples of its tasks are requested."""
    if request.sample is not None:
        return request.sample, request.sample + 1
    return 0, (environment.entry.samples if environment.entry else None) or request.samples


def write_tasks(environment: RunEnvironment, request: Request, draft: BookDraft, say: Callable[[str], None]) -> int:
    """Write an environment's tasks; return how many, and report it if they are fewer than its share."""
    root = source_root(environment.loaded) if environment.entry else None
    if root is not None:
        put_first_on_path(root)  # other environments of the blend were imported after this one
    roots = find_media_roots(environment.loaded, request.data)
    count = draft.add_tasks(select_tasks(environment, request), environment.name, roots)
    for note in environment.loaded.instance.notes:
        say(f"{environment.name}: {note}")
    if not count:
        raise UsageError(f"{environment.name} has no tasks{' in ' + request.data if request.data else ''}")
    if environment.share is not None and request.tasks is None and count < environment.share:
        why = "its limit" if count == environment.max_tasks else "it has no more"
        say(f"{environment.name}: {count} tasks instead of its share of {environment.share}: {why}")
    return count


def find_media_roots(loaded: LoadedEnvironment, data: str | None = None) -> list[Path]:
    """Return the folders that images and sounds of tasks may be in: that of the environment, and that of its data."""
    own = loaded.path.parent if loaded.path else Path.cwd()
    return [own, *([Path(data).parent] if data and Path(data).is_file() else [])]


def choose_tool_format(request: Request, model: ModelSpec) -> ToolFormat:
    """Return how tools are called: as requested, else as the model supports."""
    if request.tool_format == "auto":
        return "schema" if model.kind == "embedded" else "native"
    if request.tool_format == "native" and model.kind == "embedded":
        raise UsageError("--tool-format native: the embedded model parses no tool calls; use schema or text")
    return request.tool_format


def make_manifest(
    request: Request,
    environments: dict[str, EnvironmentSpec],
    model: ModelSpec,
    roles: RunRoles = RunRoles(),  # noqa: B008 - frozen
) -> Manifest:
    """Return the manifest of a request."""
    request = omit_unknown_parameters(request, model)
    return Manifest(
        schema=SCHEMA_VERSION,
        run=secrets.token_hex(8),
        created=round(time.time(), 3),
        environments=environments,
        model=model,
        sampling=request.sampling,
        samples=request.samples,
        seed=request.seed,
        limits=request.limits,
        versions=package_versions(),
        tool_format=choose_tool_format(request, model),
        judge=roles.judge,
        agent=resolve_agent(request.agent, environments),
        continue_tokens=request.continue_tokens,
        roles=roles.others,
    )


def package_versions() -> dict[str, str]:
    """Return the versions of packages that can change a number."""
    known = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in RECORDED_PACKAGES:
        try:
            known[package] = version(package)
        except PackageNotFoundError:
            continue
    return known


def select_tasks(environment: RunEnvironment, request: Request) -> Iterator[Task]:
    """Yield the requested tasks of an environment."""
    tasks = prefix_task_ids(iterate_tasks(environment.loaded), environment.prefix)
    if request.tasks is not None:
        yield from pick_tasks(tasks, [task for task in request.tasks if task.startswith(environment.prefix)])
    else:
        yield from islice(tasks, environment.max_tasks)


def prefix_task_ids(tasks: Iterator[Task], prefix: str) -> Iterator[Task]:
    """Yield tasks with the ids that they have in the book, as copies: the environment's own objects do not change."""
    for task in tasks:
        if not prefix or not isinstance(task, Task):
            yield task
            continue
        line = task.line()
        yield Task.from_line(msgspec.structs.replace(line, id=f"{prefix}{line.id}"))


def iterate_tasks(loaded: LoadedEnvironment) -> Iterator[Task]:
    """Yield the environment's own tasks; what `tasks()` raises is the environment's mistake, reported in one line."""
    try:
        yield from loaded.instance.tasks()
    except RollbookError:
        raise
    except (Exception, SystemExit) as error:
        root = loaded.path.parent if loaded.path else None
        raise UsageError(f"{loaded.cls.__name__}.tasks() raised {explain_error(error, root)}") from error


def pick_tasks(tasks: Iterable[Task], wanted: list[str]) -> Iterator[Task]:
    """Yield the tasks with these ids; a UsageError names the first that is missing."""
    left = set(wanted)
    for task in tasks:
        if task.id in left:
            left.discard(task.id)
            yield task
        if not left:
            return
    raise UsageError(f"--task {sorted(left)[0]}: the environment has no task of that id")


def check_unchanged(book: Book) -> list[str]:
    """Refuse a run whose planned source is no longer available; return notes about edits since."""
    book.check_meaning()
    check_agent_unchanged(book.manifest.agent)
    notes = []
    for name, spec in book.manifest.environments.items():
        require_unedited(spec, book.path)
        edited = find_changed_file(spec, book.path)
        if edited and spec.snapshot is None:
            then, now = book.manifest.versions, package_versions()
            moved = [f"{k}: {then[k]} then, {now.get(k, 'absent')} now" for k in then if now.get(k) != then[k]]
            detail = f" ({'; '.join(moved)})" if moved else ""
            raise UsageError(f"{name}: {edited} is not what {book.path} was planned with{detail}; start a new run")
        if edited:
            notes.append(f"{edited} was edited since; this run continues with its own copy in {book.path / 'source'}")
    return notes


def resolve_run_model(
    environments: Sequence[LoadedEnvironment], request: Request, *, needs_key: bool = True
) -> tuple[ModelSpec, Settings]:
    """Return the model of a run of these environments, and the settings with its URLs; refuse -m if nothing calls it.

    Without `needs_key`, the run is only planned here, and the key may be elsewhere.
    """
    targets, name, settings = request.model, request.model_name, request.settings
    if request.agent not in REFERENCE_AGENTS and any(loaded.cls.needs_model for loaded in environments):
        spec, settings = resolve_model(targets, name, settings, needs_key=needs_key)
        check_sampling_secrets(request.sampling.extra, settings)  # a provider has a key variable of its own
        return spec, settings
    given = [f"-m {target}" for target in targets] + [f"--base-url {url}" for url in settings.base_urls]
    given += [f"--model-name {name}"] if name else []
    if given:
        if request.agent in REFERENCE_AGENTS:
            raise UsageError(f"{given[0]}: --agent {request.agent} asks no model; leave it out")
        who = environments[0].spec.spec
        raise UsageError(f"{given[0]}: {who} runs its rollouts with its own model; leave it out")
    return REMOTE_MODEL_SPEC, msgspec.structs.replace(settings, urls=[])


def change_settings(manifest: Manifest, base: Settings, changes: dict[str, JSON]) -> Settings:
    """Return the settings of a run's next start: other addresses of its model and judge in any form that -m takes."""
    if "roles" in changes:
        given = read_roles(changes["roles"])
        taken, judge_name = take_judge(given, changes.get("judge_urls", []))
        if judge_name:
            raise UsageError(
                f"--role judge.name={judge_name}: the name of the judge is part of what this run means; start a new run"
            )
        changes = {**changes, **taken, "roles": merge_roles(base.roles, taken["roles"])}
    settings = update_settings(base, changes)
    if "roles" in changes:
        settings = change_roles(manifest.roles, base.roles, settings)
    if ("urls" in changes or "base_urls" in changes) and manifest.model.kind != REMOTE_MODEL_SPEC.kind:
        settings = _change_model(manifest.model, settings, changes)
    if "judge_urls" in changes and manifest.judge is not None:
        settings = _change_judge(manifest.judge, settings, changes)
    return settings


def _change_model(planned: ModelSpec, settings: Settings, changes: dict[str, JSON]) -> Settings:
    targets = changes.get("urls", [])
    usual = Settings()
    forgotten: dict[str, JSON] = {"wire_names": {}}  # another endpoint may take other names
    if is_provider_target(targets):
        forgotten |= {"api_key_env": usual.api_key_env, "headers": {}}
    start = msgspec.structs.replace(settings, **{k: v for k, v in forgotten.items() if k not in changes})
    spec, changed = resolve_model(targets, "", start, kind=endpoint_kind(planned))
    _check_same_name(planned, spec, "-m", targets)
    return changed


def _change_judge(planned: ModelSpec, settings: Settings, changes: dict[str, JSON]) -> Settings:
    targets, usual = changes["judge_urls"], Settings()
    forgotten: dict[str, JSON] = {"judge_wire_names": {}}
    if is_provider_target(targets):
        forgotten |= {"judge_key_env": usual.judge_key_env, "judge_headers": {}}
    start = msgspec.structs.replace(settings, **{k: v for k, v in forgotten.items() if k not in changes})
    spec, changed = resolve_judge(targets, "", start, kind=endpoint_kind(planned))
    if spec is not None:
        _check_same_name(planned, spec, "--judge", targets)
    return changed


def _check_same_name(planned: ModelSpec, spec: ModelSpec, option: str, targets: Sequence[str]) -> None:
    """Refuse a target that names another model than the planned one: that would be another run."""
    if spec.kind not in ENDPOINT_KINDS or not spec.name:
        return
    if spec.kind != planned.kind and spec.name == planned.name:
        apis = f"through another API ({planned.kind}, not {spec.kind})"
        raise UsageError(f"{option} {targets[0]}: this run was planned with {planned.name} {apis}: start a new run")
    if (spec.name, spec.kind) != (planned.name, planned.kind):
        raise UsageError(f"{option} {targets[0]}: this run was planned with {planned.name}: start a new run")


def resolve_planned_model(planned: ModelSpec, urls: Sequence[str]) -> ModelSpec:
    """Return the model that a run continues with, as these settings name it."""
    if planned.kind != REMOTE_MODEL_SPEC.kind:
        return resolve_model(urls, planned.name, kind=endpoint_kind(planned))[0]
    if urls:
        raise UsageError(f"-m {urls[0]}: the rollouts of this run happen elsewhere, with another model; leave it out")
    return planned
