"""Tests in Python against code in another process: as in one process, or refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rollbook.sandbox import Limits, Sandbox
from rollbook.sandbox.examination import TestsBroken
from rollbook.sandbox.grade import Grader


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Sandbox(Limits(seconds=1, wall_seconds=5), size=1) as box:
        yield Grader(box)


def judged(grader: Grader, code: str, tests: str, *, allow_weak: bool = False) -> tuple[str, bool]:
    verdict = grader.function_sync(code, tests, "f", allow_weak=allow_weak)
    assert verdict.passed is (verdict.reason == "passed")
    return verdict.reason, verdict.weak


@pytest.mark.parametrize("end", ["SystemExit(0)", "KeyboardInterrupt()"])
def test_an_exit_in_a_function_of_the_tests_is_the_codes_to_deal_with(grader: Grader, end: str) -> None:
    tests = f"def cb(): raise {end}\nassert f(cb) == 'ended'"
    assert judged(grader, "def f(cb): return cb()", tests) == ("failed", False)
    right = "def f(cb):\n    try: cb()\n    except BaseException: return 'ended'"
    assert judged(grader, right, tests) == ("passed", False)
    through = f"def cb(): raise {end}\ntry: f(cb)\nexcept {end.partition('(')[0]}: pass\nelse: assert 0"
    assert judged(grader, "def f(cb): return cb()", through) == ("passed", False)


def test_an_error_of_the_tests_own_comes_back_as_itself(grader: Grader) -> None:
    tests = "class Own(Exception): pass\ndef cb(): raise Own\ntry: f(cb)\nexcept Own: pass\nelse: assert 0"
    assert judged(grader, "def f(cb): cb()", tests) == ("passed", False)
    assert judged(grader, "class Own(Exception): pass\ndef f(cb): raise Own", tests) == ("failed", False)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import json\ndef f(x): return json.loads('{')", "passed"),
        ("class E(ValueError): pass\ndef f(x): raise E(x)", "passed"),
        ("def f(x): return b'\\xff'.decode()", "passed"),
        ("class ValueError(Exception): pass\ndef f(x): raise ValueError", "failed"),
        ("def f(x): raise TypeError", "failed"),
    ],
)
def test_an_error_is_known_by_its_class_and_not_by_its_name(grader: Grader, code: str, reason: str) -> None:
    tests = "try: f(1)\nexcept ValueError: pass\nelse: assert False"
    assert judged(grader, code, tests) == (reason, False)


UNITTEST = (
    "import unittest\nhandle = f\nclass Tests(unittest.TestCase):\n"
    "    def test_square(self):\n        self.assertEqual(f(3), 9)\n"
)


def test_failures_that_unittest_keeps_to_itself_are_found(grader: Grader) -> None:
    suite = "unittest.defaultTestLoader.loadTestsFromTestCase(Tests)"
    for run in ("unittest.main(argv=['x'], exit=False)", f"unittest.TextTestRunner().run({suite})"):
        assert judged(grader, "def f(x): return x * x", UNITTEST + run) == ("passed", False)
        assert judged(grader, "def f(x): return x + 5", UNITTEST + run) == ("failed", False)


def test_a_check_that_fails_before_it_asks_is_broken(grader: Grader) -> None:
    with pytest.raises(TestsBroken):
        grader.function_sync("def f(x): return x", "def check(c): nowhere", "f", check="check")


UNCHANGED = "a = [3, 1, 2]\nassert f(a) == [1, 2, 3]\nassert a == [3, 1, 2]"
COPY = "a = [[1], [2]]\nb = f(a)\nassert b == a and b is not a\nb[0].append(9)\nassert a == [[1], [2]]"


@pytest.mark.parametrize(
    ("code", "tests", "reason"),
    [
        ("def f(a):\n    a.sort()\n    return list(a)", UNCHANGED, "failed"),
        ("def f(a): return sorted(a)", UNCHANGED, "passed"),
        ("def f(a):\n    a.sort()\n    return a", "a = [3, 1, 2]\nassert f(a) == [1, 2, 3]", "passed"),
        ("def f(a):\n    a[0].sort()\n    return 1", "a = [3, 1]\nassert f([a]) == 1\nassert a == [1, 3]", "refused"),
        ("def f(a):\n    a[0].sort()\n    return 1", "a = [3, 1]\nassert f([a]) == 1\nassert a == [3, 1]", "failed"),
        ("def f(a):\n    a.clear()\n    1 / 0", "a = [3]\ntry: f(a)\nexcept ArithmeticError: pass\nassert a", "failed"),
        ("def f(a):\n    a.clear()\n    return []", "a = ([3, 1],)\nassert f(*a) == sorted(*a)", "refused"),
        ("def f(a): return a", COPY, "failed"),
        ("def f(a): return a[:]", COPY, "failed"),
        ("import copy\ndef f(a): return copy.deepcopy(a)", COPY, "passed"),
        ("def f(a): return a", "a = [1]\nassert f(a) is a", "refused"),
        ("def f(a): return a", "a = [2, 1]\nb = f(a)\na.sort()\nassert b == a", "refused"),
        ("def f(a): return a", "a = [2, 1]\nassert f(a) == [2, 1]", "passed"),
    ],
)  # fmt: skip
def test_what_code_does_to_its_arguments_is_seen(grader: Grader, code: str, tests: str, reason: str) -> None:
    assert judged(grader, code, tests) == (reason, False)


@pytest.mark.parametrize(
    "test",
    [
        "isinstance(f(3), Iterator)",
        "isinstance(f(3), int)",
        "hasattr(f(3), '__next__')",
        "copy.deepcopy(f(3)) == 5",
        "copy.copy(f(3)) == 5",
        "f(3) + 1 == 5",
        "abs(f(3) - 5) < 1e-6",
        "5 - f(3) == 0",
    ],
)
def test_what_a_handle_cannot_tell_is_refused(grader: Grader, test: str) -> None:
    code = "class X:\n    __eq__ = lambda *_: True\n    __sub__ = __rsub__ = lambda *_: 0\ndef f(n): return X()"
    tests = f"import copy\nfrom collections.abc import Iterator\nassert {test}"
    assert judged(grader, code, tests) == ("refused", False)
    reason, weak = judged(grader, code, tests, allow_weak=True)
    assert weak or reason != "passed"


def test_only_what_can_be_called_is_callable(grader: Grader) -> None:
    code = "class X: pass\ndef f(n): return X() if n else X"
    assert judged(grader, code, "assert callable(f(0)) and not callable(f(1))") == ("passed", False)


def test_a_handle_does_what_its_object_does(grader: Grader) -> None:
    code = (
        "class f:\n    def __init__(self, x): self.x, self._y = x, [1, 2]\n    def __int__(self): return self.x\n"
        "    def __add__(self, other): return f(self.x + other.x)\n    def __delitem__(self, n): del self._y[n]\n"
        "    def twice(self): return 2 * self.x\n"
    )
    tests = (
        "a = f(1)\nassert int(a) == 1 and (a + f(2)).x == 3\na.x = 5\nassert a.twice() == 10\ndel a[0]\n"
        "assert a._y == [2]\nassert f.__name__ == 'f'"
    )
    assert judged(grader, code, tests) == ("passed", False)
    swallow = "class f:\n    def __enter__(self): return self\n    def __exit__(self, *_): return True"
    assert judged(grader, swallow, "with f(): assert False") == ("refused", False)


def test_tests_may_ask_from_many_threads(grader: Grader) -> None:
    tests = (
        "from concurrent.futures import ThreadPoolExecutor as Pool\nassert [*Pool(8).map(f, range(50))] == [*range(50)]"
    )
    assert judged(grader, "def f(x): return x", tests) == ("passed", False)
