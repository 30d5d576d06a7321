"""A pytest plugin for `mutate`: names the running test to coverage, which records what it runs, and times every test.

The seconds of the tests are written next to the data of coverage.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

SECONDS: dict[str, float] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Record what runs during a test, its fixtures included, under the name by which pytest selects it."""
    current = coverage.Coverage.current()
    if current:
        current.switch_context(item.nodeid)
    began = time.monotonic()
    try:
        return (yield)
    finally:
        SECONDS[item.nodeid] = time.monotonic() - began


def pytest_sessionfinish() -> None:
    """Write how long every test took."""
    current = coverage.Coverage.current()
    if current:
        Path(str(current.get_option("run:data_file"))).with_suffix(".json").write_text(json.dumps(SECONDS))
