"""One turn of a session as the host sees it: what a guest may send, how the turn ends, and what its result says."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from rollbook.errors import SandboxError
from rollbook.sandbox import Limits, Result, Sandbox
from rollbook.sandbox.guest import ForgedMessage, Guest, HostChannel, max_frame_bytes
from rollbook.sandbox.inner.channel import LENGTH, encode_frame
from rollbook.sandbox.results import ProgramError
from rollbook.sandbox.session_state import MessageExchange, SessionTurn
from rollbook.sandbox.supervision import GuestProcess, OutputPipe

LIMITS = Limits(seconds=2.0, output_kb=1)
MAX_BYTES = max_frame_bytes(LIMITS.keep_bytes)


class PretendedGuest(Guest):
    """A guest whose other end is a test."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        self.channel = HostChannel(ours, 10)
        self.out, self.err = OutputPipe(5), OutputPipe(5)
        self.isolation = ("pid",)
        self.is_out_of_memory = self.code_can_kill = False
        self.memory_reads = 0

    def ran_out_of_memory(self) -> bool:
        self.memory_reads += 1
        return self.is_out_of_memory

    def can_kill(self, process: GuestProcess) -> bool:
        return self.code_can_kill

    def say(self, *values: object) -> None:
        self.theirs.sendall(b"".join(map(encode_frame, values)))

    def hear(self) -> dict[str, Any]:
        (size,) = LENGTH.unpack(self.theirs.recv(LENGTH.size, socket.MSG_WAITALL))
        heard: dict[str, Any] = json.loads(self.theirs.recv(size, socket.MSG_WAITALL))
        return heard

    def end(self) -> None:
        self.theirs.close()
        self.channel.close()
        for stream in self.streams:
            stream.close_both()


@pytest.fixture
def guest() -> Iterator[PretendedGuest]:
    made = PretendedGuest()
    yield made
    made.end()


@pytest.fixture
def process() -> Iterator[GuestProcess]:
    child = subprocess.Popen(["sleep", "60"])
    made = GuestProcess(os.pidfd_open(child.pid))
    yield made
    child.kill()
    child.wait(10)
    made.close()


def test_a_reply_repeats_the_word_of_its_message(guest: PretendedGuest) -> None:
    guest.channel.max_bytes = MAX_BYTES
    exchange = MessageExchange(guest)
    exchange.send({"code": "1"}, 1.0)
    heard = guest.hear()
    assert (heard["body"], len(heard["turn"])) == ({"code": "1"}, 16)
    assert (exchange.read_reply(), exchange.reply) == (False, None)
    guest.say({"done": heard["turn"], "body": {"value": "1"}})
    assert exchange.read_reply() is True
    assert exchange.reply == b'{"value": "1"}'


@pytest.mark.parametrize(
    "frames",
    [
        [{"done": "another word"}],
        [{"ask": 1}],
        [{"done": "TOKEN", "ask": 1}],
        [{"done": "TOKEN", "other": 1}],
        [{"done": "TOKEN"}, {"done": "TOKEN"}],
        [[]],
    ],
)
def test_anything_else_is_forged(guest: PretendedGuest, frames: list[Any]) -> None:
    guest.channel.max_bytes = MAX_BYTES
    exchange = MessageExchange(guest)
    exchange.send({}, 1.0)
    token = guest.hear()["turn"]
    guest.say(*json.loads(json.dumps(frames).replace("TOKEN", token)))
    with pytest.raises(ForgedMessage):
        exchange.read_reply()


def test_after_the_reply_nothing_more_is_heard(guest: PretendedGuest) -> None:
    guest.channel.max_bytes = MAX_BYTES
    asked: list[bytes] = []
    exchange = MessageExchange(guest, asked.append)
    exchange.send({}, 1.0)
    token = guest.hear()["turn"]
    guest.say({"done": token})
    assert exchange.read_reply()
    for late in ({"done": token}, {"ask": 1}):
        guest.say(late)
        with pytest.raises(ForgedMessage, match="no reply to what it was asked"):
            exchange.read_reply()
    assert asked == []


def test_a_question_is_answered_before_the_reply(guest: PretendedGuest) -> None:
    guest.channel.max_bytes = MAX_BYTES
    exchange = MessageExchange(guest, lambda question: {"said": question.decode()})
    exchange.send({}, 1.0)
    guest.hear()
    guest.say({"ask": [1]})
    assert exchange.read_reply() is False
    assert guest.hear() == {"answer": {"said": "[1]"}}


