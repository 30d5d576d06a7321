"""A child process in a session of its own: start it, wait until it is ready, watch it, kill its tree.

A thread of the parent watches each child. A child that is ready by a deadline publishes one JSON value (its port, for
example) on an inherited pipe; `start_ready` is the parent's side of that and `publish_ready` the child's.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rollbook.core import JSON, JSON_ERRORS, decode, encode_line
from rollbook.errors import ChildFailed
from rollbook.processes.process_tree import CHILD_TAG, LIFE_FD, PARENT_PID, kill_tree

TAIL_BYTES = 64 * 1024


def module_argv(module: str, *args: str) -> list[str]:
    """Return the command of one of our own entry points; -P, so that a file in the user's folder shadows no module."""
    return [sys.executable, "-P", "-m", module, *args]


class Child:
    """A running command. When it ends, for whatever reason, what is left of its group and session is killed too.

    Start it from a thread that outlives it: the kernel treats the end of that thread as the end of the parent. Its
    output is appended to the `log` file, or to one without a name if none is given. Our own entry points call
    `die_with_parent`.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        pass_fds: Sequence[int] = (),
        log: Path | None = None,
    ) -> None:
        self.argv = list(argv)
        self._tag = secrets.token_hex(8)
        self.returncode: int | None = None
        self._lock = threading.Lock()
        self._reaped = False
        self._callbacks: list[Callable[[], None]] = []
        self._tail = b""
        self._log = _open_log(log)
        self._log_start = os.fstat(self._log).st_size
        try:
            self._popen, self._life_pipe = self._start(env, cwd, pass_fds)
        except BaseException:
            os.close(self._log)
            raise
        threading.Thread(target=self._watch, name=f"child-{self.pid}", daemon=True).start()

    def __repr__(self) -> str:
        return f"Child(pid={self.pid}, returncode={self.returncode})"

    @property
    def pid(self) -> int:
        """Its process id, which is also its group and its session."""
        return self._popen.pid

    def call_on_exit(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        """Call `callback` in the loop once the child has exited and been reaped; at once if it has."""

        def notify() -> None:
            with suppress(RuntimeError):  # the loop is closed: no one is left to notify
                loop.call_soon_threadsafe(callback)

        with self._lock:
            if self.returncode is None:
                self._callbacks.append(notify)
                return
        notify()

    async def wait(self, timeout_s: float) -> int:
        """Wait for its return code: minus the signal number if one killed it; TimeoutError if it is late."""
        done = asyncio.Event()
        self.call_on_exit(asyncio.get_running_loop(), done.set)
        async with asyncio.timeout(timeout_s):
            await done.wait()
        assert self.returncode is not None
        return self.returncode

    async def terminate(self, grace_s: float) -> int:
        """Ask it to end (SIGTERM to its group), and kill the tree if it has not within `grace_s`."""
        self.send_signal(signal.SIGTERM)
        try:
            return await self.wait(grace_s)
        except TimeoutError:
            return await self.kill_tree()

    async def kill_tree(self, timeout_s: float = 10.0) -> int:
        """Kill it with all its descendants and wait until it is reaped."""
        self.kill_now()
        try:
            return await self.wait(timeout_s)
        except TimeoutError:
            raise ChildFailed(f"process {self.pid} did not die within {timeout_s:g} s of SIGKILL") from None

    def kill_now(self) -> None:
        """Kill the tree without waiting, for callers that cannot await. The watching thread reaps."""
        with self._lock:
            if not self._reaped:
                kill_tree(self.pid, self._tag)

    def log_tail(self, lines: int = 20) -> str:
        """Return the last lines of what it has written so far."""
        with self._lock:
            tail = self._tail if self._reaped else self._read_tail()
        return "\n".join(tail.decode(errors="replace").splitlines()[-lines:])

    def last_log_line(self) -> str:
        """Return the last line of its log that has a letter or a digit: no rulers, no blank lines."""
        lines = self.log_tail().splitlines()
        return next((line.strip() for line in reversed(lines) if any(map(str.isalnum, line))), "")

    def _start(
        self, env: Mapping[str, str] | None, cwd: Path | None, pass_fds: Sequence[int]
    ) -> tuple[subprocess.Popen[bytes], int | None]:
        environ = {**(os.environ if env is None else env), PARENT_PID: str(os.getpid()), CHILD_TAG: self._tag}
        theirs, ours = (None, None) if sys.platform == "linux" else os.pipe()
        if theirs is not None:
            environ[LIFE_FD], pass_fds = str(theirs), [*pass_fds, theirs]
        try:
            popen = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=environ,
                cwd=cwd,
                pass_fds=pass_fds,
                start_new_session=True,
            )
        except OSError as error:
            _close(ours)
            raise ChildFailed(f"cannot start {self.argv[0]}: {error.strerror or error}") from error
        finally:
            _close(theirs)
        return popen, ours

    def _watch(self) -> None:
        _wait_unreaped(self.pid)
        # It is not reaped yet, so no other process can have its number.
        kill_tree(self.pid, self._tag)
        with self._lock:
            self._reaped = True
            code = self._popen.wait()
            self._tail = self._read_tail()
            os.close(self._log)
            _close(self._life_pipe)
            self.returncode = code
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the child and its group, if it is still there."""
        with self._lock, suppress(ProcessLookupError, PermissionError):
            if not self._reaped:
                os.killpg(self.pid, number)

    def _read_tail(self) -> bytes:
        try:
            end = os.fstat(self._log).st_size
            # A log that several share may have been cut since, to before where this child began.
            start = max(self._log_start if self._log_start <= end else 0, end - TAIL_BYTES)
            return os.pread(self._log, end - start, start)
        except OSError as error:  # the end of the child must be noticed whatever the disk does
            return f"its log cannot be read: {error.strerror}".encode()


