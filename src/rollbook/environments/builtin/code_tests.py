"""The tests of a programming problem: read them from a row, run a program against them.

Rows of LiveCodeBench, NeMo Gym, APPS and TACO can be read. Each test has its own limits, and all tests together
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
"""The largest size of the tests of one row after decompression."""

TEST_FIELDS = "tests, unit_tests, input_output, verifier_metadata.unit_tests or public_test_cases"


class CodeTests(msgspec.Struct, frozen=True):
    """Pairs of input and expected output: texts for a program, (arguments, value) for the function `entry`."""

    pairs: list[tuple[JSON, JSON]]
    entry: str = ""


class InvalidTests(Exception):
    """The tests of a row cannot be used; the message says why in a few words."""


def read_tests(row: DataRow) -> CodeTests:
    """Read the tests of a row in any of the known forms; a UsageError names the row and what is wrong."""
    try:
        cases = _find_tests(row.values)
    except (InvalidTests, ValueError, TypeError, KeyError) as error:
        reason = str(error) if isinstance(error, InvalidTests) else f"{type(error).__name__}: {error}"
        raise UsageError(f"{row.where}: the tests cannot be read: {reason}") from None
    if not cases.pairs:
        raise UsageError(f"{row.where}: no tests; code rows need {TEST_FIELDS}, with at least one test")
    return cases


def _find_tests(values: Mapping[str, JSON]) -> CodeTests:
    meta = _parse_json(values.get("verifier_metadata")) or {}
    for columns in (values.get("unit_tests"), values.get("input_output"), meta.get("unit_tests")):
        if columns:
            return _tests_from_columns(_parse_json(columns))
    if values.get("tests"):
        return _tests_from_list(_parse_json(values["tests"]), str(values.get("entry") or ""))
    public, private = _parse_json(values.get("public_test_cases")), _unpack(values.get("private_test_cases"))
    metadata = _parse_json(values.get("metadata"))
    entry = metadata.get("func_name") if isinstance(metadata, dict) else None
    return _tests_from_list([*(public or []), *(private or [])], str(entry or ""))


def _tests_from_columns(columns: JSON) -> CodeTests:
    """Read tests given as a list of inputs and a list of outputs."""
    if not isinstance(columns, dict):
        raise InvalidTests("an object with inputs and outputs is expected")
    inputs, outputs = columns.get("inputs"), columns.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise InvalidTests("inputs and outputs must be lists of the same length")
    return _make_tests(zip(inputs, outputs, strict=True), str(columns.get("fn_name") or ""))


def _tests_from_list(tests: JSON, entry: str) -> CodeTests:
    """Read tests given as a list of objects, each with an input and an output."""
    if not isinstance(tests, list) or not all(isinstance(t, dict) and {"input", "output"} <= t.keys() for t in tests):
        raise InvalidTests("each must be an object with an input and an output")
    unknown = {test.get("testtype", "") for test in tests} - {"", "stdin", "functional"}
    if unknown:
        raise InvalidTests(f"testtype {', '.join(sorted(map(str, unknown)))} is not known; stdin and functional are")
    functional = any(test.get("testtype") == "functional" for test in tests)
    if functional and not entry:
        raise InvalidTests("they call a function, and metadata.func_name does not name it")
    calls_function = functional or not any("testtype" in test for test in tests)
    return _make_tests(((test["input"], test["output"]) for test in tests), entry if calls_function else "")


def _make_tests(pairs: Iterable[tuple[JSON, JSON]], entry: str) -> CodeTests:
    if entry:
        if not entry.isidentifier():
            raise InvalidTests(f"{entry!r} is not the name of a function")
        calls = [
            (_call_arguments(given), json.loads(expected) if isinstance(expected, str) else expected)
            for given, expected in pairs
        ]
        return CodeTests(calls, entry)
    return CodeTests([(_program_text(given), _program_text(expected)) for given, expected in pairs])


def _call_arguments(given: JSON) -> list[JSON]:
    """Return a list of arguments as it is, or read one JSON value a line as LiveCodeBench writes them."""
    if isinstance(given, list):
        return given
    if not isinstance(given, str):
        raise InvalidTests("the input of a function is a list of its arguments, or one JSON value a line")
    return [json.loads(line) for line in given.splitlines() if line.strip()]


def _program_text(value: JSON) -> str:
    """Return the input or output of a program; a list of lines, as in some TACO rows, is joined."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if not isinstance(value, str):
        raise InvalidTests("the input and the output of a program are texts")
    return value


