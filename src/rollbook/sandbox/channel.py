"""The host's end of a guest's channel: whatever comes from there, memory and time stay bounded."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator

from rollbook.core.json import JSON
from rollbook.sandbox.errors import Forged
from rollbook.sandbox.inner.channel import LENGTH, descriptors, framed

BLOCK = 1 << 16
ESCAPED = 8
"""More than the bytes that one character can become in JSON."""
SPARE_BYTES = 1 << 16


def frame_bound(keep_bytes: int) -> int:
    """The longest frame that an honest guest sends whose value is cut at `keep_bytes`."""
    return SPARE_BYTES + ESCAPED * keep_bytes


class HostEnd:
    """Frames from and to a guest. Never waits to receive, and sends by a deadline."""

    def __init__(self, end: socket.socket, most_bytes: int) -> None:
        end.setblocking(False)
        self._socket, self._buffer = end, bytearray()
        self.most_bytes = most_bytes
        self.open = True

    def fileno(self) -> int:
        """Its descriptor."""
        return self._socket.fileno()

    def send(self, value: JSON, within_s: float) -> None:
        """One frame; TimeoutError when the guest does not take it, EOFError when it has hung up."""
        frame, end = memoryview(framed(value)), time.monotonic() + within_s
        while frame:
            try:
                frame = frame[self._socket.send(frame) :]
            except BlockingIOError:
                self._wait_for_room(end)
            except OSError:
                raise EOFError("the guest has hung up") from None

    def _wait_for_room(self, end: float) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
            raise TimeoutError("the guest does not read")

    def frames(self) -> Iterator[bytes]:
        """The whole frames that are there by now; Forged where one says that it is longer than any may be."""
        self._fill()
        while len(self._buffer) >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self._buffer)
            if size > self.most_bytes:
                raise Forged(f"a frame of {size} bytes")
            if len(self._buffer) < LENGTH.size + size:
                return
            frame = bytes(self._buffer[LENGTH.size : LENGTH.size + size])
            del self._buffer[: LENGTH.size + size]
            yield frame

    def _fill(self) -> None:
        while self.open and len(self._buffer) < LENGTH.size + self.most_bytes:
            try:
                data = self._socket.recv(BLOCK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self.open = bool(data)
            self._buffer += data
            if len(data) < BLOCK:
                return

    def handles(self) -> list[int]:
        """The descriptor that comes with the first frame. Only to be asked before untrusted code has run."""
        data, extra, _, _ = self._socket.recvmsg(BLOCK, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
        self._buffer += data
        return descriptors(extra)

    @property
    def unasked(self) -> bool:
        """Whether something lies here already, before anything was asked."""
        self._fill()
        return bool(self._buffer)

    def forget(self) -> None:
        """Drop what a dead process has left here, all of it."""
        self._fill()
        while self._buffer:
            self._buffer.clear()
            self._fill()

    def close(self) -> None:
        """Hang up."""
        self._socket.close()
