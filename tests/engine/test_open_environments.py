"""What a worker opens is closed, whatever becomes of the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from rollbook import Environment, Rollout, Task
from rollbook.core import Limits
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
