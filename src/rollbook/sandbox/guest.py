"""One guest, seen from the host: the first process of its namespace, its channel, its output, and how it ended."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence

import msgspec

from rollbook.sandbox.channel import HostEnd, frame_bound
from rollbook.sandbox.clock import Clock, Family
from rollbook.sandbox.errors import Forged, SandboxError
from rollbook.sandbox.folder import Folder
from rollbook.sandbox.inner.channel import Channel
from rollbook.sandbox.limits import Limits
from rollbook.sandbox.memory import Account
from rollbook.sandbox.process import Process
from rollbook.sandbox.stream import Stream
from rollbook.sandbox.watch import SETUP_S, Watch

KILL_S = 10.0
_STARTED = b'{"started": true}'


class End(msgspec.Struct, frozen=True):
    """What the zygote says of a guest that is dead: as good as the kernel's word."""

    ended: int
    cpu_s: float
    peak_kb: int


class Guest:
    """Made by `Slot.launch`, which gives it its descriptors; whoever asked for it closes it."""

    def __init__(
        self,
        limits: Limits,
        isolation: tuple[str, ...],
        account: Account | None = None,
        folder: Folder | None = None,
    ) -> None:
        self.isolation, self._folder = isolation, folder
        self.started = False
        self._account, self._several = account, limits.processes > 1
        self._process: Process | None = None
        self._clock: Clock | None = account.clock if account and self._several else None
        self._grouped = self._clock is not None
        ours, self._theirs = socket.socketpair()
        self.channel = HostEnd(ours, frame_bound(limits.keep_bytes))
        ours, self._zygotes = socket.socketpair()
        self._control = Channel(ours.detach(), SETUP_S)
        self.out = Stream(limits.keep_bytes)
        try:
            self.err = Stream(limits.keep_bytes)
        except OSError:
            self.out.abandon()
            raise

    @property
    def process(self) -> Process:
        """The first process of its namespace: all others of the guest end with it."""
        assert self._process
        return self._process

    @property
    def clock(self) -> Clock:
        """The CPU time of all its processes."""
        return self._clock or self.process

    def cpu_s(self, end: End) -> float:
        """The same once it is dead: by the group's word where there is one, else by the kernel's last one."""
        counted = self.clock.cpu_s()
        return counted if self._grouped else max(end.cpu_s, counted)

    @property
    def streams(self) -> tuple[Stream, Stream]:
        """Its stdout and stderr."""
        return self.out, self.err

    def hand_over(self, send: Callable[[list[int]], None], stdin: int, extra: Sequence[int]) -> None:
        """Give the guest's ends to the zygote, and learn its process from it."""
        theirs = [stdin, self.out.write, self.err.write]
        try:
            send([*theirs, self._theirs.fileno(), *extra, self._zygotes.fileno()])
        finally:
            for handle in theirs:
                os.close(handle)
            self._theirs.close()
            self._zygotes.close()
            if self._account:
                self._account.let_in()
            if self._folder:
                self._folder.let_in()
        begun, handles = self._control.receive(1)
        if not handles:
            raise SandboxError(f"no guest could be started: {begun.get('failed')}")
        self._process = Process(handles[0])
        if self._several and not self._grouped:
            self._clock = Family(self._process)

    def wait_until_started(self, limits: Limits) -> list[int]:
        """Until the walls are up, by a deadline; gives the descriptor that came with the word, if one did."""
        handles: list[int] = []

        def hear() -> bool:
            handles.extend(self.channel.handles())
            for frame in self.channel.frames():
                self.hear_start(frame)
            return self.started

        watch = Watch(self.process, limits, self.streams)
        watch.wait({self.channel.fileno(): hear, self.control: lambda: True})
        if not self.started:
            raise self.not_started()
        return handles

    def not_started(self) -> SandboxError:
        """Why there are no walls."""
        self.err.drain()
        return SandboxError(f"the walls could not be put up: {self.err.text().strip() or 'no word of it'}")

    def hear_start(self, frame: bytes) -> None:
        """The first frame, which says that the walls are up."""
        if frame != _STARTED:
            raise Forged("it did not say that it has started")
        self.started = True

    @property
    def control(self) -> int:
        """The descriptor that is ready once it has ended."""
        return self._control.fileno()

    def end(self) -> End:
        """How it ended; waits for it, so it must be on its way."""
        try:
            said, _ = self._control.receive()
        except (OSError, EOFError) as error:
            raise SandboxError(f"the sandbox broke: {error}") from None
        return msgspec.convert(said, End)

    def ran_out(self) -> bool:
        """Whether the kernel killed something of it for want of memory since this was last asked."""
        return self._account is not None and self._account.ran_out()

    def renew(self, limits: Limits, own_mb: float) -> None:
        """What it holds by now does not count against the limit of the turn to come."""
        if self._account:
            self._account.renew(limits, own_mb)

    def close(self) -> None:
        """End it and everything in it, and let go."""
        if self._process:
            self._process.kill()
            self._process.gone(KILL_S)
            self._process.close()
        for held in (self.out, self.err, self.channel, self._control):
            held.close()
        if self._account:
            self._account.close()
        if self._folder:
            self._folder.close()
