"""The JSON Schemas of a run directory's files, generated from the nouns and frozen in core/schemas.

python -m rollbook.core.schema      writes them anew: a change on purpose, with a new SCHEMA
"""

from __future__ import annotations

from inspect import cleandoc
from pathlib import Path
from typing import Any

import msgspec

from rollbook.core.json import pretty
from rollbook.core.lease import Lease
from rollbook.core.line import FailedLine, ScoredLine
from rollbook.core.manifest import Manifest, Round
from rollbook.core.plan import Plan
from rollbook.core.presence import Presence
from rollbook.core.seal import Seal
from rollbook.core.task import TaskLine

FOLDER = Path(__file__).parent / "schemas"
FILES: dict[str, type[msgspec.Struct]] = {
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


def generate() -> dict[str, dict[str, Any]]:
    """Every schema by the name of its file."""
    return {name: _clean(msgspec.json.schema(noun)) for name, noun in FILES.items()}


def _clean(value: Any) -> Any:
    """Docstrings without their indentation, which newer Pythons strip and older ones keep."""
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {k: cleandoc(v) if k == "description" and isinstance(v, str) else _clean(v) for k, v in value.items()}


def frozen(name: str) -> dict[str, Any]:
    """A schema as it was frozen."""
    schema: dict[str, Any] = msgspec.json.decode((FOLDER / f"{name}.json").read_bytes())
    return schema


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, schema in generate().items():
        (FOLDER / f"{name}.json").write_bytes(pretty(schema))
