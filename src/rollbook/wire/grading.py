"""Grading over HTTP: the requests of `/grade/function`, `/grade/inputs` and `/grade/calls`. No I/O here."""

from __future__ import annotations

from typing import Protocol

import msgspec

from rollbook.core.json import JSON
from rollbook.errors import UsageError
from rollbook.sandbox import Limits
from rollbook.sandbox.grade import Grader
from rollbook.sandbox.inner.plain import NotPlain, unpack
from rollbook.sandbox.outputs import Rule
from rollbook.sandbox.verdict import Verdict


class Graded(Protocol):
    """What can be asked to be graded."""

    limits: dict[str, int | float | None]

    async def verdict(self, grader: Grader, limits: Limits) -> Verdict:
        """Have it graded."""


class Function(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Tests in Python."""

    code: str
    tests: str
    entry: str
    check: str = ""
    setup: str = ""
    weak: bool = False
    limits: dict[str, int | float | None] = {}

    async def verdict(self, grader: Grader, limits: Limits) -> Verdict:
        """Run the tests."""
        more = {"check": self.check, "setup": self.setup}
        return await grader.function(self.code, self.tests, self.entry, **more, limits=limits, allow_weak=self.weak)


class Inputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Programs that read and print."""

    code: str
    cases: list[tuple[str, str]]
    rule: Rule = Rule()
    all_of_them: bool = False
    limits: dict[str, int | float | None] = {}

    async def verdict(self, grader: Grader, limits: Limits) -> Verdict:
        """Run the program on every input."""
        return await grader.inputs(self.code, self.cases, rule=self.rule, limits=limits, all_of_them=self.all_of_them)


class Calls(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Functions that are called; the cases are packed, as values are that cross between sandboxes."""

    code: str
    entry: str
    cases: JSON
    tolerance: float = 1e-9
    all_of_them: bool = False
    limits: dict[str, int | float | None] = {}

    async def verdict(self, grader: Grader, limits: Limits) -> Verdict:
        """Call the function with the arguments of every case."""
        try:
            cases = [(args, expected) for args, expected in unpack(self.cases, _no_handle)]
        except (NotPlain, TypeError, ValueError, KeyError, RecursionError) as error:
            raise UsageError(f"cases: {error}") from None
        return await grader.calls(
            self.code, self.entry, cases, tolerance=self.tolerance, limits=limits, all_of_them=self.all_of_them
        )


def _no_handle(tag: str, _: JSON) -> JSON:
    raise NotPlain(f"no plain data is tagged {tag!r}")


GRADED: dict[str, type[Graded]] = {"function": Function, "inputs": Inputs, "calls": Calls}
