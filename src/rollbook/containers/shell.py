"""A shell that stays open inside a container: commands go in and results come out through the pipes of one process.

The process inside is a loop in plain /bin/sh that starts a session: bash where the image has it, else sh. The session
reads its commands from its standard input. The end of a command is a line with a random word that the command does not
know, so its output may be anything. A session that ends (`exit`, `exec`, killed) is reported with another word, and
the loop starts a new one when we ask for it. When our end of the pipe is closed, the loop ends, and with it everything.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import msgspec

from rollbook.containers.runtime import READ_BYTES, classify_error, kill_client, summarize_error, work_folder
from rollbook.errors import ClientKilled, ContainerError

OUTPUT_BYTES = 256 << 10
"""How much of a command's output is kept; of more, the beginning and the end."""

KILL_GRACE_S = 5.0
START_GRACE_S = 10.0
EXIT_S = 5.0
CLIENT_CHECK_S = 1.0
ERROR_BYTES = 16 << 10
MAX_DIGITS, MAX_LINE_BYTES = 20, 8192
BASH_DESCRIPTOR, SH_DESCRIPTOR = 199, 9
"""Where a session writes. Commands use small numbers themselves; in plain sh there are no others."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

_LOOP = """read -r word || exit 0
while :; do
if command -v bash >/dev/null 2>&1; then bash --noprofile --norc; else sh; fi
printf '\\n%s %s\\n' "$word" "$?"
read -r go || exit 0
done"""

_KILL_SCRIPT = """START=%d KEEP=%d
for pass in 1 2 3 4 5 6 7 8; do found=
for d in /proc/[0-9]*; do p=${d#/proc/}
[ "$p" = 1 ] || [ "$p" = $$ ] || [ "$p" = $KEEP ] && continue
read -r s 2>/dev/null <$d/stat || continue
set -- "$START" ${s##*)}
[ "$2" = Z ] && continue
shift 20
[ "$1" -ge "$START" ] 2>/dev/null && found=1 && kill -9 "$p" 2>/dev/null
done
[ -n "$found" ] || exit 0
done"""
"""Kills what started at START (in ticks since the boot) or later, except the session KEEP; it needs no program."""


class CommandResult(msgspec.Struct, frozen=True):
    """How a command ended and what it wrote, both outputs in one."""

    exit_code: int
    output: bytes
    omitted: int = 0
    """How many bytes in the middle of the output are left out."""
    timed_out: bool = False
    shell_ended: bool = False
    """Whether the shell itself ended; the next command gets a new one."""

    @property
    def text(self) -> str:
        """The output as text; a remark stands where something was left out."""
        if not self.omitted:
            return self.output.decode(errors="replace")
        half = len(self.output) // 2
        head, tail = (part.decode(errors="replace") for part in (self.output[:half], self.output[half:]))
        return f"{head}\n[{self.omitted} bytes left out here]\n{tail}"


class BoundedOutput:
    """Collects output within a bound: the first half of it from the beginning, the other from the end."""

    def __init__(self, limit: int = OUTPUT_BYTES) -> None:
        self._half = limit // 2
        self._head, self._tail = bytearray(), bytearray()
        self._seen = 0

    def add(self, data: bytes) -> None:
        """Add what came next."""
        self._seen += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._half:
            del self._tail[: -self._half]

    def result(self) -> tuple[bytes, int]:
        """Return what is kept, and how many bytes between its halves are not."""
        tail = bytes(self._tail[-self._half :])
        return bytes(self._head) + tail, self._seen - len(self._head) - len(tail)


class MarkerScanner:
    """Finds the line with one of the words in a stream that comes in pieces; everything before it is output.

    A line that is longer than any of ours is output too: code inside may have learned the word.
    """

    def __init__(self, words: Sequence[str], output: BoundedOutput) -> None:
        self._marks = {word: f"\n{word} ".encode() for word in words}
        self._longest = max(map(len, self._marks.values())) + 8
        self._buffer = bytearray()
        self._output = output

    def feed(self, data: bytes) -> tuple[str, int, bytes] | None:
        """Add bytes; return the word that was found, its number, and the bytes after its line."""
        self._buffer += data
        pending = len(self._buffer)
        for word, mark in self._marks.items():
            at, end = self._find_line(mark)
            if end < 0:
                pending = min(pending, at) if at >= 0 else pending
                continue
            number = bytes(self._buffer[at + len(mark) : end])
            self._output.add(bytes(self._buffer[:at]))
            return (
                word,
                int(number) if number.isdigit() and len(number) < MAX_DIGITS else 1,
                bytes(self._buffer[end + 1 :]),
            )
        done = max(0, min(pending, len(self._buffer) - self._longest))
        self._output.add(bytes(self._buffer[:done]))
        del self._buffer[:done]
        return None

    def _find_line(self, mark: bytes) -> tuple[int, int]:
        """Return where a line with a mark begins and ends; -1 for no line, or for one whose end has not come yet."""
        at = self._buffer.find(mark)
        while at >= 0:
            limit = at + len(mark) + MAX_LINE_BYTES
            end = self._buffer.find(b"\n", at + 1, limit)
            if end >= 0 or len(self._buffer) < limit:
                return at, end
            at = self._buffer.find(mark, at + 1)
        return -1, -1


def quote(text: str) -> str:
    """Return text as one word of a shell.

    >>> quote("it's")
    "'it'\\\\''s'"
    """
    if "\0" in text:
        raise ValueError("a command cannot contain a NUL character")
    return "'" + text.replace("'", "'\\''") + "'"


def new_word() -> str:
    """Return a word that no command can know."""
    return f"rollbook-{secrets.token_hex(12)}"


def _print_marker(word: str, number: str, descriptor: str) -> str:
    """Return a command that prints a marker. A session that cannot, as a command closed its descriptor, ends at once.

    A command that redirects the descriptor instead is only noticed at its deadline.
    """
    return f"command printf '\\n%s %s\\n' {word} \"{number}\" >&{descriptor} || command exit 1"


MAIN_COMMAND = ("/bin/sh", "-c", _LOOP)
"""The process inside a container whose pipes we keep open."""

_LAUNCH = """read -r how || exit 0
if [ "$how" = entrypoint ]; then exec "$@" /bin/sh -c "$0"; fi
exec /bin/sh -c "$0\""""
LAUNCH_COMMAND = ("/bin/sh", "-c", _LAUNCH, _LOOP)
"""The same for an image with an entrypoint, whose words follow: the first line says whether it is run first."""


def ticks_now() -> int:
    """Return the time since the boot in the unit of process start times; container and host share the kernel."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_PER_S)


class KeptShell:
    """One shell: `open` starts its process, `run` runs commands one after the other, `close` ends it.

    `interrupt` runs a script inside by another way: it kills a command that is late.
    """

    def __init__(self, command: Sequence[str], interrupt: Callable[[str], Awaitable[None]]) -> None:
        self._command, self._interrupt = list(command), interrupt
        self._end_word = new_word()
        self._process: asyncio.subprocess.Process | None = None
        self._errors, self._first_output = bytearray(), bytearray()
        self._error_reader: asyncio.Task[None] | None = None
        self._rest = b""
        self._lock = asyncio.Lock()
        self.session_pid, self.descriptor = 0, SH_DESCRIPTOR
        """The process of the session, by its id inside, and where it writes."""

    async def open(self, timeout_s: float, first_line: str = "") -> None:
        """Start the process and wait until the shell inside answers; why it does not is a Container- or ImageError.

        `first_line` is for a command that reads one before the loop begins.
        """
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=work_folder(),
            start_new_session=True,  # Ctrl-C in a terminal is for us; we decide when a container ends
        )
        self._error_reader = asyncio.create_task(self._read_errors(), name="container errors")
        try:
            async with asyncio.timeout(timeout_s):
                await self._send(f"{first_line}{self._end_word}\n")
                await self._greet_session()
        except TimeoutError:
            await self.close()
            raise ContainerError(f"no shell answered within {timeout_s:g} s of the start") from None
        except BaseException:
            await self.close()
            raise

    async def _read_errors(self) -> None:
        assert self._process
        assert self._process.stderr
        while data := await self._process.stderr.read(READ_BYTES):
            self._errors += data
            del self._errors[:-ERROR_BYTES]

    @property
    def pid(self) -> int:
        """The process of this machine that holds the pipes."""
        assert self._process
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether there is no process any more: code inside can kill a shell that is not the main process."""
        return self._process is not None and self._process.returncode is not None

    async def run(
        self, command: str, timeout_s: float, max_bytes: int = OUTPUT_BYTES, *, alone: bool = False
    ) -> CommandResult:
        """Run a command in the shell, whose folder and variables stay; past its deadline it is killed.

        `alone` leaves out what processes of earlier commands printed before this one.
        """
        async with self._lock:
            began = ticks_now()
            exchange = asyncio.ensure_future(self._exchange(command, max_bytes, alone))
            try:
                done, _ = await asyncio.wait({exchange}, timeout=timeout_s)
                if done:
                    return exchange.result()
                return await self._end_command(exchange, began)
            finally:
                if not exchange.done():
                    exchange.cancel()
                    # Cancelled or not to be ended: what it printed could be taken for output of the next command.
                    await asyncio.shield(self.close())

    async def _end_command(self, exchange: asyncio.Future[CommandResult], began: int) -> CommandResult:
        """Kill what a command started; if the shell itself is stuck, kill the session too."""
        for script in (_KILL_SCRIPT % (began, self.session_pid), f"kill -9 {self.session_pid}"):
            await self._interrupt(script)
            done, _ = await asyncio.wait({exchange}, timeout=KILL_GRACE_S)
            if done:
                return msgspec.structs.replace(exchange.result(), timed_out=True)
        raise ContainerError("a command could not be ended after its deadline")

    async def _exchange(self, command: str, max_bytes: int, alone: bool) -> CommandResult:
        """Send one command, and read up to its end. What it redirects with `exec` lasts as long as itself."""
        begin, word, output, to = new_word(), new_word(), BoundedOutput(max_bytes), self.descriptor
        # After a command with an unclosed quote, bash takes no `{` for a bracket until another line was read.
        start = f"{_print_marker(begin, '0', str(to))}; " if alone else ":\n"
        await self._send(
            f"{start}{{ eval {quote(command)}; }} </dev/null >&{to} 2>&{to}; {_print_marker(word, '$?', str(to))}\n"
        )
        ended, code = await self._read_marker(begin, BoundedOutput()) if alone else (False, 0)
        if not ended:
            ended, code = await self._read_marker(word, output)
        if ended:
            await self._send("go\n")
            await self._greet_session()
        kept, omitted = output.result()
        return CommandResult(code, kept, omitted, shell_ended=ended)

    async def _greet_session(self) -> None:
        """Wait for a new session, and learn its process id and whether it is bash."""
        word = new_word()
        bash, other = (
            f"exec {to}>&1; {_print_marker(word, f'$(($$ * 2 + {is_bash}))', str(to))}"
            for to, is_bash in ((BASH_DESCRIPTOR, 1), (SH_DESCRIPTOR, 0))
        )
        await self._send(f'if [ "$BASH_VERSION" ]; then eval {quote(bash)}; else {other}; fi\n')
        ended, number = await self._read_marker(word, BoundedOutput())
        if ended:
            raise ContainerError("the shell of the container ends at once")
        self.session_pid, self.descriptor = number // 2, BASH_DESCRIPTOR if number % 2 else SH_DESCRIPTOR

    async def drain(self) -> None:
        """Read and drop what processes of earlier commands print, until they all have ended."""
        with suppress(ContainerError):
            while await self._receive():
                pass

    async def _read_marker(self, word: str, output: BoundedOutput) -> tuple[bool, int]:
        """Read up to the line with a word; return whether the session ended instead, and the number of the line."""
        scanner = MarkerScanner((word, self._end_word), output)
        found = scanner.feed(self._rest)
        while found is None:
            found = scanner.feed(await self._receive())
        which, number, self._rest = found
        return which == self._end_word, number

    async def _send(self, text: str) -> None:
        assert self._process
        assert self._process.stdin
        try:
            self._process.stdin.write(text.encode(errors="surrogateescape"))
            await self._process.stdin.drain()
        except (ConnectionError, RuntimeError):
            raise await self._explain_end() from None

    async def _receive(self) -> bytes:
        assert self._process
        assert self._process.stdout
        while True:
            try:
                async with asyncio.timeout(CLIENT_CHECK_S):
                    data = await self._process.stdout.read(READ_BYTES)
            except TimeoutError:
                # If our end was killed, another process of the runtime may still have the pipe.
                if self._was_killed_here:
                    raise await self._explain_end() from None
                continue
            if not data:
                raise await self._explain_end()
            if not self.session_pid:
                self._first_output = (self._first_output + data)[-ERROR_BYTES:]
            return data

    @property
    def _was_killed_here(self) -> bool:
        """Whether a signal ended our process; if code inside kills its shell, the process ends with an exit code."""
        return self._process is not None and (self._process.returncode or 0) < 0

    async def _explain_end(self) -> ContainerError:
        """Return why there is no shell any more: what the runtime said before it ended."""
        assert self._process
        await asyncio.wait({asyncio.ensure_future(self._process.wait())}, timeout=EXIT_S)
        if self._was_killed_here:
            return ClientKilled(f"{self._command[0]} was killed on this machine (exit code {self._process.returncode})")
        if self._error_reader:
            await asyncio.wait({self._error_reader}, timeout=1.0)
        text = (self._errors or await self._read_first_output()).decode(errors="replace")
        what = "ended" if self.session_pid else "did not start"
        return classify_error(f"the container {what}: {summarize_error(text)}")

    async def _read_first_output(self) -> bytes:
        """Return what came before any shell answered: docker writes there why it could not start a process."""
        assert self._process
        assert self._process.stdout
        if not self.session_pid:
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    self._first_output += await self._process.stdout.read(ERROR_BYTES)
        return bytes(self._first_output)

    async def close(self) -> None:
        """Close the pipes; the shell inside sees their end. Never waits long."""
        process = self._process
        if process is None:
            return
        if process.stdin:
            process.stdin.close()
        if not self.session_pid and process.returncode is None:
            # A runtime that is killed while it starts a container leaves half of it: let it come to its end.
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(process.wait())), START_GRACE_S)
        await kill_client(process)  # also one that has ended: uvloop cannot close while a pipe is unread
        if self._error_reader:
            self._error_reader.cancel()
