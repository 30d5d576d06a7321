"""Tests in Python against code: two guests, a line between them, and clocks for both."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from threading import Thread
from typing import Any

import msgspec

from rollbook.core.json import JSON
from rollbook.errors import RollbookError
from rollbook.sandbox.guest import Guest
from rollbook.sandbox.limits import MOST_SECONDS, Limits
from rollbook.sandbox.result import Error, Result
from rollbook.sandbox.run import Run
from rollbook.sandbox.slot import Slot
from rollbook.sandbox.verdict import Reason, Verdict


class TestsBroken(RollbookError):
    """The tests failed by themselves, before they asked the code anything: nobody can be graded with them."""

    __test__ = False


class Said(msgspec.Struct):
    """What an examiner reports."""

    verdict: str
    weak: bool
    beside: bool
    error: Error | None


class Examination:
    """The code under test runs in one guest, the tests in another that alone says what came of them."""

    def __init__(self, slot: Slot, limits: Limits) -> None:
        self._slot, self._limits = slot, limits
        self._patient = msgspec.structs.replace(limits, wall_seconds=min(2 * limits.wall_s, MOST_SECONDS))
        self._ended: Result | BaseException | None = None

    def results(self, code: str, exam: Mapping[str, JSON]) -> tuple[Result, Result]:
        """What became of the tests, and what of the code."""
        one, other = socket.socketpair()
        candidate = examiner = None
        try:
            told = {"core": self._slot.core, "classes": exam["classes"]}
            asked = json.dumps(exam)
            candidate = self._slot.launch("candidate", self._limits, code=code, extra=[one.fileno()], request=told)
            examiner = self._slot.launch("examiner", self._patient, code=asked, extra=[other.fileno()], request=told)
            one.close()  # so that each guest notices when the other is gone
            other.close()
            return self._watched(candidate, examiner)
        finally:
            one.close()
            other.close()
            for guest in (examiner, candidate):
                if guest:
                    guest.close()

    def _watched(self, candidate: Guest, examiner: Guest) -> tuple[Result, Result]:
        watcher = Thread(target=self._watch, args=[candidate], daemon=True)
        watcher.start()
        try:
            examined = Run(examiner, self._patient, together=True).result()
        finally:
            candidate.process.kill()
            watcher.join()
        if not isinstance(self._ended, Result):
            raise self._ended or RuntimeError("the candidate was not watched")
        return examined, self._ended

    def _watch(self, candidate: Guest) -> None:
        try:
            self._ended = Run(candidate, self._limits, together=True).result()
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            self._ended = error


def verdict_of(examined: Result, candidate: Result) -> Verdict:
    """What the examiner said, or why it could not say anything."""
    costs: dict[str, Any] = {"seconds": examined.seconds, "cpu_seconds": candidate.cpu_seconds}
    costs["isolation"] = candidate.isolation
    said = said_of(examined)
    if said is None:  # the tests ran out of time or memory with what the code gave them
        return Verdict(False, reason_of(examined), f"the tests ended with {examined.status}", **costs)
    words = words_of(said.error)
    if said.verdict == "broken":
        raise TestsBroken(f"the tests do not run: {words}")
    if said.verdict == "passed":
        return Verdict(True, "passed", weak=said.weak, fraction=1.0, **costs)
    if said.verdict == "gone":
        return Verdict(False, reason_of(candidate), words_of(candidate.error), **costs)
    reason: Reason = "refused" if said.verdict == "refused" else "failed"
    return Verdict(False, reason, words, weak=said.weak, **costs)


def said_of(examined: Result) -> Said | None:
    """What the examiner reports, if it came to that."""
    try:
        return msgspec.json.decode(examined.value or "", type=Said)
    except msgspec.DecodeError:
        return None


def confirmed(first: Verdict, second: Verdict, allow_weak: bool) -> Verdict:
    """Of code that passed and changed its arguments beside, or gave them back: it must pass by its values alone too."""
    costs: dict[str, Any] = {"seconds": first.seconds + second.seconds}
    costs["cpu_seconds"] = first.cpu_seconds + second.cpu_seconds
    if second.passed:
        return msgspec.structs.replace(second, **costs)
    if allow_weak:
        return msgspec.structs.replace(first, weak=True, **costs)
    why = "the code returns a value and changes its arguments too, or returns them, and passes only by that"
    return Verdict(False, "refused", why, isolation=first.isolation, **costs)


def reason_of(result: Result) -> Reason:
    """Why code that was to answer did not: with 0 or not, it ended when it should have waited for a question."""
    return "exit" if result.status == "ok" or (result.status == "error" and result.error is None) else result.status


def words_of(error: Error | None) -> str:
    """An error on one line."""
    return f"{error.type}: {error.message}" if error else ""
