"""An outside program as an agent: any command that asks a model over HTTP, recorded call by call.

The program gets the model's address and the task in environment variables. It runs in a folder of its own, as long as
the rollout may take, and ends with everything it started. It is trusted like its user, not sandboxed. The gateway
that serves the model is in a higher layer and is found by entry point.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shlex
import shutil
import signal
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from rollbook.agents.agent import EnvironmentAccess
from rollbook.core import Message, Rollout, encode_pretty
from rollbook.errors import ChildFailed, ContextFull, LimitReached, RolloutFailed, UsageError
from rollbook.models import AskModel
from rollbook.processes import Child, module_argv

WHERE = "program"
PROGRAM_PREFIX = "program:"
TASK_VARIABLE, ANSWER_VARIABLE = "ROLLBOOK_TASK", "ROLLBOOK_ANSWER"
GATEWAY_GROUP = "rollbook.gateways"
"""The entry points of gateways that serve a model over HTTP: they are in a higher layer."""

ANSWER_LIMIT = 1 << 20
MERGE_OUTPUTS = ("/bin/sh", "-c", 'exec "$@" 2>&1', "sh")
"""Merges both outputs of a command into one stream, which is read as it comes: none of it accumulates on a disk."""

TAIL_LINES, TAIL_CHARS = 20, 1500
"""Lines and characters of the output's end: the end is the most informative part; a failure's message is cut to it."""

SIGNAL_EXIT_BASE = 128
_READ_BYTES = 1 << 16
_LOOPBACK = "127.0.0.1,localhost"


class GatewayEndpoint(Protocol):
    """The address of the model for one program. `broken` is set when continuing is useless."""

    url: str
    broken: asyncio.Event

    @property
    def calls(self) -> int:
        """The number of answered calls."""
        ...

    def raise_failure(self) -> None:
        """Raise the failure of the calls, if not every one was answered."""


class ModelGateway(Protocol):
    """Serves a model at an address."""

    def open(self, rollout: Rollout, ask: AskModel) -> AbstractAsyncContextManager[GatewayEndpoint]:
        """Open an address that answers with `ask` and records into the rollout, while the context is open."""
        ...


class Program:
    """Runs a command for each rollout; relative names of files in it are resolved once.

    The content of the file ROLLBOOK_ANSWER becomes the rollout's last message, under the name `program`. `hidden` are
    variables that the program must not see: those that hold keys of real endpoints.
    """

    def __init__(
        self, command: str | Sequence[str], gateway: ModelGateway | None = None, *, hidden: Collection[str] = ()
    ) -> None:
        self.command = resolve_command(command)
        self._gateway, self._hidden = gateway, frozenset(hidden)

    def __repr__(self) -> str:
        return f"Program({shlex.join(self.command)!r})"

    async def play(self, rollout: Rollout, ask: AskModel, environment: EnvironmentAccess) -> None:
        """Run the program from start to end, however it ends."""
        if environment.tools:
            raise UsageError(f"{self!r} cannot call the tools of {rollout.task.env}: leave the agent out")
        gateway = self._gateway or load_gateway()
        async with _temporary_folder() as folder, gateway.open(rollout, ask) as endpoint:
            run = _ProgramProcess(self.command, folder, _make_environ(rollout, folder, endpoint.url, self._hidden))
            code = await run.wait(endpoint)
            try:
                endpoint.raise_failure()
            except (ContextFull, LimitReached):
                _read_answer(rollout, folder / "answer")
                raise
            check_program_exit(code, run.output_tail(), endpoint.calls)
            _read_answer(rollout, folder / "answer")


@asynccontextmanager
async def _temporary_folder() -> AsyncIterator[Path]:
    """Yield the folder of one rollout, deleted afterwards; removing what a program leaves there may take long."""
    folder = tempfile.TemporaryDirectory(prefix="rollbook-program-", ignore_cleanup_errors=True)
    try:
        yield Path(folder.name)
    finally:
        await asyncio.shield(asyncio.to_thread(folder.cleanup))


class _ProgramProcess:
    """One process of the program, with its supervisor: if either dies, nothing of it is left."""

    def __init__(self, command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> None:
        work = folder / "work"
        work.mkdir()
        self._output = b""
        self._ours, theirs = socket.socketpair()
        names = ",".join(name for name in environ if "," not in name)
        with theirs:
            argv = module_argv("rollbook.processes.supervisor", str(theirs.fileno()), names, *MERGE_OUTPUTS, *command)
            try:
                self._child = Child(argv, env=environ, cwd=work, pass_fds=[theirs.fileno()])
            except ChildFailed as error:
                self._ours.close()
                raise RolloutFailed("agent_error", WHERE, str(error)) from error
        self._ours.shutdown(socket.SHUT_WR)  # its standard input is empty
        self._ours.setblocking(False)

    async def wait(self, endpoint: GatewayEndpoint) -> int:
        """Return the exit code. Kill the program if the endpoint breaks or the caller is cancelled."""
        done = asyncio.Event()
        self._child.call_on_exit(asyncio.get_running_loop(), done.set)
        tasks = [asyncio.create_task(work) for work in (done.wait(), endpoint.broken.wait(), self._drain())]
        try:
            await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            code = await asyncio.shield(self._kill())
        return code

    async def _kill(self) -> int:
        """Kill what is left of the program, and close the socket."""
        try:
            code = await self._child.kill_tree()
            with suppress(BlockingIOError, ConnectionError):
                while self._append_output(self._ours.recv(_READ_BYTES)):
                    continue
        except ChildFailed as error:
            raise RolloutFailed("agent_error", WHERE, str(error)) from error
        finally:
            self._ours.close()
        return code

    async def _drain(self) -> None:
        """Read its output: an unread pipe would block the program."""
        with suppress(ConnectionError):
            while self._append_output(await asyncio.get_running_loop().sock_recv(self._ours, _READ_BYTES)):
                continue

    def _append_output(self, data: bytes) -> bool:
        self._output = (self._output + data)[-_READ_BYTES:]
        return bool(data)

    def output_tail(self) -> str:
        """Return the end of the output; if the program could not start, the reason."""
        text = self._output.decode(errors="replace").strip() or self._child.log_tail(TAIL_LINES).strip()
        return "\n".join(text.splitlines()[-TAIL_LINES:])[-TAIL_CHARS:]


def check_program_exit(code: int, output: str, calls: int) -> None:
    """Fail if the program failed or never called the model, whatever was recorded."""
    if code:
        raise RolloutFailed("agent_error", WHERE, f"{_describe_exit(code)}: {output or 'it printed nothing'}")
    if not calls:
        raise RolloutFailed("agent_error", WHERE, f"it ended without calling the model{output and f': {output}'}")


def _describe_exit(code: int) -> str:
    signalled = code - SIGNAL_EXIT_BASE if code > 0 else -code  # reported by a shell, or by the supervisor
    return f"killed by signal {signalled}" if signalled in signal.valid_signals() else f"exit {code}"


def _read_answer(rollout: Rollout, path: Path) -> None:
    """Append the answer that the program left, if any; refuse anything but a small regular file."""
    try:
        status = path.lstat()
        raw = path.read_bytes() if stat.S_ISREG(status.st_mode) and status.st_size <= ANSWER_LIMIT else None
    except FileNotFoundError:
        return
    except OSError as error:
        raise RolloutFailed("agent_error", WHERE, f"{ANSWER_VARIABLE}: {error.strerror}") from None
    if raw is None:
        raise RolloutFailed("agent_error", WHERE, f"{ANSWER_VARIABLE} is not a file of at most {ANSWER_LIMIT} bytes")
    answer = Message("assistant", raw.decode(errors="replace"), name="program")
    rollout.messages = [*rollout.messages, answer]


def _make_environ(rollout: Rollout, folder: Path, url: str, hidden: frozenset[str]) -> dict[str, str]:
    """Return the program's variables: all of ours, with our gateway in place of real endpoints and keys."""
    task = {"id": rollout.task.id, "sample": rollout.sample, "prompt": rollout.task.prompt}
    (folder / "task.json").write_bytes(encode_pretty({**task, "messages": rollout.task.messages}))
    environ = {name: value for name, value in os.environ.items() if name not in hidden | {"ANTHROPIC_AUTH_TOKEN"}}
    no_proxy = ",".join(filter(None, (environ.get("NO_PROXY") or environ.get("no_proxy"), _LOOPBACK)))
    return {
        **environ,
        **make_gateway_variables(url),
        "NO_PROXY": no_proxy,
        "no_proxy": no_proxy,
        TASK_VARIABLE: str(folder / "task.json"),
        ANSWER_VARIABLE: str(folder / "answer"),
    }


