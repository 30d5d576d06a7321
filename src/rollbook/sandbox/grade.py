"""Grading code that wants to pass: the tests and what they expect are never where the code is.

Tests in Python run in a sandbox of their own and reach the code by a channel of plain data (`function`). Inputs go to
the code one by one, and what comes out is compared out here (`inputs`, `calls`). No exit code and no printed word of
the code decides anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from types import UnionType
from typing import Any

import msgspec

from rollbook.core.json import JSON
from rollbook.errors import UsageError
from rollbook.sandbox.examination import Examination, TestsBroken, confirmed, said_of, verdict_of
from rollbook.sandbox.given import check_text, limits_of
from rollbook.sandbox.inner.plain import NotPlain, pack
from rollbook.sandbox.limits import Limits
from rollbook.sandbox.outputs import Rule, same_value
from rollbook.sandbox.reach import reach_of
from rollbook.sandbox.result import Result
from rollbook.sandbox.sandbox import Sandbox
from rollbook.sandbox.series import Case, Series
from rollbook.sandbox.twin import awaited, blocking
from rollbook.sandbox.verdict import Verdict

VALUE_KB = 4096
"""A returned value is compared whole, so more of it is kept than of what is printed for people."""
EXAMINED = 2
"""Tests have twice the time of the code on the clock, and some are run again."""
KEPT = 4
"""How many times as much is kept of an output as the longest that is expected: white space, a value as it is packed."""


class Grader:
    """Grades in an open sandbox: `function`, `inputs` and `calls`, each with a blocking twin."""

    def __init__(self, box: Sandbox) -> None:
        self._box = box

    def _submit(self, work: Callable[[], Any]) -> Future[Any]:
        return self._box._submit(work)

    def _function(
        self,
        code: str,
        tests: str,
        entry: str,
        *,
        check: str = "",
        setup: str = "",
        limits: Limits | None = None,
        allow_weak: bool = False,
    ) -> Verdict:
        """Run tests, a module in which `entry` is the code's function or class of that name.

        A function should give back plain data: an object of the code's own is believed to hold data and no more.
        `check`: a function of the tests that is then called with the entry point. `setup` runs before the tests and on
        their side: trusted helpers. Tests that compare objects of the code's own classes are refused, and so is code
        that passes only by what it does to its arguments beside a value; `allow_weak` says that its word will do.
        """
        exam = {"tests": tests, "entry": entry, "check": check, "setup": setup, "weak": allow_weak}
        for what in ("tests", "entry", "check", "setup"):
            check_text(what, exam[what])
        allowed = self._allowed(code, limits)
        if self._box.remote:
            return self._box.remote.grade("function", code, exam, allowed, 2 * EXAMINED)
        exam["classes"] = names_a_class(entry)

        def examined(copies: bool) -> tuple[Result, Result]:
            asked = exam | {"copies": copies}
            return self._box.use(lambda slot: Examination(slot, allowed).results(code, asked))

        results = examined(False)
        verdict, said = verdict_of(*results), said_of(results[0])
        if verdict.passed and said and said.beside:
            return confirmed(verdict, verdict_of(*examined(True)), allow_weak)
        if verdict.reason == "failed" and (what := reach_of(f"{setup}\n{tests}", code)):
            return msgspec.structs.replace(verdict, reason="refused", detail=f"the tests {what}: {verdict.detail}")
        return verdict

    def _inputs(
        self,
        code: str,
        cases: Sequence[tuple[str, str]],
        *,
        rule: Rule = Rule(),  # noqa: B008 - frozen
        limits: Limits | None = None,
        all_of_them: bool = False,
    ) -> Verdict:
        """Run the whole program on every (stdin, expected stdout). Stops at the first failure unless told not to."""
        allowed = self._allowed(code, limits)
        for case in cases:
            check_case(case, "(stdin, expected stdout), both texts", str, str)
        if self._box.remote:
            told: dict[str, JSON] = {"cases": list(cases), "rule": rule, "all_of_them": all_of_them}
            return self._box.remote.grade("inputs", code, told, allowed, len(cases))
        asked = [Case({"stdin": stdin}, _prints(expected, rule)) for stdin, expected in cases]
        wide = _wide(allowed, (expected for _, expected in cases))
        return self._series("inputs", code, asked, wide, all_of_them)

    def _calls(
        self,
        code: str,
        entry: str,
        cases: Sequence[tuple[Sequence[JSON], JSON]],
        *,
        tolerance: float = 1e-9,
        limits: Limits | None = None,
        all_of_them: bool = False,
    ) -> Verdict:
        """Call the code's function `entry` with every (arguments, expected value), each from JSON."""
        allowed = self._allowed(code, limits)
        check_text("entry", entry)
        for case in cases:
            check_case(case, "(arguments, expected value), the arguments as a list", list | tuple, object)
        if self._box.remote:
            packed = pack([(list(args), expected) for args, expected in cases], _no_case)
            told: dict[str, JSON] = {
                "entry": entry,
                "cases": packed,
                "tolerance": tolerance,
                "all_of_them": all_of_them,
            }
            return self._box.remote.grade("calls", code, told, allowed, len(cases))
        asked = [Case({"args": pack(list(args), _no_case)}, _returns(expected, tolerance)) for args, expected in cases]
        wide = _wide(allowed, (_text(expected) for _, expected in cases), VALUE_KB)
        return self._series("calls", json.dumps({"code": code, "entry": entry}), asked, wide, all_of_them)

    def _allowed(self, code: str, limits: Limits | None) -> Limits:
        check_text("code", code)
        return limits_of(limits, self._box.limits)

    def _series(self, role: str, code: str, cases: list[Case], limits: Limits, all_of_them: bool) -> Verdict:
        if not cases:
            raise TestsBroken("there are no cases to grade with")
        return self._box.use(lambda slot: Series(slot, role, code, limits).verdict(cases, all_of_them))

    function, function_sync = awaited(_function), blocking(_function)
    inputs, inputs_sync = awaited(_inputs), blocking(_inputs)
    calls, calls_sync = awaited(_calls), blocking(_calls)


