"""An outside program as an agent: any command that asks a model over HTTP, recorded call by call.

The program learns from its environment variables where the model is and what the task is. It runs in a folder of its
own, as long as the rollout may take, and ends with everything it started. It is trusted as its user is: this is no
sandbox. The gateway that serves the model lies in a higher layer and is found by entry point.
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
TASK_VARIABLE, ANSWER_VARIABLE = "ROLLBOOK_TASK", "ROLLBOOK_ANSWER"
GATEWAY_GROUP = "rollbook.gateways"
"""The entry points of what serves a model over HTTP: that lies above us, and is found as environments are."""

ANSWER_LIMIT = 1 << 20
MERGE_OUTPUTS = ("/bin/sh", "-c", 'exec "$@" 2>&1', "sh")
"""Makes both outputs of a command one, which is taken as it comes: nothing of it is piled up on a disk."""

TAIL_LINES, TAIL_CHARS = 20, 1500
"""Lines and characters of its last words: the end says most, and a failure's message is cut there."""

SIGNAL_EXIT_BASE = 128
_READ_BYTES = 1 << 16
_LOOPBACK = "127.0.0.1,localhost"


class GatewayEndpoint(Protocol):
    """Where one program finds the model. `broken` comes when it may as well stop."""

    url: str
    broken: asyncio.Event

    @property
    def calls(self) -> int:
        """How many calls were answered."""
        ...

    def raise_failure(self) -> None:
        """Raise what the calls came to, if it was not an answer to each."""


class ModelGateway(Protocol):
    """Whoever can put a model behind an address."""

    def open(self, rollout: Rollout, ask: AskModel) -> AbstractAsyncContextManager[GatewayEndpoint]:
        """An address that answers with `ask` and records into the rollout, for as long as the context is open."""
        ...


class Program:
    """Runs a command for each rollout; words of it that name files mean those files, wherever it runs.

    What it leaves in the file that ROLLBOOK_ANSWER names is the rollout's last message, under the name `program`.
    `hidden` names variables that it must not see: those that hold keys of real endpoints.
    """

    def __init__(
        self, command: str | Sequence[str], gateway: ModelGateway | None = None, *, hidden: Collection[str] = ()
    ) -> None:
        self.command = resolve_command(command)
        self._gateway, self._hidden = gateway, frozenset(hidden)

    def __repr__(self) -> str:
        return f"Program({shlex.join(self.command)!r})"

    async def play(self, rollout: Rollout, ask: AskModel, environment: EnvironmentAccess) -> None:
        """From its start to its end, however that comes."""
        if environment.tools:
            raise UsageError(f"{self!r} cannot call the tools of {rollout.task.env}: leave the agent out")
        gateway = self._gateway or _load_gateway()
        async with _temporary_folder() as folder, gateway.open(rollout, ask) as door:
            run = _ProgramProcess(self.command, folder, _make_environ(rollout, folder, door.url, self._hidden))
            code = await run.wait(door)
            try:
                door.raise_failure()
            except (ContextFull, LimitReached):
                _read_answer(rollout, folder / "answer")
                raise
            _check_exit(code, run.output_tail(), door.calls)
            _read_answer(rollout, folder / "answer")


@asynccontextmanager
async def _temporary_folder() -> AsyncIterator[Path]:
    """A folder of one rollout, gone with it; what a program leaves there may take long to remove."""
    folder = tempfile.TemporaryDirectory(prefix="rollbook-program-", ignore_cleanup_errors=True)
    try:
        yield Path(folder.name)
    finally:
        await asyncio.shield(asyncio.to_thread(folder.cleanup))


