"""A configuration of NeMo Gym, composed as Gym does it, and the checkout whose servers it names.

Files include files; then come `env.yaml` and the overrides. Values like ${policy_base_url} stay as they are, because
the servers resolve them; `resolve` is for those that we need ourselves. `_inherit_from` moves a block, `_copy` copies
it, `_delete_key` removes keys. The checkout says where the source of a server is, which Python runs it, and whether it
needs Ray; servers that do not get a stub of Ray from the folder `noray`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path

import msgspec

from rollbook.core import JSON, YamlFile
from rollbook.environments import import_closure
from rollbook.errors import UsageError
from rollbook.gym.rows import RESOURCES, SERVER_KINDS

Config = dict[str, JSON]

INCLUDES = "config_paths"
_DIRECTIVES = {"_inherit_from": "inherit_from", "_copy": "copy"}
_REFERENCE = re.compile(r"\$\{([^${}]+)\}")
_MAX_DEPTH = 16


class ServerBlock(msgspec.Struct, frozen=True):
    """One server of a configuration: `name` is the instance, `implementation` the folder of its code."""

    name: str
    kind: str
    implementation: str
    settings: Config

    @property
    def references(self) -> list[str]:
        """The names of the other servers that it calls."""
        blocks = (value for value in self.settings.values() if isinstance(value, dict))
        return [str(value["name"]) for value in blocks if value.get("type") in SERVER_KINDS and "name" in value]


def compose_config(path: Path, roots: Sequence[Path], overrides: Mapping[str, JSON]) -> Config:
    """Return the whole configuration: included files, the including file, env.yaml, then the overrides.

    Files that the overrides name in `config_paths` come right after the first one.
    """
    more = [find_file(name, roots, INCLUDES) for name in overrides.get(INCLUDES) or []]
    parts = [part for one in (path, *more) for part in _read_with_includes(one, roots, [])]
    env_file = next((root / "env.yaml" for root in roots if (root / "env.yaml").is_file()), None)
    if env_file is not None:
        parts.append(read_config(env_file))
    merged: Config = {}
    for part in [*parts, *(_nest_override(key, value) for key, value in overrides.items())]:
        merged = _merge(merged, part)
    merged.pop(INCLUDES, None)
    frozen = deepcopy(merged)
    _apply_directives(merged, merged, frozen)
    return merged


def read_config(path: Path) -> Config:
    """Read one file; a repeated key is refused, with its line."""
    file = YamlFile(path)
    value = file.read_value(file.root)
    if not isinstance(value, dict):
        raise UsageError(f"{path}: a configuration is written as `name: ...`, this is {value!r:.80}")
    return value


def _read_with_includes(path: Path, roots: Sequence[Path], above: list[Path]) -> Iterator[Config]:
    if path in above:
        raise UsageError(f"{path}: includes itself, through {above[-1]}")
    config = read_config(path)
    names = config.get(INCLUDES) or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"{path}: {INCLUDES} must be a list of paths")
    for name in names:
        yield from _read_with_includes(find_file(name, roots, str(path)), roots, [*above, path])
    yield config


def find_file(name: str, roots: Sequence[Path], referrer: str) -> Path:
    """Find a file by its path in each of the roots."""
    for root in roots:
        if (root / name).is_file():
            return (root / name).resolve()
    raise UsageError(f"{referrer}: no file {name} in {', '.join(map(str, roots))}")


def _nest_override(key: str, value: JSON) -> Config:
    """Return `a.b.c=1` as it would be written in a file."""
    for name in reversed(key.split(".")):
        value = {name: value}
    assert isinstance(value, dict)
    return value


def _merge(base: JSON, more: JSON) -> JSON:
    if not isinstance(base, dict) or not isinstance(more, dict):
        return more
    return {**base, **{key: _merge(base.get(key), value) for key, value in more.items()}}


def _apply_directives(config: Config, whole: Config, frozen: Config) -> None:
    """Apply the directives beneath a mapping."""
    for key, value in list(config.items()):
        deleted = _delete_keys(value)
        for inner in [value] if isinstance(value, dict) else value if isinstance(value, list) else []:
            if isinstance(inner, dict):
                _apply_directives(inner, whole, frozen)
        source, moves = _pop_source(value)
        if source is not None:
            inherited = deepcopy(_look_up(frozen, source))
            if moves:
                _look_up(whole, source.rpartition(".")[0]).pop(source.rpartition(".")[2], None)
            config[key] = _merge(inherited, value) if isinstance(value, dict) else inherited
        for name in deleted:
            config[key].pop(name, None)


def _delete_keys(value: JSON) -> list[str]:
    """Return the keys that `_delete_key` names, after deleting those that exist before anything else reads them."""
    if not isinstance(value, dict) or "_delete_key" not in value:
        return []
    names = [name.strip() for name in str(value.pop("_delete_key")).split(",")]
    for name in names:
        value.pop(name, None)
    return names


def _pop_source(value: JSON) -> tuple[str | None, bool]:
    """Remove a value's directive; return the path it names, and whether the source moves."""
    for key, resolver in _DIRECTIVES.items():
        if isinstance(value, dict) and key in value:
            return str(value.pop(key)), resolver == "inherit_from"
        if isinstance(value, str) and value.startswith(f"${{{resolver}:"):
            return value.partition(":")[2].removesuffix("}"), resolver == "inherit_from"
    return None, False


