"""A blend: a YAML file of environments that are run together into one book."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from rollbook.collect.request import MOST
from rollbook.collect.yamlfile import Given, YamlFile
from rollbook.core.json import JSON
from rollbook.core.manifest import FIXED, LEAST, Limits, Sampling, ToolFormat
from rollbook.errors import UsageError

Count = Annotated[int, Meta(ge=1, le=MOST)]
NAME = re.compile(r"\w[\w.:-]{0,99}")
"""What an environment may be called: it stands before the slash in its tasks' ids, and may name a folder."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One environment of a blend. What it does not say is as the run has it."""

    env: str
    name: str | None = None
    weight: Annotated[float, Meta(gt=0)] = 1.0
    samples: Count | None = None
    limit: Count | None = None
    data: str | None = None
    template: str | None = None
    sampling: dict[str, JSON] = {}
    limits: dict[str, JSON] = {}
    tool_format: Literal["auto"] | ToolFormat | None = None


class Blend(msgspec.Struct, frozen=True):
    """The file: how many tasks in all (None: all there are), and the environments, each with the line it stands on."""

    path: Path
    tasks: int | None
    entries: list[tuple[int, Entry]]

    def wrong(self, line: int, why: object) -> UsageError:
        """A mistake in it."""
        return UsageError(f"{self.path}:{line}: {why}")

    def beside(self, file: str | None) -> str | None:
        """A file that it names: relative to the blend, unless it is not in this file system at all."""
        return file if file is None or "://" in file else str(self.path.parent / file)


class _File(msgspec.Struct, frozen=True):
    tasks: Count | None
    environments: list[JSON]


class _Sampled(msgspec.Struct, frozen=True):
    temperature: Annotated[float, Meta(ge=0)]
    top_p: Annotated[float, Meta(ge=0, le=1)]
    max_tokens: Count


def read_blend(path: str | Path) -> Blend:
    """The blend in a file, or a UsageError with the line of its first mistake."""
    file = YamlFile(Path(path))
    given = file.mapping(file.root, "a blend")
    listed = given.get("environments")
    tasks = file.fields({key: given[key] for key in given if key != "environments"}, _File, "a blend").get("tasks")
    several = file.items(listed, "environments") if listed else []
    if not several:
        way = "write environments: and beneath it a list of `- env: NAME`"
        raise file.wrong((listed or file.root).line, f"no environments: {way}")
    return Blend(Path(path), tasks, [(one.line, _entry(file, one, tasks is not None)) for one in several])


def _entry(file: YamlFile, of: Given, shared: bool) -> Entry:
    given = file.mapping(of, "an environment")
    values = file.fields(given, Entry, "an environment")
    if "env" not in values:
        raise file.wrong(of.line, "an environment without env: write `- env: gsm8k`, or file.py:Class")
    if "weight" in values and not shared:
        raise file.wrong(given["weight"].line, "weight: shares out the blend's tasks; say how many with `tasks: N`")
    name = values.get("name")
    if name is not None and not NAME.fullmatch(name):
        raise file.wrong(given["name"].line, f"name: {name!r} may have letters, digits and _ . : - only, at most 100")
    if "sampling" in given:
        _check_sampling(file, given["sampling"])
    if "limits" in given:
        _check_limits(file, given["limits"])
    return Entry(**values)


def _check_sampling(file: YamlFile, of: Given) -> None:
    given = file.mapping(of, "sampling")
    for key in sorted({"extra", *FIXED} & set(given)):
        raise file.wrong(given[key].line, f"sampling: {key} is not sampling, or the run's own affair; leave it out")
    file.fields({key: given[key] for key in given if key in _Sampled.__struct_fields__}, _Sampled, "sampling")


def _check_limits(file: YamlFile, of: Given) -> None:
    given = file.mapping(of, "limits")
    for key, value in file.fields(given, Limits, "limits").items():
        if value is not None and not LEAST[key] <= value <= MOST:
            raise file.wrong(given[key].line, f"{key}: {value} is not from {LEAST[key]:g} to {MOST}")


def sampled(base: Sampling, own: Mapping[str, JSON]) -> Sampling:
    """Sampling with what an environment has of its own; what is no field of ours goes to the endpoint as it is."""
    known = {key: own[key] for key in own if key in _Sampled.__struct_fields__}
    extra = {key: own[key] for key in own if key not in known}
    mixed = msgspec.structs.replace(base, **known, extra={**base.extra, **extra})
    return msgspec.convert(msgspec.to_builtins(mixed), Sampling)


def limited(base: Limits, own: Mapping[str, JSON]) -> Limits:
    """Limits with what an environment has of its own."""
    return msgspec.convert(msgspec.to_builtins(msgspec.structs.replace(base, **own)), Limits)