def start_turn(guest: PretendedGuest, limits: Limits = LIMITS) -> tuple[SessionTurn, str]:
    turn = SessionTurn(guest, limits)
    assert turn.send({"code": "1"})
    return turn, guest.hear()["turn"]


def test_a_turn_begins_with_empty_streams_and_its_own_bounds(guest: PretendedGuest) -> None:
    for stream in guest.streams:
        os.write(stream.write_fd, b"of the turn before")
        stream.drain()
    turn = SessionTurn(guest, LIMITS)
    assert turn.send({"code": "1"}) is True
    heard = guest.hear()
    assert heard["body"] == {"code": "1", "keep": 1024}
    assert guest.channel.max_bytes == MAX_BYTES
    assert [(stream.text(), stream.total, stream.truncated) for stream in guest.streams] == [("", 0, False)] * 2
    assert turn.status is None


def test_a_guest_that_spoke_before_it_was_asked_is_rejected(guest: PretendedGuest) -> None:
    guest.say(1)
    turn = SessionTurn(guest, LIMITS)
    assert turn.send({"code": "1"}) is False
    result = turn.make_result("lost")
    assert (result.status, result.state) == ("killed", "lost")
    words = "the code wrote on the sandbox's channel: it sent a message without a request"
    assert result.error == ProgramError("Killed", words)


def test_a_guest_that_does_not_read_has_its_time_and_no_more(guest: PretendedGuest) -> None:
    turn = SessionTurn(guest, Limits(seconds=0.01, wall_seconds=0.05))
    assert turn.send({"code": "x" * (8 << 20)}) is False
    assert turn.status == "timeout"


def test_a_guest_that_is_gone_has_no_status_yet(guest: PretendedGuest) -> None:
    guest.theirs.close()
    turn = SessionTurn(guest, LIMITS)
    assert turn.send({"code": "1"}) is False
    assert turn.status is None
    assert turn.make_result("lost").status == "killed"


@pytest.mark.parametrize(
    ("report", "status", "value"),
    [
        ({"value": "1"}, "ok", "1"),
        ({"exit": 3}, "error", None),
        ({"error": {"type": "E", "message": "m"}}, "error", None),
        ({"error": {"type": "MemoryError", "message": ""}, "memory": True}, "memory", None),
    ],
)
def test_the_reply_of_a_turn_is_its_result(
    guest: PretendedGuest, report: dict[str, Any], status: str, value: str | None
) -> None:
    turn, token = start_turn(guest)
    assert turn.read_reply() is False
    guest.say({"done": token, "body": report})
    assert turn.read_reply() is True
    result = turn.make_result("kept", peak_mb=7.5)
    assert (result.status, result.value, result.exit) == (status, value, report.get("exit"))
    assert (result.state, result.peak_mb, result.isolation) == ("kept", 7.5, ("pid",))
    assert (result.seconds, result.cpu_seconds) == (0.0, 0.0)  # no process was watched


@pytest.mark.parametrize("body", [{"done": "x"}, {"done": "TOKEN", "body": {"value": 1}}, "nonsense"])
def test_a_reply_that_is_none_ends_the_turn(guest: PretendedGuest, body: Any) -> None:
    turn, token = start_turn(guest)
    guest.say(json.loads(json.dumps(body).replace("TOKEN", token)))
    assert turn.read_reply() is True
    result = turn.make_result("lost")
    assert result.status == "killed"
    assert result.error
    assert result.error.message.startswith("the code wrote on the sandbox's channel: ")


def test_output_and_value_are_cut_to_what_is_kept(guest: PretendedGuest) -> None:
    for size, cut in ((1024, False), (1025, True)):
        turn, token = start_turn(guest)
        guest.say({"done": token, "body": {"value": "v" * size}})
        assert turn.read_reply()
        result = turn.make_result("kept")
        assert (result.value, result.truncated, result.stdout_cut) == ("v" * 1024, cut, False)
    for at, (truncated, stdout_cut) in enumerate([(True, True), (True, False)]):
        turn, token = start_turn(guest)
        os.write(guest.streams[at].write_fd, b"x" * 1025)
        result = turn.make_result("kept")
        assert (result.truncated, result.stdout_cut) == (truncated, stdout_cut)
        assert [len(result.stdout), len(result.stderr)][at] == 1024


