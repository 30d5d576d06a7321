"""Both ends of a channel: honest messages arrive, and the cost of all others is bounded."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.sandbox.guest import ForgedMessage, HostChannel, max_frame_bytes
from rollbook.sandbox.inner.channel import LENGTH, Channel

MAX_BYTES = 4096
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)
)


@pytest.fixture
def ends() -> Iterator[tuple[HostChannel, Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    host, guest = HostChannel(ours, MAX_BYTES), Channel(os.dup(theirs.fileno()))
    yield host, guest, theirs
    for end in (host, guest, theirs):
        end.close()


@given(values)
@settings(max_examples=50, deadline=None)
def test_what_one_end_sends_the_other_receives(value: object) -> None:
    ours, theirs = socket.socketpair()
    one, other = Channel(ours.detach()), Channel(theirs.detach())
    one.send(value)
    clean = json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    assert other.receive() == (clean, [])
    one.close()
    with pytest.raises(EOFError):
        other.receive()
    other.close()


def test_frames_come_whole_however_they_were_cut(ends: tuple[HostChannel, Channel, socket.socket]) -> None:
    host, guest, raw = ends
    guest.send({"a": 1})
    body = b'{"b": 2}'
    data = LENGTH.pack(len(body)) + body
    raw.sendall(data[:6])
    assert [json.loads(f) for f in host.read_frames()] == [{"a": 1}]
    assert list(host.read_frames()) == []
    assert host.has_unread
    raw.sendall(data[6:])
    assert list(host.read_frames()) == [body]
    assert not host.has_unread


def test_a_frame_beyond_the_bound_is_refused_after_those_before_it(
    ends: tuple[HostChannel, Channel, socket.socket],
) -> None:
    host, guest, raw = ends
    guest.send(1)
    raw.sendall(LENGTH.pack(MAX_BYTES + 1))
    frames = host.read_frames()
    assert next(frames) == b"1"
    with pytest.raises(ForgedMessage, match="4097 bytes"):
        next(frames)


@given(st.binary(max_size=3000))
@settings(max_examples=100, deadline=None)
def test_no_bytes_do_more_than_be_refused(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    host = HostChannel(ours, MAX_BYTES)
    theirs.sendall(data)
    theirs.close()
    try:
        frames = list(host.read_frames())
    except ForgedMessage:
        frames = []
    assert sum(len(frame) + LENGTH.size for frame in frames) <= len(data)
    host.close()


def test_the_host_holds_no_more_than_a_frame_of_a_flood(ends: tuple[HostChannel, Channel, socket.socket]) -> None:
    host, _, raw = ends

    def flood() -> None:
        with suppress(OSError):
            while True:
                raw.sendall(LENGTH.pack(MAX_BYTES) + b"x" * 100_000)

    def listen() -> None:
        while True:
            list(host.read_frames())

    flooder = threading.Thread(target=flood)
    flooder.start()
    with pytest.raises(ForgedMessage):
        listen()
    assert len(host._buffer) <= LENGTH.size + MAX_BYTES + (1 << 16)
    raw.shutdown(socket.SHUT_RDWR)
    host.close()
    flooder.join(10)


def test_a_guest_that_does_not_read_does_not_hold_the_host_up(
    ends: tuple[HostChannel, Channel, socket.socket],
) -> None:
    host, _, _ = ends
    with pytest.raises(TimeoutError):
        host.send("x" * (8 << 20), 0.05)


def test_a_guest_that_hung_up_is_an_end_of_file() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    host = HostChannel(ours, MAX_BYTES)
    assert (list(host.read_frames()), host.open) == ([], False)
    with pytest.raises(EOFError):
        host.send(1, 1.0)
    host.close()


def test_descriptors_from_a_guest_are_dropped(ends: tuple[HostChannel, Channel, socket.socket]) -> None:
    host, guest, _ = ends
    read, write = os.pipe()
    guest.send(1, [write])
    os.close(write)
    assert list(host.read_frames()) == [b"1"]
    assert os.read(read, 1) == b"", "nobody holds the writing end"
    os.close(read)


def test_a_channel_that_a_fork_made_nonblocking_still_waits(ends: tuple[HostChannel, Channel, socket.socket]) -> None:
    host, guest, raw = ends
    raw.setblocking(False)
    later = threading.Timer(0.05, host.send, args=({"late": True}, 1.0))
    later.start()
    assert guest.receive() == ({"late": True}, [])
    later.join()


def test_an_inner_channel_can_have_a_bound() -> None:
    ours, theirs = socket.socketpair()
    bounded = Channel(ours.detach(), max_bytes=100)
    theirs.sendall(LENGTH.pack(101))
    with pytest.raises(EOFError, match="101 bytes"):
        bounded.receive()
    bounded.close()
    theirs.close()


def test_the_bound_leaves_room_for_every_kept_character() -> None:
    for text in ("\0", "é", "\U0001f600", '"', "\\"):
        keep = 1000
        assert len(json.dumps({"value": text * keep}, ensure_ascii=False).encode()) <= max_frame_bytes(keep)
