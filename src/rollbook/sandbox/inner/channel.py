"""Frames of JSON over a stream socket: the one way in which the host, a zygote and its guests communicate.

A frame is a length (4 bytes, little-endian) and that many bytes of JSON; descriptors travel with its first byte. There
are three lines. The host tells a zygote what to launch, and passes the guest's stdin, stdout, stderr, channel, perhaps
descriptors of control groups and a folder to mount, and the control line. On the control line the zygote sends
{"begun"} with the guest's pidfd, and at the end {"ended", "cpu_s", "peak_kb"}; the guest never holds it. (An empty
order is a question: a zygote that is alive answers {"alive"}.) On the channel, descriptor 3 of the guest, the guest
sends {"started"} once its walls are up, and from then on whatever its role says. Nothing on a channel can be trusted
from then on: the code inside can find the descriptor and write to it. The host's end (`rollbook.sandbox.guest`) bounds
every frame.

To add a role, write a function of (request, channel) in `roles.py`, name it in `ROLES`, and launch it from the host
with `launcher.launch("name", limits, ...)`. A role that answers messages passes its function to `answer_messages`; the
host then makes a `MessageExchange` for each message, and a `Watchdog` keeps the clocks from the message to its reply.
A role that wants something from the host while it works sends {"ask": ...} and receives {"answer": ...}. Guests
communicate with each other when each is given one end of a socketpair among the `extra` descriptors: they are 4, 5,
... inside. What comes from a guest that is not to be trusted needs a bound: `Channel(4, max_bytes=...)`.
"""

import array
import json
import os
import socket
import struct
from _socket import socket as RawSocket  # a zygote makes two for every guest: Python's own class costs it more
from collections.abc import Sequence
from typing import Any

LENGTH = struct.Struct("<I")
BLOCK, AHEAD = 1 << 20, 1 << 14
AF_UNIX, SOCK_STREAM = int(socket.AF_UNIX), int(socket.SOCK_STREAM)
SOL_SOCKET, SCM_RIGHTS = int(socket.SOL_SOCKET), int(socket.SCM_RIGHTS)
CLOEXEC = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))
_encode, _decode = json.JSONEncoder(ensure_ascii=False).encode, json.JSONDecoder().decode


class Channel:
    """One end of a stream socket. It blocks: the clocks are the host's."""

    def __init__(self, handle: int, timeout_s: float | None = None, max_bytes: int = 1 << 32) -> None:
        self._handle, self._most = handle, max_bytes
        self._socket_object: RawSocket | None = None
        if timeout_s is not None:
            self._socket.settimeout(timeout_s)

    @property
    def _socket(self) -> RawSocket:
        """As an object, which deadlines and descriptors need: a guest is better off without."""
        if self._socket_object is None:
            self._socket_object = RawSocket(AF_UNIX, SOCK_STREAM, 0, self._handle)
        return self._socket_object

    def fileno(self) -> int:
        """Its descriptor."""
        return self._handle

    def close(self) -> None:
        """Hang up."""
        if self._socket_object is None:
            os.close(self._handle)
        else:
            self._socket_object.close()

    def send(self, value: object, handles: Sequence[int] = ()) -> None:
        """One frame, perhaps with descriptors."""
        self.send_frame(encode_frame(value), handles)

    def send_frame(self, frame: bytes, handles: Sequence[int] = ()) -> None:
        """The same for a value that was framed before."""
        sent = 0
        if handles:
            rights = struct.pack(f"{len(handles)}i", *handles)
            sent = self._socket.sendmsg([frame], [(SOL_SOCKET, SCM_RIGHTS, rights)])
        while sent < len(frame):
            try:
                sent += self._write(frame[sent:] if sent else frame)
            except BlockingIOError:  # a turn that was rolled back left it so: forks share this flag
                os.set_blocking(self._handle, True)

    def _write(self, frame: bytes) -> int:
        return self._socket_object.send(frame) if self._socket_object else os.write(self._handle, frame)

    def receive(self, max_descriptors: int = 0) -> tuple[Any, list[int]]:
        """One frame and at most `room` descriptors; EOFError when the other side has hung up or says too much."""
        handles: list[int] = []
        (size,) = LENGTH.unpack(self._receive_exactly(LENGTH.size, max_descriptors, handles))
        if size > self._most:
            raise EOFError(f"a frame of {size} bytes")
        return _decode(self._receive_exactly(size).decode(errors="surrogatepass")), handles

    def _receive_exactly(self, size: int, room: int = 0, handles: list[int] | None = None) -> bytes:
        data = bytearray()
        while len(data) < size:
            block = self._receive_block(min(BLOCK, size - len(data)), room, handles)
            if not block:
                raise EOFError("the other side has hung up")
            data += block
        return bytes(data)

    def _receive_block(self, size: int, room: int, handles: list[int] | None) -> bytes:
        while True:
            try:
                if handles is None or not room:
                    return self._socket_object.recv(size) if self._socket_object else os.read(self._handle, size)
                data, extra, _, _ = self._socket.recvmsg(size, socket.CMSG_SPACE(4 * room), CLOEXEC)
                handles += read_descriptors(extra)
                return data
            except BlockingIOError:
                os.set_blocking(self._handle, True)


class PeerChannel(Channel):
    """One between two guests, without descriptors: a frame is read as a whole, and what has come after it is kept."""

    _ahead = b""

    def send(self, value: object, handles: Sequence[int] = ()) -> None:
        """One frame; every text arrives as it was, be it one that no encoding has."""
        self.send_frame(encode_frame(value, "surrogatepass"), handles)

    def _receive_exactly(self, size: int, room: int = 0, handles: list[int] | None = None) -> bytes:
        if len(self._ahead) < size:
            self._read_ahead(size)
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        return data

    def _read_ahead(self, size: int) -> None:
        data = bytearray(self._ahead)
        while len(data) < size:
            block = self._receive_block(max(AHEAD, min(BLOCK, size - len(data))), 0, None)
            if not block:
                raise EOFError("the other side has hung up")
            data += block
        self._ahead = bytes(data)


def encode_frame(value: object, errors: str = "replace") -> bytes:
    """A value as a frame; halves of characters, which no encoding has, become question marks unless told otherwise."""
    body = _encode(value).encode(errors=errors)
    return LENGTH.pack(len(body)) + body


def read_descriptors(extra: list[tuple[int, int, bytes]]) -> list[int]:
    """The descriptors among what came with a message."""
    found = array.array("i")
    for level, kind, data in extra:
        if (level, kind) == (SOL_SOCKET, SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found)
