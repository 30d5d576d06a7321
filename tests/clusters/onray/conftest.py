from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from raycluster import RayCluster, missing

from support.commands import Commands, Process, Served
from support.sums import write_sums

Serve: TypeAlias = Callable[..., Served]
Rollbook: TypeAlias = Callable[..., Process]


@pytest.fixture(scope="session")
def cluster() -> Iterator[RayCluster]:
    """One cluster for all tests; a machine that cannot have one says why."""
    why = missing()
    if why:
        pytest.skip(f"NO RAY HERE: {why}")
    started = RayCluster()
    yield started
    started.stop()


@pytest.fixture
def commands(cluster: RayCluster, tmp_path: Path) -> Iterator[Commands]:
    """`rollbook ARGUMENTS` on a machine of the cluster, which --address auto finds."""
    made = Commands(tmp_path)
    made.environ["RAY_ADDRESS"] = cluster.address
    yield made
    made.close()


@pytest.fixture
def sums(tmp_path: Path) -> str:
    """The spec of an environment of sums, up to its argument `?tasks=`."""
    return write_sums(tmp_path)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They start a cluster: part of `make test-ray` alone."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.filterwarnings("ignore"))
