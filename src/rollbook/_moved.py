"""Modules that have moved: old run directories, queued cluster scripts and users' files still name them.

A run directory holds a copy of the user's environment, which must not be edited, so imports of built-in environments
and those that the documentation once showed keep working with a warning that names the new location. Importing any
other name of an old module is a ModuleNotFoundError that says where to look; `_moved_modules.txt` lists the old
modules. A queued script runs `python -m` with a module name of the version that submitted it.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

RUN_BY_NAME = {
    "rollbook.clusters.beside": "rollbook.clusters.sandbox_sidecar",
    "rollbook.clusters.there": "rollbook.clusters.ssh_remote",
    "rollbook.clusters.ray.foreman": "rollbook.clusters.ray.driver",
    "rollbook.clusters.servers.mortal": "rollbook.clusters.servers.exec_child",
    "rollbook.clusters.servers.spread": "rollbook.clusters.servers.rank",
}
"""Modules that are run with `python -m`: by old scripts, and over ssh by peers of the previous version."""

DOCUMENTED = {
    "rollbook.book.rollouts:rollouts": "rollbook.book:rollouts",
    "rollbook.collect.blend:Entry": "rollbook.engine:Entry",
    "rollbook.collect.check:check": "rollbook.checks:check",
    "rollbook.core.score:Score": "rollbook.core:Score",
    "rollbook.core.turn:Turn": "rollbook.core:Turn",
    "rollbook.environments.fences:last_block": "rollbook.environments.answers:last_block",
    "rollbook.environments.rows:rows": "rollbook.environments:rows",
    "rollbook.environments.tool:tool": "rollbook.environments:tool",
    "rollbook.environments.workplace.workplace:Workplace": "rollbook.environments.builtin.workplace:Workplace",
    "rollbook.sandbox.grade:Grader": "rollbook.sandbox:Grader",
    "rollbook.tokens.continuation:Renders": "rollbook.tokens:Renders",
    "rollbook.tokens.continuation:continuation": "rollbook.tokens:continuation",
    "rollbook.trainers.openrlhf:executed": "rollbook.trainers:to_openrlhf",
    "rollbook.trainers.players:Players": "rollbook.trainers:TaskRunner",
    "rollbook.trainers.prime_rl:training_samples": "rollbook.trainers:to_prime_rl",
    "rollbook.trainers.sample:sample_of": "rollbook.trainers:sample_of",
    "rollbook.trainers.sample:Sample": "rollbook.trainers:Sample",
    "rollbook.trainers.skyrl:generator_output": "rollbook.trainers:to_skyrl",
    "rollbook.trainers.slime:sample_fields": "rollbook.trainers:to_slime",
    "rollbook.wire.gateway.record:Record": "rollbook.gateway:Record",
    "rollbook.wire.gym.harness:EnvironmentHarness": "rollbook.gym:EnvironmentHarness",
    "rollbook.wire.gym.harness:HarnessEnvironment": "rollbook.gym:HarnessEnvironment",
}
"""Names that the documentation showed in modules that are gone, and the interface that has them now."""

PACKAGES = {
    "rollbook.collect": ("rollbook.engine", "rollbook.reports", "rollbook.checks"),
    "rollbook.view": ("rollbook.viewer",),
    "rollbook.wire": ("rollbook.gym", "rollbook.gateway", "rollbook.sandbox"),
}
"""Packages that are gone, and where their contents are."""

HOME = Path(__file__).parent


class MovedModule(ModuleType):
    """Replaces a module that no longer exists; the names that still work are looked up where they are now."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") or f"{self.__name__}.{name}" in old_modules():
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        _unhide(self.__name__)
        home = DOCUMENTED.get(f"{self.__name__}:{name}") or _find_builtin(self.__name__, name)
        if home is None:
            raise AttributeError(_explain(self.__name__, name))
        package, _, new = home.partition(":")
        warnings.warn(f"{self.__name__}.{name} has moved: write `from {package} import {new}`", FutureWarning, 2)
        return getattr(import_module(package), new)


