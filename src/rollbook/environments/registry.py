"""Finding an environment by what was written: a name, a file, a module, with its arguments."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TypeGuard
from urllib.parse import unquote

import msgspec

from rollbook.core.json import JSON, decode
from rollbook.core.manifest import EnvironmentSpec
from rollbook.environments import source
from rollbook.environments.environment import Environment, appeals, arguments_of, offers, parameters_of, plays, shape
from rollbook.environments.tool import tools_of
from rollbook.errors import RollbookError, UsageError

GROUP = "rollbook.environments"
BLENDS = (".yaml", ".yml")
"""How the names of files end that name several environments."""

BUILT_IN = {
    "code": "rollbook.environments.code:Code",
    "gsm8k": "rollbook.environments.gsm8k:GSM8K",
    "humaneval": "rollbook.environments.humaneval:HumanEval",
    "json_schema": "rollbook.environments.json_schema:JSONSchema",
    "math": "rollbook.environments.math:Math",
    "mcqa": "rollbook.environments.mcqa:MCQA",
    "openenv": "rollbook.environments.openenv:OpenEnv",
    "python_tool": "rollbook.environments.python_tool:PythonTool",
    "reasoning_gym": "rollbook.environments.reasoning_gym:ReasoningGym",
    "string_match": "rollbook.environments.string_match:StringMatch",
    "verifiers": "rollbook.environments.verifiers:Verifiers",
    "workplace": "rollbook.environments.workplace.workplace:Workplace",
}
"""Known without any installed metadata, so that a bare source tree works too."""


@dataclass(frozen=True)
class Loaded:
    """An environment that was found: its spec, its class, one instance; for the user's own source, where it lies."""

    spec: EnvironmentSpec
    cls: type[Environment]
    instance: Environment
    path: Path | None = None
    files: frozenset[Path] = frozenset()


class Written(msgspec.Struct, frozen=True):
    """A spec taken apart: `sums.py:Sums?top=9` is target `sums.py`, part `Sums`, args {"top": 9}."""

    spec: str
    target: str
    part: str
    args: dict[str, JSON]


class Known(msgspec.Struct, frozen=True):
    """A name that can be run, and what it is."""

    name: str
    target: str
    description: str


@dataclass(frozen=True)
class _Found:
    cls: type[Environment]
    target: str
    path: Path | None = None
    files: frozenset[Path] = frozenset()


def resolve(spec: str, data: str | None = None, template: str | None = None, *, beside: Path | None = None) -> Loaded:
    """The environment that a spec names; every mistake in it is a UsageError of one line.

    `data` and `template` are the rows to ask and the file their prompts are made by: arguments of those names. Files
    and modules of the user's are looked for in the folder `beside`, for which None is the current one.
    """
    if names_blend(spec):
        raise UsageError(f"{spec} is a blend of environments, which only run and plan take; name one environment here")
    written = read(spec)
    args = dict(written.args)
    if "://" in written.target:
        found = _remote(spec)
        args["url"] = written.target
    elif written.target in _targets():
        found = _named(written.target)
        args |= _variant(written, found.cls)
    elif written.target.endswith(".py") or "/" in written.target:
        found = _from_file((beside or Path()) / written.target, written.part)
    else:
        found = _from_module(written, (beside or Path()).resolve())
    names = ("--data", "--prompt-template") if beside is None else ("data", "template")
    args = _with(found.cls, args, "data", names[0], data)
    if "data" in _missing(found.cls, args):
        raise UsageError(f"{written.target} needs {names[0]} FILE: the rows to ask")
    return _loaded(spec, found, _with(found.cls, args, "template", names[1], template))


def names_blend(spec: str) -> bool:
    """Whether a spec is a file of several environments; `gym:config.yaml` is one, made from a file."""
    return spec.lower().endswith(BLENDS) and spec.partition(":")[0] not in _targets()


def played_elsewhere(spec: str) -> bool:
    """Whether a spec names somebody who plays whole rollouts with a model of their own."""
    return "://" in spec and not _remote(spec).cls.needs_model


def read(spec: str) -> Written:
    """Take a spec apart.

    >>> read("reasoning_gym:chain_sum?max_terms=2&ops=+").args
    {'max_terms': 2, 'ops': '+'}
    >>> read("openenv:http://host:80?episodes=9").part
    'http://host:80'
    """
    if "://" in spec and "://" not in spec.partition(":")[2]:
        return Written(spec, spec, "", {})
    head, _, query = spec.partition("?")
    split = head.partition if "://" in head else head.rpartition  # openenv:http://host:80
    target, _, part = split(":") if ":" in head else (head, "", "")
    if not target:
        raise UsageError(f"environment {spec!r}: nothing before the colon; write a name, file.py:Class or module:Class")
    args: dict[str, JSON] = {}
    for piece in filter(None, query.split("&")):
        key, equals, value = piece.partition("=")
        if not equals or not key or key in args:
            raise UsageError(f"environment {spec!r}: {piece!r} is not a new key=value; write ?key=value&key=value")
        args[key] = _value(unquote(value))
    return Written(spec, target, part, args)


