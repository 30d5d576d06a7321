"""The laws are part of `make test`; all the other ways to break things take their time, in `make test-faults`."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here as slow, but for the laws."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.path.name != "test_laws.py":
            item.add_marker(pytest.mark.slow)
