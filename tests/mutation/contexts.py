"""A pytest plugin that names the running test to coverage, so that it records which tests run a line."""

from __future__ import annotations

from collections.abc import Iterator

import coverage
import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Record what runs during a test, its fixtures included, under the name by which pytest selects it."""
    current = coverage.Coverage.current()
    if current:
        current.switch_context(item.nodeid)
    return (yield)