def make_gateway_variables(url: str) -> dict[str, str]:
    """Return the variables by which clients of models find the gateway."""
    key = "rollbook"
    return {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_BASE": f"{url}/v1",
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": key,
    }


def resolve_command(command: str | Sequence[str]) -> list[str]:
    """Return the words of a command, with files as absolute paths; UsageError if there is no such program."""
    try:
        words = shlex.split(command) if isinstance(command, str) else list(command)
    except ValueError as error:
        raise UsageError(f"program:{command}: {error}") from None
    if not words:
        raise UsageError("program: give a command, as in --agent 'program:python agent.py'")
    if shutil.which(words[0]) is None:
        raise UsageError(f"program:{words[0]}: there is no such program")
    has_path = Path(words[0]).name != words[0]  # else it is found on PATH, whatever is in this folder
    return [
        str(Path(word).absolute()) if (number or has_path) and Path(word).is_file() else word
        for number, word in enumerate(words)
    ]


def hash_command_files(words: Sequence[str]) -> str:
    """Return the sha256 of all files that a command names by absolute paths, in their order."""
    digest = hashlib.sha256()
    for word in words:
        if Path(word).is_absolute() and Path(word).is_file():
            with open(word, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


@cache
def load_gateway() -> ModelGateway:
    """Return the gateway that is installed."""
    for entry in entry_points(group=GATEWAY_GROUP, name="local"):
        gateway: ModelGateway = entry.load()()
        return gateway
    raise UsageError("no gateway is installed: install rollbook again")
