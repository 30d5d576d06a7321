"""Find an environment by its spec: a name, a file or a module, with its arguments."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TypeGuard
from urllib.parse import unquote

import msgspec

from rollbook.core import BUILTIN_PREFIX, JSON, JUDGE, EnvironmentSpec, translate_target
from rollbook.environments import source
from rollbook.environments.captured_source import capture_source, check_instance
from rollbook.environments.catalogue import TEMPLATE_SCHEME, CatalogueEntry, find_entry, read_catalogue
from rollbook.environments.data_rows import decode_text
from rollbook.environments.environment import (
    Environment,
    arguments_of,
    execution_mode,
    overrides,
    parameters_of,
    takes_container,
    uses_containers,
)
from rollbook.environments.tools import tool_schemas
from rollbook.errors import RollbookError, UsageError

ENTRY_POINT_GROUP = "rollbook.environments"
BLEND_SUFFIXES = (".yaml", ".yml")
"""Suffixes of files that name several environments."""

BUILT_IN = {
    "bbh": "rollbook.environments.builtin.bbh:BBH",
    "code": "rollbook.environments.builtin.code:Code",
    "gsm8k": "rollbook.environments.builtin.gsm8k:GSM8K",
    "harbor": "rollbook.environments.harbor.harbor:Harbor",
    "humaneval": "rollbook.environments.builtin.humaneval:HumanEval",
    "ifeval": "rollbook.environments.builtin.ifeval:IFEval",
    "json_schema": "rollbook.environments.builtin.json_schema:JSONSchema",
    "math": "rollbook.environments.builtin.math:Math",
    "math500": "rollbook.environments.builtin.math500:Math500",
    "mbpp": "rollbook.environments.builtin.mbpp:MBPP",
    "mcqa": "rollbook.environments.builtin.mcqa:MCQA",
    "openenv": "rollbook.environments.openenv:OpenEnv",
    "python_tool": "rollbook.environments.builtin.python_tool:PythonTool",
    "reasoning_gym": "rollbook.environments.builtin.reasoning_gym:ReasoningGym",
    "rubric": "rollbook.environments.builtin.rubric:Rubric",
    "rubric_calibration": "rollbook.environments.builtin.rubric:RubricCalibration",
    "string_match": "rollbook.environments.builtin.string_match:StringMatch",
    "verifiers": "rollbook.environments.verifiers:Verifiers",
    "workplace": "rollbook.environments.builtin.workplace.workplace:Workplace",
}
"""Known without installed package metadata, so that a plain source tree works too."""

NOTEBOOK_FILE = "notebook.py"
"""The name that the source of a class gets in a snapshot if it was defined in no file."""

INTERNAL = {"gym-import": "rollbook.gym.client.import_run:ImportedEnvironment"}
"""Stored by name like a built-in, but not offered to users: made by `rollbook import`."""


@dataclass(frozen=True)
class LoadedEnvironment:
    """A resolved environment: its spec, its class, one instance; for the user's own source also its files.

    `text` is the source of a class that cannot be imported from a file (captured_source.py); `path` is then the script
    or a place in the current folder, from which the text imports other files.
    """

    spec: EnvironmentSpec
    cls: type[Environment]
    instance: Environment
    path: Path | None = None
    files: frozenset[Path] = frozenset()
    text: str | None = None


class ParsedSpec(msgspec.Struct, frozen=True):
    """The parts of a spec: `sums.py:Sums?top=9` is target `sums.py`, part `Sums`, args {"top": 9}."""

    spec: str
    target: str
    part: str
    args: dict[str, JSON]


class KnownEnvironment(msgspec.Struct, frozen=True):
    """An environment that is known by name, and its description. A URL scheme is named by the server behind it."""

    name: str
    target: str
    description: str
    is_url_scheme: bool = False
    kind: str = ""


@dataclass(frozen=True)
class _ResolvedClass:
    cls: type[Environment]
    target: str
    path: Path | None = None
    files: frozenset[Path] = frozenset()


def resolve(
    spec: str,
    data: str | None = None,
    template: str | None = None,
    *,
    base_folder: Path | None = None,
    allow_network: bool = False,
) -> LoadedEnvironment:
    """Return the environment that a spec names; every mistake in it is a UsageError of one line.

    `data` (the file of rows) and `template` (the file of a prompt template) are passed as arguments of those names.
    `allow_network` is passed to environments that take it: those whose containers may have a network.
    The user's files and modules are searched in `base_folder`; None is the current folder.
    """
    if names_blend(spec):
        raise UsageError(f"{spec} is a blend of environments, which only run and plan take; name one environment here")
    parsed = parse_spec(spec)
    if entry := _find_catalogued(parsed):
        data, template = data or entry.data, template or f"{TEMPLATE_SCHEME}{parsed.target}"
        parsed = _parse_scorer(parsed, entry)
    found = _find_class(parsed, base_folder)
    args = dict(parsed.args)
    if "://" in parsed.target:
        args["url"] = parsed.target
    elif parsed.target in _known_targets():
        args |= _variant_arguments(parsed, found.cls)
    options = ("--data", "--prompt-template") if base_folder is None else ("data", "template")
    args = _add_argument(found.cls, args, "data", options[0], data)
    if allow_network and "allow_network" in parameters_of(found.cls):
        args["allow_network"] = True
    if "data" in _missing_parameters(found.cls, args):
        raise UsageError(f"{parsed.target} needs {options[0]} FILE: the rows to run")
    return _construct_resolved(spec, found, _add_argument(found.cls, args, "template", options[1], template))


def find_class(spec: str) -> type[Environment]:
    """Return the class that a spec names; its arguments are not needed."""
    parsed = parse_spec(spec)
    entry = _find_catalogued(parsed)
    return _find_class(_parse_scorer(parsed, entry) if entry else parsed, None).cls


def _find_catalogued(parsed: ParsedSpec) -> CatalogueEntry | None:
    """Return the entry of the catalogue that a spec names; an installed environment of the same name comes first."""
    return None if parsed.part or parsed.target in _known_targets() else find_entry(parsed.target)


def _parse_scorer(parsed: ParsedSpec, entry: CatalogueEntry) -> ParsedSpec:
    """Return the parts of the spec that scores an entry, with the arguments that the user gave."""
    scorer = parse_spec(entry.environment)
    return ParsedSpec(parsed.spec, scorer.target, scorer.part, {**scorer.args, **parsed.args})


def _find_class(parsed: ParsedSpec, base_folder: Path | None) -> _ResolvedClass:
    _refuse_list(parsed)
    if "://" in parsed.target:
        return _find_by_scheme(parsed.spec)
    if parsed.target in _known_targets():
        return _find_by_name(parsed.target)
    if parsed.target.endswith(".py") or "/" in parsed.target:
        return _find_in_file((base_folder or Path()) / parsed.target, parsed.part)
    return _find_in_module(parsed, (base_folder or Path()).resolve())


def _refuse_list(parsed: ParsedSpec) -> None:
    """Refuse several names in one spec."""
    if "," in parsed.target and "://" not in parsed.target and not Path(parsed.target).is_file():
        way = "several environments in one run are a blend, a YAML file that lists them (docs/blends.md)"
        raise UsageError(f"environment {parsed.spec!r}: name one environment; {way}")


def names_blend(spec: str) -> bool:
    """Whether a spec is a file of several environments; `gym:config.yaml` is a single one, made from a file."""
    return spec.lower().endswith(BLEND_SUFFIXES) and spec.partition(":")[0] not in _known_targets()


def brings_own_model(spec: str) -> bool:
    """Whether a spec names a server that runs whole rollouts with its own model."""
    return "://" in spec and not _find_by_scheme(spec).cls.needs_model


def parse_spec(spec: str) -> ParsedSpec:
    """Split a spec into its parts.

    >>> parse_spec("reasoning_gym:chain_sum?max_terms=2&ops=+").args
    {'max_terms': 2, 'ops': '+'}
    >>> parse_spec("openenv:http://host:80?episodes=9").part
    'http://host:80'
    """
    if "://" in spec and "://" not in spec.partition(":")[2]:
        return ParsedSpec(spec, spec, "", {})
    head, _, query = spec.partition("?")
    split = head.partition if "://" in head else head.rpartition  # openenv:http://host:80
    target, _, part = split(":") if ":" in head else (head, "", "")
    if not target:
        raise UsageError(f"environment {spec!r}: nothing before the colon; write a name, file.py:Class or module:Class")
    args: dict[str, JSON] = {}
    for piece in filter(None, query.split("&")):
        key, equals, value = piece.partition("=")
        if not equals or not key or key in args:
            raise UsageError(
                f"environment {spec!r}: {piece!r} is not key=value, or repeats a key; write ?key=value&key=value"
            )
        args[key] = decode_text(unquote(value))
    return ParsedSpec(spec, target, part, args)


def list_environments() -> list[KnownEnvironment]:
    """Return every environment that is known by name. No plug-in is imported: its package metadata describes it."""
    environments = []
    for name, target in sorted(_known_targets().items()):
        if isinstance(target, str):
            cls = _import_target(target)
            environments.append(KnownEnvironment(name, target, cls.description, kind=cls.kind))
        else:
            environments.append(_describe_entry_point(name, target))
    return environments


def list_names() -> list[str]:
    """Return the names of all environments and of the catalogue without importing any; URL schemes are left out."""
    return sorted({*(name for name in _known_targets() if not is_url_scheme(name)), *read_catalogue()})


def is_url_scheme(name: str) -> bool:
    """Return whether a known name precedes `://`; decided by the name, so that no plug-in is imported."""
    return name in ("http", "https") or "+" in name


def _describe_entry_point(name: str, entry: EntryPoint) -> KnownEnvironment:
    known = KnownEnvironment(name, entry.value, "", is_url_scheme(name))
    if entry.dist is None:
        return known
    if entry.dist.name == source.PACKAGE:
        cls = _find_by_name(entry.name).cls
        return msgspec.structs.replace(known, description=cls.description, kind=cls.kind)
    summary = f"{entry.dist.metadata['Summary'] or ''} ({entry.dist.name} {entry.dist.version})".strip()
    return msgspec.structs.replace(known, description=summary)


def _known_targets() -> dict[str, str | EntryPoint]:
    return {**{entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}, **BUILT_IN}


def _find_by_name(name: str) -> _ResolvedClass:
    target = _known_targets().get(name)
    if target is None:
        raise UsageError(_explain_unknown(name))
    if isinstance(target, str):
        return _ResolvedClass(_import_target(target), BUILTIN_PREFIX + name)
    try:
        cls = target.load()
    except (Exception, SystemExit) as error:
        raise UsageError(f"environment {name!r} cannot be imported: {source.explain_error(error)}") from error
    return _ResolvedClass(_require_environment(cls, name), _stable_target(target.value))


def _find_by_scheme(spec: str) -> _ResolvedClass:
    scheme = spec.partition(":")[0]
    if scheme == "hf":
        way = f"give them to an environment that takes rows, as in: rollbook run math --data {spec}"
        raise UsageError(f"environment {spec}: a dataset is rows, not an environment; {way}")
    if scheme not in _known_targets():
        raise UsageError(f"environment {spec}: no installed package provides {scheme}:// environments")
    return _find_by_name(scheme)


def _explain_unknown(name: str) -> str:
    """Return the error about an unknown name: similar names, and what to do where the wanted one is not installed."""
    known, lower = list_names(), name.lower()
    close = [lower] if lower in known else difflib.get_close_matches(lower, known, n=3, cutoff=0.6)
    guess = f"did you mean {', '.join(close)}? " if close else ""
    own = "math, mcqa, string_match and code run your own rows with --data FILE (docs/environments.md)"
    listed = "`rollbook envs` lists those that are installed, `rollbook envs --catalogue` sets on the hub"
    return f"unknown environment {name!r}; {guess}{listed}; {own}"


def _import_target(target: str) -> type[Environment]:
    module, _, name = target.partition(":")
    return _require_environment(reduce(getattr, name.split("."), importlib.import_module(module)), target)


def _own_targets() -> dict[str, str]:
    """Return the environments that are part of Rollbook: module:Class by name."""
    entries = entry_points(group=ENTRY_POINT_GROUP)
    own = {entry.name: entry.value for entry in entries if entry.dist and entry.dist.name == source.PACKAGE}
    return {**own, **BUILT_IN, **INTERNAL}


def _stable_target(target: str) -> str:
    """Return the target that is stored for module:Class: a name if it is part of Rollbook, whose modules may move."""
    if not target.startswith(f"{source.PACKAGE}."):
        return target
    names = sorted(name for name, known in _own_targets().items() if known == target)
    return BUILTIN_PREFIX + names[0] if names else target


def import_class(target: str) -> type[Environment]:
    """Return the class of a stored target: module:Class of an installed package, or builtin:NAME."""
    if not target.startswith(BUILTIN_PREFIX):
        return _import_target(target)
    name = target.removeprefix(BUILTIN_PREFIX)
    known = BUILT_IN.get(name) or _own_targets().get(name)
    if known is None:
        raise UsageError(f"built-in environment {name!r} is not part of this version of Rollbook")
    return _import_target(known)


def suggest_names(name: str, known: Iterable[str], guesses: int = 1) -> str:
    """Return the end of an error about an unknown name: similar names and all known ones.

    With several guesses the known names are left out: they are many.
    """
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=guesses, cutoff=0.5)
    guess = f"; did you mean {', '.join(close)}?" if close else ";"
    return guess if close and guesses > 1 else f"{guess} known: {', '.join(known) or 'none'}"


def _variant_arguments(parsed: ParsedSpec, cls: type[Environment]) -> dict[str, JSON]:
    if not parsed.part:
        return {}
    if "name" not in parameters_of(cls):
        raise UsageError(f"environment {parsed.spec!r}: {parsed.target} has no variants; write {parsed.target}")
    return {"name": parsed.part}


def _find_in_file(path: Path, name: str) -> _ResolvedClass:
    if not path.is_file():
        close = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.py")], n=1)
        guess = f"; did you mean {path.parent / close[0]}?" if close else "; check the path"
        raise UsageError(f"environment file {path} does not exist{guess}")
    if path.suffix != ".py":
        raise UsageError(f"environment file {path} is not a .py file; write path/to/file.py:Class")
    root, module = source.locate_module(path)
    return _load_class(root, module, path.resolve(), name, str(path))


def _find_in_module(parsed: ParsedSpec, folder: Path) -> _ResolvedClass:
    target, _ = translate_target(f"{parsed.target}:{parsed.part}", "")
    if target.startswith(BUILTIN_PREFIX):
        return _ResolvedClass(import_class(target), target)
    file = source.find_module_file(folder, parsed.target) if parsed.part else None
    if file is not None:
        return _load_class(folder, parsed.target, file.resolve(), parsed.part, parsed.target)
    if not parsed.part or not _is_importable(parsed.target):
        raise UsageError(f"{_explain_unknown(parsed.target)}; your own code is file.py:Class or module:Class")
    module = _import_or_explain(lambda: importlib.import_module(parsed.target), parsed.target, None)
    file = getattr(module, "__file__", None)
    path = Path(file).resolve() if file else None
    if path is not None and source.is_user_file(path):
        root, dotted = source.locate_module(path)
        return _load_class(root, dotted, path, parsed.part, parsed.target)
    cls = _pick_class(module, parsed.part, parsed.target)
    return _ResolvedClass(cls, _stable_target(f"{parsed.target}:{parsed.part}"))


def _is_importable(module: str) -> bool:
    names = module.split(".")
    return all(n.isidentifier() for n in names) and (names[0] in sys.modules or bool(find_spec(names[0])))


def _load_class(root: Path, module: str, path: Path, name: str, where: str) -> _ResolvedClass:
    before = source.imported_files(root)
    loaded = _import_or_explain(lambda: source.import_from(root, module), where, root)
    cls = _pick_class(loaded, name, where)
    return _ResolvedClass(
        cls, f"{module}:{name or cls.__name__}", path, frozenset(source.imported_files(root) - before)
    )


def _import_or_explain(load: Callable[[], ModuleType], where: str, root: Path | None) -> ModuleType:
    try:
        return load()
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"environment {where} cannot be imported: {source.explain_error(error, root)}") from error


def _pick_class(module: ModuleType, name: str, where: str) -> type[Environment]:
    if name and hasattr(module, name):
        return _require_environment(getattr(module, name), f"{where}:{name}")
    own = [v for v in vars(module).values() if _is_environment(v) and v.__module__ == module.__name__]
    classes = {cls.__name__: cls for cls in own}
    if name:
        raise UsageError(f"{where} has no {name}{suggest_names(name, classes)}")
    if len(classes) != 1:
        found = ", ".join(sorted(classes)) or "none"
        raise UsageError(
            f"{where} must hold exactly one Environment to be named alone; found: {found}; write {where}:Class"
        )
    return next(iter(classes.values()))


def _is_environment(value: object) -> TypeGuard[type[Environment]]:
    return inspect.isclass(value) and issubclass(value, Environment) and value is not Environment


def _require_environment(value: object, where: str) -> type[Environment]:
    if not _is_environment(value):
        raise UsageError(f"{where} is not an Environment; write class {where.split(':')[-1]}(rollbook.Environment)")
    return value


def _add_argument(
    cls: type[Environment], args: dict[str, JSON], name: str, option: str, value: str | None
) -> dict[str, JSON]:
    if value is None:
        return args
    if name not in parameters_of(cls):
        way = f"its __init__ needs a parameter called {name}"
        raise UsageError(f"{option} {value}: {cls.__name__} takes no {name}; {way}")
    if name in args:
        raise UsageError(f"{option} {value}: the environment's own arguments already give {name}={args[name]!r}")
    return {**args, name: value}


def _missing_parameters(cls: type[Environment], args: dict[str, JSON]) -> list[str]:
    """Return the required parameters that have no argument."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    needed = [p.name for p in parameters_of(cls).values() if p.kind in kinds and p.default is p.empty]
    return [name for name in needed if name not in args]


