"""Ready by a deadline: the child publishes one JSON value on an inherited pipe, and the parent waits for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from rollbook.core.json import JSON, decode, to_line
from rollbook.errors import ChildFailed
from rollbook.processes.child import Child

READY_FD = "ROLLBOOK_READY_FD"
LINE_LIMIT = 64 * 1024


def publish(value: JSON) -> None:
    """On the child's side: say that we are ready, once. Started by hand, this says nothing."""
    fd = os.environ.pop(READY_FD, None)
    if fd is None:
        return
    with open(int(fd), "wb", buffering=0) as pipe:
        pipe.write(to_line(value))


async def start_ready(
    argv: Sequence[str],
    *,
    within_s: float,
    what: str = "the child",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    pass_fds: Sequence[int] = (),
    log: Path | None = None,
) -> tuple[Child, JSON]:
    """Start a child and wait for what it publishes; ChildFailed with the end of its log if it dies or is late."""
    read, write = os.pipe()
    try:
        environ = {**(os.environ if env is None else env), READY_FD: str(write)}
        child = Child(argv, env=environ, cwd=cwd, pass_fds=[*pass_fds, write], log=log)
    except BaseException:
        os.close(read)
        raise
    finally:
        os.close(write)
    try:
        return child, await _published(child, read, within_s, what)
    except BaseException:
        child.kill_now()
        raise
    finally:
        os.close(read)


async def _published(child: Child, fd: int, within_s: float, what: str) -> JSON:
    try:
        async with asyncio.timeout(within_s):
            line = await _first_line(child, fd)
    except TimeoutError:
        raise ChildFailed(f"{what} was not ready within {within_s:g} s", child.log_tail()) from None
    if line is None:
        raise ChildFailed(f"{what} ended ({_ending(child)}) before it was ready", child.log_tail())
    try:
        return decode(line)
    except msgspec.DecodeError as error:
        raise ChildFailed(f"{what} published what is not JSON: {error}") from None


async def _first_line(child: Child, fd: int) -> bytes | None:
    """The line, or None if the child exits without one. An early end of the pipe alone decides nothing."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[bytes | None] = loop.create_future()
    held = bytearray()
    os.set_blocking(fd, False)

    def read() -> None:
        with suppress(BlockingIOError):
            data = os.read(fd, LINE_LIMIT)
            held.extend(data)
            if not data:
                loop.remove_reader(fd)
        if not done.done() and (b"\n" in held or len(held) > LINE_LIMIT):
            done.set_result(bytes(held.split(b"\n", 1)[0]))

    def gone() -> None:
        if not done.done():
            read()
        if not done.done():
            done.set_result(None)

    loop.add_reader(fd, read)
    child.notify(loop, gone)
    try:
        return await done
    finally:
        loop.remove_reader(fd)


def _ending(child: Child) -> str:
    code = child.returncode
    return f"signal {-code}" if code is not None and code < 0 else f"exit {code}"