def check_case(case: object, shape: str, *kinds: type | UnionType) -> None:
    """A case is a pair of these."""
    if not (isinstance(case, list | tuple) and len(case) == 2 and all(map(isinstance, case, kinds))):
        raise UsageError(f"case {case!r:.80}: give {shape}")


def _wide(limits: Limits, expected: Iterable[str], least_kb: int = 0) -> Limits:
    """Limits that keep enough of an output to compare it with the longest that is expected."""
    longest = max((len(text.encode(errors="replace")) for text in expected), default=0)
    return msgspec.structs.replace(limits, output_kb=max(limits.output_kb, least_kb, KEPT * longest >> 10))


def _text(expected: JSON) -> str:
    """A value about as it would come back."""
    try:
        return json.dumps(expected, default=str, skipkeys=True)
    except ValueError:  # a number of thousands of digits
        return json.dumps(pack(expected, repr))


def names_a_class(entry: str) -> bool:
    """Whether a class is under test: the task says so by the name, as Python's own style has it; the code never does.

    >>> [names_a_class(name) for name in ("Stack", "find_zero", "Strongest_Extension")]
    [True, False, False]
    """
    return entry[:1].isupper() and "_" not in entry


def _prints(expected: str, rule: Rule) -> Callable[[Result], bool]:
    return lambda result: not result.stdout_cut and rule.same(expected, result.stdout)


def _returns(expected: JSON, tolerance: float) -> Callable[[Result], bool]:
    def right(result: Result) -> bool:
        try:
            return same_value(expected, as_json(json.loads(result.value or "")), tolerance)
        except (ValueError, TypeError, NotPlain, RecursionError):
            return False

    return right


def _no_case(value: object) -> JSON:
    raise TestsBroken(f"a case holds an object of {type(value).__name__}: only plain data can be handed over")


def as_json(data: JSON) -> JSON:
    """A packed value as JSON has it. Only texts are hashed out here: numbers can be chosen so that it never ends."""
    if not isinstance(data, list):
        return data
    tag, held = data
    if tag in ("n", "Q"):  # a named tuple, a bounded deque
        tag, held = "l", held[1]
    if tag == "m":  # a Counter and its like
        tag, held = "d", list(zip(held[1][::2], held[1][1::2], strict=True))
    if tag in ("l", "t", "q"):
        return [as_json(item) for item in held]
    if tag == "d":
        named = {str(as_json(key)): as_json(item) for key, item in held}
        if len(named) != len(held):
            raise NotPlain("two keys of one name")
        return named
    if tag == "i":
        return int(held, 16)
    if tag == "f":
        return float(held)
    raise NotPlain(f"not JSON: {tag}")
