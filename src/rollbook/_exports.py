"""How the package is imported: public names are loaded on first use, and modules that have moved are found.

This module is loaded by `import rollbook`, so it imports nothing at the top.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from importlib.machinery import ModuleSpec


def export_lazily(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package whose public names are defined in its modules.

    `modules` maps a module (relative to the package, or absolute from `rollbook.`) to its public names, separated by
    spaces. Importing the package imports none of them: start-up time does not depend on what is exported.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        home = homes[name]
        value: object = getattr(import_module(home if home.startswith("rollbook.") else f"{package}.{home}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: list(sys.modules[package].__all__)


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
