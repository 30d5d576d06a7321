"""A program inside the rollout's container as an agent: its model calls come out to the gateway, nothing else does.

Files of this machine that the command names by relative paths are copied in; other words are paths and programs of the
image. A task of several steps starts the program again for each.
"""

from __future__ import annotations

import asyncio
import math
import shlex
import signal
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from rollbook.agents.agent import EnvironmentAccess
from rollbook.agents.program import (
    ANSWER_LIMIT,
    ANSWER_VARIABLE,
    PROGRAM_PREFIX,
    TAIL_CHARS,
    TASK_VARIABLE,
    GatewayEndpoint,
    ModelGateway,
    check_program_exit,
    load_gateway,
    make_gateway_variables,
)
from rollbook.containers import CommandResult, ContainerHandle, forward_into
from rollbook.core import Message, Rollout, encode_pretty
from rollbook.environments import SERVERS_FIELD, ContainerSession
from rollbook.errors import ClientKilled, ContainerError, ContextFull, LimitReached, UsageError
from rollbook.models import AskModel

COPIED = "@"
"""Marks a word of a stored command as a file of this machine that is copied in."""

FOLDER = "/.rollbook-agent"
TASK_FILE, ANSWER_FILE = "/logs/agent/task.json", "/logs/agent/answer.txt"
_CLEAR = f"""for place in /logs /logs/agent; do
  if [ -h $place ] || [ ! -d $place ]; then rm -rf $place && mkdir $place && chmod 777 $place; fi || exit
done
rm -rf {FOLDER} {TASK_FILE} {ANSWER_FILE}"""
"""Removes what the program left of an earlier step in the places of our files."""

KILLED = 128 + signal.SIGKILL
"""The exit code that a shell reports of a program that was killed."""


def resolve_container_command(command: str) -> list[str]:
    """Return the words of a command, with files of this machine marked."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"{PROGRAM_PREFIX}{command}: {error}") from None
    if not words:
        raise UsageError("program: give a command, as in --agent 'program:python agent.py'")
    return [f"{COPIED}{Path(word).absolute()}" if _is_own_file(word) else word for word in words]


def _is_own_file(word: str) -> bool:
    return not word.startswith("/") and Path(word).is_file()


class ContainerProgram:
    """Runs a command in the container of each rollout, as the agent's user, until the agent's deadline."""

    def __init__(self, command: Sequence[str], gateway: ModelGateway | None = None) -> None:
        self.command, self._gateway = list(command), gateway

    async def play(self, rollout: Rollout, ask: AskModel, environment: EnvironmentAccess) -> None:
        """Run the program for the task, and again for each further step of it."""
        assert isinstance(environment, ContainerSession)
        container = environment.container
        assert container is not None
        gateway = self._gateway or load_gateway()
        async with gateway.open(rollout, ask) as endpoint:
            address = urlsplit(endpoint.url)
            assert address.hostname
            assert address.port
            reply: Message | None = Message("user", rollout.task.prompt)
            is_first = True
            while reply is not None:
                command = await self._prepare(rollout, container, reply.text, is_first=is_first)
                is_first = False
                # After the tests of a step the container has been started anew, with another namespace.
                async with forward_into(container, address.hostname, address.port) as port:
                    url = f"http://127.0.0.1:{port}{address.path}"
                    await self._run(rollout, environment, endpoint, command, url)
                reply = await environment.reply(rollout)

    async def _prepare(self, rollout: Rollout, container: ContainerHandle, prompt: str, *, is_first: bool) -> str:
        """Put our files into the container; return the command.

        If the program broke the container so far in an earlier step that this fails, the tests judge what is there.
        """
        try:
            if not is_first and (result := await container.run(_CLEAR, user="0")).exit_code:
                raise ContainerError(f"what an earlier step left cannot be removed: {result.text[-TAIL_CHARS:]}")
            await container.write(TASK_FILE, _describe_task(rollout, prompt), user="0")
            return await self._copy_files(container)
        except ContainerError as error:
            if is_first or isinstance(error, ClientKilled) or not await container.is_running():
                raise
            raise LimitReached(await container.find_limit() or "broken_files") from None

    async def _copy_files(self, container: ContainerHandle) -> str:
        words = []
        for word in self.command:
            if not word.startswith(COPIED):
                words.append(word)
                continue
            source = Path(word.removeprefix(COPIED))
            words.append(str(PurePosixPath(FOLDER) / source.name))
            await container.upload(source, words[-1])
        return shlex.join(words)

    async def _run(
        self,
        rollout: Rollout,
        session: ContainerSession,
        endpoint: GatewayEndpoint,
        command: str,
        url: str,
    ) -> None:
        container = session.container
        assert container is not None
        variables = {**make_gateway_variables(url), TASK_VARIABLE: TASK_FILE, ANSWER_VARIABLE: ANSWER_FILE}
        result = await self._wait(session, endpoint, command, variables)
        try:
            endpoint.raise_failure()
        except (ContextFull, LimitReached):
            await _read_answer(rollout, container)
            raise
        assert result is not None
        if await _was_killed(result, container) and endpoint.calls:
            try:
                await _read_answer(rollout, container)
            except ContainerError as error:
                if isinstance(error, ClientKilled):
                    raise
            return  # by what its model had it do: that is scored
        await _read_answer(rollout, container)
        if result.timed_out:
            raise LimitReached("agent_timeout")
        check_program_exit(result.exit_code, result.text[-TAIL_CHARS:], endpoint.calls)

    async def _wait(
        self, session: ContainerSession, endpoint: GatewayEndpoint, command: str, variables: dict[str, str]
    ) -> CommandResult | None:
        """Return how the program ended; None if it was stopped because its model calls fail."""
        running = asyncio.create_task(session.run_program(command, variables))
        broken = asyncio.create_task(endpoint.broken.wait())
        try:
            await asyncio.wait({running, broken}, return_when=asyncio.FIRST_COMPLETED)
            return running.result() if running.done() else None
        finally:
            for task in (running, broken):
                task.cancel()
            await asyncio.gather(running, broken, return_exceptions=True)


def _describe_task(rollout: Rollout, prompt: str) -> bytes:
    """Return the content of the task file."""
    task = {"id": rollout.task.id, "sample": rollout.sample, "prompt": prompt}
    if SERVERS_FIELD in rollout.task.fields:
        task[SERVERS_FIELD] = rollout.task.fields[SERVERS_FIELD]
    return encode_pretty({**task, "messages": rollout.task.messages})


async def _was_killed(result: CommandResult, container: ContainerHandle) -> bool:
    """Return whether code inside killed the program; LimitReached if it exceeded a limit of the container."""
    if result.timed_out or not result.exit_code:
        return False
    # The container is alive, so nobody outside ended the program: every kill because of memory may be why it failed.
    if limit := await container.find_limit(within_s=math.inf):
        raise LimitReached(limit)
    return result.exit_code == KILLED


async def _read_answer(rollout: Rollout, container: ContainerHandle) -> None:
    """Append the answer that the program left, if any. A link could lead to a file that the program may not read.

    One that is too large is replaced by a note: without it, an earlier message would be taken for the answer.
    """
    try:
        raw = await container.read_unlinked(ANSWER_FILE, max_bytes=ANSWER_LIMIT)
        answer = raw.decode(errors="replace")
    except FileNotFoundError:
        return
    except ValueError as error:
        answer = f"[{ANSWER_VARIABLE} is left out: {error}]"
    rollout.messages = [*rollout.messages, Message("assistant", answer, name="program")]