def _construct_resolved(spec: str, found: _ResolvedClass, args: dict[str, JSON]) -> LoadedEnvironment:
    execution_mode(found.cls)  # errors of the class come before errors of its arguments
    scheme = spec.partition(":")[0].partition("?")[0]
    if scheme in BUILT_IN and _missing_parameters(found.cls, args) == ["name"]:
        raise UsageError(f"{spec}: a name is missing: {scheme}:NAME")
    instance = construct(found.cls, args)
    return LoadedEnvironment(make_spec(spec, found, args, instance), found.cls, instance, found.path, found.files)


def make_spec(spec: str, found: _ResolvedClass, args: dict[str, JSON], instance: Environment) -> EnvironmentSpec:
    """Return the description of an environment that is stored, and from which other processes load it."""
    contained = uses_containers(found.cls, instance)
    mode = execution_mode(found.cls, bool(instance.mcp), contained)
    return EnvironmentSpec(
        spec,
        found.target,
        args,
        verify=mode.verify,
        state=mode.state,
        tools=list(tool_schemas(found.cls)),
        offers=overrides(found.cls, "offers") or bool(instance.mcp),
        replies=overrides(found.cls, "reply"),
        plays=overrides(found.cls, "play"),
        appeals=overrides(found.cls, "appeal") or JUDGE in found.cls.roles,
        report_by=found.cls.report_by,
        container="verify" if takes_container(found.cls.verify) else "state" if contained else "",
    )


