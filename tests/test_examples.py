"""Every example in a docstring of the package is run, wherever its module is."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import rollbook

HOME = Path(rollbook.__file__).parent
LEAST = 115
"""How many examples there are at least: a module that is moved or merged keeps its own."""


def module_of(path: Path) -> str:
    """The dotted name of a file of the package."""
    parts = path.relative_to(HOME.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


EXAMPLES = {
    module_of(path): path.read_text().count("\n    >>> ") + path.read_text().count("\n        >>> ")
    for path in sorted(HOME.rglob("*.py"))
    if ">>> " in path.read_text()
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_in_docstrings_are_true(name: str) -> None:
    done = doctest.testmod(importlib.import_module(name))
    assert (done.failed, done.attempted) == (0, EXAMPLES[name])


def test_no_example_was_lost() -> None:
    assert sum(EXAMPLES.values()) >= LEAST
