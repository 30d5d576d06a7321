"""The gate that a session's forks go through: the kernel holds a system call until the host has said yes or no."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import struct
from typing import NamedTuple

from rollbook.sandbox.inner.filters import CALLS, HELLO
from rollbook.sandbox.inner.kernel import ARCH
from rollbook.sandbox.process import Process

_NOTICE = struct.Struct("=QIIiIQ6Q")
_ANSWER = struct.Struct("=QqiI")
_RECEIVE, _SEND, _VALID = 0xC0502100, 0xC0182101, 0x40082102
_GO_ON = 1
SIGCHLD, SET_TID, CLEAR_TID = 17, 0x01000000, 0x00200000


class Call(NamedTuple):
    """A system call that waits for an answer. The numbers are the kernel's, the pid as it is seen from here."""

    id: int
    pid: int
    number: int
    argument: int

    @property
    def is_fork(self) -> bool:
        """A plain fork, with none of the flags that change whose child it is or what it shares."""
        return self.number == CALLS[ARCH]["clone"] and self.argument & ~(SET_TID | CLEAR_TID) == SIGCHLD

    @property
    def is_hello(self) -> bool:
        """A new process says that it is there."""
        return self.number == CALLS[ARCH][HELLO]


class Gate:
    """Answers one call at a time; as long as nobody answers, who asked waits."""

    def __init__(self, listener: int) -> None:
        self._listener = listener
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)

    def fileno(self) -> int:
        """Ready when somebody waits."""
        return self._listener

    def next(self) -> Call | None:
        """Who waits; None when there is nobody, or nobody any more."""
        if not self._poll.poll(0):
            return None
        notice = bytearray(_NOTICE.size)
        try:
            fcntl.ioctl(self._listener, _RECEIVE, notice)
        except OSError:  # it died just now
            return None
        which, pid, _, number, _, _, argument, *_ = _NOTICE.unpack(notice)
        return Call(which, pid, number, argument)

    def caller(self, call: Call) -> Process | None:
        """The process that waits; None when it is a mere thread of one, or gone."""
        try:
            pidfd = os.pidfd_open(call.pid)
        except OSError:
            return None
        try:
            # As long as it waits it lives, so that the number cannot be another's.
            fcntl.ioctl(self._listener, _VALID, struct.pack("=Q", call.id))
            return Process(pidfd)
        except OSError:
            os.close(pidfd)
            return None

    def allow(self, call: Call) -> None:
        """The kernel does what was asked."""
        self._answer(call, 0, _GO_ON)

    def welcome(self, call: Call) -> None:
        """Nothing is done, and that was right."""
        self._answer(call, 0, 0)

    def refuse(self, call: Call) -> None:
        """It is not permitted."""
        self._answer(call, -errno.EPERM, 0)

    def _answer(self, call: Call, error: int, flags: int) -> None:
        try:
            fcntl.ioctl(self._listener, _SEND, _ANSWER.pack(call.id, 0, error, flags))
        except OSError:  # it died while it waited
            return

    def close(self) -> None:
        """From here on every answer is no."""
        os.close(self._listener)
