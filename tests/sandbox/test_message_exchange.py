"""Messages to a guest and their replies, and guests that talk to the host or to each other in between."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator

import pytest

from rollbook.sandbox import Limits, Sandbox, SandboxError
from rollbook.sandbox.guest import ForgedMessage, Guest
from rollbook.sandbox.inner.channel import Channel
from rollbook.sandbox.launcher import GuestLauncher
from rollbook.sandbox.session_state import MessageExchange
from rollbook.sandbox.supervision import Watchdog

LIMITS = Limits(seconds=1, memory_mb=128)
CHANNEL = "import sys\nChannel = sys.modules['inner.channel'].Channel\n"


@pytest.fixture(scope="module")
def launcher() -> Iterator[GuestLauncher]:
    try:
        with Sandbox(LIMITS, size=1) as box:
            yield next(iter(box._launchers))
    except SandboxError as error:
        pytest.skip(f"no sandbox on this machine: {error}")


@pytest.fixture
def guest(launcher: GuestLauncher) -> Iterator[Guest]:
    made = launcher.launch("session", LIMITS)
    made.wait_until_started(LIMITS)
    yield made
    made.close()


def exchange(guest: Guest, one: MessageExchange, code: str) -> dict[str, object]:
    """Send code to a session's guest and wait for its reply."""
    watch = Watchdog(guest.process, LIMITS, guest.streams)
    watch.begin()
    one.send({"code": code, "keep": 1000}, 1.0)
    watch.wait({guest.channel.fileno(): one.read_reply, guest.process.pidfd: lambda: True})
    assert one.reply
    reply: dict[str, object] = json.loads(one.reply)
    return reply


def test_a_message_has_its_reply(guest: Guest) -> None:
    assert exchange(guest, MessageExchange(guest), "6 * 7") == {"value": "42"}
    assert exchange(guest, MessageExchange(guest), "6 * 8") == {"value": "48"}


def test_a_guest_can_ask_the_host_before_it_replies(guest: Guest) -> None:
    ask = "c = Channel(3)\ndef ask(n):\n  c.send({'ask': n})\n  return c.receive()[0]['answer']\n"
    asked: list[bytes] = []

    def answer(question: bytes) -> int:
        asked.append(question)
        return int(question) * 10

    assert exchange(guest, MessageExchange(guest, answer), CHANNEL + ask + "sum(map(ask, range(5)))") == {
        "value": "100"
    }
    assert asked == [b"0", b"1", b"2", b"3", b"4"]


def test_who_asks_again_without_waiting_is_forging(guest: Guest) -> None:
    asked: list[bytes] = []
    flood = "frame = sys.modules['inner.channel'].encode_frame({'ask': 1})\nimport os\nos.write(3, frame * 1000)"
    with pytest.raises(ForgedMessage, match="did not wait"):
        exchange(guest, MessageExchange(guest, asked.append), CHANNEL + flood)
    assert len(asked) == 1


def test_who_is_not_asked_must_not_be_told(guest: Guest) -> None:
    with pytest.raises(ForgedMessage, match="no reply"):
        exchange(guest, MessageExchange(guest), CHANNEL + "Channel(3).send({'ask': 1})\nwhile True: pass")


def test_two_guests_speak_over_a_line_of_their_own(launcher: GuestLauncher) -> None:
    one, other = socket.socketpair()
    asks = launcher.launch("session", LIMITS, extra=[one.fileno()])
    answers = launcher.launch("session", LIMITS, extra=[other.fileno()], request={"more": 1})
    one.close()
    other.close()
    try:
        for guest in (asks, answers):
            guest.wait_until_started(LIMITS)
        exchange(asks, MessageExchange(asks), CHANNEL + "line = Channel(4)\nline.send({'call': [2, 3]})")
        heard = exchange(answers, MessageExchange(answers), CHANNEL + "line = Channel(4)\nline.receive()[0]['call']")
        assert heard == {"value": "[2, 3]"}
        exchange(answers, MessageExchange(answers), "line.send(5)")
        assert exchange(asks, MessageExchange(asks), "line.receive()[0]") == {"value": "5"}
    finally:
        asks.close()
        answers.close()


def test_a_role_that_nobody_wrote_is_the_sandboxs_failure(launcher: GuestLauncher) -> None:
    guest = launcher.launch("nobody", LIMITS)
    try:
        with pytest.raises(SandboxError, match="isolation could not be set up"):
            guest.wait_until_started(LIMITS)
    finally:
        guest.close()


def test_both_sides_of_a_frame_are_the_same_code() -> None:
    one, other = (Channel(end.detach()) for end in socket.socketpair())
    one.send({"x": [1]})
    assert other.receive()[0] == {"x": [1]}
    one.close()
    other.close()


def test_a_ping_leaves_nothing_open(launcher: GuestLauncher) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        launcher.check_provider_alive()
    assert len(os.listdir("/proc/self/fd")) == before