def _look_up(config: Config, path: str) -> JSON:
    value: JSON = config
    for name in filter(None, path.split(".")):
        if not isinstance(value, dict) or name not in value:
            raise UsageError(f"the configuration has no {path}, which is to be inherited")
        value = value[name]
    return value


def read_blocks(config: Mapping[str, JSON]) -> list[ServerBlock]:
    """Return every server of a configuration."""
    blocks: list[ServerBlock] = []
    for name, value in config.items():
        kinds = [kind for kind in SERVER_KINDS if isinstance(value, dict) and isinstance(value.get(kind), dict)]
        for kind in kinds[:1]:
            for code, settings in list(value[kind].items())[:1]:
                blocks.append(ServerBlock(name, kind, str(code), settings if isinstance(settings, dict) else {}))
    return blocks


def resolve(value: JSON, config: Mapping[str, JSON], depth: int = 0) -> JSON:
    """Return a value with every ${path} and ${oc.env:NAME,default} replaced; UsageError names one without a target."""
    if isinstance(value, dict):
        return {key: resolve(inner, config, depth) for key, inner in value.items()}
    if isinstance(value, list):
        return [resolve(inner, config, depth) for inner in value]
    if not isinstance(value, str) or "${" not in value:
        return value
    if depth > _MAX_DEPTH:
        raise UsageError(f"{value}: refers to itself")
    whole = _REFERENCE.fullmatch(value)
    if whole:
        return resolve(_resolve_reference(whole[1], config), config, depth + 1)
    return resolve(_REFERENCE.sub(lambda m: str(_resolve_reference(m[1], config)), value), config, depth + 1)


def _resolve_reference(name: str, config: Mapping[str, JSON]) -> JSON:
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


class BenchmarkPrompt(msgspec.Struct, frozen=True):
    """The prompt of a benchmark, for rows that have none: texts with {field} for the fields of a row."""

    user: str
    system: str | None = None

    def fill(self, row: Mapping[str, JSON]) -> list[JSON]:
        """Return the input of a row; UsageError names what the template cannot be filled with."""
        parts = {"system": self.system, "user": self.user}
        try:
            return [{"role": role, "content": text.format_map(row)} for role, text in parts.items() if text is not None]
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            raise UsageError(f"prompt_config: the row does not fit: {type(error).__name__}: {error}") from None


def read_benchmark_prompt(name: str, roots: Sequence[Path]) -> BenchmarkPrompt:
    """Read the file that a `prompt_config` names."""
    path = find_file(name, roots, "prompt_config")
    try:
        return msgspec.convert(read_config(path), BenchmarkPrompt)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {error}") from None


