"""Tests with real containers: `make test-containers`. Elsewhere they are skipped, loudly."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from base_image import IMAGE, WithHost, list_left, missing

from rollbook.containers import ContainerHost


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the tests of this folder to their own target: they take minutes."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def base_image() -> str:
    """The image that all tests use; a machine that has none says why."""
    if why := missing():
        pytest.skip(f"NO CONTAINERS HERE: {why}")
    return IMAGE


@pytest.fixture
def with_host() -> WithHost:
    """Run a test with the containers of this process; nothing may be left of them."""

    def run(work: Callable[[ContainerHost], Awaitable[None]]) -> None:
        async def main() -> None:
            host = ContainerHost()
            await host.open()
            try:
                await work(host)
            finally:
                await host.close()

        asyncio.run(main())
        assert list_left() == []

    return run
