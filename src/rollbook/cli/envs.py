"""`rollbook envs`: the environments that are known by name."""

from __future__ import annotations

from rollbook.cli import options as o
from rollbook.cli.tables import show_json, show_table


def command(json: o.Json = False) -> None:
    from rollbook.environments.registry import names

    known = names()
    if json:
        show_json(known)
        return
    show_table(["environment", "what it is"], [[env.name, env.description] for env in known])
    print("\nalso: path/to/file.py:Class, package.module:Class")
