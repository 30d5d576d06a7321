import pytest

from rollbook.viewer.run_cache import CachedRun
from support.sample_runs import showcase
from support.viewing import Served


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A folder of three runs: baseline and tuned of the same tasks, and one that was stopped."""
    return showcase(tmp_path_factory.mktemp("view") / "runs", tasks=12, samples=4)


@pytest.fixture(scope="session")
def served(runs):
    with Served(runs) as server:
        yield server


@pytest.fixture(scope="session")
def baseline(runs):
    return CachedRun(runs / "baseline").take_snapshot()


@pytest.fixture(scope="session")
def stopped(runs):
    return CachedRun(runs / "stopped").take_snapshot()
