"""Displays with observers: one that cannot be started does not keep the run, or the others, from starting."""

from __future__ import annotations

from rollbook.engine import ObservedDisplay, Progress
from rollbook.engine.progress import Display


class Notes(Display):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


class Observer:
    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.calls: list[str] = []

    def start(self) -> None:
        if self.fault:
            raise OSError(self.fault)
        self.calls.append("start")

    def update(self, progress: Progress) -> None:
        self.calls.append("update")

    def end(self) -> None:
        self.calls.append("end")

    def wait(self) -> None:
        self.calls.append("wait")


def test_an_observer_that_cannot_be_started_is_reported_and_left_out() -> None:
    notes, broken, good = Notes(), Observer("too many open files"), Observer()
    display = ObservedDisplay(notes, [broken, good])
    display.start(1)
    display.update(Progress(requested=1))
    display.stop()
    display.stop()
    assert notes.lines == ["a hook or tracker could not be started, the run goes on: OSError: too many open files"]
    assert (broken.calls, good.calls) == ([], ["start", "update", "end", "wait"])
