"""Containers for plain methods: an environment process asks its worker, which owns the container, and waits.

`SyncContainerHandle` is what `open`, tools and `verify` get in the environment process; `answer_request` does in the
worker what it asks for. One request is on its way at a time: the process executes one call at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rollbook.core import JSON
from rollbook.environments.calls import ContainerAnswer, ContainerRequest, WorkerChannel
from rollbook.errors import ContainerError, ImageError

if TYPE_CHECKING:
    from rollbook.containers import CommandResult, ContainerHandle

COMMAND_S = 60.0
ERRORS: Mapping[str, type[Exception]] = {
    each.__name__: each
    for each in (ContainerError, ImageError, FileNotFoundError, OSError, ValueError, TypeError, RuntimeError)
}


class SyncContainerHandle:
    """The container of a rollout, for plain methods: every method waits until it is done."""

    def __init__(self, channel: WorkerChannel, session: str) -> None:
        self._channel, self._session = channel, session

    def run(
        self,
        command: str,
        *,
        timeout_s: float = COMMAND_S,
        user: str = "",
        workdir: str = "",
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        """Run a command by bash (sh without one); nothing of it stays but its files and background processes."""
        from rollbook.containers import CommandResult

        named = {"timeout_s": timeout_s, "user": user, "workdir": workdir, "env": dict(env or {})}
        answer = self._ask("run", {"command": command, **named})
        return CommandResult(output=answer.data, **answer.value)

    def read(self, path: str, *, user: str = "") -> bytes:
        """Return the content of a file; FileNotFoundError if there is none that can be read."""
        return self._ask("read", {"path": path, "user": user}).data

    def write(self, path: str, data: str | bytes, *, user: str = "") -> None:
        """Write a file; its folder is made if it is missing."""
        self._ask("write", {"path": path, "user": user}, data.encode() if isinstance(data, str) else data)

    def upload(self, source: Path | str, target: str) -> None:
        """Copy a file or a folder of this machine to a path inside; what a folder holds goes into the target."""
        self._ask("upload", {"source": str(Path(source).absolute()), "target": target})

    def download(self, source: str, target: Path | str) -> list[str]:
        """Copy a file or folder from inside into a folder of this machine; return the names that are left out.

        A link to a regular file of the same folder becomes a copy; other links, devices and pipes are left out.
        """
        return list(self._ask("download", {"source": source, "target": str(Path(target).absolute())}).value)

    def snapshot(self) -> str:
        """Return the name of an image of what is inside now; it is removed together with the container."""
        return str(self._ask("snapshot", {}).value)

    def _ask(self, method: str, arguments: dict[str, JSON], data: bytes = b"") -> ContainerAnswer:
        if self._channel.is_forked:
            raise ContainerError("only the environment process itself can use its container, not a process it forked")
        answer = self._channel.exchange(ContainerRequest(self._session, method, arguments, data), ContainerAnswer)
        if answer.error:
            raise ERRORS[answer.error](answer.message)
        return answer


async def answer_request(container: ContainerHandle | None, request: ContainerRequest) -> ContainerAnswer:
    """Do what a request asks for; what goes wrong is raised again where it was asked."""
    if container is None:
        return ContainerAnswer("ContainerError", "the container can be used only during a call of its own rollout")
    try:
        return await _execute(container, request.method, request.arguments, request.data)
    except tuple(ERRORS.values()) as error:
        name = next(each for each in type(error).__mro__ if each.__name__ in ERRORS).__name__
        return ContainerAnswer(name, str(error))
    except Exception as error:  # noqa: BLE001 - the process that asked waits for an answer, whatever went wrong
        return ContainerAnswer(RuntimeError.__name__, f"{type(error).__name__}: {error}")


async def _execute(container: ContainerHandle, method: str, arguments: dict[str, JSON], data: bytes) -> ContainerAnswer:
    match method:
        case "run":
            result = await container.run(**arguments)
            value = msgspec.structs.asdict(result)
            return ContainerAnswer(data=value.pop("output"), value=value)
        case "read":
            return ContainerAnswer(data=await container.read(**arguments))
        case "write":
            await container.write(data=data, **arguments)
        case "upload":
            await container.upload(Path(arguments["source"]), arguments["target"])
        case "download":
            return ContainerAnswer(value=await container.download(arguments["source"], Path(arguments["target"])))
        case "snapshot":
            return ContainerAnswer(value=await container.snapshot())
        case _:
            raise ValueError(f"{method} is no method of a container")
    return ContainerAnswer()
