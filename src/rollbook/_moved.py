"""Modules that have moved: old run directories, queued cluster scripts and users' files still name them.

A run directory holds a copy of the user's environment, which must not be edited, so imports that the documentation once
showed keep working with a warning that names the new location. Any other old module is a ModuleNotFoundError that says
where to look. A queued script runs `python -m` with a module name of the version that submitted it.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec, spec_from_file_location
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
    "rollbook.collect": "rollbook.engine, rollbook.reports or rollbook.checks",
    "rollbook.view": "rollbook.viewer",
    "rollbook.wire": "rollbook.gym, rollbook.gateway or rollbook.sandbox",
}
"""Packages that are gone, and where their contents are."""


class MovedModule(ModuleType):
    """Stands for a module that is gone; its documented names are looked up where they are now."""

    def __getattr__(self, name: str) -> object:
        home = DOCUMENTED.get(f"{self.__name__}:{name}")
        if home is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}{_hint(self.__name__)}")
        package, _, new = home.partition(":")
        warnings.warn(f"{self.__name__}.{name} has moved: write `from {package} import {new}`", FutureWarning, 2)
        # Not getattr: importing rollbook.environments.rows has bound that name in the package to this module.
        return import_module(package).__getattr__(new)


class MovedLoader:
    """Makes the module that stands for one that is gone."""

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        """Make the module; it has no code of its own."""
        return MovedModule(spec.name)

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Do nothing: names are looked up when they are used."""


def find_moved(name: str) -> ModuleSpec | None:
    """The spec of a module under its old name; for any other name, an error with the place to look."""
    if name in RUN_BY_NAME:
        return _alias(name, RUN_BY_NAME[name])
    if any(old.startswith((f"{name}:", f"{name}.")) for old in DOCUMENTED):
        return ModuleSpec(name, MovedLoader(), is_package=True)  # type: ignore[arg-type]
    raise ModuleNotFoundError(f"No module named {name!r}{_hint(name)}", name=name)


def _alias(name: str, new: str) -> ModuleSpec | None:
    """The file of the new module under the old name, so that `python -m OLD` runs it as __main__."""
    found = find_spec(new)
    if found is None or found.origin is None:
        return None
    return spec_from_file_location(name, found.origin, loader=SourceFileLoader(name, found.origin))


def _hint(name: str) -> str:
    for gone, now in PACKAGES.items():
        if name == gone or name.startswith(f"{gone}."):
            return f": {gone} is now {now}"
    package = ".".join(name.split(".")[:2])
    return f": import public names from {package}" if package != name and package in sys.modules else ""
