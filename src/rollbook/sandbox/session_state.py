"""The state behind a session and its turns: one long-lived process, or a process that forks for every turn.

A persistent state is a process that runs while a turn does and is stopped in between. A turn is one message to the
guest and its reply; what the guest asks in between is answered.

A snapshot state can undo a turn. The holder of the state forks a runner, and is stopped until the runner has replied.
Then the runner is the new holder and the old one is killed; or the runner died, and the holder goes on. There are never
more than these two. Both are of one user and one pid namespace, and both hold untrusted code. So nothing rests on what
either says:

- A fork waits at the host's `ForkGate` (seccomp's user notification: the kernel holds the system call until the host
  has answered), which lets one pass in a turn. The code has no other.
- The runner says hello through the same gate: its pid comes from the kernel while it waits there. Clocks, stop and kill
  go by its pidfd, and it goes on only when the holder has been stopped.
- The filter of such a session forbids to send signals at all (by call or by a descriptor's owner), to trace, to set
  another process's limits, and to shut down or reconfigure a socket that both have.
- The first process of the namespace is neither: it cannot be killed from inside, and with it everything ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import select
import signal
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import msgspec

from rollbook.core import JSON
from rollbook.sandbox.errors import ForgedMessage, SandboxError
from rollbook.sandbox.guest import GUEST_KILL_S, Guest, clip_value, max_frame_bytes
from rollbook.sandbox.inner.kernel import ARCH
from rollbook.sandbox.inner.seccomp import CALLS, HELLO_CALL
from rollbook.sandbox.launcher import GuestLauncher
from rollbook.sandbox.limits import Limits
from rollbook.sandbox.results import GuestReport, ProgramError, Result, RunStatus, StateOutcome
from rollbook.sandbox.supervision import (
    CpuClock,
    GuestProcess,
    OutputPipe,
    Watchdog,
    is_asleep,
    is_dead,
    list_children,
    move_to_this_core,
    out_of_memory,
    read_cpu_s,
    status_of_death,
    status_of_report,
)

ANSWER_TIMEOUT_S = 10.0


class GuestFrame(msgspec.Struct, forbid_unknown_fields=True):
    """What a guest in conversation may say: that it is done with a message, or a question."""

    done: str | None = None
    body: msgspec.Raw = msgspec.Raw(b"null")
    ask: msgspec.Raw = msgspec.Raw(b"")


_frame_decoder = msgspec.json.Decoder(GuestFrame)


class MessageExchange:
    """Each has a word of its own that the reply must repeat: nothing that was written before it can be its reply."""

    def __init__(self, guest: Guest, answer: Callable[[bytes], JSON] | None = None) -> None:
        self._channel, self._answer = guest.channel, answer
        self._word = secrets.token_hex(8)
        self.reply: bytes | None = None

    def send(self, body: JSON, timeout_s: float) -> None:
        """Give it the message; Forged when something lies on the channel that nobody asked for."""
        if self._channel.has_unread:
            raise ForgedMessage("it spoke unasked")
        self._channel.send({"turn": self._word, "body": body}, timeout_s)

    def read_reply(self) -> bool:
        """Take what is on the channel; true once the reply is there. Forged when it is anything else."""
        for data in self._channel.read_frames():
            self._handle_frame(data)
        return self.reply is not None

    def _handle_frame(self, data: bytes) -> None:
        try:
            frame = _frame_decoder.decode(data)
        except msgspec.DecodeError as error:
            raise ForgedMessage(str(error)) from None
        question = bytes(frame.ask)
        if question and self._answer and self.reply is None:
            self._channel.send({"answer": self._answer(question)}, ANSWER_TIMEOUT_S)
        elif not question and frame.done == self._word and self.reply is None:
            self.reply = bytes(frame.body)
        else:
            raise ForgedMessage("no reply to what it was asked")


_report_decoder = msgspec.json.Decoder(GuestReport)


class SessionTurn:
    """A turn under way: the exchange with the guest, the clocks of the process that runs it, and what became of it."""

    def __init__(self, guest: Guest, limits: Limits) -> None:
        self._guest, self._limits = guest, limits
        self._exchange = MessageExchange(guest)
        self._watch: Watchdog | None = None
        self._status: RunStatus | None = None
        self._report = GuestReport()

    @property
    def status(self) -> RunStatus | None:
        """What became of it; None as long as nobody knows."""
        return self._status

    def send(self, body: Mapping[str, JSON]) -> bool:
        """Give the guest its message; whether it took it."""
        self._guest.channel.most_bytes = max_frame_bytes(self._limits.keep_bytes)
        for stream in self._guest.streams:
            stream.reset(self._limits.keep_bytes)
        try:
            self._exchange.send({**body, "keep": self._limits.keep_bytes}, self._limits.wall_s)
        except ForgedMessage as error:
            self.reject(f"wrote on the sandbox's channel: {error}")
        except TimeoutError:
            self._status = "timeout"
        except EOFError:
            return False
        return self._status is None

    def read_reply(self) -> bool:
        """A line for a watch: over once the guest has replied, or has said what it must not."""
        try:
            over = self._exchange.read_reply()
            if self._exchange.reply is not None:
                self._report = _report_decoder.decode(self._exchange.reply)
                self._status = status_of_report(self._report)
        except (ForgedMessage, msgspec.DecodeError) as error:
            self.reject(f"wrote on the sandbox's channel: {error}")
            over = True
        return over

    def start_watchdog(self, process: GuestProcess, clock: CpuClock | None = None) -> Watchdog:
        """Start the clocks of the process that runs it."""
        self._watch = Watchdog(process, self._limits, self._guest.streams, clock=clock, shared_core=True)
        self._watch.begin()
        return self._watch

    def wait(self, process: GuestProcess, handlers: Mapping[int, Callable[[], bool]]) -> bool:
        """Until it has replied, died or been killed; whether it lived to reply."""
        assert self._watch
        self._watch.wait({self._guest.channel.fileno(): self.read_reply, process.pidfd: lambda: True, **handlers})
        self._status = self._watch.kill_status or self._status
        return self._status in ("ok", "error", "memory")

    def reject(self, why: str) -> None:
        """It did what ends it, whatever it says of itself."""
        self._status, self._report = "killed", GuestReport(error=ProgramError("Killed", f"the code {why}"))

    def set_out_of_memory(self) -> None:
        """It came to its end with more memory than it may keep."""
        self._status, self._report = "memory", out_of_memory(self._limits)

    def set_death(self, code: int | None, cpu_s: float) -> None:
        """Its process ended before it replied. Even with 0 that is no success: the turn did not come to its end."""
        if self._status is None and code in (None, -signal.SIGKILL) and self._guest.ran_out_of_memory():
            self.set_out_of_memory()
        if self._status is None:
            self._status = status_of_death(code, self._cpu_seconds(cpu_s), self._limits)
        if self._status in ("ok", "error") and self._report.error is None:
            self._status = "error"
            words = f"the process exited with {code} in the middle of the turn"
            self._report = GuestReport(exit=code, error=ProgramError("Exit", words))

    def check_memory(self) -> None:
        """It lived, but the kernel may have killed processes that it had started."""
        if self._limits.processes > 1 and self._guest.ran_out_of_memory():
            self.set_out_of_memory()

    def make_result(self, state: StateOutcome, peak_mb: float = 0.0, cpu_s: float | None = None) -> Result:
        """What to say of it."""
        for stream in self._guest.streams:
            stream.drain()
        value, cut = clip_value(self._report.value, self._limits)
        out, err = self._guest.streams
        return Result(
            status=self._status or "killed",
            stdout=out.text(),
            stderr=err.text(),
            value=value,
            error=self._report.error,
            exit=self._report.exit,
            seconds=self._watch.seconds if self._watch else 0.0,
            cpu_seconds=self._cpu_seconds(cpu_s),
            peak_mb=peak_mb,
            truncated=cut or out.truncated or err.truncated,
            stdout_cut=out.truncated,
            isolation=self._guest.isolation,
            state=state,
        )

    def _cpu_seconds(self, cpu_s: float | None) -> float:
        if self._watch is None:
            return 0.0
        return self._watch.cpu_seconds if cpu_s is None else self._watch.cpu_since_begin(cpu_s)


class PersistentState:
    """What ends the process ends the state. Threads of earlier turns run on in later ones, whose CPU time they use;
    processes of earlier turns do not. Another role whose replies are reports can stand in for the session's."""

    def __init__(
        self,
        slot: GuestLauncher,
        limits: Limits,
        files: Mapping[str, bytes],
        folder: str | None = None,
        *,
        role: str = "session",
        code: str = "",
    ) -> None:
        self._limits = limits
        self._guest = slot.launch(role, limits, code=code, files=files, folder=folder)
        try:
            self._guest.wait_until_started(limits)
        except BaseException:
            self._guest.close()
            raise

    def run_turn(self, body: Mapping[str, JSON], limits: Limits) -> Result:
        """Run what the body says in the state."""
        process, turn = self._guest.process, SessionTurn(self._guest, limits)
        turn.start_watchdog(process, self._guest.clock)
        move_to_this_core(process.pid)
        process.resume()
        lives = turn.send(body) and turn.wait(process, {})
        process.stop()
        if lives and not self._is_alone():
            turn.reject("started processes without end")
        elif lives:
            turn.check_memory()
            return turn.make_result("kept", process.peak_mb())
        process.kill()
        end = self._guest.wait_for_exit()
        cpu_s = self._guest.cpu_s(end)
        turn.set_death(end.ended, cpu_s)
        return turn.make_result("lost", end.peak_kb / 1024, cpu_s)

    def _is_alone(self) -> bool:
        """No other process of the session is left between turns: it could not be stopped for certain."""
        return self._limits.processes == 1 or self._guest.process.kill_others()

    def close(self) -> None:
        """The end of the state."""
        self._guest.close()


