"""Environments of a run: the only one, or those of a blend, a YAML file of environments run together into one book.

A blend shares out its tasks by weight and may give each environment its own samples, sampling, limits and tool format.
A mistake in the file is one line with the line number. `RunEnvironment` is one loaded environment with its name in the
book.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from rollbook.core import (
    JSON,
    JUDGE,
    RESERVED_SAMPLING_KEYS,
    SAMPLING_FIELDS,
    Limits,
    RoleSettings,
    Sampling,
    ToolFormat,
    YamlEntry,
    YamlFile,
    list_parameters,
    read_roles,
)
from rollbook.engine.request import MAX_COUNT, Request
from rollbook.environments import Environment, LoadedEnvironment, load_instance, names_blend, resolve, source_files
from rollbook.errors import UsageError

PositiveCount = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
NAME_PATTERN = re.compile(r"\w[\w.:-]{0,99}")
"""Valid names of environments: one is the prefix of its tasks' ids, and may name a folder."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One environment of a blend. Fields that are not set are those of the run."""

    env: str
    name: str | None = None
    weight: Annotated[float, Meta(gt=0)] = 1.0
    samples: PositiveCount | None = None
    limit: PositiveCount | None = None
    data: str | None = None
    template: str | None = None
    sampling: dict[str, JSON] = {}
    limits: dict[str, JSON] = {}
    tool_format: Literal["auto"] | ToolFormat | None = None


class Blend(msgspec.Struct, frozen=True):
    """The file: how many tasks in all (None: all there are), the environments with their line numbers, and roles."""

    path: Path
    tasks: int | None
    entries: list[tuple[int, Entry]]
    roles: dict[str, RoleSettings] = {}

    def error_at(self, line: int, why: object) -> UsageError:
        """Return the error for a mistake on a line."""
        return UsageError(f"{self.path}:{line}: {why}")

    def resolve_path(self, file: str | None) -> str | None:
        """Return a path in the blend, which is relative to the blend's own folder unless it is a URL."""
        return file if file is None or "://" in file else str(self.path.parent / file)


class _BlendFile(msgspec.Struct, frozen=True):
    tasks: PositiveCount | None
    environments: list[JSON]
    roles: dict[str, JSON]


class _SamplingFields(msgspec.Struct, frozen=True):
    temperature: Annotated[float, Meta(ge=0)]
    top_p: Annotated[float, Meta(ge=0, le=1)]
    max_tokens: PositiveCount


def read_blend(path: str | Path) -> Blend:
    """Read a blend; a UsageError has the line of its first mistake."""
    file = YamlFile(Path(path))
    keys = file.read_mapping(file.root, "a blend")
    environments, roles = keys.pop("environments", None), keys.pop("roles", None)
    tasks = file.read_fields(keys, _BlendFile, "a blend").get("tasks")
    items = file.read_items(environments, "environments") if environments else []
    if not items:
        way = "write environments: and beneath it a list of `- env: NAME`"
        raise file.error_at((environments or file.root).line, f"no environments: {way}")
    entries = [(item.line, _read_entry(file, item, tasks is not None)) for item in items]
    return Blend(Path(path), tasks, entries, _read_blend_roles(file, roles) if roles else {})


def _read_blend_roles(file: YamlFile, node: YamlEntry) -> dict[str, RoleSettings]:
    found: dict[str, RoleSettings] = {}
    for role, entry in file.read_mapping(node, "roles").items():
        try:
            found |= read_roles({role: file.read_value(entry)})
        except UsageError as error:
            raise file.error_at(entry.line, error) from None
    return found


def add_blend_roles(request: Request) -> Request:
    """Return the request with the roles of its blend; those of the request itself have priority."""
    if not isinstance(request.env, str) or not names_blend(request.env):
        return request
    roles = dict(read_blend(request.env).roles)
    if request.judge:
        roles.pop(JUDGE, None)
    settings = msgspec.structs.replace(request.settings, roles={**roles, **request.settings.roles})
    return msgspec.structs.replace(request, settings=settings)


