"""The tests of a programming problem, as people keep them: rows of LiveCodeBench, NeMo Gym, APPS and TACO."""

from __future__ import annotations

import base64
import binascii
import io
import json
import pickle
import zlib
from collections.abc import Iterable, Mapping

import msgspec

from rollbook.core.json import JSON
from rollbook.environments.rows import Row
from rollbook.errors import UsageError

UNPACKED_BYTES = 1 << 30
"""Compressed tests of one row may not grow beyond this."""

FORMS = "tests, unit_tests, input_output, verifier_metadata.unit_tests or public_test_cases"


class Cases(msgspec.Struct, frozen=True):
    """Pairs of what is given and what is expected: texts for a program, (arguments, value) for the function `entry`."""

    pairs: list[tuple[JSON, JSON]]
    entry: str = ""


class NotCases(Exception):
    """What is wrong with them, in a few words."""


def cases_of(row: Row) -> Cases:
    """The tests of a row, in whichever form they are; a UsageError with the row says what is wrong with them."""
    try:
        cases = _read(row.values)
    except (NotCases, ValueError, TypeError, KeyError) as error:
        said = str(error) if isinstance(error, NotCases) else f"{type(error).__name__}: {error}"
        raise UsageError(f"{row.where}: the tests cannot be read: {said}") from None
    if not cases.pairs:
        raise UsageError(f"{row.where}: no tests; code rows need {FORMS}, with at least one test")
    return cases


def _read(values: Mapping[str, JSON]) -> Cases:
    meta = _parsed(values.get("verifier_metadata")) or {}
    for found in (values.get("unit_tests"), values.get("input_output"), meta.get("unit_tests")):
        if found:
            return _columns(_object(found))
    if values.get("tests"):
        return _listed(_parsed(values["tests"]), str(values.get("entry") or ""))
    public, private = _parsed(values.get("public_test_cases")), _unpacked(values.get("private_test_cases"))
    named = _parsed(values.get("metadata"))
    entry = named.get("func_name") if isinstance(named, dict) else None
    return _listed([*(public or []), *(private or [])], str(entry or ""))


def _columns(found: Mapping[str, JSON]) -> Cases:
    """Inputs and outputs side by side."""
    inputs, outputs = found.get("inputs"), found.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise NotCases("inputs and outputs must be lists of the same length")
    return _cases(zip(inputs, outputs, strict=True), str(found.get("fn_name") or ""))


def _listed(found: JSON, entry: str) -> Cases:
    """One object a test, with its input and its output."""
    if not isinstance(found, list) or not all(isinstance(t, dict) and {"input", "output"} <= t.keys() for t in found):
        raise NotCases("each must be an object with an input and an output")
    wanted = {test.get("testtype", "") for test in found} - {"", "stdin", "functional"}
    if wanted:
        raise NotCases(f"testtype {', '.join(sorted(map(str, wanted)))} is not known; stdin and functional are")
    functional = any(test.get("testtype") == "functional" for test in found)
    if functional and not entry:
        raise NotCases("they call a function, and metadata.func_name does not say which")
    called = functional or not any("testtype" in test for test in found)
    return _cases(((test["input"], test["output"]) for test in found), entry if called else "")


def _cases(pairs: Iterable[tuple[JSON, JSON]], entry: str) -> Cases:
    if entry:
        if not entry.isidentifier():
            raise NotCases(f"{entry!r} is no name of a function")
        return Cases([(_arguments(given), _value(expected)) for given, expected in pairs], entry)
    return Cases([(_text(given), _text(expected)) for given, expected in pairs])


def _arguments(given: JSON) -> list[JSON]:
    """A list of arguments, or one JSON value a line as LiveCodeBench writes them."""
    if isinstance(given, list):
        return given
    if not isinstance(given, str):
        raise NotCases("the input of a function is a list of its arguments, or one JSON value a line")
    return [json.loads(line) for line in given.splitlines() if line.strip()]


def _value(expected: JSON) -> JSON:
    return json.loads(expected) if isinstance(expected, str) else expected


def _text(value: JSON) -> str:
    """What a program reads or writes; a list of lines is joined, as TACO has some."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if not isinstance(value, str):
        raise NotCases("the input and the output of a program are texts")
    return value


def _object(found: JSON) -> dict[str, JSON]:
    value = _parsed(found)
    if not isinstance(value, dict):
        raise NotCases("an object with inputs and outputs is expected")
    return value


def _parsed(found: JSON) -> JSON:
    """JSON that may have been kept as text."""
    return json.loads(found) if isinstance(found, str) and found.strip() else found or None


def _unpacked(found: JSON) -> JSON:
    """LiveCodeBench's hidden tests: JSON, or a pickled text of it, compressed, in base 64."""
    if not isinstance(found, str) or not found.strip() or found.lstrip()[0] in "[{":
        return _parsed(found)
    try:
        unzip = zlib.decompressobj()
        data = unzip.decompress(base64.b64decode(found, validate=True), UNPACKED_BYTES)
        if not unzip.eof:
            raise NotCases(f"private_test_cases are cut off, or larger than {UNPACKED_BYTES >> 20} MB")
        return _parsed(_TextsOnly(io.BytesIO(data)).load())
    except (binascii.Error, zlib.error, pickle.UnpicklingError, EOFError, IndexError) as error:
        raise NotCases(f"private_test_cases are neither JSON nor packed as LiveCodeBench does: {error}") from None


class _TextsOnly(pickle.Unpickler):
    """A pickle can run anything; one that holds a text names no class, so none is looked up."""

    def find_class(self, module: str, name: str) -> type:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")