_NOTICE = struct.Struct("=QIIiIQ6Q")
_ANSWER = struct.Struct("=QqiI")
_RECEIVE, _SEND, _VALID = 0xC0502100, 0xC0182101, 0x40082102
_GO_ON = 1
SIGCHLD, SET_TID, CLEAR_TID = 17, 0x01000000, 0x00200000


class HeldSyscall(NamedTuple):
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
        return self.number == CALLS[ARCH][HELLO_CALL]


class ForkGate:
    """Answers one call at a time; as long as nobody answers, who asked waits."""

    def __init__(self, listener: int) -> None:
        self._listener = listener
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)

    def fileno(self) -> int:
        """Ready when somebody waits."""
        return self._listener

    def next_call(self) -> HeldSyscall | None:
        """Who waits; None when there is nobody, or nobody any more."""
        if not self._poll.poll(0):
            return None
        notice = bytearray(_NOTICE.size)
        try:
            fcntl.ioctl(self._listener, _RECEIVE, notice)
        except OSError:  # it died just now
            return None
        which, pid, _, number, _, _, argument, *_ = _NOTICE.unpack(notice)
        return HeldSyscall(which, pid, number, argument)

    def open_caller(self, call: HeldSyscall) -> GuestProcess | None:
        """The process that waits; None when it is a mere thread of one, or gone."""
        try:
            pidfd = os.pidfd_open(call.pid)
        except OSError:
            return None
        try:
            # As long as it waits it lives, so that the number cannot be another's.
            fcntl.ioctl(self._listener, _VALID, struct.pack("=Q", call.id))
            return GuestProcess(pidfd)
        except OSError:
            os.close(pidfd)
            return None

    def allow(self, call: HeldSyscall) -> None:
        """The kernel does what was asked."""
        self._send_answer(call, 0, _GO_ON)

    def acknowledge(self, call: HeldSyscall) -> None:
        """Nothing is done, and that was right."""
        self._send_answer(call, 0, 0)

    def refuse(self, call: HeldSyscall) -> None:
        """It is not permitted."""
        self._send_answer(call, -errno.EPERM, 0)

    def _send_answer(self, call: HeldSyscall, error: int, flags: int) -> None:
        try:
            fcntl.ioctl(self._listener, _SEND, _ANSWER.pack(call.id, 0, error, flags))
        except OSError:  # it died while it waited
            return

    def close(self) -> None:
        """From here on every answer is no."""
        os.close(self._listener)


