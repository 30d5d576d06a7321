"""From results of guests to verdicts: which end of the tests or of the code means what."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollbook.errors import SandboxError, TestsBroken
from rollbook.sandbox import Limits, Result, Verdict
from rollbook.sandbox.grading import (
    Examination,
    _widen_limits,
    confirm_verdict,
    find_limit,
    find_reason,
    make_verdict,
    packed_to_json,
)
from rollbook.sandbox.inner.plain_data import NotPlain
from rollbook.sandbox.results import ProgramError

ERROR = ProgramError("KeyError", "'x'")


def examined(verdict: str, **more: Any) -> Result:
    """Return the result of tests that reported this verdict."""
    report = {"verdict": verdict, "weak": False, "side_effects": False, "error": None, **more}
    return Result("ok", value=json.dumps(report), seconds=2.0, cpu_seconds=9.0, isolation=("tests",))


CODE = Result("error", error=ERROR, seconds=9.0, cpu_seconds=0.5, isolation=("pid",))
COSTS: dict[str, Any] = {"seconds": 2.0, "cpu_seconds": 0.5, "isolation": ("pid",)}


@pytest.mark.parametrize(
    ("report", "verdict"),
    [
        (examined("passed"), Verdict(True, "passed", fraction=1.0, **COSTS)),
        (examined("passed", weak=True), Verdict(True, "passed", weak=True, fraction=1.0, **COSTS)),
        (
            examined("failed", error={"type": "AssertionError", "message": "no"}),
            Verdict(False, "failed", "AssertionError: no", **COSTS),
        ),
        (examined("failed", weak=True), Verdict(False, "failed", weak=True, **COSTS)),
        (examined("refused"), Verdict(False, "refused", **COSTS)),
        (examined("memory"), Verdict(False, "memory", **COSTS)),
        (examined("gone"), Verdict(False, "error", "KeyError: 'x'", **COSTS)),
        (Result("timeout", seconds=2.0), Verdict(False, "timeout", "the tests ended with timeout", **COSTS)),
    ],
)
def test_the_report_of_the_tests_is_the_verdict(report: Result, verdict: Verdict) -> None:
    assert make_verdict(report, CODE) == verdict


def test_tests_that_do_not_run_are_nobodys_verdict() -> None:
    with pytest.raises(TestsBroken, match="the tests do not run: KeyError: 'x'"):
        make_verdict(examined("broken", error={"type": "KeyError", "message": "'x'"}), CODE)


@pytest.mark.parametrize("status", ["timeout", "memory", "output"])
def test_tests_without_a_report_reached_a_limit(status: Any) -> None:
    assert find_limit(Result(status)) == status


def test_tests_that_left_or_died_are_broken_or_a_failure_of_the_sandbox() -> None:
    for status in ("ok", "error"):
        with pytest.raises(TestsBroken, match="the tests left their process with exit code 3"):
            find_limit(Result(status, exit=3))  # type: ignore[arg-type]
    for status in ("crash", "killed"):
        with pytest.raises(SandboxError, match=f"the process of the tests ended with {status}"):
            find_limit(Result(status))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (Result("ok", exit=0), "exit"),
        (Result("error", exit=3), "exit"),
        (Result("error", error=ERROR), "error"),
        (Result("timeout"), "timeout"),
        (Result("crash"), "crash"),
    ],
)
def test_code_that_ended_instead_of_answering_has_its_reason(result: Result, reason: str) -> None:
    assert find_reason(result) == reason


def test_code_that_changes_its_arguments_must_pass_by_its_values_too() -> None:
    first = Verdict(True, "passed", fraction=1.0, seconds=1.0, cpu_seconds=0.25, isolation=("pid",))
    second = Verdict(True, "passed", fraction=1.0, seconds=2.0, cpu_seconds=0.5)
    both = {"seconds": 3.0, "cpu_seconds": 0.75}
    assert confirm_verdict(first, second, False) == Verdict(True, "passed", fraction=1.0, **both)  # type: ignore[arg-type]
    failed = Verdict(False, "failed", seconds=2.0, cpu_seconds=0.5)
    weak = confirm_verdict(first, failed, True)
    assert (weak.passed, weak.weak, weak.seconds, weak.cpu_seconds) == (True, True, 3.0, 0.75)
    refused = confirm_verdict(first, failed, False)
    assert (refused.passed, refused.reason, refused.isolation) == (False, "refused", ("pid",))
    assert (refused.seconds, refused.cpu_seconds) == (3.0, 0.75)
    assert refused.detail.endswith("in_place=True is for such functions")


def test_tests_have_twice_the_time_of_the_code_and_room_for_their_report() -> None:
    for limits, wall_s, output_kb in (
        (Limits(wall_seconds=3.0, output_kb=8), 6.0, 64),
        (Limits(wall_seconds=9e8, output_kb=100), 1e9, 100),
    ):
        own = Examination(None, limits)._examiner_limits  # type: ignore[arg-type]
        assert (own.wall_s, own.output_kb, own.seconds) == (wall_s, output_kb, limits.seconds)


def test_as_much_is_kept_as_the_longest_expected_output_needs() -> None:
    limits = Limits(output_kb=8)
    for expected, least, kept in (
        (["x" * 1024], 0, 8),
        (["x", "x" * 4096], 0, 16),
        (["é" * 4096], 0, 32),
        ([], 0, 8),
        (["x"], 4096, 4096),
    ):
        assert _widen_limits(limits, expected, least).output_kb == kept


@pytest.mark.parametrize(
    ("packed", "value"),
    [
        (5, 5),
        ("a", "a"),
        (["l", [1, ["t", [2, 3]]]], [1, [2, 3]]),
        (["q", [1]], [1]),
        (["n", ["Point", [1, 2]]], [1, 2]),
        (["Q", [9, [1, 2]]], [1, 2]),
        (["d", [[1, 2], ["a", 3]]], {"1": 2, "a": 3}),
        (["m", ["Counter", ["a", 1, "b", 2]]], {"a": 1, "b": 2}),
        (["i", "-ff"], -255),
        (["f", "inf"], float("inf")),
    ],
)
def test_packed_values_are_read_as_json(packed: Any, value: Any) -> None:
    assert packed_to_json(packed) == value


@pytest.mark.parametrize("packed", [["s", [1]], ["d", [[1, 2], ["1", 3]]]])
def test_what_json_does_not_have_is_no_value(packed: Any) -> None:
    with pytest.raises(NotPlain):
        packed_to_json(packed)
