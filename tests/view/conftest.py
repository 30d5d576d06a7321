import pytest

from rollbook.view.opened import Opened
from support.showcase import showcase
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
    return Opened(runs / "baseline").look()


@pytest.fixture(scope="session")
def stopped(runs):
    return Opened(runs / "stopped").look()
