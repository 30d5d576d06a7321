"""What a worker opens is closed, whatever becomes of the rest."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollbook import Environment, Rollout, Task
from rollbook.core import EnvironmentSpec, Limits, Sampling, Terms
from rollbook.engine import book_worker
from rollbook.engine.book_worker import open_environments
from rollbook.environments import load_instance


class Stopping(Environment):
    """Takes its time to stop, or cannot."""

    def __init__(self, fails: bool) -> None:
        self.fails, self.stopped = fails, False

    def tasks(self) -> Iterator[Task]:
        return iter(())

    async def verify(self, task: Task, rollout: Rollout) -> bool:
        return True

    async def stop(self) -> None:
        if self.fails:
            raise ConnectionError("it is gone")
        await asyncio.sleep(0.05)
        self.stopped = True


def test_one_that_cannot_be_stopped_does_not_keep_others_from_it() -> None:
    bad, good = Stopping(fails=True), Stopping(fails=False)
    specs = {name: load_instance(env).spec for name, env in (("bad", bad), ("good", good))}

    async def go() -> None:
        async with open_environments(specs, Limits(), run=None, hosts=1, instances={"bad": bad, "good": good}):
            pass

    with pytest.raises(ConnectionError, match="it is gone"):
        asyncio.run(go())
    assert good.stopped


@pytest.mark.parametrize(
    ("hosts", "others", "cores", "processes"),
    [(None, False, 3, 3), (None, False, 99, 8), (None, False, None, 1), (None, True, 3, 8), (5, False, 3, 5)],
)
def test_environments_have_as_many_processes_as_cores_or_more_where_they_wait_for_models(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hosts: int | None, others: bool, cores: int | None, processes: int
) -> None:
    made: list[dict[str, Any]] = []

    class Runtime:
        def __init__(self, spec: object, limits: Limits, **given: Any) -> None:
            made.append({"limits": limits, **given})

        async def open(self) -> None: ...

        async def close(self) -> None: ...

    monkeypatch.setattr(book_worker, "EnvironmentRuntime", Runtime)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    roles: Any = SimpleNamespace(meaning=SimpleNamespace(others={"user": 1} if others else {}))
    own = Terms("", 1, Sampling(), Limits(max_turns=2), "native")
    specs = {"a": EnvironmentSpec("a", "a:A"), "b": EnvironmentSpec("b", "b:B", terms=own)}

    async def go() -> None:
        opening = open_environments(specs, Limits(max_turns=9), run=tmp_path, hosts=hosts, roles=roles, playing=False)
        async with opening as opened:
            assert list(opened) == ["a", "b"]

    asyncio.run(go())
    assert [each["max_processes"] for each in made] == [processes] * 2
    assert [each["limits"].max_turns for each in made] == [9, 2]
    assert {each["log"] for each in made} == {tmp_path / "logs" / f"environment-{os.getpid()}.log"}
    assert {each["runs_rollouts"] for each in made} == {False}
