"""A configuration of NeMo Gym, put together as Gym does it: files that include files, `env.yaml`, what was overridden.

Values like ${policy_base_url} stay as they are, for the servers resolve them; `resolved` is for what we must know
ourselves. `_inherit_from` moves a block, `_copy` copies it, `_delete_key` takes keys away.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path

import msgspec

from rollbook.collect.yamlfile import YamlFile
from rollbook.core.json import JSON
from rollbook.errors import UsageError

Config = dict[str, JSON]

RESOURCES, MODELS, AGENTS = "resources_servers", "responses_api_models", "responses_api_agents"
KINDS = (RESOURCES, MODELS, AGENTS)
INCLUDES = "config_paths"
_DIRECTIVES = {"_inherit_from": "inherit_from", "_copy": "copy"}
_REFERENCE = re.compile(r"\$\{([^${}]+)\}")
_DEEPEST = 16


class Block(msgspec.Struct, frozen=True):
    """One server of a configuration: `name` is the instance, `code` the folder it is implemented in."""

    name: str
    kind: str
    code: str
    settings: Config

    @property
    def refers(self) -> list[str]:
        """The other servers that it calls, by name."""
        found = (value for value in self.settings.values() if isinstance(value, dict))
        return [str(value["name"]) for value in found if value.get("type") in KINDS and "name" in value]


def compose(path: Path, roots: Sequence[Path], overrides: Mapping[str, JSON]) -> Config:
    """The whole configuration: an including file overrides what it includes, then env.yaml, then the overrides.

    Files that the overrides name in `config_paths` come right after the first one.
    """
    more = [found(name, roots, INCLUDES) for name in overrides.get(INCLUDES) or []]
    parts = [part for one in (path, *more) for part in _included(one, roots, [])]
    private = next((root / "env.yaml" for root in roots if (root / "env.yaml").is_file()), None)
    if private is not None:
        parts.append(read_config(private))
    merged: Config = {}
    for part in [*parts, *(_nested(key, value) for key, value in overrides.items())]:
        merged = _merged(merged, part)
    merged.pop(INCLUDES, None)
    frozen = deepcopy(merged)
    _directed(merged, merged, frozen)
    return merged


def read_config(path: Path) -> Config:
    """One file; a name that stands in it twice is refused, with its line."""
    file = YamlFile(path)
    value = file.value(file.root)
    if not isinstance(value, dict):
        raise UsageError(f"{path}: a configuration is written as `name: ...`, this is {value!r:.80}")
    return value


def _included(path: Path, roots: Sequence[Path], above: list[Path]) -> Iterator[Config]:
    if path in above:
        raise UsageError(f"{path}: includes itself, by way of {above[-1]}")
    config = read_config(path)
    names = config.get(INCLUDES) or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"{path}: {INCLUDES} must be a list of paths")
    for name in names:
        yield from _included(found(name, roots, str(path)), roots, [*above, path])
    yield config


def found(name: str, roots: Sequence[Path], who: str) -> Path:
    """A file by its path, looked for in each of the roots."""
    for root in roots:
        if (root / name).is_file():
            return (root / name).resolve()
    raise UsageError(f"{who}: no file {name} in {', '.join(map(str, roots))}")


def _nested(key: str, value: JSON) -> Config:
    """`a.b.c=1` as it would stand in a file."""
    for name in reversed(key.split(".")):
        value = {name: value}
    assert isinstance(value, dict)
    return value


def _merged(base: JSON, more: JSON) -> JSON:
    if not isinstance(base, dict) or not isinstance(more, dict):
        return more
    return {**base, **{key: _merged(base.get(key), value) for key, value in more.items()}}


def _directed(config: Config, whole: Config, frozen: Config) -> None:
    """Carry out the directives beneath a mapping."""
    for key, value in list(config.items()):
        gone = _taken_away(value)
        for inner in [value] if isinstance(value, dict) else value if isinstance(value, list) else []:
            if isinstance(inner, dict):
                _directed(inner, whole, frozen)
        source, moves = _source(value)
        if source is not None:
            held = deepcopy(_at(frozen, source))
            if moves:
                _at(whole, source.rpartition(".")[0]).pop(source.rpartition(".")[2], None)
            config[key] = _merged(held, value) if isinstance(value, dict) else held
        for name in gone:
            config[key].pop(name, None)


def _taken_away(value: JSON) -> list[str]:
    """The keys that `_delete_key` names; those that are there already are gone before anything else looks at them."""
    if not isinstance(value, dict) or "_delete_key" not in value:
        return []
    names = [name.strip() for name in str(value.pop("_delete_key")).split(",")]
    for name in names:
        value.pop(name, None)
    return names


def _source(value: JSON) -> tuple[str | None, bool]:
    """The path that a value is to come from, and whether it moves."""
    for own, text in _DIRECTIVES.items():
        if isinstance(value, dict) and own in value:
            return str(value.pop(own)), text == "inherit_from"
        if isinstance(value, str) and value.startswith(f"${{{text}:"):
            return value.partition(":")[2].removesuffix("}"), text == "inherit_from"
    return None, False


def _at(config: Config, path: str) -> JSON:
    value: JSON = config
    for name in filter(None, path.split(".")):
        if not isinstance(value, dict) or name not in value:
            raise UsageError(f"the configuration has no {path}, from which something is to be inherited")
        value = value[name]
    return value


def blocks(config: Mapping[str, JSON]) -> list[Block]:
    """Every server of a configuration."""
    found: list[Block] = []
    for name, value in config.items():
        kinds = [kind for kind in KINDS if isinstance(value, dict) and isinstance(value.get(kind), dict)]
        for kind in kinds[:1]:
            for code, settings in list(value[kind].items())[:1]:
                found.append(Block(name, kind, str(code), settings if isinstance(settings, dict) else {}))
    return found


def resolved(value: JSON, config: Mapping[str, JSON], depth: int = 0) -> JSON:
    """A value with every ${path} and ${oc.env:NAME,default} in it replaced; UsageError names one that leads nowhere."""
    if isinstance(value, dict):
        return {key: resolved(inner, config, depth) for key, inner in value.items()}
    if isinstance(value, list):
        return [resolved(inner, config, depth) for inner in value]
    if not isinstance(value, str) or "${" not in value:
        return value
    if depth > _DEEPEST:
        raise UsageError(f"{value}: refers to itself")
    whole = _REFERENCE.fullmatch(value)
    if whole:
        return resolved(_referred(whole[1], config), config, depth + 1)
    return resolved(_REFERENCE.sub(lambda m: str(_referred(m[1], config)), value), config, depth + 1)


def _referred(name: str, config: Mapping[str, JSON]) -> JSON:
    if name.startswith("oc.env:"):
        variable, comma, default = name.removeprefix("oc.env:").partition(",")
        if variable.strip() not in os.environ and not comma:
            raise UsageError(f"${{{name}}}: the environment has no {variable}")
        return os.environ.get(variable.strip(), default.strip())
    value: JSON = dict(config)
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            raise UsageError(f"${{{name}}}: the configuration has no {part}")
        value = value[part]
    return value
