"""The state of a session in one long-lived process, which runs while a turn does and is stopped in between."""

from __future__ import annotations

from collections.abc import Mapping

from rollbook.core.json import JSON
from rollbook.sandbox.cores import come_here
from rollbook.sandbox.limits import Limits
from rollbook.sandbox.result import Result
from rollbook.sandbox.slot import Slot
from rollbook.sandbox.turn import Turn


class Persistent:
    """What ends the process ends the state. Threads of earlier turns run on in later ones, whose CPU time they use;
    processes of earlier turns do not. Another role whose replies are reports can stand in for the session's."""

    def __init__(
        self,
        slot: Slot,
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

    def turn(self, body: Mapping[str, JSON], limits: Limits) -> Result:
        """Run what the body says in the state."""
        process, turn = self._guest.process, Turn(self._guest, limits)
        turn.watch(process, self._guest.clock)
        come_here(process.pid)
        process.go()
        lives = turn.send(body) and turn.wait(process, {})
        process.stop()
        if lives and not self._is_alone():
            turn.reject("started processes without end")
        elif lives:
            turn.count()
            return turn.result("kept", process.peak_mb())
        process.kill()
        end = self._guest.end()
        cpu_s = self._guest.cpu_s(end)
        turn.died(end.ended, cpu_s)
        return turn.result("lost", end.peak_kb / 1024, cpu_s)

    def _is_alone(self) -> bool:
        """No other process of the session is left between turns: it could not be stopped for certain."""
        return self._limits.processes == 1 or self._guest.process.kill_others()

    def close(self) -> None:
        """The end of the state."""
        self._guest.close()
