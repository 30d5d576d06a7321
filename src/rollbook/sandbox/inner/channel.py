"""Frames of JSON over a stream socket: the only way in which the host, a zygote and its guests communicate.

A frame is a length (4 bytes, little-endian) and that many bytes of JSON; descriptors travel with its first byte. There
are three connections. On the first the host orders a zygote to launch a guest, and passes the guest's stdin, stdout,
stderr, channel, perhaps descriptors of control groups and a folder to mount, and the control channel. On the control
channel the zygote sends {"begun"} with the guest's pidfd, and at the end {"ended", "cpu_s", "peak_kb"}; the guest never
has it. (An empty order is a ping: a zygote that is alive answers {"alive"}.) On the channel, descriptor 3 of the guest,
the guest sends {"started"} once its isolation is set up, and then the messages of its role. From then on nothing on a
channel can be trusted: the code inside can find the descriptor and write to it. The host's end
(`rollbook.sandbox.guest`) bounds every frame.

To add a role, write a function of (request, channel) in `roles.py`, name it in `ROLES`, and launch it from the host
with `launcher.launch("name", limits, ...)`. A role that answers messages passes its function to `answer_messages`; the
host then makes a `MessageExchange` for each message, and a `Watchdog` measures from the message to its reply. A role
that needs something from the host while it works sends {"ask": ...} and receives {"answer": ...}. Guests communicate
with each other when each gets one end of a socketpair among the `extra` descriptors: they are 4, 5, ... inside.
Messages from an untrusted guest need a bound: `Channel(4, max_bytes=...)`.
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
BLOCK, READ_AHEAD_BYTES = 1 << 20, 1 << 14
AF_UNIX, SOCK_STREAM = int(socket.AF_UNIX), int(socket.SOCK_STREAM)
SOL_SOCKET, SCM_RIGHTS = int(socket.SOL_SOCKET), int(socket.SCM_RIGHTS)
CLOEXEC = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))
_encode, _decode = json.JSONEncoder(ensure_ascii=False).encode, json.JSONDecoder().decode


class Channel:
    """One end of a stream socket. It blocks: deadlines are the host's task."""

    def __init__(self, handle: int, timeout_s: float | None = None, max_bytes: int = 1 << 32) -> None:
        self._handle, self._max_bytes = handle, max_bytes
        self._socket_object: RawSocket | None = None
        if timeout_s is not None:
            self._socket.settimeout(timeout_s)

    @property
    def _socket(self) -> RawSocket:
        """The socket as an object, which deadlines and descriptors need; a guest is faster without it."""
        if self._socket_object is None:
            self._socket_object = RawSocket(AF_UNIX, SOCK_STREAM, 0, self._handle)
        return self._socket_object

    def fileno(self) -> int:
        """Return its descriptor."""
        return self._handle

    def close(self) -> None:
        """Close the descriptor."""
        if self._socket_object is None:
            os.close(self._handle)
        else:
            self._socket_object.close()

    def send(self, value: object, handles: Sequence[int] = ()) -> None:
        """Send one frame, perhaps with descriptors."""
        self.send_frame(encode_frame(value), handles)

    def send_frame(self, frame: bytes, handles: Sequence[int] = ()) -> None:
        """Send a value that is already encoded as a frame."""
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
        """Receive a frame and up to `max_descriptors` descriptors; EOFError if it is too long or the other end
        closed."""
        handles: list[int] = []
        (size,) = LENGTH.unpack(self._receive_exactly(LENGTH.size, max_descriptors, handles))
        if size > self._max_bytes:
            raise EOFError(f"a frame of {size} bytes")
        return _decode(self._receive_exactly(size).decode(errors="surrogatepass")), handles

    def _receive_exactly(self, size: int, max_descriptors: int = 0, handles: list[int] | None = None) -> bytes:
        data = bytearray()
        while len(data) < size:
            block = self._receive_block(min(BLOCK, size - len(data)), max_descriptors, handles)
            if not block:
                raise EOFError("the other side closed the channel")
            data += block
        return bytes(data)

    def _receive_block(self, size: int, max_descriptors: int, handles: list[int] | None) -> bytes:
        while True:
            try:
                if handles is None or not max_descriptors:
                    return self._socket_object.recv(size) if self._socket_object else os.read(self._handle, size)
                data, extra, _, _ = self._socket.recvmsg(size, socket.CMSG_SPACE(4 * max_descriptors), CLOEXEC)
                handles += read_descriptors(extra)
                return data
            except BlockingIOError:
                os.set_blocking(self._handle, True)


class PeerChannel(Channel):
    """A channel between two guests, without descriptors: it reads whole frames and buffers what arrives after them."""

    _buffer = b""

    def send(self, value: object, handles: Sequence[int] = ()) -> None:
        """Send one frame; every text arrives unchanged, even one that no encoding has."""
        self.send_frame(encode_frame(value, "surrogatepass"), handles)

    def _receive_exactly(self, size: int, max_descriptors: int = 0, handles: list[int] | None = None) -> bytes:
        if len(self._buffer) < size:
            self._read_ahead(size)
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def _read_ahead(self, size: int) -> None:
        data = bytearray(self._buffer)
        while len(data) < size:
            block = self._receive_block(max(READ_AHEAD_BYTES, min(BLOCK, size - len(data))), 0, None)
            if not block:
                raise EOFError("the other side closed the channel")
            data += block
        self._buffer = bytes(data)


def encode_frame(value: object, errors: str = "replace") -> bytes:
    """Return a value as a frame; by default lone surrogates, which no encoding has, become question marks."""
    body = _encode(value).encode(errors=errors)
    return LENGTH.pack(len(body)) + body


def read_descriptors(extra: list[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors in the ancillary data of a message."""
    descriptors = array.array("i")
    for level, kind, data in extra:
        if (level, kind) == (SOL_SOCKET, SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return list(descriptors)
