"""The state of a session in a process that forks for every turn, so that a turn can be undone.

The holder of the state forks a runner, and is stopped until the runner has replied. Then the runner is the new holder
and the old one is killed; or the runner died, and the holder goes on. There are never more than these two.

Both are of one user and one pid namespace, and both hold untrusted code. So nothing rests on what either says:

- A fork waits at the host's `Gate` (seccomp's user notification), which lets one pass in a turn. The code has no other.
- The runner says hello through the same gate: its pid comes from the kernel while it waits there. Clocks, stop and kill
  go by its pidfd, and it goes on only when the holder has been stopped.
- The filter of such a session forbids to send signals at all (by call or by a descriptor's owner), to trace, to set
  another process's limits, and to shut down or reconfigure a socket that both have.
- The first process of the namespace is neither: it cannot be killed from inside, and with it everything ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from rollbook.core.json import JSON
from rollbook.sandbox.errors import SandboxError
from rollbook.sandbox.forking import Forking
from rollbook.sandbox.gate import Call, Gate
from rollbook.sandbox.guest import KILL_S, Guest
from rollbook.sandbox.limits import Limits
from rollbook.sandbox.process import Process
from rollbook.sandbox.result import Result
from rollbook.sandbox.slot import Slot
from rollbook.sandbox.turn import Turn
from rollbook.sandbox.watch import Watch

REFUSALS_MOST = 10_000


class Snapshot:
    """A timeout, a crash, an exit or memory run out undoes the turn (not its files; threads end with every turn)."""

    def __init__(self, slot: Slot, limits: Limits, files: Mapping[str, bytes], folder: str | None = None) -> None:
        self._slot, self._limits, self._held = slot, limits, ExitStack()
        self._guest = slot.launch("snapshot", limits, files=files, folder=folder)
        self._held.callback(self._guest.close)
        try:
            self._gate = open_gate(self._guest, limits)
            self._held.callback(self._gate.close)
            self._holder = first_holder(self._guest, self._gate, limits)
            self._own_mb = self._first_mb = self._holder.size().own_mb
        except BaseException:
            self._held.close()
            raise

    def turn(self, body: Mapping[str, JSON], limits: Limits) -> Result:
        """Run what the body says in a fork of the state."""
        turn, arrival = Turn(self._guest, limits), Arrival(self._gate, forks=1, known=self._holder.pid)
        self._guest.renew(limits, self._own_mb - self._first_mb)
        self._holder.go()
        if not turn.send(body):
            return self._lost(turn)
        in_time = self._wait_for(arrival, turn, limits)
        self._holder.stop()
        if arrival.process and in_time:
            return self._watch(turn, arrival, arrival.process)
        turn.reject("of earlier turns keeps the session from forking")
        arrival.give_up()
        return self._lost(turn)

    def _wait_for(self, arrival: Arrival, turn: Turn, limits: Limits) -> bool:
        """Until the runner is there, or the holder says that it cannot fork, or has died; whether it was in time."""
        lines = {self._gate.fileno(): arrival.look, self._guest.channel.fileno(): turn.hear}
        lines[self._holder.pidfd] = lambda: True
        forking = Forking(self._holder, limits, self._guest.streams)
        forking.wait(lines)
        return forking.verdict is None

    def _watch(self, turn: Turn, arrival: Arrival, runner: Process) -> Result:
        watch = turn.watch(runner)
        arrival.let_in()
        lives = turn.wait(runner, {self._gate.fileno(): lambda: arrival.refuse_others(watch)})
        runner.stop()
        size = runner.size()
        if lives and size.own_mb > self._first_mb + self._limits.memory_mb:
            turn.overdrew()
        if not lives or turn.status == "memory":
            return self._roll_back(turn, runner)
        self._holder.kill()
        self._holder.close()
        self._holder, self._own_mb = runner, size.own_mb
        return turn.result("kept", size.peak_mb)

    def _roll_back(self, turn: Turn, runner: Process) -> Result:
        peak_mb = runner.peak_mb()
        runner.kill()
        if not runner.gone(KILL_S):
            raise SandboxError(f"process {runner.pid} does not die")
        if turn.status is None:
            self._slot.check()  # the code has ended itself, or all has ended with the zygote
        turn.died(runner.exit_code(), runner.cpu_s())
        self._guest.channel.forget()
        lost = self._guest.process.gone() or self._holder.gone()
        result = turn.result("lost" if lost else "rolled back", peak_mb)
        runner.close()
        return result

    def _lost(self, turn: Turn) -> Result:
        """The code has ended its own state, unless it was the zygote's end: that is no result."""
        self._slot.check()
        return turn.result("lost")

    def close(self) -> None:
        """The end of the state."""
        self._held.close()
        self._holder.close()


class Arrival:
    """A new process on its way through the gate."""

    def __init__(self, gate: Gate, forks: int, known: int = 0) -> None:
        self._gate, self._forks, self._known = gate, forks, known
        self._hello: Call | None = None
        self._refused = 0
        self.process: Process | None = None

    def look(self) -> bool:
        """A line for a watch: over once it is there, or too much was asked that is not due."""
        call = self._gate.next()
        if call is None:
            return False
        if call.is_fork and self._forks:
            self._forks -= 1
            self._gate.allow(call)
        elif not (call.is_hello and not self._forks and self._arrived(call)):
            return self._refuse(call)
        return self.process is not None

    def _arrived(self, call: Call) -> bool:
        process = self._gate.caller(call)
        if process and process.pid == self._known:
            process.close()
            return False
        self._hello, self.process = call, process
        return process is not None

    def _refuse(self, call: Call) -> bool:
        self._refused += 1
        self._gate.refuse(call)
        return self._refused > REFUSALS_MOST

    def let_in(self) -> None:
        """It may go on."""
        assert self._hello
        self._gate.welcome(self._hello)

    def give_up(self) -> None:
        """Let go of it: it ends with the session."""
        if self.process:
            self.process.close()

    def refuse_others(self, watch: Watch) -> bool:
        """A line for a watch: nothing more passes in this turn, and who insists without end is killed."""
        call = self._gate.next()
        if call and self._refuse(call):
            watch.kill("killed")
        return False


def open_gate(guest: Guest, limits: Limits) -> Gate:
    """The gate that the guest hands over before it runs anything."""
    handles = guest.wait_until_started(limits)
    if not handles:
        raise SandboxError("snapshots need seccomp's user notification, which this kernel does not give")
    return Gate(handles[0])


def first_holder(guest: Guest, gate: Gate, limits: Limits) -> Process:
    """The process that the first turn forks from."""
    arrival = Arrival(gate, forks=0)
    Watch(guest.process, limits, guest.streams).wait({gate.fileno(): arrival.look, guest.control: lambda: True})
    if arrival.process is None:
        raise SandboxError("the session's first process did not arrive")
    arrival.let_in()
    return arrival.process