def _read_entry(file: YamlFile, node: YamlEntry, has_total: bool) -> Entry:
    given = file.read_mapping(node, "an environment")
    values = file.read_fields(given, Entry, "an environment")
    if "env" not in values:
        raise file.error_at(node.line, "an environment without env: write `- env: gsm8k`, or file.py:Class")
    if "weight" in values and not has_total:
        raise file.error_at(
            given["weight"].line, "weight: shares out the blend's tasks; give their number with `tasks: N`"
        )
    name = values.get("name")
    if name is not None and not NAME_PATTERN.fullmatch(name):
        raise file.error_at(
            given["name"].line, f"name: {name!r} may have letters, digits and _ . : - only, at most 100"
        )
    if "sampling" in given:
        _check_sampling(file, given["sampling"])
    if "limits" in given:
        _check_limits(file, given["limits"])
    return Entry(**values)


def _check_sampling(file: YamlFile, node: YamlEntry) -> None:
    given = file.read_mapping(node, "sampling")
    for key in sorted({"extra", *RESERVED_SAMPLING_KEYS} & set(given)):
        if key != "seed" or not _is_null(given[key]):
            why = f"sampling: {key} is not a sampling parameter, or is set by the run; leave it out"
            raise file.error_at(given[key].line, why)
    known = {key: given[key] for key in given if key in SAMPLING_FIELDS and not _is_null(given[key])}
    file.read_fields(known, _SamplingFields, "sampling")


def _is_null(entry: YamlEntry) -> bool:
    return entry.node.tag == "tag:yaml.org,2002:null"


def _check_limits(file: YamlFile, node: YamlEntry) -> None:
    given = file.read_mapping(node, "limits")
    for key, value in file.read_fields(given, Limits, "limits").items():
        least = list_parameters(Limits)[key].details.minimum
        if least is not None and value is not None and not least <= value <= MAX_COUNT:
            raise file.error_at(given[key].line, f"{key}: {value} is not from {least:g} to {MAX_COUNT}")


def merge_sampling(base: Sampling, own: Mapping[str, JSON]) -> Sampling:
    """Return sampling with an environment's own values; fields that are not ours go to the endpoint unchanged."""
    for key, value in own.items():
        if value is not None and base.omits(key):
            raise UsageError(f"sampling: {key} is {value} here, and --sampling {key}=null omits it; give one of them")
    known = {key: own[key] for key in own if key in SAMPLING_FIELDS and own[key] is not None}
    extra = {key: own[key] for key in own if key not in known}
    mixed = msgspec.structs.replace(base, **known, extra={**base.extra, **extra})
    return msgspec.convert(msgspec.to_builtins(mixed), Sampling)


def merge_limits(base: Limits, own: Mapping[str, JSON]) -> Limits:
    """Return limits with an environment's own values."""
    return msgspec.convert(msgspec.to_builtins(msgspec.structs.replace(base, **own)), Limits)


@dataclass(frozen=True)
class RunEnvironment:
    """An environment of a run: at most `max_tasks` of its tasks are run; `share` is its part by a blend's weights."""

    name: str
    loaded: LoadedEnvironment
    max_tasks: int | None
    entry: Entry | None = None
    share: int | None = None
    location: str = ""

    @property
    def prefix(self) -> str:
        """The prefix of its tasks' ids in the book."""
        return f"{self.name}/" if self.entry else ""

    def make_error(self, why: object) -> UsageError:
        """Return the error for a mistake in its part of the blend."""
        return UsageError(f"{self.location}: {why}")


def environment_name(loaded: LoadedEnvironment) -> str:
    """Return an environment's name in the book: the class of the user's own source, else the name that was given."""
    return loaded.cls.__name__ if loaded.path else loaded.spec.spec.partition("?")[0]


def load_environment(
    env: str | Environment | type[Environment],
    data: str | None = None,
    template: str | None = None,
    allow_network: bool = False,
) -> LoadedEnvironment:
    """Load one environment."""
    if not isinstance(env, str):
        return load_instance(env)
    return resolve(env, data, template, allow_network=allow_network)


