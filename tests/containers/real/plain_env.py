"""An environment with a container in plain code; what it does wrong is chosen by `fault`."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import rollbook
from rollbook import Container, Environment, Rollout, SyncContainerHandle, Task

IMAGE = "localhost/rollbook-test/debian:1"


class Plain(Environment):
    """Write a word; every method of the handle is used."""

    container = Container(image=IMAGE, memory_mb=256, workdir="/root", verify_timeout_s=60, open_timeout_s=20)

    def __init__(self, fault: str = "", meet: str = "") -> None:
        self._fault, self._meet = fault, meet

    def tasks(self) -> Iterator[Task]:
        yield Task("word", "Write hello into /root/word.txt.", answer="hello")

    def open(self, task: Task, container: SyncContainerHandle) -> str:
        if self._fault == "exit":
            os._exit(9)
        if self._fault == "hang":
            time.sleep(1000)
        if self._fault == "type":
            container.run("true", timeout_s="x")  # type: ignore[arg-type]
        if self._fault == "method":
            container.run(5)  # type: ignore[arg-type]
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "a.bin").write_bytes(b"\x00\xff")
            container.upload(Path(folder), "/data")
            container.run("cp /data/a.bin /data/b.bin")
            container.download("/data", Path(folder) / "out")
            assert (Path(folder) / "out" / "data" / "b.bin").read_bytes() == b"\x00\xff"
        assert container.read("/data/b.bin") == b"\x00\xff"
        assert container.snapshot().startswith("localhost/rollbook/snapshot:")
        try:
            container.read("/none")
        except FileNotFoundError:
            return "opened"
        raise AssertionError("a missing file was read")

    @rollbook.tool
    def bash(self, command: str, state: str, container: SyncContainerHandle) -> str:
        """Run a command.

        Args:
            command: The command.
        """
        if self._meet:
            wait_for_others(Path(self._meet))
        result = container.run(command, timeout_s=2, env={"STATE": state}, user="0")
        return f"{result.text}[{result.exit_code} {result.timed_out}]"

    def solve(self, task: Task, state: str, container: SyncContainerHandle) -> None:  # type: ignore[override]
        container.write("/root/word.txt", "hello")

    def verify(self, task: Task, rollout: Rollout, container: SyncContainerHandle) -> bool:  # type: ignore[override]
        return container.run("cat /root/word.txt").text.strip() == task.answer


def wait_for_others(folder: Path) -> None:
    """Wait until three processes are here at the same time."""
    (folder / str(os.getpid())).touch()
    deadline = time.monotonic() + 60
    while len(list(folder.iterdir())) < 3:
        if time.monotonic() > deadline:
            raise rollbook.RolloutFailed("environment_error", "tool", "the others did not come")
        time.sleep(0.05)
