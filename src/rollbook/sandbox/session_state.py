"""The state behind a session and its turns: one long-lived process, or a process that forks for every turn.

A persistent state is a process that runs during a turn and is stopped in between. A turn is one message to the guest
and its reply; questions of the guest in between are answered.

A snapshot state can undo a turn. The process that holds the state (the holder) forks a runner, and is stopped until the
runner has replied. Then the runner is the new holder and the old one is killed; or the runner died, and the holder
continues. There are never more than these two. Both have the same user and pid namespace, and both contain untrusted
code. So nothing depends on what either reports:

- A fork waits at the host's `ForkGate` (seccomp's user notification: the kernel holds the system call until the host
  has answered), which allows one fork per turn. The code cannot fork in any other way.
- The runner announces itself through the same gate: the kernel reports its pid while it waits there. Clocks, stop and
  kill use its pidfd, and it continues only when the holder has been stopped.
- The filter of such a session forbids to send signals at all (by call or by a descriptor's owner), to trace, to set
  another process's limits, and to shut down or reconfigure a socket that both have.
- The first process of the namespace is neither: it cannot be killed from inside, and everything ends with it. It reaps
  processes while a runner runs, and is stopped otherwise: how a holder ended when it should have forked can be read
  only until it is reaped, and shows whether its code or something else on the machine ended it.
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

from rollbook.core import JSON, JSON_ERRORS
from rollbook.errors import SandboxError
from rollbook.sandbox.guest import GUEST_KILL_S, ForgedMessage, Guest, killed_when_cancelled, max_frame_bytes
from rollbook.sandbox.inner.kernel import ARCH
from rollbook.sandbox.inner.seccomp import CALLS, HELLO_CALL
from rollbook.sandbox.launcher import GuestLauncher
from rollbook.sandbox.limits import Limits
from rollbook.sandbox.results import GuestReport, ProgramError, Result, RunStatus, StateOutcome, decode_guest_report
from rollbook.sandbox.supervision import (
    CpuClock,
    GuestProcess,
    OutputPipe,
    Watchdog,
    is_asleep,
    is_dead,
    is_exiting,
    list_children,
    move_to_this_core,
    out_of_memory,
    read_cpu_s,
    status_of_death,
    status_of_report,
)

ANSWER_TIMEOUT_S = 10.0


class GuestFrame(msgspec.Struct, forbid_unknown_fields=True):
    """What a guest may send: that it is done with a message, or a question."""

    done: str | None = None
    body: msgspec.Raw = msgspec.Raw(b"null")
    ask: msgspec.Raw = msgspec.Raw(b"")


_frame_decoder = msgspec.json.Decoder(GuestFrame)


class MessageExchange:
    """One message to a guest and its reply. The reply must repeat the message's random word, so that nothing written
    before the message counts as its reply. A guest waits for the answer to each question: sending more at once is
    forgery, and would cost us more than it costs the guest."""

    def __init__(self, guest: Guest, answer: Callable[[bytes], JSON] | None = None) -> None:
        self._channel, self._answer = guest.channel, answer
        self._token = secrets.token_hex(8)
        self.reply: bytes | None = None

    def send(self, body: JSON, timeout_s: float) -> None:
        """Send the message; ForgedMessage when unrequested data is waiting on the channel."""
        if self._channel.has_unread:
            raise ForgedMessage("it sent a message without a request")
        self._channel.send({"turn": self._token, "body": body}, timeout_s)

    def read_reply(self) -> bool:
        """Read the channel and return whether the reply has arrived; ForgedMessage for neither a reply nor a
        question."""
        for number, data in enumerate(self._channel.read_frames()):
            if number:
                raise ForgedMessage("it did not wait for an answer")
            self._handle_frame(data)
        return self.reply is not None

    def _handle_frame(self, data: bytes) -> None:
        try:
            frame = _frame_decoder.decode(data)
        except JSON_ERRORS as error:
            raise ForgedMessage(str(error)) from None
        question = bytes(frame.ask)
        if question and self._answer and self.reply is None:
            self._channel.send({"answer": self._answer(question)}, ANSWER_TIMEOUT_S)
        elif not question and frame.done == self._token and self.reply is None:
            self.reply = bytes(frame.body)
        else:
            raise ForgedMessage("no reply to what it was asked")


class SessionTurn:
    """A turn in progress: the exchange with the guest, the clocks of the process that runs it, and its outcome."""

    def __init__(self, guest: Guest, limits: Limits) -> None:
        self._guest, self._limits = guest, limits
        self._exchange = MessageExchange(guest)
        self._watchdog: Watchdog | None = None
        self._status: RunStatus | None = None
        self._report = GuestReport()

    @property
    def status(self) -> RunStatus | None:
        """The outcome; None until it is known."""
        return self._status

    def send(self, body: Mapping[str, JSON]) -> bool:
        """Send the message to the guest; return whether it was accepted."""
        self._guest.channel.max_bytes = max_frame_bytes(self._limits.keep_bytes)
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
        """Handle the channel for a watchdog: return True once the guest has replied or sent something forbidden."""
        try:
            is_over = self._exchange.read_reply()
            if self._exchange.reply is not None:
                self._report = decode_guest_report(self._exchange.reply)
                self._status = status_of_report(self._report)
        except (ForgedMessage, *JSON_ERRORS) as error:
            self.reject(f"wrote on the sandbox's channel: {error}")
            is_over = True
        return is_over

    def start_watchdog(self, process: GuestProcess, clock: CpuClock | None = None) -> Watchdog:
        """Start the clocks of the process that runs the turn."""
        self._watchdog = Watchdog(process, self._limits, self._guest.streams, clock=clock, shared_core=True)
        self._watchdog.begin()
        return self._watchdog

    def wait(self, process: GuestProcess, handlers: Mapping[int, Callable[[], bool]]) -> bool:
        """Wait until the guest has replied, died or been killed; return whether it replied and is alive."""
        assert self._watchdog
        self._watchdog.wait({self._guest.channel.fileno(): self.read_reply, process.pidfd: lambda: True, **handlers})
        self._status = self._watchdog.kill_status or self._status
        if self._watchdog.kill_error:
            self._report = GuestReport(error=self._watchdog.kill_error)
        return self._status in ("ok", "error", "memory")

    def reject(self, why: str) -> None:
        """End the turn with status killed because of what the code did, whatever it reports."""
        self._status, self._report = "killed", GuestReport(error=ProgramError("Killed", f"the code {why}"))

    def set_out_of_memory(self) -> None:
        """Record that the turn ended with more memory than allowed."""
        self._status, self._report = "memory", out_of_memory(self._limits)

    def set_death(self, process: GuestProcess, code: int | None, cpu_s: float) -> None:
        """Record that the process ended before it replied. Even exit code 0 is a failure: the turn is unfinished."""
        if self._status is None and code in (None, -signal.SIGKILL) and self._guest.ran_out_of_memory():
            self.set_out_of_memory()
        if self._status is None:
            can_kill = self._guest.can_kill(process)
            self._status = status_of_death(code, self._cpu_seconds(cpu_s), self._limits, can_kill=can_kill)
        if self._status in ("ok", "error") and self._report.error is None:
            self._status = "error"
            words = f"the process exited with {code} in the middle of the turn"
            self._report = GuestReport(exit=code, error=ProgramError("Exit", words))

    def check_memory(self) -> None:
        """Record a process of the turn that the kernel killed for lack of memory although the guest itself is alive."""
        if self._limits.processes > 1 and self._guest.ran_out_of_memory():
            self.set_out_of_memory()

    def make_result(self, state: StateOutcome, peak_mb: float = 0.0, cpu_s: float | None = None) -> Result:
        """Return the result of the turn."""
        result = Result(
            status=self._status or "killed",
            error=self._report.error,
            exit=self._report.exit,
            seconds=self._watchdog.seconds if self._watchdog else 0.0,
            cpu_seconds=self._cpu_seconds(cpu_s),
            peak_mb=peak_mb,
            state=state,
        )
        return self._guest.add_output(result, self._report.value, self._limits)

    def _cpu_seconds(self, cpu_s: float | None) -> float:
        if self._watchdog is None:
            return 0.0
        return self._watchdog.cpu_seconds if cpu_s is None else self._watchdog.cpu_since_begin(cpu_s)


class PersistentState:
    """The state is lost with its process. Threads of earlier turns continue in later ones and use their CPU time;
    processes of earlier turns are ended. `role` may be another one whose replies are reports."""

    def __init__(
        self,
        launcher: GuestLauncher,
        limits: Limits,
        files: Mapping[str, bytes],
        folder: str | None = None,
        *,
        role: str = "session",
        code: str = "",
    ) -> None:
        self._limits = limits
        self._guest = launcher.launch(role, limits, code=code, files=files, folder=folder)
        try:
            self._guest.wait_until_started(limits)
        except BaseException:
            self._guest.close()
            raise

    def run_turn(self, body: Mapping[str, JSON], limits: Limits) -> Result:
        """Run the body in the state."""
        with killed_when_cancelled(self._guest.process):
            return self._run_turn(body, limits)

    def _run_turn(self, body: Mapping[str, JSON], limits: Limits) -> Result:
        process, turn = self._guest.process, SessionTurn(self._guest, limits)
        turn.start_watchdog(process, self._guest.clock)
        move_to_this_core(process.pid)
        process.resume()
        is_alive = turn.send(body) and turn.wait(process, {})
        process.stop()
        if is_alive and not self._is_alone():
            turn.reject("started processes without end")
        elif is_alive:
            turn.check_memory()
            return turn.make_result("kept", process.peak_mb())
        process.kill()
        end = self._guest.wait_for_exit()
        cpu_s = self._guest.cpu_s(end)
        turn.set_death(process, end.ended, cpu_s)
        return turn.make_result("lost", end.peak_kb / 1024, cpu_s)

    def _is_alone(self) -> bool:
        """End all other processes of the session: between turns they could not be stopped reliably."""
        return self._limits.processes == 1 or self._guest.process.kill_others()

    def close(self) -> None:
        """Discard the state."""
        self._guest.close()


_NOTICE = struct.Struct("=QIIiIQ6Q")
_ANSWER = struct.Struct("=QqiI")
_RECEIVE, _SEND, _VALID = 0xC0502100, 0xC0182101, 0x40082102
_GO_ON = 1
SIGCHLD, SET_TID, CLEAR_TID = 17, 0x01000000, 0x00200000


class HeldSyscall(NamedTuple):
    """A system call that waits for an answer. The numbers are the kernel's; the pid is that in the host's namespace."""

    id: int
    pid: int
    number: int
    argument: int

    @property
    def is_fork(self) -> bool:
        """A plain fork, without flags that change whose child it is or what it shares."""
        return self.number == CALLS[ARCH]["clone"] and self.argument & ~(SET_TID | CLEAR_TID) == SIGCHLD

    @property
    def is_hello(self) -> bool:
        """A new process announces itself."""
        return self.number == CALLS[ARCH][HELLO_CALL]


class ForkGate:
    """Answers held system calls one at a time; the caller waits until it is answered."""

    def __init__(self, listener: int) -> None:
        self._listener = listener
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)

    def fileno(self) -> int:
        """Return the descriptor that is ready when a call waits."""
        return self._listener

    def next_call(self) -> HeldSyscall | None:
        """Return the call that waits; None when there is none, or its process has died."""
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
        """Return the process that waits; None when the caller is not the main thread, or is gone."""
        try:
            pidfd = os.pidfd_open(call.pid)
        except OSError:
            return None
        try:
            # As long as it waits it is alive, so the pid cannot belong to another process.
            fcntl.ioctl(self._listener, _VALID, struct.pack("=Q", call.id))
            return GuestProcess(pidfd)
        except OSError:
            os.close(pidfd)
            return None

    def allow(self, call: HeldSyscall) -> None:
        """Let the kernel execute the call."""
        self._send_answer(call, 0, _GO_ON)

    def acknowledge(self, call: HeldSyscall) -> None:
        """Return success without executing the call."""
        self._send_answer(call, 0, 0)

    def refuse(self, call: HeldSyscall) -> None:
        """Fail the call with EPERM."""
        self._send_answer(call, -errno.EPERM, 0)

    def _send_answer(self, call: HeldSyscall, error: int, flags: int) -> None:
        try:
            fcntl.ioctl(self._listener, _SEND, _ANSWER.pack(call.id, 0, error, flags))
        except OSError:  # it died while it waited
            return

    def close(self) -> None:
        """Close the gate; from here on every call fails."""
        os.close(self._listener)


FORK_S, FORK_CPU_S, CPU_S_PER_GB = 10.0, 1.0, 0.5
CHECK_S, MAX_SLEEPS = 0.02, 20


class ForkWatchdog(Watchdog):
    """Watches a process that is about to fork.

    A busy machine may delay it, but a process that forks, and the fork, neither spin nor sleep: they run, or wait at
    the gate, where they are answered at once. A process that uses more CPU time than copying its memory could take, or
    is found asleep again and again, is doing something else, and is killed long before the deadline.
    """

    def __init__(self, process: GuestProcess, limits: Limits, streams: Sequence[OutputPipe]) -> None:
        super().__init__(process, limits, streams, FORK_S)
        self._cpu_before = process.cpu_s()
        self._max_cpu_s = min(FORK_CPU_S, limits.seconds) + CPU_S_PER_GB * limits.memory_mb / 1024
        self._next_check_s, self._sleeps = time.monotonic() + CHECK_S, 0

    def _poll_timeout_s(self) -> float:
        return min(CHECK_S, super()._poll_timeout_s())

    def _check_limits(self) -> None:
        super()._check_limits()
        now = time.monotonic()
        if self.kill_status or now < self._next_check_s:
            return
        self._next_check_s = now + CHECK_S
        forks = self._list_new_forks()
        self._sleeps += all(map(is_asleep, forks or [self._process.pid]))
        if self._sleeps > MAX_SLEEPS or self.cpu_seconds + sum(map(read_cpu_s, forks)) > self._max_cpu_s:
            self.kill("killed")

    def _list_new_forks(self) -> list[int]:
        """Return the pids of forks that have not announced themselves; dead ones belong to earlier turns."""
        return [pid for pid in list_children(self._process.pid) if not is_dead(pid)]


MAX_REFUSALS = 10_000


class SnapshotState:
    """A timeout, a crash, an exit or lack of memory undoes the turn (except for files; threads end with every turn)."""

    def __init__(
        self, launcher: GuestLauncher, limits: Limits, files: Mapping[str, bytes], folder: str | None = None
    ) -> None:
        self._launcher, self._limits, self._resources = launcher, limits, ExitStack()
        self._guest = launcher.launch("snapshot", limits, files=files, folder=folder)
        self._resources.callback(self._guest.close)
        try:
            self._gate = open_gate(self._guest, limits)
            self._resources.callback(self._gate.close)
            self._holder = find_first_holder(self._guest, self._gate, limits)
            self._guest.process.stop()
            self._own_mb = self._first_mb = self._holder.read_memory().own_mb
        except BaseException:
            self._resources.close()
            raise

    def run_turn(self, body: Mapping[str, JSON], limits: Limits) -> Result:
        """Run the body in a fork of the state."""
        self._check_holder()
        turn, arrival = SessionTurn(self._guest, limits), ForkArrival(self._gate, forks=1, known=self._holder.pid)
        self._guest.renew_memory(limits, self._own_mb - self._first_mb)
        self._guest.process.wait_until_stopped()
        self._holder.resume()
        is_sent = turn.send(body)
        in_time = is_sent and self._wait_for_fork(arrival, turn, limits)
        self._holder.stop()
        if arrival.process and in_time:
            return self._run_fork(turn, arrival, arrival.process)
        self._lose_state(turn, arrival)
        if is_sent:
            turn.reject("of earlier turns keeps the session from forking")
        return turn.make_result("lost")

    def _check_first_process(self, turn: SessionTurn) -> None:
        """Raise SandboxError when the guest's first process was killed: code runs in others, and cannot do that.

        It ends by itself when the last of the others has ended.
        """
        first = self._guest.process
        if turn.status == "memory" or not (first.has_ended() or is_exiting(first.pid)):
            return
        if not first.has_ended(GUEST_KILL_S):
            raise SandboxError(f"process {first.pid} does not die")
        if self._guest.wait_for_exit().ended == -signal.SIGKILL and not self._guest.can_kill(first):
            raise SandboxError("the first process of the session was killed from outside")

    def _check_holder(self) -> None:
        """Raise SandboxError when the state ended between turns: it was stopped, so its code cannot have done that."""
        if not self._holder.has_ended():
            return
        self._launcher.check_provider_alive()
        if not self._guest.ran_out_of_memory():
            raise SandboxError("the state of the session was killed from outside")

    def _wait_for_fork(self, arrival: ForkArrival, turn: SessionTurn, limits: Limits) -> bool:
        """Wait for the runner, or until the holder cannot fork or has died; return whether it was in time."""
        handlers = {self._gate.fileno(): arrival.check_gate, self._guest.channel.fileno(): turn.read_reply}
        handlers[self._holder.pidfd] = lambda: True
        watchdog = ForkWatchdog(self._holder, limits, self._guest.streams)
        watchdog.wait(handlers)
        return watchdog.kill_status is None

    def _run_fork(self, turn: SessionTurn, arrival: ForkArrival, runner: GuestProcess) -> Result:
        watchdog = turn.start_watchdog(runner)
        self._guest.process.resume()  # to reap the holders of earlier turns
        arrival.admit()
        with killed_when_cancelled(runner):
            is_alive = turn.wait(runner, {self._gate.fileno(): lambda: arrival.refuse_others(watchdog)})
        runner.stop()
        self._guest.process.stop()
        size = runner.read_memory()
        if is_alive and size.own_mb > self._first_mb + self._limits.memory_mb:
            turn.set_out_of_memory()
        if not is_alive or turn.status == "memory":
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
            self._launcher.check_provider_alive()  # either the code ended itself, or everything ended with the zygote
        turn.set_death(runner, runner.exit_code(), runner.cpu_s())
        self._check_first_process(turn)
        if turn.status != "memory":
            self._check_holder()  # it was stopped
        self._guest.channel.discard()
        lost = self._guest.process.has_ended() or self._holder.has_ended()
        result = turn.make_result("lost" if lost else "rolled back", peak_mb)
        runner.close()
        return result

    def _lose_state(self, turn: SessionTurn, arrival: ForkArrival) -> None:
        """Record how the holder ended, if it did; SandboxError when neither its code nor a limit ended it."""
        arrival.release()
        self._launcher.check_provider_alive()
        if is_exiting(self._holder.pid) and not self._holder.has_ended(GUEST_KILL_S):
            raise SandboxError(f"process {self._holder.pid} does not die")
        if self._holder.has_ended():
            turn.set_death(self._holder, self._holder.exit_code(), 0.0)
        self._check_first_process(turn)

    def close(self) -> None:
        """Discard the state."""
        self._resources.close()
        self._holder.close()


class ForkArrival:
    """A new process on its way through the gate."""

    def __init__(self, gate: ForkGate, forks: int, known: int = 0) -> None:
        self._gate, self._forks, self._known = gate, forks, known
        self._hello: HeldSyscall | None = None
        self._refused = 0
        self.process: GuestProcess | None = None

    def check_gate(self) -> bool:
        """Handle the gate for a watchdog: return True once the process has arrived, or after too many other calls."""
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
        """Let the new process continue."""
        assert self._hello
        self._gate.acknowledge(self._hello)

    def release(self) -> None:
        """Close our descriptor of the process: it ends with the session."""
        if self.process:
            self.process.close()

    def refuse_others(self, watchdog: Watchdog) -> bool:
        """Handle the gate for a watchdog: refuse every further call of this turn, and kill a process after too many."""
        call = self._gate.next_call()
        if call and self._refuse(call):
            watchdog.kill("killed")
        return False


def open_gate(guest: Guest, limits: Limits) -> ForkGate:
    """Return the gate that the guest passes to the host before it runs any code."""
    handles = guest.wait_until_started(limits)
    if not handles:
        raise SandboxError("snapshots need seccomp's user notification, which this kernel does not give")
    return ForkGate(handles[0])


def find_first_holder(guest: Guest, gate: ForkGate, limits: Limits) -> GuestProcess:
    """Return the process that the first turn forks from."""
    arrival = ForkArrival(gate, forks=0)
    Watchdog(guest.process, limits, guest.streams).wait(
        {gate.fileno(): arrival.check_gate, guest.control: lambda: True}
    )
    if arrival.process is None:
        raise SandboxError("the session's first process did not arrive")
    arrival.admit()
    return arrival.process