def _value(text: str) -> JSON:
    try:
        return decode(text)
    except msgspec.DecodeError:
        return text


def names() -> list[Known]:
    """Every environment that is known by name. No plug-in is imported for this: its package describes it."""
    found = []
    for name, target in sorted(_targets().items()):
        if isinstance(target, str):
            cls = _import_target(target)
            found.append(Known(name, target, cls.description))
        else:
            found.append(Known(name, target.value, _summary(target)))
    return found


def _summary(entry: EntryPoint) -> str:
    if entry.dist is None:
        return ""
    if entry.dist.name == source.PACKAGE:
        return _named(entry.name).cls.description
    return f"{entry.dist.metadata['Summary'] or ''} ({entry.dist.name} {entry.dist.version})".strip()


def _targets() -> dict[str, str | EntryPoint]:
    return {**{entry.name: entry for entry in entry_points(group=GROUP)}, **BUILT_IN}


def _named(name: str) -> _Found:
    target = _targets().get(name)
    if target is None:
        raise UsageError(f"unknown environment {name!r}{_meant(name, _targets())}")
    if isinstance(target, str):
        return _Found(_import_target(target), target)
    try:
        cls = target.load()
    except (Exception, SystemExit) as error:
        raise UsageError(f"environment {name!r} cannot be imported: {source.explain(error)}") from error
    return _Found(_checked(cls, name), target.value)


def _remote(spec: str) -> _Found:
    scheme = spec.partition(":")[0]
    if scheme not in _targets():
        raise UsageError(f"environment {spec}: no installed package speaks {scheme}:// environments")
    return _named(scheme)


def _import_target(target: str) -> type[Environment]:
    module, _, name = target.partition(":")
    return _checked(getattr(importlib.import_module(module), name), target)


def _meant(given: str, known: Iterable[str]) -> str:
    known = sorted(known)
    close = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
    guess = f"; did you mean {close[0]}?" if close else ";"
    return f"{guess} known: {', '.join(known) or 'none'}"


def _variant(written: Written, cls: type[Environment]) -> dict[str, JSON]:
    if not written.part:
        return {}
    if "name" not in parameters_of(cls):
        raise UsageError(f"environment {written.spec!r}: {written.target} has no variants; write {written.target}")
    return {"name": written.part}


def _from_file(path: Path, name: str) -> _Found:
    if not path.is_file():
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.py")], n=1)
        guess = f"; did you mean {path.parent / near[0]}?" if near else "; check the path"
        raise UsageError(f"environment file {path} does not exist{guess}")
    if path.suffix != ".py":
        raise UsageError(f"environment file {path} is not a .py file; write path/to/file.py:Class")
    root, module = source.place(path)
    return _found_in(root, module, path.resolve(), name, str(path))


def _from_module(written: Written, folder: Path) -> _Found:
    here = source.find(folder, written.target) if written.part else None
    if here is not None:
        return _found_in(folder, written.target, here.resolve(), written.part, written.target)
    if not written.part or not _importable(written.target):
        hint = _meant(written.target, _targets())
        raise UsageError(f"unknown environment {written.target!r}{hint}; or file.py:Class, or module:Class")
    module = _imported(lambda: importlib.import_module(written.target), written.target, None)
    path = Path(module.__file__).resolve() if module.__file__ else None
    if path is not None and source.is_own(path):
        root, dotted = source.place(path)
        return _found_in(root, dotted, path, written.part, written.target)
    cls = _class_of(module, written.part, written.target)
    return _Found(cls, f"{written.target}:{written.part}")


def _importable(module: str) -> bool:
    names = module.split(".")
    return all(n.isidentifier() for n in names) and (names[0] in sys.modules or bool(find_spec(names[0])))


def _found_in(root: Path, module: str, path: Path, name: str, where: str) -> _Found:
    before = source.imported_beneath(root)
    loaded = _imported(lambda: source.import_from(root, module), where, root)
    cls = _class_of(loaded, name, where)
    return _Found(cls, f"{module}:{name or cls.__name__}", path, frozenset(source.imported_beneath(root) - before))


def _imported(load: Callable[[], ModuleType], where: str, root: Path | None) -> ModuleType:
    try:
        return load()
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"environment {where} cannot be imported: {source.explain(error, root)}") from error