FORK_S, FORK_CPU_S, CPU_S_PER_GB = 10.0, 1.0, 0.5
CHECK_S, MAX_NAPS = 0.02, 20


class ForkWatchdog(Watchdog):
    """A busy machine may take its time, but who is about to fork neither spins nor sleeps; nor does the fork.

    They run, or wait at the gate, where they are answered at once. Who uses more time than copying its memory could
    take, or is found asleep again and again, has something else in mind, and is killed long before the deadline.
    """

    def __init__(self, process: GuestProcess, limits: Limits, streams: Sequence[OutputPipe]) -> None:
        super().__init__(process, limits, streams, FORK_S)
        self._cpu_before = process.cpu_s()
        self._enough_s = min(FORK_CPU_S, limits.seconds) + CPU_S_PER_GB * limits.memory_mb / 1024
        self._next, self._naps = time.monotonic() + CHECK_S, 0

    def _poll_timeout_s(self) -> float:
        return min(CHECK_S, super()._poll_timeout_s())

    def _check_limits(self) -> None:
        super()._check_limits()
        now = time.monotonic()
        if self.kill_status or now < self._next:
            return
        self._next = now + CHECK_S
        forks = self._list_new_forks()
        self._naps += all(map(is_asleep, forks or [self._process.pid]))
        if self._naps > MAX_NAPS or self.cpu_seconds + sum(map(read_cpu_s, forks)) > self._enough_s:
            self.kill("killed")

    def _list_new_forks(self) -> list[int]:
        """The fork that has not said hello; what is dead was another turn's."""
        return [pid for pid in list_children(self._process.pid) if not is_dead(pid)]


