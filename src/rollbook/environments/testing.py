"""Running one program against all its tests: each on its own limits, all of them within one bound."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rollbook.core.json import JSON
from rollbook.errors import UsageError
from rollbook.sandbox.grade import Grader
from rollbook.sandbox.limits import Limits
from rollbook.sandbox.outputs import Rule, Spaces
from rollbook.sandbox.verdict import Verdict

PRELUDE = (
    "from typing import *; from collections import *; from functools import *; from heapq import *; "
    "from bisect import *; from itertools import *; from math import inf, gcd, lcm, comb, ceil, floor, sqrt, log; "
    "import bisect, collections, functools, heapq, itertools, math, re, string, sys\n"
)
"""What the judges of such functions have imported, so that their starter code means something."""

VALUE_TOLERANCE = 1e-9

ALONE = ("timeout", "memory")
"""What may have come of sharing time and memory with the tests before: such a test is run again by itself."""


class Tolerant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When an output counts as the expected one; without a tolerance, printed numbers must be equal."""

    spaces: Spaces = "lines"
    tolerance: float | None = None
    case: bool = True

    @property
    def printed(self) -> Rule:
        """For what a program prints."""
        return Rule(self.spaces, self.tolerance or 0.0, self.case)

    @property
    def returned(self) -> float:
        """For what a function returns."""
        return VALUE_TOLERANCE if self.tolerance is None else self.tolerance


def checked_rule(given: JSON, where: str) -> Tolerant:
    """The rule that was written down, or a UsageError that names the place."""
    try:
        rule = msgspec.convert(given, Tolerant)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}; it has spaces (exact, lines, words), tolerance and case") from None
    if rule.tolerance is not None and not 0 <= rule.tolerance < 1:
        raise UsageError(f"{where}: tolerance={rule.tolerance}: give a number from 0 to 1")
    return rule


class Series:
    """The tests of one program. `limits` are each test's own, `total_s` is the clock's for all of them."""

    def __init__(self, grader: Grader, code: str, entry: str, rule: Tolerant, limits: Limits, total_s: float) -> None:
        self._grader, self._entry, self._rule, self._limits, self._total_s = grader, entry, rule, limits, total_s
        self._code = with_imports(code) if entry else code
        self._left_s, self._cpu_s = total_s, 0.0

    async def run(self, cases: Sequence[tuple[JSON, JSON]], *, stop: bool) -> tuple[int, Verdict]:
        """How many pass, and the first verdict that says no, or the last one; `stop` ends at the first no.

        They are run in one process as long as they pass quickly, so that none can use up the time of the others.
        """
        at = passed = 0
        first: Verdict | None = None
        verdict = Verdict(True, "passed")
        while at < len(cases) and not (stop and first):
            verdict = await self._quickly(cases[at:])
            quick = round(verdict.fraction * (len(cases) - at))
            at, passed = at + quick, passed + quick
            if not verdict.passed:
                if verdict.reason in ALONE:
                    verdict = await self._graded(cases[at : at + 1], self._limits)
                at, passed = at + 1, passed + verdict.passed
                first = first or (None if verdict.passed else _numbered(verdict, at))
        return passed, msgspec.structs.replace(first or verdict, cpu_seconds=self._cpu_s)

    async def _quickly(self, cases: Sequence[tuple[JSON, JSON]]) -> Verdict:
        """As many as pass in their share of the time that is left."""
        share_s = max(self._left_s / len(cases), 1e-3)
        seconds, wall_s = min(self._limits.seconds, share_s), min(self._limits.wall_s, share_s)
        return await self._graded(cases, msgspec.structs.replace(self._limits, seconds=seconds, wall_seconds=wall_s))

    async def _graded(self, cases: Sequence[tuple[JSON, JSON]], limits: Limits) -> Verdict:
        if self._left_s <= 0:
            return Verdict(False, "timeout", f"the tests together took longer than {self._total_s:g} s")
        wall_s = min(limits.wall_s, self._left_s)
        limits = msgspec.structs.replace(limits, seconds=min(limits.seconds, wall_s), wall_seconds=wall_s)
        if self._entry:
            pairs = [(list(given), expected) for given, expected in cases]
            verdict = await self._grader.calls(
                self._code, self._entry, pairs, tolerance=self._rule.returned, limits=limits
            )
        else:
            texts = [(str(given), str(expected)) for given, expected in cases]
            verdict = await self._grader.inputs(self._code, texts, rule=self._rule.printed, limits=limits)
        self._left_s -= verdict.seconds
        self._cpu_s += verdict.cpu_seconds
        return verdict


def with_imports(code: str) -> str:
    """A function's program with what it may take for granted; only a `from __future__` must stay first."""
    if not code.lstrip().startswith("from __future__"):
        return PRELUDE + code
    first, _, rest = code.lstrip().partition("\n")
    return f"{first}\n{PRELUDE}{rest}"


def _numbered(verdict: Verdict, number: int) -> Verdict:
    """The verdict with the number of its test among all of them."""
    why = verdict.detail.partition(": ")[2] if verdict.detail.startswith("case ") else verdict.detail
    return msgspec.structs.replace(verdict, detail=f"test {number}: {why}")