def load_run_environments(request: Request) -> list[RunEnvironment]:
    """Load all environments of a request."""
    if not isinstance(request.env, str) or not names_blend(request.env):
        loaded = load_environment(request.env, request.data, request.template, request.allow_network)
        return [RunEnvironment(environment_name(loaded), loaded, request.limit)]
    for option, value in (("--data", request.data), ("--prompt-template", request.template)):
        if value is not None:
            raise UsageError(f"{option} {value}: {request.env} sets the rows of each environment")
    blend = read_blend(request.env)
    entries = zip(blend.entries, task_shares(blend), strict=True)
    several = [_load_blended_environment(blend, line, entry, share, request) for (line, entry), share in entries]
    _check_unique_names(several)
    _check_modules(several)
    return several


def _load_blended_environment(
    blend: Blend, line: int, entry: Entry, share: int | None, request: Request
) -> RunEnvironment:
    try:
        loaded = resolve(
            entry.env,
            blend.resolve_path(entry.data),
            blend.resolve_path(entry.template),
            base_folder=blend.path.parent,
            allow_network=request.allow_network,
        )
    except UsageError as error:
        raise blend.error_at(line, error) from None
    caps = [count for count in (share, entry.limit, request.limit) if count is not None]
    name = entry.name or environment_name(loaded)
    if not NAME_PATTERN.fullmatch(name):
        raise blend.error_at(line, f"{name} cannot be part of task ids: give it another one with `name:`")
    return RunEnvironment(name, loaded, min(caps, default=None), entry, share, f"{blend.path}:{line}")


def task_shares(blend: Blend) -> list[int | None]:
    """Return how many of the blend's tasks each environment gets, by weight; None: all of its own."""
    if blend.tasks is None:
        return [None] * len(blend.entries)
    return list(split_by_weight(blend.tasks, [entry.weight for _, entry in blend.entries]))


def split_by_weight(total: int, weights: Sequence[float]) -> list[int]:
    """Split a total into whole shares by weight: rounded down, the rest goes to the largest remainders.

    >>> split_by_weight(10, [2, 1, 1]), split_by_weight(2, [1, 1, 1])
    ([5, 3, 2], [1, 1, 0])
    """
    exact = [Fraction(weight) * total for weight in weights]
    whole = sum(map(Fraction, weights))
    shares = [math.floor(share / whole) for share in exact]
    order = sorted(range(len(weights)), key=lambda at: shares[at] - exact[at] / whole)
    for at in order[: total - sum(shares)]:
        shares[at] += 1
    return shares


def _check_unique_names(several: Sequence[RunEnvironment]) -> None:
    """Refuse two equal names: they are in ids and name folders, also on file systems that ignore case."""
    seen: dict[str, RunEnvironment] = {}
    for member in several:
        other = seen.setdefault(member.name.casefold(), member)
        if other is not member:
            raise member.make_error(f"two environments are called {member.name}: give this one another `name:`")


def _check_modules(several: Sequence[RunEnvironment]) -> None:
    """Refuse two files of one name: async environments share a process, where a module's name means one file."""
    seen: dict[str, tuple[RunEnvironment, object]] = {}
    for member in several:
        if "async" not in (member.loaded.spec.verify, member.loaded.spec.state) and not member.loaded.spec.appeals:
            continue
        for name, path in source_files(member.loaded).items():
            other, its = seen.setdefault(name, (member, path))
            if path != its and name.endswith(".py"):
                raise member.make_error(f"{member.name} and {other.name} each have a {name} of their own: rename one")


def select_environments(
    environments: Sequence[RunEnvironment], request: Request, say: Callable[[str], None]
) -> list[RunEnvironment]:
    """Return the environments that have tasks in this request."""
    if request.tasks is not None:
        return _select_by_task_ids(environments, request.tasks)
    for member in environments:
        if member.share == 0:
            say(f"{member.name}: left out, since its share of the tasks is zero")
    return [member for member in environments if member.share != 0]


def _select_by_task_ids(environments: Sequence[RunEnvironment], tasks: Sequence[str]) -> list[RunEnvironment]:
    for task in tasks:
        if not any(task.startswith(member.prefix) for member in environments):
            known = ", ".join(f"{member.prefix}ID" for member in environments)
            raise UsageError(f"--task {task}: none of the blend's environments has that task; write {known}")
    return [member for member in environments if any(task.startswith(member.prefix) for task in tasks)]