def construct(cls: type[Environment], args: dict[str, JSON]) -> Environment:
    """Return an instance with these arguments; a UsageError of one line says what is wrong with them."""
    taken = parameters_of(cls)
    if not any(p.kind is p.VAR_KEYWORD for p in taken.values()):
        for key in args:
            if key not in taken:
                raise UsageError(f"{cls.__name__} takes no argument {key!r}{suggest_names(key, taken)}")
    for key, value in args.items():
        _check_argument(cls, key, value)
    try:
        return cls(**args)
    except RollbookError:
        raise
    except TypeError as error:
        signature = ", ".join(map(str, taken.values()))
        raise UsageError(f"{cls.__name__}: {error}; its arguments are {cls.__name__}({signature})") from error
    except (Exception, SystemExit) as error:
        file = getattr(sys.modules[cls.__module__], "__file__", None)  # a notebook has none
        raise UsageError(
            f"{cls.__name__}: {source.explain_error(error, Path(file).parent if file else None)}"
        ) from error


def _check_argument(cls: type[Environment], key: str, value: JSON) -> None:
    """Refuse what is not a number, or not true or false, where one is annotated; the rest is left to the class."""
    parameter = parameters_of(cls).get(key)
    annotation = getattr(parameter, "annotation", None)
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    if name == "bool" and value not in (True, False):
        raise UsageError(f"{cls.__name__}: {key}={value!r}; give true or false")
    kinds = {"int": (int,), "float": (int, float)}.get(name)
    if kinds and (isinstance(value, bool) or not isinstance(value, kinds)):
        raise UsageError(f"{cls.__name__}: {key}={value!r}; give a {'whole ' if name == 'int' else ''}number")


