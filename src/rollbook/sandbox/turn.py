"""One turn of a session: code goes in, a result comes out."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping

import msgspec

from rollbook.core.json import JSON
from rollbook.sandbox.channel import frame_bound
from rollbook.sandbox.clock import Clock
from rollbook.sandbox.errors import Forged
from rollbook.sandbox.exchange import Exchange
from rollbook.sandbox.guest import Guest
from rollbook.sandbox.limits import Limits
from rollbook.sandbox.process import Process
from rollbook.sandbox.result import Error, Report, Result, State, Status
from rollbook.sandbox.run import clip
from rollbook.sandbox.watch import Watch, out_of_memory, status_of_death, status_of_report

_report = msgspec.json.Decoder(Report)


class Turn:
    """A turn under way: the exchange with the guest, the clocks of the process that runs it, and what became of it."""

    def __init__(self, guest: Guest, limits: Limits) -> None:
        self._guest, self._limits = guest, limits
        self._exchange = Exchange(guest)
        self._watch: Watch | None = None
        self._status: Status | None = None
        self._report = Report()

    @property
    def status(self) -> Status | None:
        """What became of it; None as long as nobody knows."""
        return self._status

    def send(self, body: Mapping[str, JSON]) -> bool:
        """Give the guest its message; whether it took it."""
        self._guest.channel.most_bytes = frame_bound(self._limits.keep_bytes)
        for stream in self._guest.streams:
            stream.again(self._limits.keep_bytes)
        try:
            self._exchange.send({**body, "keep": self._limits.keep_bytes}, self._limits.wall_s)
        except Forged as error:
            self.reject(f"wrote on the sandbox's channel: {error}")
        except TimeoutError:
            self._status = "timeout"
        except EOFError:
            return False
        return self._status is None

    def hear(self) -> bool:
        """A line for a watch: over once the guest has replied, or has said what it must not."""
        try:
            over = self._exchange.hear()
            if self._exchange.reply is not None:
                self._report = _report.decode(self._exchange.reply)
                self._status = status_of_report(self._report)
        except (Forged, msgspec.DecodeError) as error:
            self.reject(f"wrote on the sandbox's channel: {error}")
            over = True
        return over

    def watch(self, process: Process, clock: Clock | None = None) -> Watch:
        """Start the clocks of the process that runs it."""
        self._watch = Watch(process, self._limits, self._guest.streams, clock=clock, together=True)
        self._watch.begin()
        return self._watch

    def wait(self, process: Process, lines: Mapping[int, Callable[[], bool]]) -> bool:
        """Until it has replied, died or been killed; whether it lived to reply."""
        assert self._watch
        self._watch.wait({self._guest.channel.fileno(): self.hear, process.pidfd: lambda: True, **lines})
        self._status = self._watch.verdict or self._status
        return self._status in ("ok", "error", "memory")

    def reject(self, why: str) -> None:
        """It did what ends it, whatever it says of itself."""
        self._status, self._report = "killed", Report(error=Error("Killed", f"the code {why}"))

    def overdrew(self) -> None:
        """It came to its end with more memory than it may keep."""
        self._status, self._report = "memory", out_of_memory(self._limits)

    def died(self, code: int | None, cpu_s: float) -> None:
        """Its process ended before it replied. Even with 0 that is no success: the turn did not come to its end."""
        if self._status is None and code in (None, -signal.SIGKILL) and self._guest.ran_out():
            self.overdrew()
        if self._status is None:
            self._status = status_of_death(code, self._cpu_seconds(cpu_s), self._limits)
        if self._status in ("ok", "error") and self._report.error is None:
            self._status = "error"
            words = f"the process exited with {code} in the middle of the turn"
            self._report = Report(exit=code, error=Error("Exit", words))

    def count(self) -> None:
        """It lived, but the kernel may have killed processes that it had started."""
        if self._limits.processes > 1 and self._guest.ran_out():
            self.overdrew()

    def result(self, state: State, peak_mb: float = 0.0, cpu_s: float | None = None) -> Result:
        """What to say of it."""
        for stream in self._guest.streams:
            stream.drain()
        value, cut = clip(self._report.value, self._limits)
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
        return self._watch.cpu_seconds if cpu_s is None else self._watch.since_begin(cpu_s)
