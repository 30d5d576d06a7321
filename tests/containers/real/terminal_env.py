"""A small environment of the kind that SWE sets are: a container, a tool, and tests that run inside."""

from __future__ import annotations

import os
from collections.abc import Iterator

import rollbook
from rollbook import Container, ContainerHandle, Environment, Rollout, Score, Task

IMAGE = os.environ.get("TERMINAL_IMAGE", "localhost/rollbook-test/debian:1")


class Terminal(Environment):
    """Make a program print the right word."""

    container = Container(image=IMAGE, memory_mb=256, workdir="/root")

    def __init__(self, tasks: int = 1, fail: str = "") -> None:
        self._count, self._fail = tasks, fail

    def tasks(self) -> Iterator[Task]:
        for number in range(self._count):
            yield Task(f"fix-{number}", f"Make /root/say.sh print w{number}.", answer=f"w{number}")

    async def open(self, task: Task, container: ContainerHandle) -> None:  # type: ignore[override]
        await container.write("/root/say.sh", "echo wrong\n")
        if self._fail == "open":
            await container.run("kill -9 -1; exit 1")
            await container.kill()
            await container.run("true")

    @rollbook.tool
    async def bash(self, command: str, container: ContainerHandle) -> str:
        """Run a command in a shell.

        Args:
            command: The command.
        """
        return (await container.run(command)).text

    async def verify(self, task: Task, rollout: Rollout, container: ContainerHandle) -> Score:  # type: ignore[override]
        said = await container.run("sh /root/say.sh")
        return Score(float(said.text.strip() == task.answer), parts={"said": float(said.exit_code == 0)})
