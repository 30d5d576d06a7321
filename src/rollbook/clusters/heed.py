"""Slurm's signals: USR1 comes some time before the end, TERM at the end. The first drains, the next stops."""

from __future__ import annotations

import asyncio
import os
import signal

MARGIN_S = 45.0
"""What is kept of the grace for stopping, writing and going back into the queue."""
BEFORE_THE_END = (signal.SIGUSR1, signal.SIGALRM)


class Heed:
    """Hears the signals of a job, in whatever state the process is."""

    def __init__(self, grace_s: float) -> None:
        self._patience_s = max(grace_s - MARGIN_S, grace_s / 4)
        for number in (signal.SIGTERM, signal.SIGINT, *BEFORE_THE_END):
            signal.signal(number, _interrupt)

    def listen(self) -> None:
        """Within a loop: what a worker drains on is sent to it."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, self._soon)
        loop.add_signal_handler(signal.SIGALRM, self._late)

    def _soon(self) -> None:
        """Drain, but not until the kill: what is still in flight then is dropped."""
        signal.setitimer(signal.ITIMER_REAL, self._patience_s)
        os.kill(os.getpid(), signal.SIGTERM)

    def _late(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)  # another number than before: equal ones would count once

    def deaf(self) -> None:
        """What is left to do is short, and must not be interrupted."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in (signal.SIGTERM, signal.SIGINT, *BEFORE_THE_END):
            signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
