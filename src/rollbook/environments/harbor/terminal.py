"""The tools of the built-in agent in a container: a shell that stays, and an editor of files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from rollbook.containers import CommandResult, ContainerHandle, KeptShell
from rollbook.environments.environment import PROGRAM_S
from rollbook.environments.tools import ToolMisuse
from rollbook.errors import ClientKilled, ContainerError, ImageError, LimitReached

OUTPUT_BYTES = 12_000
"""Less than the limit of a tool's output, which would cut the end off: here both ends are kept."""

MAX_EDITED_BYTES = 4 << 20
KILLED = 137
"""The exit code of a program that was killed."""

EDIT_S = 20.0
SHELL_S = 20.0
"""For a shell that is not the first; less than the deadline of a tool call."""

END_S = 0.5
"""The shells of a container that is killed may end a little before the runtime knows of its end."""


class AgentTerminal:
    """What an agent does in its container, as its user, until its deadline."""

    def __init__(self, handle: ContainerHandle, user: str) -> None:
        self._handle, self.user = handle, user
        self._shell: KeptShell | None = None
        self._editor: KeptShell | None = None
        self._had_shell = False
        self._deadline: float | None = None

    def set_deadline(self, timeout_s: float | None) -> None:
        """Begin the time of the agent; None: it has no limit of its own."""
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s

    def time_left(self) -> float:
        """Return how long the next command may take; LimitReached once the agent's time is over."""
        allowed = self._handle.command_s
        if self._deadline is None:
            return allowed
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise LimitReached("agent_timeout")
        return min(allowed, left)

    def program_time_left(self) -> float:
        """Return how long a program that works by itself may take."""
        return PROGRAM_S if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    async def bash(self, command: str, timeout_s: float | None = None) -> str:
        """Run a command in the agent's shell, and return its output as the model sees it."""
        allowed = self.time_left()
        if self._shell is None:
            try:
                self._shell = await self._open_shell()
            except ContainerError as error:
                if not await self._lacks_shell(error):
                    raise
                return f"[no shell can be started: {error}]"
        wanted = min(allowed, timeout_s) if timeout_s and timeout_s > 0 else allowed
        try:
            result = await self._shell.run(command, wanted, OUTPUT_BYTES)
        except ValueError as error:
            raise ToolMisuse(str(error)) from None
        except ContainerError as error:
            return await self._replace_shell(error)
        remarks = [f"[exit code {result.exit_code}]"] if result.exit_code else []
        remarks += [f"[ended after {wanted:g} s]"] if result.timed_out else []
        remarks += ["[the shell ended; the next command runs in a new one]"] if result.shell_ended else []
        return "\n".join(part for part in (result.text.rstrip("\n"), *remarks) if part) or "[no output]"

    async def _open_shell(self) -> KeptShell:
        """Open a shell; a later one gets less time, because code of the agent may stop every process that starts."""
        shell = await self._handle.open_shell(user=self.user, timeout_s=SHELL_S if self._had_shell else None)
        self._had_shell = True
        return shell

    async def _lacks_shell(self, error: ContainerError) -> bool:
        """Return whether the agent removed or stopped what a shell needs, such as its program or the working folder."""
        if not self._had_shell:
            return False
        if isinstance(error, ImageError):
            return True
        if isinstance(error, ClientKilled):
            return False
        return await self._handle.is_running() and not await self._handle.find_limit()

    async def run_program(self, command: str, env: Mapping[str, str]) -> CommandResult:
        """Run a program that works by itself, in a shell of its own."""
        left = self.program_time_left()
        shell = await self._handle.open_shell(user=self.user, env=env)
        try:
            return await shell.run(command, left)
        except ContainerError as error:
            return CommandResult(KILLED, (await self._replace_shell(error)).encode())
        finally:
            await shell.close()

    async def _replace_shell(self, error: ContainerError) -> str:
        """Return what the model is told if code inside killed its shell; raise the error if something else ended it."""
        await asyncio.sleep(END_S)
        if isinstance(error, ClientKilled) or not await self._handle.is_running():
            raise error
        await self.close()
        return "[the shell was killed; the next command runs in a new one]"

    async def edit_file(self, path: str, old: str, new: str) -> str:
        """Replace the only occurrence of a text in a file; without an old text, write the whole file."""
        allowed = min(self.time_left(), EDIT_S)
        try:
            return await self._edit(path, old, new, allowed)
        except (ImageError, OSError, ValueError) as error:
            raise ToolMisuse(str(error)) from None
        except ContainerError as error:
            await asyncio.sleep(END_S)
            if not await self._lacks_shell(error):
                raise
            await self._close_editor()
            return f"[{path} cannot be edited: {error}]"

    async def _edit(self, path: str, old: str, new: str, timeout_s: float) -> str:
        # Not in the main shell, with which the container ends, nor in the agent's, whose state is the agent's.
        if self._editor is None or self._editor.has_ended:
            self._editor = await self._open_shell()
        if old:
            data = await self._handle.read(path, max_bytes=MAX_EDITED_BYTES, shell=self._editor, timeout_s=timeout_s)
            text = data.decode(errors="surrogateescape")
            if text.count(old) != 1:
                raise ToolMisuse(f"the old text occurs {text.count(old)} times in {path}; it must occur once")
            new = text.replace(old, new)
        content = new.encode(errors="surrogateescape")
        await self._handle.write(path, content, shell=self._editor, timeout_s=timeout_s)
        return f"wrote {path}, {len(new)} characters"

    async def close(self) -> None:
        """Close the shells."""
        shell, self._shell = self._shell, None
        if shell:
            await shell.close()
        await self._close_editor()

    async def _close_editor(self) -> None:
        editor, self._editor = self._editor, None
        if editor:
            await editor.close()