class _ProgramProcess:
    """One process of the program, with its keeper: whoever dies, nothing of it is left."""

    def __init__(self, command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> None:
        work = folder / "work"
        work.mkdir()
        self._said = b""
        self._ours, theirs = socket.socketpair()
        names = ",".join(name for name in environ if "," not in name)
        with theirs:
            argv = module_argv("rollbook.processes.supervisor", str(theirs.fileno()), names, *MERGE_OUTPUTS, *command)
            try:
                self._child = Child(argv, env=environ, cwd=work, pass_fds=[theirs.fileno()])
            except ChildFailed as error:
                self._ours.close()
                raise RolloutFailed("agent_error", WHERE, str(error)) from error
        self._ours.shutdown(socket.SHUT_WR)  # there is nothing to read on its standard input
        self._ours.setblocking(False)

    async def wait(self, endpoint: GatewayEndpoint) -> int:
        """Its exit code. It is killed where the door is broken, or nobody waits for it any more."""
        done = asyncio.Event()
        self._child.call_on_exit(asyncio.get_running_loop(), done.set)
        watching = [asyncio.create_task(work) for work in (done.wait(), endpoint.broken.wait(), self._drain())]
        try:
            await asyncio.wait(watching[:2], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in watching:
                task.cancel()
            code = await asyncio.shield(self._kill())
        return code

    async def _kill(self) -> int:
        """Kill what is left of it, and let go."""
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
        """Take what it prints: a pipe that nobody empties would stop it."""
        with suppress(ConnectionError):
            while self._append_output(await asyncio.get_running_loop().sock_recv(self._ours, _READ_BYTES)):
                continue

    def _append_output(self, data: bytes) -> bool:
        self._said = (self._said + data)[-_READ_BYTES:]
        return bool(data)

    def output_tail(self) -> str:
        """The end of what it said; where it could not even start, of why."""
        said = self._said.decode(errors="replace").strip() or self._child.log_tail(TAIL_LINES).strip()
        return "\n".join(said.splitlines()[-TAIL_LINES:])[-TAIL_CHARS:]


def _check_exit(code: int, output: str, calls: int) -> None:
    """A program that fails, or asks nobody, has failed, whatever the record holds."""
    if code:
        raise RolloutFailed("agent_error", WHERE, f"{_describe_exit(code)}: {output or 'it said nothing'}")
    if not calls:
        raise RolloutFailed("agent_error", WHERE, f"it ended without asking the model once{output and f': {output}'}")


def _describe_exit(code: int) -> str:
    signalled = code - SIGNAL_EXIT_BASE if code > 0 else -code  # as shells tell it, and as its keeper does
    return f"killed by signal {signalled}" if signalled in signal.valid_signals() else f"exit {code}"


def _read_answer(rollout: Rollout, path: Path) -> None:
    """The answer that the program left, if it left one; what would keep us waiting is none."""
    try:
        found = path.lstat()
        raw = path.read_bytes() if stat.S_ISREG(found.st_mode) and found.st_size <= ANSWER_LIMIT else None
    except FileNotFoundError:
        return
    except OSError as error:
        raise RolloutFailed("agent_error", WHERE, f"{ANSWER_VARIABLE}: {error.strerror}") from None
    if raw is None:
        raise RolloutFailed("agent_error", WHERE, f"{ANSWER_VARIABLE} is no file of at most {ANSWER_LIMIT} bytes")
    answer = Message("assistant", raw.decode(errors="replace"), name="program")
    rollout.messages = [*rollout.messages, answer]


def _make_environ(rollout: Rollout, folder: Path, url: str, hidden: frozenset[str]) -> dict[str, str]:
    """What the program sees: everything we do, and instead of any real endpoint and key, ours."""
    shown = {"id": rollout.task.id, "sample": rollout.sample, "prompt": rollout.task.prompt}
    (folder / "task.json").write_bytes(encode_pretty({**shown, "messages": rollout.task.messages}))
    key = "rollbook"
    environ = {name: value for name, value in os.environ.items() if name not in hidden | {"ANTHROPIC_AUTH_TOKEN"}}
    around = ",".join(filter(None, (environ.get("NO_PROXY") or environ.get("no_proxy"), _LOOPBACK)))
    return {
        **environ,
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_BASE": f"{url}/v1",
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": key,
        "NO_PROXY": around,
        "no_proxy": around,
        TASK_VARIABLE: str(folder / "task.json"),
        ANSWER_VARIABLE: str(folder / "answer"),
    }


def resolve_command(command: str | Sequence[str]) -> list[str]:
    """The words of a command, files by their full names; UsageError if there is no such program."""
    try:
        words = shlex.split(command) if isinstance(command, str) else list(command)
    except ValueError as error:
        raise UsageError(f"program:{command}: {error}") from None
    if not words:
        raise UsageError("program: give a command, as in --agent 'program:python agent.py'")
    if shutil.which(words[0]) is None:
        raise UsageError(f"program:{words[0]}: there is no such program")
    named = Path(words[0]).name != words[0]  # else it is found on PATH, whatever lies here
    return [_absolute_path(word) if number or named else word for number, word in enumerate(words)]


def _absolute_path(word: str) -> str:
    return str(Path(word).absolute()) if Path(word).is_file() else word


def hash_command_files(words: Sequence[str]) -> str:
    """The sha256 of all files that a command names by their full names, in their order."""
    found = hashlib.sha256()
    for word in words:
        if Path(word).is_absolute() and Path(word).is_file():
            with open(word, "rb") as file:
                found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()


@cache
def _load_gateway() -> ModelGateway:
    for entry in entry_points(group=GATEWAY_GROUP, name="local"):
        gateway: ModelGateway = entry.load()()
        return gateway
    raise UsageError("no gateway is installed: install rollbook again")
