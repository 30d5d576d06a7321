"""Tests that reach into the code's process are recognised by their text, and are refused where they fail."""

from __future__ import annotations

import pytest

from rollbook.sandbox import Sandbox
from rollbook.sandbox.grading import Grader, find_cross_process_use

CAPTURE = "import io, contextlib\nb = io.StringIO()\nwith contextlib.redirect_stdout(b): {}\nassert {}"
PRINTS = "def f(x=1):\n    print('hi')\n    return x"


@pytest.mark.parametrize(
    ("tests", "code", "what"),
    [
        (CAPTURE, PRINTS, "capture what the code prints"),
        (CAPTURE, "def f(x): return x", ""),
        ("from unittest.mock import patch\nwith patch('builtins.input'): f()", "", "replace something"),
        ("import sys, io\nsys.stdin = io.StringIO('1')", "def f(): return input()", "replace the input"),
        ("import random\nrandom.seed(4)", "import random", "seed the code's random numbers"),
        ("import random\nrandom.seed(4)", "def f(x): return sorted(x)", ""),
        ("open('a.txt', 'w').write('x')", "def f(p): return open(p).read()", "leave files for the code"),
        ("assert f(1) == 1", "import random\nprint(open(__file__))", ""),
    ],
)
def test_what_tests_do_to_the_codes_process_is_told(tests: str, code: str, what: str) -> None:
    told = find_cross_process_use(tests, code)
    assert told.startswith(what)
    assert bool(told) is bool(what)


def test_such_tests_are_refused_only_where_they_do_not_pass() -> None:
    with Sandbox(size=1) as box:
        grader = Grader(box)
        captured = grader.function_sync(PRINTS, CAPTURE.format("f()", "b.getvalue() == 'hi\\n'"), "f")
        silenced = grader.function_sync(PRINTS, CAPTURE.format("r = f(3)", "r == 3"), "f")
        plain = grader.function_sync(PRINTS, "assert f(3) == 4", "f")
    assert (captured.passed, captured.reason) == (False, "refused")
    assert captured.detail.startswith("the tests capture what the code prints: AssertionError")
    assert (silenced.reason, plain.reason) == ("passed", "failed")