def die(guest: PretendedGuest, process: GuestProcess, code: int | None, cpu_s: float = 0.0) -> Result:
    turn, _ = start_turn(guest)
    turn.start_watchdog(process)
    turn.set_death(process, code, process.cpu_s() + cpu_s)
    return turn.make_result("lost")


@pytest.mark.parametrize(
    ("code", "cpu_s", "status", "words"),
    [
        (0, 0.0, "error", "the process exited with 0 in the middle of the turn"),
        (3, 0.0, "error", "the process exited with 3 in the middle of the turn"),
        (-signal.SIGSEGV, 0.0, "crash", None),
        (None, 0.0, "crash", None),
        (-signal.SIGXCPU, 0.0, "timeout", None),
        (-signal.SIGKILL, 3.0, "timeout", None),
    ],
)
def test_a_process_that_ended_before_it_replied_is_a_failure(
    guest: PretendedGuest, process: GuestProcess, code: int | None, cpu_s: float, status: str, words: str | None
) -> None:
    result = die(guest, process, code, cpu_s)
    assert (result.status, result.error and result.error.message) == (status, words)
    assert result.exit == (code if words else None)
    assert guest.memory_reads == (code in (None, -signal.SIGKILL))


def test_a_process_that_was_killed_had_too_much_memory_or_was_killed_from_outside(
    guest: PretendedGuest, process: GuestProcess
) -> None:
    with pytest.raises(SandboxError, match="killed from outside"):
        die(guest, process, -signal.SIGKILL)
    guest.code_can_kill = True
    assert die(guest, process, -signal.SIGKILL).status == "killed"
    guest.is_out_of_memory = True
    result = die(guest, process, -signal.SIGKILL)
    assert (result.status, result.error and result.error.type) == ("memory", "OutOfMemory")


def test_a_status_that_is_known_stays(guest: PretendedGuest, process: GuestProcess) -> None:
    guest.is_out_of_memory = True
    turn, _ = start_turn(guest)
    turn.reject("is known")
    turn.set_death(process, -signal.SIGKILL, 0.0)
    assert turn.make_result("lost").error == ProgramError("Killed", "the code is known")
    assert guest.memory_reads == 0


def test_an_error_that_was_reported_is_kept_although_the_process_ended(
    guest: PretendedGuest, process: GuestProcess
) -> None:
    turn, token = start_turn(guest)
    guest.say({"done": token, "body": {"error": {"type": "E", "message": "m"}}})
    assert turn.read_reply()
    turn.set_death(process, 0, 0.0)
    assert turn.make_result("lost").error == ProgramError("E", "m")


@pytest.mark.parametrize(("processes", "status"), [(1, "ok"), (2, "memory")])
def test_a_process_of_several_that_was_killed_for_memory_is_noticed(
    guest: PretendedGuest, processes: int, status: str
) -> None:
    guest.is_out_of_memory = True
    turn, token = start_turn(guest, Limits(processes=processes))
    guest.say({"done": token, "body": {}})
    assert turn.read_reply()
    turn.check_memory()
    assert turn.status == status
    guest.is_out_of_memory = False
    turn, token = start_turn(guest, Limits(processes=2))
    turn.check_memory()
    assert turn.status is None


def test_a_turn_waits_for_its_reply_and_measures_its_process(guest: PretendedGuest, process: GuestProcess) -> None:
    turn, token = start_turn(guest)
    dog = turn.start_watchdog(process)
    guest.say({"done": token, "body": {"value": "1"}})
    assert turn.wait(process, {}) is True
    assert turn.make_result("kept").seconds > 0
    assert turn.make_result("kept", cpu_s=process.cpu_s() + 1.5).cpu_seconds == pytest.approx(1.5, abs=0.01)
    dog.kill_error = ProgramError("Killed", "killed: too many")
    guest.say({"done": token})
    dog.kill("killed")
    assert turn.wait(process, {}) is False
    assert turn.make_result("lost").error == dog.kill_error


def test_a_turn_whose_processes_cannot_be_ended_loses_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    with Sandbox(Limits(processes=4), size=1) as box, box.session() as session:
        assert session.run_sync("x = 1").status == "ok"
        with monkeypatch.context() as patch:
            patch.setattr(GuestProcess, "kill_others", lambda self: False)
            result = session.run_sync("x")
        assert (result.status, result.state) == ("killed", "lost")
        assert result.error
        assert result.error.message == "the code started processes without end"
        assert session.run_sync("'x' in globals()").value == "False"