def _open_log(path: Path | None) -> int:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _close(fd: int | None) -> None:
    if fd is not None:
        os.close(fd)


def _wait_unreaped(pid: int) -> None:
    # Where waitid is missing there is no /proc either, and a plain wait is enough.
    if hasattr(os, "waitid"):
        with suppress(ChildProcessError):  # a waitpid(-1) elsewhere reaped it
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


READY_FD = "ROLLBOOK_READY_FD"
MAX_LINE_BYTES = 64 * 1024


def publish_ready(value: JSON) -> None:
    """Publish, once, that this child is ready. Does nothing in a process that was started by hand."""
    fd = os.environ.pop(READY_FD, None)
    if fd is None:
        return
    with open(int(fd), "wb", buffering=0) as pipe:
        pipe.write(encode_line(value))


async def start_ready(
    argv: Sequence[str],
    *,
    timeout_s: float,
    name: str = "the child",
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    log: Path | None = None,
) -> tuple[Child, JSON]:
    """Start a child and wait for the value it publishes; ChildFailed has the end of its log if it dies or is late."""
    read, write = os.pipe()
    try:
        environ = {**(os.environ if env is None else env), READY_FD: str(write)}
        child = Child(argv, env=environ, pass_fds=[*pass_fds, write], log=log)
    except BaseException:
        os.close(read)
        raise
    finally:
        os.close(write)
    try:
        return child, await _read_published(child, read, timeout_s, name)
    except BaseException:
        child.kill_now()
        raise
    finally:
        os.close(read)


async def _read_published(child: Child, fd: int, timeout_s: float, name: str) -> JSON:
    try:
        async with asyncio.timeout(timeout_s):
            line = await _read_first_line(child, fd)
    except TimeoutError:
        raise ChildFailed(f"{name} was not ready within {timeout_s:g} s", child.log_tail()) from None
    if line is None:
        raise ChildFailed(f"{name} ended ({_describe_exit(child)}) before it was ready", child.log_tail())
    try:
        return decode(line)
    except JSON_ERRORS as error:
        raise ChildFailed(f"{name} published invalid JSON: {error}") from None


async def _read_first_line(child: Child, fd: int) -> bytes | None:
    """Return the line; None if the child exits without one. An early end of the pipe alone means nothing."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[bytes | None] = loop.create_future()
    received = bytearray()
    os.set_blocking(fd, False)

    def read() -> None:
        with suppress(BlockingIOError):
            data = os.read(fd, MAX_LINE_BYTES)
            received.extend(data)
            if not data:
                loop.remove_reader(fd)
        if not done.done() and (b"\n" in received or len(received) > MAX_LINE_BYTES):
            done.set_result(bytes(received.split(b"\n", 1)[0]))

    def on_exit() -> None:
        if not done.done():
            read()
        if not done.done():
            done.set_result(None)

    loop.add_reader(fd, read)
    child.call_on_exit(loop, on_exit)
    try:
        return await done
    finally:
        loop.remove_reader(fd)


def _describe_exit(child: Child) -> str:
    code = child.returncode
    return f"signal {-code}" if code is not None and code < 0 else f"exit {code}"