def load_instance(given: Environment | type[Environment]) -> LoadedEnvironment:
    """Load an environment made in Python; a class means an instance without arguments.

    A class of a notebook, prompt, script or function is carried as source text. One that cannot be carried must be
    async: it runs in this process.
    """
    environment = construct(given, {}) if _is_environment(given) else given
    if not isinstance(environment, Environment):
        raise UsageError(f"{given!r:.80} is not an environment: give its name, file.py:Class, or an Environment")
    cls, text = type(environment), None
    file = getattr(sys.modules[cls.__module__], "__file__", None)
    path = Path(file).resolve() if file else None
    if path is None or cls.__module__ == "__main__" or "<locals>" in cls.__qualname__:
        found, text = _capture(environment, path or Path.cwd() / NOTEBOOK_FILE, environment is not given)
    elif source.is_user_file(path):
        found = _ResolvedClass(cls, f"{source.locate_module(path)[1]}:{cls.__qualname__}", path)
    else:
        found = _ResolvedClass(cls, _stable_target(f"{cls.__module__}:{cls.__qualname__}"))
    spec = make_spec(found.target, found, arguments_of(environment), environment)
    return LoadedEnvironment(spec, cls, environment, found.path, text=text)


def _capture(environment: Environment, path: Path, is_new: bool) -> tuple[_ResolvedClass, str | None]:
    """Return a class with its source text; without the text if it cannot be carried and runs in this process."""
    cls = type(environment)
    try:
        found, text = _ResolvedClass(cls, f"{path.stem}:{cls.__name__}", path), capture_source(cls)
        if not is_new:  # its attributes may have been set since
            check_instance(environment, lambda: construct(cls, arguments_of(environment)))
        return found, text
    except UsageError:
        mode = execution_mode(cls, bool(environment.mcp))
        if "sync" in (mode.verify, mode.state):
            raise
        return _ResolvedClass(cls, f"{cls.__module__}:{cls.__qualname__}"), None
