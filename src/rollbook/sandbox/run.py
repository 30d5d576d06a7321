"""One fresh run: a guest that is launched for it, watched to its end, and described."""

from __future__ import annotations

import signal

import msgspec

from rollbook.sandbox.errors import Forged
from rollbook.sandbox.guest import Guest
from rollbook.sandbox.limits import Limits
from rollbook.sandbox.result import Report, Result, Status
from rollbook.sandbox.watch import Watch, out_of_memory, status_of_death, status_of_report

_report = msgspec.json.Decoder(Report)


class Run:
    """A program under way in a guest of the role `run`."""

    def __init__(self, guest: Guest, limits: Limits, together: bool = False) -> None:
        self._guest, self._limits = guest, limits
        self._watch = Watch(guest.process, limits, guest.streams, clock=guest.clock, together=together)
        self._report = Report()

    def result(self) -> Result:
        """Wait for the end and describe it."""
        guest = self._guest
        self._watch.wait({guest.channel.fileno(): self._hear, guest.control: lambda: True})
        if guest.channel.open:
            self._hear()
        if not guest.started:
            raise guest.not_started()
        return self._describe()

    def _hear(self) -> bool:
        channel = self._guest.channel
        try:
            for frame in channel.frames():
                self._take(frame)
        except (Forged, msgspec.DecodeError):  # it wrote nonsense where it should not have
            channel.open = False
        if not channel.open:
            self._watch.forget(channel.fileno())
        return False

    def _take(self, frame: bytes) -> None:
        if self._guest.started:
            self._report = _report.decode(frame)
        else:
            self._guest.hear_start(frame)
            self._watch.begin()

    def _describe(self) -> Result:
        guest, watch, end = self._guest, self._watch, self._guest.end()
        cpu = watch.since_begin(guest.cpu_s(end))
        value, cut = clip(self._report.value, self._limits)
        for stream in guest.streams:
            stream.drain()
        status = watch.verdict or self._status(end.ended, cpu)
        return Result(
            status=status,
            stdout=guest.out.text(),
            stderr=guest.err.text(),
            value=value,
            error=self._report.error,
            exit=end.ended if end.ended >= 0 else None,
            seconds=watch.seconds,
            cpu_seconds=cpu,
            peak_mb=end.peak_kb / 1024,
            truncated=cut or guest.out.truncated or guest.err.truncated,
            stdout_cut=guest.out.truncated,
            isolation=guest.isolation,
        )

    def _status(self, code: int, cpu_s: float) -> Status:
        if (code == -signal.SIGKILL or self._limits.processes > 1) and self._guest.ran_out():
            self._report = out_of_memory(self._limits)
            return "memory"
        if code >= 0 and self._report.error is not None:
            return status_of_report(self._report)
        return status_of_death(code, cpu_s, self._limits)


def clip(value: str | None, limits: Limits) -> tuple[str | None, bool]:
    """The value as far as it is kept, and whether there was more."""
    if value is None or len(value) <= limits.keep_bytes:
        return value, False
    return value[: limits.keep_bytes], True
