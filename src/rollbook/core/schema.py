"""The JSON Schemas of a run directory's files, generated from the structs of core and frozen in core/schemas.

python -m rollbook.core.schema      writes them again: only for an intended change, with a new SCHEMA_VERSION
"""

from __future__ import annotations

from inspect import cleandoc
from pathlib import Path
from typing import Any

import msgspec

from rollbook.core.journal_lines import FailedLine, ScoredLine
from rollbook.core.json import encode_pretty
from rollbook.core.manifest import Lease, Manifest, Plan, Presence, Round, Seal
from rollbook.core.task import TaskLine

SCHEMA_FOLDER = Path(__file__).parent / "schemas"
SCHEMA_TYPES: dict[str, type[msgspec.Struct]] = {
    "run": Manifest,
    "task": TaskLine,
    "plan": Plan,
    "round": Round,
    "scored": ScoredLine,
    "failed": FailedLine,
    "done": Seal,
    "lease": Lease,
    "worker": Presence,
}


def generate_schemas() -> dict[str, dict[str, Any]]:
    """Return every schema by the name of its file."""
    return {name: _clean_descriptions(msgspec.json.schema(struct)) for name, struct in SCHEMA_TYPES.items()}


def _clean_descriptions(value: Any) -> Any:
    """Strip the indentation of docstrings, which newer Pythons remove and older ones keep."""
    if isinstance(value, list):
        return [_clean_descriptions(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        k: cleandoc(v) if k == "description" and isinstance(v, str) else _clean_descriptions(v)
        for k, v in value.items()
    }


if __name__ == "__main__":
    SCHEMA_FOLDER.mkdir(exist_ok=True)
    for name, schema in generate_schemas().items():
        (SCHEMA_FOLDER / f"{name}.json").write_bytes(encode_pretty(schema))
