"""The tests of a programming problem: read them from a row, run a program against them.

Rows of LiveCodeBench, NeMo Gym, APPS and TACO are understood. Each test has its own limits, and all tests together
have one bound.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import pickle
import zlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rollbook.core import JSON
from rollbook.environments.data_rows import DataRow
from rollbook.errors import UsageError
from rollbook.sandbox import Grader, Limits, Rule, Spaces, Verdict

UNPACKED_BYTES = 1 << 30
"""Compressed tests of one row may not grow beyond this."""

TEST_FIELDS = "tests, unit_tests, input_output, verifier_metadata.unit_tests or public_test_cases"


class CodeTests(msgspec.Struct, frozen=True):
    """Pairs of what is given and what is expected: texts for a program, (arguments, value) for the function `entry`."""

    pairs: list[tuple[JSON, JSON]]
    entry: str = ""


class InvalidTests(Exception):
    """What is wrong with them, in a few words."""


def read_tests(row: DataRow) -> CodeTests:
    """The tests of a row, in whichever form they are; a UsageError with the row says what is wrong with them."""
    try:
        cases = _find_tests(row.values)
    except (InvalidTests, ValueError, TypeError, KeyError) as error:
        said = str(error) if isinstance(error, InvalidTests) else f"{type(error).__name__}: {error}"
        raise UsageError(f"{row.where}: the tests cannot be read: {said}") from None
    if not cases.pairs:
        raise UsageError(f"{row.where}: no tests; code rows need {TEST_FIELDS}, with at least one test")
    return cases


def _find_tests(values: Mapping[str, JSON]) -> CodeTests:
    meta = _parse_json(values.get("verifier_metadata")) or {}
    for found in (values.get("unit_tests"), values.get("input_output"), meta.get("unit_tests")):
        if found:
            return _tests_from_columns(_parse_object(found))
    if values.get("tests"):
        return _tests_from_list(_parse_json(values["tests"]), str(values.get("entry") or ""))
    public, private = _parse_json(values.get("public_test_cases")), _unpack(values.get("private_test_cases"))
    named = _parse_json(values.get("metadata"))
    entry = named.get("func_name") if isinstance(named, dict) else None
    return _tests_from_list([*(public or []), *(private or [])], str(entry or ""))


def _tests_from_columns(found: Mapping[str, JSON]) -> CodeTests:
    """Inputs and outputs side by side."""
    inputs, outputs = found.get("inputs"), found.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise InvalidTests("inputs and outputs must be lists of the same length")
    return _make_tests(zip(inputs, outputs, strict=True), str(found.get("fn_name") or ""))


def _tests_from_list(found: JSON, entry: str) -> CodeTests:
    """One object a test, with its input and its output."""
    if not isinstance(found, list) or not all(isinstance(t, dict) and {"input", "output"} <= t.keys() for t in found):
        raise InvalidTests("each must be an object with an input and an output")
    wanted = {test.get("testtype", "") for test in found} - {"", "stdin", "functional"}
    if wanted:
        raise InvalidTests(f"testtype {', '.join(sorted(map(str, wanted)))} is not known; stdin and functional are")
    functional = any(test.get("testtype") == "functional" for test in found)
    if functional and not entry:
        raise InvalidTests("they call a function, and metadata.func_name does not say which")
    called = functional or not any("testtype" in test for test in found)
    return _make_tests(((test["input"], test["output"]) for test in found), entry if called else "")


def _make_tests(pairs: Iterable[tuple[JSON, JSON]], entry: str) -> CodeTests:
    if entry:
        if not entry.isidentifier():
            raise InvalidTests(f"{entry!r} is no name of a function")
        return CodeTests([(_call_arguments(given), _expected_value(expected)) for given, expected in pairs], entry)
    return CodeTests([(_program_text(given), _program_text(expected)) for given, expected in pairs])


def _call_arguments(given: JSON) -> list[JSON]:
    """A list of arguments, or one JSON value a line as LiveCodeBench writes them."""
    if isinstance(given, list):
        return given
    if not isinstance(given, str):
        raise InvalidTests("the input of a function is a list of its arguments, or one JSON value a line")
    return [json.loads(line) for line in given.splitlines() if line.strip()]


def _expected_value(expected: JSON) -> JSON:
    return json.loads(expected) if isinstance(expected, str) else expected


def _program_text(value: JSON) -> str:
    """What a program reads or writes; a list of lines is joined, as TACO has some."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if not isinstance(value, str):
        raise InvalidTests("the input and the output of a program are texts")
    return value


def _parse_object(found: JSON) -> dict[str, JSON]:
    value = _parse_json(found)
    if not isinstance(value, dict):
        raise InvalidTests("an object with inputs and outputs is expected")
    return value


