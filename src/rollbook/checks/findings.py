"""A finding: one thing that was checked about an environment, on how many tasks, and the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from rollbook.core import JSON
from rollbook.reports import make_html_table

CheckVerdict = Literal["ok", "warning", "unsound", "not checked"]


class Finding(msgspec.Struct, frozen=True):
    """What was checked (`check`), on how many `tasks`, its verdict, what was found, and a task to look at."""

    check: str
    verdict: CheckVerdict
    tasks: int
    found: str
    example: str | None = None


class Soundness(msgspec.Struct, frozen=True):
    """All findings about one environment."""

    environment: str
    tasks: int
    findings: list[Finding]

    @property
    def sound(self) -> bool:
        """Whether nothing is unsound; warnings and what was not checked do not count."""
        return not self.faults

    @property
    def faults(self) -> list[Finding]:
        """The findings that are unsound."""
        return [finding for finding in self.findings if finding.verdict == "unsound"]

    def __repr__(self) -> str:
        lines = [f"{each.check}: {each.verdict}, {each.found}" for each in self.findings if each.verdict != "ok"]
        return "\n".join([f"Soundness({self._describe()})", *lines])

    def _repr_html_(self) -> str:
        names = ["check", "verdict", "tasks", "found", "example"]
        rows = [[each.check, each.verdict, each.tasks, each.found, each.example or ""] for each in self.findings]
        return make_html_table([self._describe()], names, rows)

    def _describe(self) -> str:
        return f"{self.environment}: {'sound' if self.sound else 'unsound'}, {self.tasks} tasks"

    def json(self) -> dict[str, JSON]:
        """Return all of it by name."""
        found: dict[str, JSON] = {"environment": self.environment, "sound": self.sound, "tasks": self.tasks}
        return {**found, "findings": msgspec.to_builtins(self.findings)}


def not_checked(check: str, why: str) -> Finding:
    """Return the finding for what could not be checked, which is not a pass."""
    return Finding(check, "not checked", 0, why)


def make_finding(check: str, tasks: int, bad: Sequence[str], verdict: CheckVerdict, good: str, words: str) -> Finding:
    """Return a finding: `verdict` with the first bad task as its example, or ok if there is none."""
    if not bad:
        return Finding(check, "ok", tasks, good)
    return Finding(check, verdict, tasks, words, bad[0])
