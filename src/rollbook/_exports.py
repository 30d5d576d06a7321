"""How the package is imported: public names are loaded on first use, and modules that have moved are found.

This module is loaded by `import rollbook`, so it imports nothing at the top.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec

RENAMED = {
    "rollbook.trainers.nemo_rl.Return": "StepReturn",
    "rollbook.trainers.trl.exported": "to_trl",
    "rollbook.trainers.verl.Padded": "PaddedBatch",
    "rollbook.trainers.verl.padded": "pad_batch",
}
"""Public names that were renamed, and their new names in the same package; the old ones work with a warning."""


def export_lazily(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package that imports its public names only for type checkers.

    The imports under `if TYPE_CHECKING` in the package's `__init__.py` say which module has which name; they are read
    when a name is first asked for. Importing the package imports none of its modules, so start-up time does not depend
    on what is exported.
    """
    homes: dict[str, str] = {}

    def get(name: str) -> object:
        if not homes:
            homes.update(_read_imports(package))
        if name not in homes and f"{package}.{name}" in RENAMED:
            return get(_warn_renamed(package, name))
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        value: object = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: list(sys.modules[package].__all__)


def _warn_renamed(package: str, name: str) -> str:
    """Warn about the old name of a public name, and return the new one."""
    import warnings

    new = RENAMED[f"{package}.{name}"]
    warnings.warn(f"{package}.{name} was renamed: write `from {package} import {new}`", FutureWarning, 3)
    return new


def _read_imports(package: str) -> dict[str, str]:
    """Map each name that a package imports for type checkers to the module that it is imported from.

    By a regular expression: parsing the source of every package would make start-up measurably slower.
    """
    import re

    source = sys.modules[package].__loader__.get_source(package)  # type: ignore[union-attr]
    imports = re.findall(r"^    from (\S+) import (?:\(([^)]*)\)|(.+))$", source, re.MULTILINE)
    return {name: module for module, *names in imports for name in re.findall(r"\w+", " ".join(names))}


class MovedModules:
    """A finder that Python asks after every other one: for modules of this package that are not there (any more)."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Find a module under its old name; for another missing module of this package, say where to look."""
        if not name.startswith("rollbook."):
            return None
        from rollbook._moved import find_moved

        return find_moved(name)


def find_moved_modules() -> None:
    """Let Python find modules under their old names."""
    if MovedModules not in sys.meta_path:
        sys.meta_path.append(MovedModules)
