"""The catalogue: sets of rows on the Hugging Face hub that can be run by name, each with its scorer and its template.

`catalogue.yaml` lists them. Nothing of them is part of Rollbook: rows are read from the hub when a run is planned.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

CATALOGUE_FILE = Path(__file__).with_name("catalogue.yaml")
TEMPLATE_SCHEME = "catalogue:"
"""How the template of an entry is named where the path of a file is expected: `catalogue:mmlu`."""


class CatalogueEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One set of rows."""

    about: str
    data: str
    """Where its rows are: hf://org/name with config, split and revision."""
    environment: str
    """The spec of the environment that scores it."""
    template: str
    """The text of its prompt template."""
    columns: dict[str, str]
    """The columns that are used, and what they hold."""
    licence: str


@cache
def read_catalogue() -> dict[str, CatalogueEntry]:
    """Return every entry by its name."""
    import yaml

    text = CATALOGUE_FILE.read_text(encoding="utf-8")
    return msgspec.convert(yaml.safe_load(text), dict[str, CatalogueEntry])


def find_entry(name: str) -> CatalogueEntry | None:
    """Return the entry of a name, if there is one."""
    return read_catalogue().get(name) if name.isidentifier() else None
