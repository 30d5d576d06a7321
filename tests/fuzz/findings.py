"""What the fuzzer finds, and the deadline after which a reader hangs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

HANG_S = 5.0


class Finding(NamedTuple):
    """An input that breaks a reader; of a case with a known result, the number that it is drawn from."""

    reader: str
    data: bytes
    error: str


class Hang(BaseException):
    """A reader that took too long; no reader catches it."""


@contextmanager
def deadline(cpu_s: float) -> Iterator[None]:
    """Raise Hang in this thread after some seconds of CPU time: a loaded machine is no hang."""

    def expire(*_: object) -> None:
        raise Hang(f"no end after {cpu_s:g} s of CPU time")

    before = signal.signal(signal.SIGPROF, expire)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