MAX_REFUSALS = 10_000


class SnapshotState:
    """A timeout, a crash, an exit or memory run out undoes the turn (not its files; threads end with every turn)."""

    def __init__(
        self, slot: GuestLauncher, limits: Limits, files: Mapping[str, bytes], folder: str | None = None
    ) -> None:
        self._slot, self._limits, self._held = slot, limits, ExitStack()
        self._guest = slot.launch("snapshot", limits, files=files, folder=folder)
        self._held.callback(self._guest.close)
        try:
            self._gate = open_gate(self._guest, limits)
            self._held.callback(self._gate.close)
            self._holder = find_first_holder(self._guest, self._gate, limits)
            self._own_mb = self._first_mb = self._holder.read_memory().own_mb
        except BaseException:
            self._held.close()
            raise

    def run_turn(self, body: Mapping[str, JSON], limits: Limits) -> Result:
        """Run what the body says in a fork of the state."""
        turn, arrival = SessionTurn(self._guest, limits), ForkArrival(self._gate, forks=1, known=self._holder.pid)
        self._guest.renew_memory(limits, self._own_mb - self._first_mb)
        self._holder.resume()
        if not turn.send(body):
            return self._lose_state(turn)
        in_time = self._wait_for_fork(arrival, turn, limits)
        self._holder.stop()
        if arrival.process and in_time:
            return self._run_fork(turn, arrival, arrival.process)
        turn.reject("of earlier turns keeps the session from forking")
        arrival.release()
        return self._lose_state(turn)

    def _wait_for_fork(self, arrival: ForkArrival, turn: SessionTurn, limits: Limits) -> bool:
        """Until the runner is there, or the holder says that it cannot fork, or has died; whether it was in time."""
        lines = {self._gate.fileno(): arrival.check_gate, self._guest.channel.fileno(): turn.read_reply}
        lines[self._holder.pidfd] = lambda: True
        forking = ForkWatchdog(self._holder, limits, self._guest.streams)
        forking.wait(lines)
        return forking.kill_status is None

    def _run_fork(self, turn: SessionTurn, arrival: ForkArrival, runner: GuestProcess) -> Result:
        watch = turn.start_watchdog(runner)
        arrival.admit()
        lives = turn.wait(runner, {self._gate.fileno(): lambda: arrival.refuse_others(watch)})
        runner.stop()
        size = runner.read_memory()
        if lives and size.own_mb > self._first_mb + self._limits.memory_mb:
            turn.set_out_of_memory()
        if not lives or turn.status == "memory":
            return self._roll_back(turn, runner)
        self._holder.kill()
        self._holder.close()
        self._holder, self._own_mb = runner, size.own_mb
        return turn.make_result("kept", size.peak_mb)

    def _roll_back(self, turn: SessionTurn, runner: GuestProcess) -> Result:
        peak_mb = runner.peak_mb()
        runner.kill()
        if not runner.has_ended(GUEST_KILL_S):
            raise SandboxError(f"process {runner.pid} does not die")
        if turn.status is None:
            self._slot.check_provider_alive()  # the code has ended itself, or all has ended with the zygote
        turn.set_death(runner.exit_code(), runner.cpu_s())
        self._guest.channel.discard()
        lost = self._guest.process.has_ended() or self._holder.has_ended()
        result = turn.make_result("lost" if lost else "rolled back", peak_mb)
        runner.close()
        return result

    def _lose_state(self, turn: SessionTurn) -> Result:
        """The code has ended its own state, unless it was the zygote's end: that is no result."""
        self._slot.check_provider_alive()
        return turn.make_result("lost")

    def close(self) -> None:
        """The end of the state."""
        self._held.close()
        self._holder.close()