def _class_of(module: ModuleType, name: str, where: str) -> type[Environment]:
    if name and hasattr(module, name):
        return _checked(getattr(module, name), f"{where}:{name}")
    own = [v for v in vars(module).values() if _is_environment(v) and v.__module__ == module.__name__]
    classes = {cls.__name__: cls for cls in own}
    if name:
        raise UsageError(f"{where} has no {name}{_meant(name, classes)}")
    if len(classes) != 1:
        found = ", ".join(sorted(classes)) or "none"
        raise UsageError(
            f"{where} must hold exactly one Environment to be named alone; found: {found}; write {where}:Class"
        )
    return next(iter(classes.values()))


def _is_environment(value: object) -> TypeGuard[type[Environment]]:
    return inspect.isclass(value) and issubclass(value, Environment) and value is not Environment


def _checked(value: object, where: str) -> type[Environment]:
    if not _is_environment(value):
        raise UsageError(f"{where} is not an Environment; write class {where.split(':')[-1]}(rollbook.Environment)")
    return value


def _with(cls: type[Environment], args: dict[str, JSON], name: str, option: str, value: str | None) -> dict[str, JSON]:
    if value is None:
        return args
    if name not in parameters_of(cls):
        way = f"its __init__ needs a parameter called {name}"
        raise UsageError(f"{option} {value}: {cls.__name__} takes no {name}; {way}")
    if name in args:
        raise UsageError(f"{option} {value}: the environment's own arguments already give {name}={args[name]!r}")
    return {**args, name: value}


def _missing(cls: type[Environment], args: dict[str, JSON]) -> list[str]:
    """The parameters that must be given, and are not."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    needed = [p.name for p in parameters_of(cls).values() if p.kind in kinds and p.default is p.empty]
    return [name for name in needed if name not in args]


def _loaded(spec: str, found: _Found, args: dict[str, JSON]) -> Loaded:
    shape(found.cls)  # what is wrong with the class comes before what is wrong with its arguments
    instance = construct(found.cls, args)
    return Loaded(described(spec, found, args, instance), found.cls, instance, found.path, found.files)


def described(spec: str, found: _Found, args: dict[str, JSON], instance: Environment) -> EnvironmentSpec:
    """What another process, or another day, needs to know of an environment."""
    form = shape(found.cls, bool(instance.mcp))
    return EnvironmentSpec(
        spec,
        found.target,
        args,
        verify=form.verify,
        state=form.state,
        tools=list(tools_of(found.cls)),
        offers=offers(found.cls) or bool(instance.mcp),
        replies=found.cls.reply is not Environment.reply,
        plays=plays(found.cls),
        appeals=appeals(found.cls),
    )


def construct(cls: type[Environment], args: dict[str, JSON]) -> Environment:
    """An instance with these arguments; what is wrong with them is said in one line."""
    taken = parameters_of(cls)
    if not any(p.kind is p.VAR_KEYWORD for p in taken.values()):
        for key in args:
            if key not in taken:
                raise UsageError(f"{cls.__name__} takes no argument {key!r}{_meant(key, taken)}")
    for key, value in args.items():
        _check_number(cls, key, value)
    try:
        return cls(**args)
    except RollbookError:
        raise
    except TypeError as error:
        signature = ", ".join(map(str, taken.values()))
        raise UsageError(f"{cls.__name__}: {error}; its arguments are {cls.__name__}({signature})") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"{cls.__name__}: {source.explain(error, Path(inspect.getfile(cls)).parent)}") from error


def _check_number(cls: type[Environment], key: str, value: JSON) -> None:
    """What is annotated as a number must be given one; what else annotations say is the class's affair."""
    parameter = parameters_of(cls).get(key)
    wanted = getattr(parameter, "annotation", None)
    name = wanted if isinstance(wanted, str) else getattr(wanted, "__name__", "")
    kinds = {"int": (int,), "float": (int, float)}.get(name)
    if kinds and (isinstance(value, bool) or not isinstance(value, kinds)):
        raise UsageError(f"{cls.__name__}: {key}={value!r}; give a {'whole ' if name == 'int' else ''}number")


def of(environment: Environment) -> Loaded:
    """The same for an instance made in Python. One that no process can import (a notebook's) must be async."""
    cls = type(environment)
    module, form = sys.modules[cls.__module__], shape(cls, bool(environment.mcp))
    file = getattr(module, "__file__", None)
    path = Path(file).resolve() if file else None
    if path is None or "<locals>" in cls.__qualname__:
        if form.verify == "sync" or form.state == "sync":
            raise UsageError(
                f"{cls.__name__} cannot be imported by environment processes; put it in a file or make it async"
            )
        found = _Found(cls, f"{cls.__module__}:{cls.__qualname__}")
    elif source.is_own(path):
        found = _Found(cls, f"{source.place(path)[1]}:{cls.__qualname__}", path)
    else:
        found = _Found(cls, f"{cls.__module__}:{cls.__qualname__}")
    return Loaded(described(found.target, found, arguments_of(environment), environment), cls, environment, found.path)