CHECKOUT_VARIABLE, PYTHON_VARIABLE = "ROLLBOOK_GYM", "ROLLBOOK_GYM_PYTHON"
"""The variables that name a checkout, and the Python that has it installed."""

EXTRA_ROOTS_VARIABLE = "NEMO_GYM_EXTRA_ROOTS"
PACKAGE = "nemo_gym"
RAY_STUB_FOLDER = Path(__file__).parent / "noray"
_RAY_IMPORT = re.compile(rb"^\s*(import ray\b|from ray\b)", re.MULTILINE)


def find_config(name: str) -> Path:
    """Return the file that `gym:NAME` names: beneath the current folder, or in the checkout."""
    homes = [Path(), *([Path(os.environ[CHECKOUT_VARIABLE])] if os.environ.get(CHECKOUT_VARIABLE) else [])]
    for home in homes:
        if (home / name).is_file():
            return (home / name).resolve()
    looked = "" if len(homes) > 1 else f", and {CHECKOUT_VARIABLE} names no checkout to look in"
    raise UsageError(f"gym:{name}: no such file{looked}")


class GymCheckout:
    """The checkout of a configuration: the one that contains it, else the one that ROLLBOOK_GYM names."""

    def __init__(self, config: Path) -> None:
        named = os.environ.get(CHECKOUT_VARIABLE)
        homes = [*config.parents, *([Path(named).resolve()] if named else [])]
        home = next((home for home in homes if (home / PACKAGE).is_dir() and (home / RESOURCES).is_dir()), None)
        if home is None:
            raise UsageError(
                f"{config} is not in a checkout of NeMo Gym: name one with {CHECKOUT_VARIABLE}=/path/to/Gym"
            )
        self.home = home

    @property
    def roots(self) -> Sequence[Path]:
        """The folders in which Gym looks for files: extra roots, the current folder, the checkout."""
        extra = [Path(root) for root in os.environ.get(EXTRA_ROOTS_VARIABLE, "").split(os.pathsep) if root]
        return [*extra, Path.cwd(), self.home]

    def folder(self, block: ServerBlock) -> Path:
        """Return the folder of a server's source."""
        for root in self.roots:
            if (root / block.kind / block.implementation).is_dir():
                return root / block.kind / block.implementation
        raise UsageError(f"{block.name}: no folder {block.kind}/{block.implementation} in {self.home}")

    def entry(self, block: ServerBlock) -> Path:
        """Return the program of a server."""
        name = block.settings.get("entrypoint")
        path = self.folder(block) / str(name)
        if not isinstance(name, str) or not path.is_file():
            raise UsageError(f"{block.name}: its entrypoint {name!r} is not a file in {path.parent}")
        return path

    def python(self, block: ServerBlock) -> Path:
        """Return the Python of a server: ROLLBOOK_GYM_PYTHON, else Gym's virtual environment for it, or for all."""
        named = os.environ.get(PYTHON_VARIABLE)
        homes = [self.folder(block), self.home]
        candidates = [Path(named)] if named else [home / ".venv" / "bin" / "python" for home in homes]
        for python in candidates:
            if python.is_file():
                return python.absolute()
        raise UsageError(
            f"{block.name}: no {' or '.join(map(str, candidates))}; name a Python that has Gym with {PYTHON_VARIABLE}"
        )

    def needs_ray(self, block: ServerBlock) -> bool:
        """Whether the server's own source imports Ray; Gym's own imports are no reason to start a cluster."""
        entry = self.entry(block).resolve()
        sources = import_closure(entry.parent, entry)
        sources |= import_closure(self.home, entry) if entry.is_relative_to(self.home) else set()
        return any(
            _RAY_IMPORT.search(path.read_bytes()) for path in sources if not path.is_relative_to(self.home / PACKAGE)
        )