class ForkArrival:
    """A new process on its way through the gate."""

    def __init__(self, gate: ForkGate, forks: int, known: int = 0) -> None:
        self._gate, self._forks, self._known = gate, forks, known
        self._hello: HeldSyscall | None = None
        self._refused = 0
        self.process: GuestProcess | None = None

    def check_gate(self) -> bool:
        """A line for a watch: over once it is there, or too much was asked that is not due."""
        call = self._gate.next_call()
        if call is None:
            return False
        if call.is_fork and self._forks:
            self._forks -= 1
            self._gate.allow(call)
        elif not (call.is_hello and not self._forks and self._accept_hello(call)):
            return self._refuse(call)
        return self.process is not None

    def _accept_hello(self, call: HeldSyscall) -> bool:
        process = self._gate.open_caller(call)
        if process and process.pid == self._known:
            process.close()
            return False
        self._hello, self.process = call, process
        return process is not None

    def _refuse(self, call: HeldSyscall) -> bool:
        self._refused += 1
        self._gate.refuse(call)
        return self._refused > MAX_REFUSALS

    def admit(self) -> None:
        """It may go on."""
        assert self._hello
        self._gate.acknowledge(self._hello)

    def release(self) -> None:
        """Let go of it: it ends with the session."""
        if self.process:
            self.process.close()

    def refuse_others(self, watch: Watchdog) -> bool:
        """A line for a watch: nothing more passes in this turn, and who insists without end is killed."""
        call = self._gate.next_call()
        if call and self._refuse(call):
            watch.kill("killed")
        return False


def open_gate(guest: Guest, limits: Limits) -> ForkGate:
    """The gate that the guest hands over before it runs anything."""
    handles = guest.wait_until_started(limits)
    if not handles:
        raise SandboxError("snapshots need seccomp's user notification, which this kernel does not give")
    return ForkGate(handles[0])


def find_first_holder(guest: Guest, gate: ForkGate, limits: Limits) -> GuestProcess:
    """The process that the first turn forks from."""
    arrival = ForkArrival(gate, forks=0)
    Watchdog(guest.process, limits, guest.streams).wait(
        {gate.fileno(): arrival.check_gate, guest.control: lambda: True}
    )
    if arrival.process is None:
        raise SandboxError("the session's first process did not arrive")
    arrival.admit()
    return arrival.process