def _parse_json(found: JSON) -> JSON:
    """JSON that may have been kept as text."""
    return json.loads(found) if isinstance(found, str) and found.strip() else found or None


def _unpack(found: JSON) -> JSON:
    """LiveCodeBench's hidden tests: JSON, or a pickled text of it, compressed, in base 64."""
    if not isinstance(found, str) or not found.strip() or found.lstrip()[0] in "[{":
        return _parse_json(found)
    try:
        unzip = zlib.decompressobj()
        data = unzip.decompress(base64.b64decode(found, validate=True), UNPACKED_BYTES)
        if not unzip.eof:
            raise InvalidTests(f"private_test_cases are cut off, or larger than {UNPACKED_BYTES >> 20} MB")
        return _parse_json(_TextUnpickler(io.BytesIO(data)).load())
    except (binascii.Error, zlib.error, pickle.UnpicklingError, EOFError, IndexError) as error:
        raise InvalidTests(f"private_test_cases are neither JSON nor packed as LiveCodeBench does: {error}") from None


class _TextUnpickler(pickle.Unpickler):
    """A pickle can run anything; one that holds a text names no class, so none is looked up."""

    def find_class(self, module: str, name: str) -> type:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


PRELUDE = (
    "from typing import *; from collections import *; from functools import *; from heapq import *; "
    "from bisect import *; from itertools import *; from math import inf, gcd, lcm, comb, ceil, floor, sqrt, log; "
    "import bisect, collections, functools, heapq, itertools, math, re, string, sys\n"
)
"""What the judges of such functions have imported, so that their starter code means something."""

VALUE_TOLERANCE = 1e-9

RETRIED_ALONE = ("timeout", "memory")
"""What may have come of sharing time and memory with the tests before: such a test is run again by itself."""


class OutputRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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


def parse_rule(value: JSON, where: str) -> OutputRule:
    """The rule that was written down, or a UsageError that names the place."""
    try:
        rule = msgspec.convert(value, OutputRule)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}; it has spaces (exact, lines, words), tolerance and case") from None
    if rule.tolerance is not None and not 0 <= rule.tolerance < 1:
        raise UsageError(f"{where}: tolerance={rule.tolerance}: give a number from 0 to 1")
    return rule


class CodeTestRunner:
    """The tests of one program. `limits` are each test's own, `total_s` is the clock's for all of them."""

    def __init__(self, grader: Grader, code: str, entry: str, rule: OutputRule, limits: Limits, total_s: float) -> None:
        self._grader, self._entry, self._rule, self._limits, self._total_s = grader, entry, rule, limits, total_s
        self._code = add_imports(code) if entry else code
        self._left_s, self._cpu_s = total_s, 0.0

    async def run(self, cases: Sequence[tuple[JSON, JSON]], *, stop: bool) -> tuple[int, Verdict]:
        """How many pass, and the first verdict that says no, or the last one; `stop` ends at the first no.

        They are run in one process as long as they pass quickly, so that none can use up the time of the others.
        """
        at = passed = 0
        first: Verdict | None = None
        verdict = Verdict(True, "passed")
        while at < len(cases) and not (stop and first):
            verdict = await self._grade_within_share(cases[at:])
            quick = round(verdict.fraction * (len(cases) - at))
            at, passed = at + quick, passed + quick
            if not verdict.passed:
                if verdict.reason in RETRIED_ALONE:
                    verdict = await self._grade(cases[at : at + 1], self._limits)
                at, passed = at + 1, passed + verdict.passed
                first = first or (None if verdict.passed else _with_test_number(verdict, at))
        return passed, msgspec.structs.replace(first or verdict, cpu_seconds=self._cpu_s)

    async def _grade_within_share(self, cases: Sequence[tuple[JSON, JSON]]) -> Verdict:
        """As many as pass in their share of the time that is left."""
        share_s = max(self._left_s / len(cases), 1e-3)
        seconds, wall_s = min(self._limits.seconds, share_s), min(self._limits.wall_s, share_s)
        return await self._grade(cases, msgspec.structs.replace(self._limits, seconds=seconds, wall_seconds=wall_s))

    async def _grade(self, cases: Sequence[tuple[JSON, JSON]], limits: Limits) -> Verdict:
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


def add_imports(code: str) -> str:
    """A function's program with what it may take for granted; only a `from __future__` must stay first."""
    if not code.lstrip().startswith("from __future__"):
        return PRELUDE + code
    first, _, rest = code.lstrip().partition("\n")
    return f"{first}\n{PRELUDE}{rest}"


def _with_test_number(verdict: Verdict, number: int) -> Verdict:
    """The verdict with the number of its test among all of them."""
    why = verdict.detail.partition(": ")[2] if verdict.detail.startswith("case ") else verdict.detail
    return msgspec.structs.replace(verdict, detail=f"test {number}: {why}")
