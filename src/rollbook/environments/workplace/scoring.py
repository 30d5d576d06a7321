"""What has changed in a world, and whether that is what was asked for: the state decides, never the path."""

from __future__ import annotations

from typing import Any

from rollbook.core.json import JSON
from rollbook.environments.workplace.world import Record, World

UNORDERED = ("attendees", "to", "labels")
SHOWN = 5
SHOWN_CHARS = 200


def changes(world: World) -> dict[str, JSON]:
    """Every record that was added, removed or altered since the beginning. New ones are told without their ids."""
    found: dict[str, JSON] = {}
    for table, records in world.tables.items():
        told = _changes(world.first[table], records)
        if told:
            found[table] = told
    return found


def _changes(before: dict[str, Record], after: dict[str, Record]) -> dict[str, JSON]:
    added = [record for name, record in after.items() if name not in before]
    removed = [name for name in before if name not in after]
    altered = {name: _altered(before[name], record) for name, record in after.items() if name in before}
    told = {"added": added, "removed": removed, "altered": {name: what for name, what in altered.items() if what}}
    return {how: what for how, what in told.items() if what}


def _altered(before: Record, after: Record) -> Record:
    return {field: value for field, value in after.items() if value != before[field]}


def facts(told: JSON) -> list[str]:
    """Changes as lines that can be compared: in one order, and in one way of writing each text."""
    lines = []
    for table, kinds in (told or {}).items():
        lines += [f"{table}: added {_written(record)}" for record in kinds.get("added", ())]
        lines += [f"{table}: removed {name}" for name in kinds.get("removed", ())]
        for name, what in kinds.get("altered", {}).items():
            lines += [f"{table}: {name} {field} = {_folded(value, field)}" for field, value in what.items()]
    return sorted(lines)


def _written(record: Record) -> str:
    return ", ".join(f"{field} = {_folded(value, field)}" for field, value in sorted(record.items()))


def _folded(value: Any, field: str) -> str:
    """A value however it is capitalised, spaced, quoted, or ended with a full stop."""
    if isinstance(value, list):
        items = [_folded(item, field) for item in value]
        return f"[{' | '.join(sorted(items) if field in UNORDERED else items)}]"
    return " ".join(str(value).casefold().split()).strip(" .!'\"")


def compared(wanted: JSON, found: JSON) -> tuple[list[str], list[str]]:
    """What is missing and what should not be there; a fact that is there twice is there once too often."""
    missing, extra = facts(wanted), []
    for fact in facts(found):
        if fact in missing:
            missing.remove(fact)
        else:
            extra.append(fact)
    return missing, extra


def brief(lines: list[str]) -> list[str]:
    """A few of them, for the record."""
    return [line[:SHOWN_CHARS] for line in lines[:SHOWN]]