def _parse_json(value: JSON) -> JSON:
    """Parse a value that may be stored as JSON text."""
    return json.loads(value) if isinstance(value, str) and value.strip() else value or None


def _unpack(packed: JSON) -> JSON:
    """Unpack LiveCodeBench's hidden tests: JSON, or JSON text that is pickled, compressed and in base 64."""
    if not isinstance(packed, str) or not packed.strip() or packed.lstrip()[0] in "[{":
        return _parse_json(packed)
    try:
        unzip = zlib.decompressobj()
        data = unzip.decompress(base64.b64decode(packed, validate=True), UNPACKED_BYTES)
        if not unzip.eof:
            raise InvalidTests(f"private_test_cases are cut off, or larger than {UNPACKED_BYTES >> 20} MB")
        return _parse_json(_TextUnpickler(io.BytesIO(data)).load())
    except (binascii.Error, zlib.error, pickle.UnpicklingError, EOFError, IndexError) as error:
        raise InvalidTests(f"private_test_cases are neither JSON nor packed as LiveCodeBench does: {error}") from None


class _TextUnpickler(pickle.Unpickler):
    """Refuse every class: a pickle can run any code, but one of a text names no class."""

    def find_class(self, module: str, name: str) -> type:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


PRELUDE = (
    "from typing import *; from collections import *; from functools import *; from heapq import *; "
    "from bisect import *; from itertools import *; from math import inf, gcd, lcm, comb, ceil, floor, sqrt, log; "
    "import bisect, collections, functools, heapq, itertools, math, re, string, sys\n"
)
"""What online judges import before such functions; starter code relies on it."""

VALUE_TOLERANCE = 1e-9

RETRIED_ALONE = ("timeout", "memory")
"""Failures that can come from sharing time and memory with earlier tests: such a test is run again alone."""


class OutputRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When an output equals the expected one; without a tolerance, printed numbers must be equal."""

    spaces: Spaces = "lines"
    tolerance: float | None = None
    case: bool = True

    @property
    def printed(self) -> Rule:
        """The rule for the output of a program."""
        return Rule(self.spaces, self.tolerance or 0.0, self.case)

    @property
    def returned(self) -> float:
        """The tolerance for the return value of a function."""
        return VALUE_TOLERANCE if self.tolerance is None else self.tolerance


def parse_rule(value: JSON, where: str) -> OutputRule:
    """Read a rule; a UsageError names the place of an invalid one."""
    try:
        rule = msgspec.convert(value, OutputRule)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}; it has spaces (exact, lines, words), tolerance and case") from None
    if rule.tolerance is not None and not 0 <= rule.tolerance < 1:
        raise UsageError(f"{where}: tolerance={rule.tolerance}: give a number from 0 to 1")
    return rule


class CodeTestRunner:
    """Runs the tests of one program. `limits` apply to each test, `total_s` is the wall time of all together."""

    def __init__(self, grader: Grader, code: str, entry: str, rule: OutputRule, limits: Limits, total_s: float) -> None:
        self._grader, self._entry, self._rule, self._limits, self._total_s = grader, entry, rule, limits, total_s
        self._code = add_imports(code) if entry else code
        self._left_s, self._cpu_s = total_s, 0.0

    async def run(self, cases: Sequence[tuple[JSON, JSON]], *, stop: bool) -> tuple[int, Verdict]:
        """Return how many tests pass, and the first failing verdict, else the last; `stop` ends at the first failure.

        Tests share one process as long as they pass quickly, so that none can use up the time of the others.
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
        """Run as many tests as pass, each within its share of the remaining time."""
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
    """Add the imports that starter code relies on; only a `from __future__` must stay first."""
    if not code.lstrip().startswith("from __future__"):
        return PRELUDE + code
    first, _, rest = code.lstrip().partition("\n")
    return f"{first}\n{PRELUDE}{rest}"


def _with_test_number(verdict: Verdict, number: int) -> Verdict:
    """Return the verdict with the number of its test among all tests."""
    why = verdict.detail.partition(": ")[2] if verdict.detail.startswith("case ") else verdict.detail
    return msgspec.structs.replace(verdict, detail=f"test {number}: {why}")