class MovedLoader:
    """Makes the module that replaces one that no longer exists."""

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        """Make the module; it has no code of its own."""
        return MovedModule(spec.name)

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Do nothing: names are looked up when they are used."""


@cache
def old_modules() -> dict[str, list[str]]:
    """Every module that is gone, and the modules in it if it was a package."""
    lines = (HOME / "_moved_modules.txt").read_text().splitlines()
    packages = {package: names.split() for package, _, names in (line.partition(": ") for line in lines)}
    modules = [f"{package}.{name}" for package, names in packages.items() for name in names]
    return {module: packages.get(module, []) for module in modules}


def find_moved(name: str) -> ModuleSpec | None:
    """The spec of a module under its old name; for a name in a module that is gone, an error with the place to look.

    Every old module is found, as a package: then Python asks here for each name that is imported from it, which alone
    can say where the name is. The error must not name what was asked for: Python would replace it by its own.
    """
    if name in RUN_BY_NAME:
        return _alias(name, RUN_BY_NAME[name])
    if name in old_modules():
        return ModuleSpec(name, MovedLoader(), is_package=True)  # type: ignore[arg-type]
    module, _, member = name.rpartition(".")
    if old_modules().get(module) == [] and not member.startswith("__"):
        raise ModuleNotFoundError(_explain(module, member), name=module)
    return None


def _alias(name: str, new: str) -> ModuleSpec | None:
    """The file of the new module under the old name, so that `python -m OLD` runs it as __main__."""
    found = find_spec(new)
    if found is None or found.origin is None:
        return None
    return spec_from_file_location(name, found.origin, loader=SourceFileLoader(name, found.origin))


def _unhide(module: str) -> None:
    """Show a public name of a package again: importing an old module of the same name has bound it to that module."""
    package, _, name = module.rpartition(".")
    parent = sys.modules[package]
    if name in getattr(parent, "__all__", ()) and isinstance(vars(parent).get(name), MovedModule):
        delattr(parent, name)


def _find_builtin(module: str, name: str) -> str | None:
    """Where a built-in environment is that was in an old module."""
    # Imported by name: lint-imports would take this for an import that every package has.
    target, _ = import_module("rollbook.core").translate_target(f"{module}:{name}", "")
    if target == f"{module}:{name}":
        return None
    cls = import_module("rollbook.environments").import_class(target)
    package = cls.__module__.rpartition(".")[0]
    return f"{package if _exports(package, cls.__name__) else cls.__module__}:{cls.__name__}"


def _explain(module: str, name: str) -> str:
    """Say that a module is gone, and where this name of it is, or at least where to look."""
    gone = next((old for old in PACKAGES if f"{module}.".startswith(f"{old}.")), None)
    packages = PACKAGES[gone] if gone else (".".join(module.split(".")[:2]),)
    homes = [home for package in packages for home in _find_name(package, name)]
    public = [home for home in homes if _exports(home, name)]
    if public:
        return f"{module} no longer exists: write `from {public[0]} import {name}`"
    if homes:
        return f"{module} no longer exists: {name} is now in {' or '.join(homes)}"
    return f"{module} no longer exists: its contents are in {' or '.join(packages)}, where nothing is named {name}"


def _find_name(package: str, name: str) -> Iterator[str]:
    """The packages in a package that export a name, and the modules that define it, by their text."""
    definition = re.compile(rf"^(?:(?:async def|def|class) {name}\b|{name}(?:: [^=\n]+)? = )", re.MULTILINE)
    for path in sorted(HOME.parent.joinpath(*package.split(".")).rglob("*.py")):
        module = ".".join(path.relative_to(HOME.parent).with_suffix("").parts).removesuffix(".__init__")
        if _exports(module, name) if path.stem == "__init__" else definition.search(path.read_text()):
            yield module


def _exports(package: str, name: str) -> bool:
    """Whether a name is one of the public names of a package."""
    init = HOME.parent.joinpath(*package.split("."), "__init__.py")
    return init.is_file() and f'"{name}"' in init.read_text().partition("\n__all__ = ")[2]
