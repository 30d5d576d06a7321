"""The laws are part of `make test`; all the other ways to break things take their time, in `make test-faults`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.commands import Commands
from support.sums import write_sums

HERE = Path(__file__).parent
LAWS = HERE / "test_laws.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here as slow, but for the laws: a file of them, and tests with that mark."""
    assert LAWS.is_file(), "without its laws, make test would run nothing of tests/faults"
    for item in items:
        if item.path.is_relative_to(HERE) and item.path != LAWS and not item.get_closest_marker("law"):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def rollbook(tmp_path: Path) -> Iterator[Commands]:
    """`rollbook ARGUMENTS` as processes in an empty folder; nothing of them outlives the test."""
    commands = Commands(tmp_path)
    yield commands
    commands.close()


@pytest.fixture
def sums(tmp_path: Path) -> str:
    """The spec of an environment of sums, up to its argument `?tasks=`."""
    return write_sums(tmp_path)
