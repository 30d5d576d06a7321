from __future__ import annotations

import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cluster import Cluster, missing
from clustered import Stranger, Submit, Submitted

from support.commands import MARK, Commands
from support.sums import write_sums

MAX_ARRAY = 33
"""Small, so that 64 workers are more than one array."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One private cluster for all tests; a machine that cannot have one says why."""
    why = missing()
    if why:
        pytest.skip(f"NO SLURM HERE: {why}")
    started = Cluster(max_array=MAX_ARRAY, cpus=16)
    try:
        started.start()
        yield started
    finally:
        started.stop()
    assert started.processes() == [], "a process of a job outlived its cluster"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may enter; with a name that has to be quoted."""
    made = Path(tempfile.mkdtemp(prefix="rollbook it's %j "))
    made.chmod(0o777)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def rollbook(cluster: Cluster, folder: Path) -> Iterator[Commands]:
    """`rollbook ARGUMENTS` on a login node of the cluster; afterwards the cluster is empty again."""
    commands = Commands(folder)
    commands.environ |= {"SLURM_CONF": str(cluster.conf)}
    commands.environ.pop(MARK)  # jobs inherit it, and are the cluster's to end
    yield commands
    cluster.clear()


@pytest.fixture
def sums(folder: Path) -> str:
    """The spec of an environment of sums, up to its argument `?tasks=`."""
    return write_sums(folder)


@pytest.fixture
def profile(folder: Path) -> Callable[..., Path]:
    """Write a cluster profile."""

    def write(**keys: object) -> Path:
        path = folder / f"cluster-{secrets.token_hex(3)}.yaml"
        lines = {"partition": "cpu", "time": "30:00", "grace_s": 60} | keys
        path.write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
        return path

    return write


@pytest.fixture
def submit(cluster: Cluster, rollbook: Commands, folder: Path, profile: Callable[..., Path]) -> Submit:
    """Submit a run of `env`; the words are further options."""

    def start(env: str, *words: object, profile_keys: dict[str, object] | None = None) -> Submitted:
        run = folder / "run"
        options = ["--cluster", profile(**(profile_keys or {})), "-o", run, *words]
        return Submitted(cluster, run, rollbook.run("submit", env, *options))

    return start


@pytest.fixture
def stranger(rollbook: Commands, folder: Path) -> Stranger:
    """Somebody who is not root."""
    home = folder / "theirs"
    home.mkdir()
    home.chmod(0o777)
    found = Stranger(home, rollbook.environ)
    if not found.python:
        pytest.skip("no Python here that other users may run")
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They start a cluster: part of `make test-slurm` alone."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)
