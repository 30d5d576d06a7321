"""A worker really killed by the memory limit: the caller gets all it asked for, or an exception that says why."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from support.alive import eventually
from support.book_assertions import assert_adds_up, assert_complete
from support.commands import Commands, Process
from support.sums import write_script

pytestmark = pytest.mark.slow

LIMIT, MEAL = 400 << 20, 700 << 20

HOG = """
from pathlib import Path
from rollbook import Environment, Task

class Hog(Environment):
    def __init__(self, hungry, once=""):
        self.hungry, self.once = hungry, once

    def tasks(self):
        for i in range(20):
            yield Task(id=f"sum-{i}", prompt=f"What is {i} + {i}?", answer=str(2 * i))

    async def verify(self, task, rollout):
        fed = self.once and Path(self.once).exists()
        if (self.hungry == "all" or task.id == self.hungry) and not fed:
            if self.once:
                Path(self.once).touch()
            return len(b"x" * %d)
        return 1.0
"""

CALLER = """
import json, os, sys
from pathlib import Path

Path(sys.argv[1]).write_text(str(os.getpid()))

import rollbook

try:
    result = rollbook.run(
        sys.argv[2], sys.argv[3], out=sys.argv[4], samples=2, workers=2, concurrency=2
    )
    print(json.dumps({"scored": result.report.scored}))
except rollbook.Shortfall as short:
    fields = ("requested", "scored", "failed", "pending", "missing", "cause", "setting", "log")
    print(json.dumps({"words": str(short), **{name: getattr(short, name) for name in fields}}))
"""


class Ration:
    """A control group of our own beneath the one we are in, with a memory limit."""

    def __init__(self) -> None:
        self.folder = own_group() / f"rollbook-{secrets.token_hex(4)}"
        try:
            self.folder.mkdir()
        except OSError as error:
            pytest.skip(f"NOT TESTED: no control group can be made here ({error})")
        limit = next(
            (p for p in map(self.folder.joinpath, ("memory.limit_in_bytes", "memory.max")) if p.exists()), None
        )
        if limit is None:
            self.close()
            pytest.skip("NOT TESTED: the control groups of this machine do not limit memory")
        limit.write_text(str(LIMIT))

    @property
    def door(self) -> Path:
        """A process that writes its number here is in."""
        return self.folder / "cgroup.procs"

    def close(self) -> None:
        """Away with it, once nobody is in it."""
        assert eventually(self._removed, 20), f"{self.folder} is still in use: {self.door.read_text().split()}"

    def _removed(self) -> bool:
        with suppress(OSError):
            self.folder.rmdir()
        return not self.folder.exists()


def own_group() -> Path:
    """The memory control group that this process is in, of either version."""
    groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for _, controllers, path in groups:
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory") / path.lstrip("/")
    return Path("/sys/fs/cgroup") / next((path.lstrip("/") for _, names, path in groups if not names), "")


@pytest.fixture
def ration(rollbook: Commands) -> Iterator[Ration]:
    if sys.platform != "linux" or os.geteuid():
        pytest.skip("NOT TESTED: only root on Linux may limit the memory of a control group")
    made = Ration()
    yield made
    rollbook.close()
    made.close()


def call(rollbook: Commands, ration: Ration, query: str) -> Process:
    """`rollbook.run(..., workers=2)` from Python, in a process whose whole tree shares the ration."""
    (rollbook.folder / "hog.py").write_text(HOG % MEAL)
    (rollbook.folder / "caller.py").write_text(CALLER)
    model = write_script(rollbook.folder, count=20, delay_s=0.05)
    spec = f"{rollbook.folder / 'hog.py'}:Hog?{query}"
    done = rollbook.python(rollbook.folder / "caller.py", ration.door, spec, model, rollbook.folder / "run").wait(60)
    assert done.code == 0, done.stderr
    return done


def test_a_rollout_that_kills_every_worker_is_lost_and_the_caller_is_told(
    rollbook: Commands, ration: Ration, tmp_path: Path
) -> None:
    short = call(rollbook, ration, "hungry=sum-7").json
    assert_adds_up(short, 40)
    assert short["pending"] == 0
    assert set(short["failed"]) == {"worker_lost"}
    missing = {(task, sample) for task, sample, _ in short["missing"]}
    assert {("sum-7", 0), ("sum-7", 1)} <= missing
    assert len(missing) == short["failed"]["worker_lost"] <= 4, "more is lost than was in flight beside them"
    assert "SIGKILL" in short["cause"]
    assert "memory" in short["cause"]
    assert "--concurrency" in short["setting"]
    assert Path(short["log"]) == tmp_path / "run" / "logs"
    assert list(Path(short["log"]).glob("worker-*.log"))
    for word in (short["cause"], short["setting"], short["log"], "sum-7#"):
        assert word in short["words"]
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["failed"] == short["failed"]
    assert rollbook.nothing_left(), rollbook.left()


def test_a_worker_killed_once_is_replaced_and_nothing_is_missing(
    rollbook: Commands, ration: Ration, tmp_path: Path
) -> None:
    result = call(rollbook, ration, f"hungry=sum-7&once={tmp_path / 'fed'}").json
    assert (tmp_path / "fed").exists(), "nobody was killed"
    assert result == {"scored": 40}
    assert_complete(tmp_path / "run")
    assert len(list((tmp_path / "run" / "workers").glob("*.json"))) == 3


def test_when_every_worker_is_killed_the_caller_is_told_and_does_not_wait_for_ever(
    rollbook: Commands, ration: Ration
) -> None:
    short = call(rollbook, ration, "hungry=all").json
    assert_adds_up(short, 40)
    assert short["scored"] == 0
    assert short["pending"] > 0
    assert short["missing"]
    assert "SIGKILL" in short["cause"]
    assert "memory" in short["cause"]
    assert "--concurrency" in short["words"]
    assert short["log"] in short["words"]
