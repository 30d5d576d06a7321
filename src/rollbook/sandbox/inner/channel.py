"""Frames of JSON over a stream socket: the one way in which the host, a zygote and its guests talk.

A frame is a length (4 bytes, little-endian) and that many bytes of JSON; descriptors ride with its first byte. Three
lines are made of them. The host tells a zygote what to launch, and hands over the guest's stdin, stdout, stderr,
channel and control line. On the control line the zygote says {"begun"} with the guest's pidfd, and at last {"ended",
"cpu_s", "peak_kb"}; the guest never holds it. On the channel, descriptor 3 of the guest, the guest says {"started"}
once its walls are up, and from then on whatever its role says. Nothing on a channel can be trusted from then on: the
code inside can find the descriptor and write to it. The host's end (`rollbook.sandbox.channel`) bounds every frame.

To add a role, write a function of (request, channel) in `roles.py`, name it in `ROLES`, and launch it from the host
with `slot.launch("name", limits, ...)`. A role that answers messages passes its function to `conversation`; the host
then makes an `Exchange` for each message, and a `Watch` keeps the clocks from the message to its reply. A role that
wants something from the host while it works sends {"ask": ...} and receives {"answer": ...}. Guests talk to each other
when each is given one end of a socketpair among the `extra` descriptors: they are 4, 5, ... inside. What comes from a
guest that is not to be trusted needs a bound: `Channel(4, most_bytes=...)`.
"""

import array
import json
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

LENGTH = struct.Struct("<I")
BLOCK = 1 << 20
_dumps, _loads = json.dumps, json.loads


class Channel:
    """One end of a stream socket. It blocks: the clocks are the host's."""

    def __init__(self, handle: int, within_s: float | None = None, most_bytes: int = 1 << 32) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=handle)
        self._most = most_bytes
        self._socket.settimeout(within_s)

    def fileno(self) -> int:
        """Its descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def send(self, value: object, handles: Sequence[int] = ()) -> None:
        """One frame, perhaps with descriptors."""
        frame = memoryview(framed(value))
        if handles:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", handles))
            frame = frame[self._socket.sendmsg([frame], [rights]) :]
        while frame:
            try:
                frame = frame[self._socket.send(frame) :]
            except BlockingIOError:  # a turn that was rolled back left it so: forks share this flag
                os.set_blocking(self.fileno(), True)

    def receive(self, room: int = 0) -> tuple[Any, list[int]]:
        """One frame and at most `room` descriptors; EOFError when the other side has hung up or says too much."""
        handles: list[int] = []
        (size,) = LENGTH.unpack(self._exactly(LENGTH.size, room, handles))
        if size > self._most:
            raise EOFError(f"a frame of {size} bytes")
        return _loads(self._exactly(size)), handles

    def _exactly(self, size: int, room: int = 0, handles: list[int] | None = None) -> bytes:
        data = bytearray()
        while len(data) < size:
            block = self._block(min(BLOCK, size - len(data)), room, handles)
            if not block:
                raise EOFError("the other side has hung up")
            data += block
        return bytes(data)

    def _block(self, size: int, room: int, handles: list[int] | None) -> bytes:
        while True:
            try:
                if handles is None or not room:
                    return self._socket.recv(size)
                data, extra, _, _ = self._socket.recvmsg(size, socket.CMSG_SPACE(4 * room), socket.MSG_CMSG_CLOEXEC)
                handles += descriptors(extra)
                return data
            except BlockingIOError:
                os.set_blocking(self.fileno(), True)


def framed(value: object) -> bytes:
    """A value as a frame; halves of characters, which no encoding has, become question marks."""
    body = _dumps(value, ensure_ascii=False).encode(errors="replace")
    return LENGTH.pack(len(body)) + body


def descriptors(extra: list[tuple[int, int, bytes]]) -> list[int]:
    """The descriptors among what came with a message."""
    found = array.array("i")
    for level, kind, data in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found)
