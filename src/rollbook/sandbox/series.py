"""One input after another to the same program, in a guest that stays; a new one when it was lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from rollbook.core.json import JSON
from rollbook.sandbox.examination import words_of
from rollbook.sandbox.limits import Limits
from rollbook.sandbox.persistent import Persistent
from rollbook.sandbox.result import Result
from rollbook.sandbox.slot import Slot
from rollbook.sandbox.verdict import Reason, Verdict


class Case(NamedTuple):
    """What the guest is given, and whether what it made of it is right."""

    body: Mapping[str, JSON]
    right: Callable[[Result], bool]


class Series:
    """The cases of one program. What it prints or returns is judged by the host; it never sees what was expected."""

    def __init__(self, slot: Slot, role: str, code: str, limits: Limits) -> None:
        self._slot, self._role, self._code, self._limits = slot, role, code, limits
        self._guest: Persistent | None = None

    def verdict(self, cases: Sequence[Case], all_of_them: bool) -> Verdict:
        """How many came out right, and what went wrong with the first that did not."""
        results: list[Result] = []
        wrong: list[int] = []
        for place, result in enumerate(self._results(cases)):
            results.append(result)
            if not (self._ended_well(result) and cases[place].right(result)):
                wrong.append(place)
                if not all_of_them:
                    break
        reason, detail = _why(wrong[0], results[wrong[0]]) if wrong else ("passed", "")
        return Verdict(
            not wrong,
            reason,
            detail,
            fraction=(len(results) - len(wrong)) / len(cases),
            seconds=sum(result.seconds for result in results),
            cpu_seconds=sum(result.cpu_seconds for result in results),
            isolation=self._slot.isolation,
        )

    def _ended_well(self, result: Result) -> bool:
        """A program may end its process with 0 once it has printed what it has to say: that alone is judged then."""
        return result.status == "ok" or (self._role == "inputs" and left_with_0(result))

    def _results(self, cases: Sequence[Case]) -> Iterator[Result]:
        try:
            for case in cases:
                yield self._turn(case.body)
        finally:
            if self._guest:
                self._guest.close()

    def _turn(self, body: Mapping[str, JSON]) -> Result:
        self._guest = guest = self._guest or Persistent(self._slot, self._limits, {}, role=self._role, code=self._code)
        result = guest.turn(body, self._limits)
        if result.state == "lost":
            guest.close()
            self._guest = None
        return result


def left_with_0(result: Result) -> bool:
    """Whether its process ended by itself, and with 0, before the turn did."""
    return result.state == "lost" and result.exit == 0


def _why(place: int, result: Result) -> tuple[Reason, str]:
    if result.status == "ok" or left_with_0(result):
        return "failed", f"case {place + 1}: another output was expected"
    return result.status, f"case {place + 1}: {words_of(result.error) or result.status}"
