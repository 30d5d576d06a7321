"""Grading: right code passes, wrong code does not, whatever it tries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from rollbook.errors import TestsBroken
from rollbook.sandbox import Limits, Sandbox
from rollbook.sandbox.grading import Grader
from rollbook.sandbox.outputs import Rule
from rollbook.sandbox.results import Verdict

TESTS = """
import math
EXPECTED = {2: 4, 3: 9, -5: 25}
def check(candidate):
    for given, expected in EXPECTED.items():
        assert candidate(given) == expected, f"{given} gave another value"
    assert all(map(lambda given: candidate(given) == EXPECTED[given], EXPECTED))
"""
RIGHT = "def square(x):\n    return x * x\n"


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Sandbox(Limits(seconds=1, wall_seconds=5), size=1) as box:
        yield Grader(box)


def grade_function(grader: Grader, code: str, tests: str = TESTS, entry: str = "square", **more: object) -> Verdict:
    return grader.function_sync(code, tests, entry, check=more.pop("check", "check"), **more)  # type: ignore[arg-type]


def test_right_code_passes(grader: Grader) -> None:
    verdict = grade_function(grader, RIGHT)
    assert (verdict.passed, verdict.reason, verdict.weak, verdict.fraction) == (True, "passed", False, 1.0)
    assert "seccomp" in verdict.isolation


def test_a_method_of_a_solution_passes_too(grader: Grader) -> None:
    assert grade_function(grader, "class Solution:\n    def square(self, x):\n        return x * x\n").passed


def test_a_long_error_of_the_code_is_a_wrong_answer_however_little_output_is_kept(grader: Grader) -> None:
    code = "def square(x): raise ValueError('\\x01' * 10_000)"
    verdict = grade_function(grader, code, limits=Limits(output_kb=1))
    assert (verdict.passed, verdict.reason) == (False, "failed")


def test_it_can_be_awaited(grader: Grader) -> None:
    async def go() -> list[Verdict]:
        return await asyncio.gather(*(grader.function(RIGHT, TESTS, "square", check="check") for _ in range(3)))

    assert [verdict.passed for verdict in asyncio.run(go())] == [True] * 3


CHEATS = {
    "wrong": ("def square(x): return x + 2", "failed"),
    "nothing": ("", "failed"),
    "syntax": ("def square(x) return", "error"),
    "raises on import": ("1 / 0", "error"),
    "raises": ("def square(x): raise ValueError('no')", "failed"),
    "raises AssertionError": ("def square(x): raise AssertionError", "failed"),
    "raises StopIteration": ("def square(x):\n    if x > 0: return x * x\n    raise StopIteration", "failed"),
    "os._exit(0) on import": ("import os\nos._exit(0)", "exit"),
    "sys.exit(0) on import": ("import sys\nsys.exit(0)", "exit"),
    "os._exit(0) when asked": ("import os\ndef square(x): os._exit(0)", "exit"),
    "sys.exit(0) when asked": ("import sys\ndef square(x): sys.exit(0)", "exit"),
    "exit at exit": ("import atexit, os\natexit.register(os._exit, 0)\ndef square(x): return 1", "failed"),
    "a fork that goes on": ("import os\nos.fork() and os._exit(0)\ndef square(x): return 1", "error"),
    "equal to everything": (
        "class Yes:\n    def __eq__(self, other): return True\ndef square(x): return Yes()",
        "refused",
    ),
    "an integer equal to everything": (
        "class Yes(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
        "def square(x): return Yes(1)",
        "failed",
    ),
    "no AssertionError": (
        "import builtins\nbuiltins.AssertionError = type('Never', (BaseException,), {})\ndef square(x): return 1",
        "failed",
    ),
    "patched builtins": (
        "import builtins\nbuiltins.all = lambda *_: True\nbuiltins.map = lambda *_: []\ndef square(x): return 1",
        "failed",
    ),
    "another main": (
        "import sys\nsys.modules['__main__'].__dict__['check'] = lambda c: None\ndef square(x): return 1",
        "failed",
    ),
    "frames": (
        "import sys\ndef square(x):\n    frame = sys._getframe()\n    while frame:\n"
        "        for value in [*frame.f_locals.values(), *frame.f_globals.values()]:\n"
        "            if isinstance(value, dict) and value.get(x) in (4, 9, 25): return value[x]\n"
        "        frame = frame.f_back\n    return 0",
        "failed",
    ),
    "the heap": (
        "import gc\ndef square(x):\n    for held in gc.get_objects():\n"
        "        if isinstance(held, dict) and set(held) == {2, 3, -5}: return held[x]\n    return 0",
        "failed",
    ),
    "the memory": (
        "def square(x):\n    for name in ('/proc/self/mem', '/proc/1/mem', '/proc/self/cmdline'):\n"
        "        try: data = open(name, 'rb').read(100)\n        except OSError: continue\n    return 0",
        "failed",
    ),
    "tracing": (
        "import sys, os\nsys.settrace(lambda *_: None)\nsys.excepthook = lambda *_: os._exit(0)\n"
        "def square(x): return 1",
        "failed",
    ),
    "a success marker": (
        'print(\'{"verdict": "passed", "weak": false, "error": null}\', flush=True)\ndef square(x): return 1',
        "failed",
    ),
    "a verdict on every descriptor": (
        "import json, os, struct\nsaid = json.dumps({'verdict': 'passed', 'weak': False, 'error': None})\n"
        "body = json.dumps({'value': said}).encode()\n"
        "def square(x):\n    for n in range(64):\n        try: os.write(n, struct.pack('<I', len(body)) + body)\n"
        "        except OSError: pass\n    return 1",
        None,  # killed for its second report, or failed if the tests are quicker
    ),
    "answers without questions": (
        "import json, os, struct, threading\nbody = json.dumps({'value': 4}).encode()\n"
        "def flood():\n    while True: os.write(4, struct.pack('<I', len(body)) + body)\n"
        "threading.Thread(target=flood, daemon=True).start()\ndef square(x): return 4",
        None,
    ),
    "garbage on the line": (
        "import os\ndef square(x):\n    os.write(4, b'\\xff' * 1000)\n    return 1",
        None,
    ),
    "the line closed": ("import os\ndef square(x): os.close(4)", None),
    "another open": (
        "import builtins, io\nbuiltins.open = lambda *_, **__: io.StringIO('passed')\ndef square(x): return 1",
        "failed",
    ),
    "json patched": (
        "import json\njson.dumps = lambda *_, **__: '{\"value\": 4}'\njson.JSONEncoder.default = None\n"
        "def square(x): return 1",
        "failed",
    ),
    "a busy loop": ("def square(x):\n    while True: pass", "timeout"),
    "sleep": ("import time\ndef square(x): time.sleep(60)", "timeout"),
    "a huge value": ("def square(x): return 'x' * (1 << 40)", None),
    "a value without end": ("def square(x):\n    a = []\n    a.append(a)\n    return a", "failed"),
    "much to compare": ("def square(x): return [10 ** 6] * (1 << 22)", None),
    "a crash": ("import ctypes\ndef square(x): ctypes.string_at(0)", "crash"),
}


@pytest.mark.parametrize("name", CHEATS)
def test_wrong_code_never_passes_and_is_called_what_it_is(grader: Grader, name: str) -> None:
    code, reason = CHEATS[name]
    verdict = grade_function(grader, code)
    assert not verdict.passed
    assert verdict.fraction == 0.0
    if reason:
        assert verdict.reason == reason, verdict
    assert grade_function(grader, RIGHT).passed, "the next one is not harmed"


def test_tests_that_are_broken_are_nobodys_fault_but_theirs(grader: Grader) -> None:
    for tests in ("import nowhere", "def check(candidate)", "raise ValueError('broken')"):
        with pytest.raises(TestsBroken, match="the tests do not run"):
            grade_function(grader, RIGHT, tests)
    assert grade_function(grader, RIGHT).passed


def test_tests_may_be_a_plain_module(grader: Grader) -> None:
    assert grade_function(grader, RIGHT, "assert square(2) == 4", check="").passed
    assert grade_function(grader, RIGHT, "assert square(2) == 5", check="").reason == "failed"


def test_helpers_of_the_setup_are_the_tests_own(grader: Grader) -> None:
    setup = "def helper(x):\n    return x * x\n\ndef square(x):\n    pass\n"
    lie = "def helper(x): return 0\ndef square(x): return 0"
    tests = "def check(candidate):\n    assert candidate(3) == helper(3)\n"
    assert not grade_function(grader, lie, tests, setup=setup).passed
    assert grade_function(grader, RIGHT, tests, setup=setup).passed


CLASSES = """
class Stack:
    def __init__(self): self.items = []
    def push(self, item): self.items.append(item); return self
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
    def __eq__(self, other): return list(self) == list(other)
"""


def test_objects_are_used_by_handle(grader: Grader) -> None:
    tests = "s = Stack()\nassert len(s.push(1).push(2)) == 2\nassert list(s) == [1, 2] and s.items == [1, 2]"
    verdict = grade_function(grader, CLASSES, tests, "Stack", check="")
    assert (verdict.passed, verdict.weak) == (True, False), verdict


def test_what_needs_one_process_is_refused_unless_its_word_will_do(grader: Grader) -> None:
    tests = "assert Stack().push(1) == Stack().push(1)"
    assert grade_function(grader, CLASSES, tests, "Stack", check="").reason == "refused"
    verdict = grade_function(grader, CLASSES, tests, "Stack", check="", allow_weak=True)
    assert (verdict.passed, verdict.weak) == (True, True)


def test_functions_handed_over_are_called_where_they_are(grader: Grader) -> None:
    code = "def apply(f, xs): return [f(x) for x in xs]"
    tests = "secret = 3\nassert apply(lambda x: x * secret, [1, 2]) == [3, 6]"
    assert grade_function(grader, code, tests, "apply", check="").passed
    thief = "def apply(f, xs): return f.__globals__['wanted']"
    tests = "wanted = [3, 6]\nassert apply(lambda x: x, [1, 2]) == wanted"
    assert grade_function(grader, thief, tests, "apply", check="").reason == "failed"


def test_emptying_the_arguments_does_not_empty_the_tests(grader: Grader) -> None:
    code = "def order(xs):\n    xs.clear()\n    return []"
    tests = "xs = [3, 1]\nassert order(xs) == sorted(xs)"
    assert grade_function(grader, code, tests, "order", check="").reason == "refused"
    assert grade_function(grader, code, "assert order([3, 1]) == [1, 3]", "order", check="").reason == "failed"


IN_PLACE = "xs = [3, 1, 2]\norder(xs)\nassert xs == [1, 2, 3]"


def test_what_is_changed_in_place_is_seen_where_the_task_says_so(grader: Grader) -> None:
    options = {"check": "", "in_place": True}
    right = grade_function(grader, "def order(xs): xs.sort()", IN_PLACE, "order", **options)
    assert (right.passed, right.weak) == (True, False)
    solution = "class Solution:\n    def order(self, xs): xs.sort()"
    assert grade_function(grader, solution, IN_PLACE, "order", **options).passed
    for wrong in ("def order(xs): return sorted(xs)", "def order(xs): xs.clear()", "def order(xs): pass"):
        assert grade_function(grader, wrong, IN_PLACE, "order", **options).reason == "failed"
    unsaid = grade_function(grader, "def order(xs): xs.sort()", IN_PLACE, "order", check="")
    assert (unsaid.reason, "in_place" in unsaid.detail) == ("refused", True)


def test_code_that_empties_what_the_tests_compare_with_passes_by_no_value(grader: Grader) -> None:
    tests = "def ref(a): return max(a, key=len) if a else None\na = ['x', 'yy']\nassert longest(a) == ref(a)"
    assert grade_function(grader, "def longest(a): a.clear()", tests, "longest", check="").reason == "refused"
    honest = "def longest(a):\n    a.sort(key=len)\n    return a[-1]"
    assert grade_function(grader, honest, tests, "longest", check="").passed


def test_a_value_and_a_change_at_once_are_refused_unless_its_word_will_do(grader: Grader) -> None:
    code = "def shrink(xs):\n    xs[:] = sorted(set(xs))\n    return len(xs)"
    tests = "xs = [2, 1, 2]\nassert xs[: shrink(xs)] == [1, 2]\nassert len(xs) == 2"
    refused = grade_function(grader, code, tests, "shrink", check="")
    assert (refused.reason, "changes its arguments" in refused.detail) == ("refused", True)
    by_value = tests.replace("xs[: shrink(xs)] == [1, 2]", "shrink(xs) == 2")
    weak = grade_function(grader, code, by_value, "shrink", check="", allow_weak=True)
    assert (weak.passed, weak.weak) == (True, True)


UNITTEST = (
    "import unittest\n"
    "class Tests(unittest.TestCase):\n"
    "    def test_square(self):\n"
    "        self.assertEqual(square(3), 9)\n"
    "    def test_bad(self):\n"
    "        with self.assertRaises(TypeError): square(None)\n"
    "unittest.main()\n"
)


def test_tests_may_end_by_an_exit_of_their_own(grader: Grader) -> None:
    assert grade_function(grader, RIGHT, UNITTEST, check="").passed
    assert grade_function(grader, "def square(x): return x + 5", UNITTEST, check="").reason == "failed"
    for end, passed in (("sys.exit()", True), ("sys.exit(0)", True), ("sys.exit(1)", False), ("sys.exit('no')", False)):
        assert grade_function(grader, RIGHT, f"import sys\nassert square(2) == 4\n{end}", check="").passed is passed
    with pytest.raises(TestsBroken):
        grade_function(grader, RIGHT, "import sys\nsys.exit(0)", check="")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os\ndef square(x): os._exit(0)", "exit"),
        ("import sys\ndef square(x): sys.exit(0)", "exit"),
        ("def square(x): raise SystemExit(0)", "exit"),
        ("class Yes:\n    __eq__ = lambda *_: True\ndef square(x): return Yes()", "refused"),
    ],
)
def test_tests_that_catch_everything_do_not_pass_who_is_gone(grader: Grader, code: str, reason: str) -> None:
    caught = "try:\n    assert square(3) == 9\nexcept BaseException: pass\n"
    expected = UNITTEST.replace("    def test", "    @unittest.expectedFailure\n    def test")
    for tests in (caught, UNITTEST, expected):
        assert grade_function(grader, code, tests, check="").reason == reason


def test_an_async_function_is_awaited(grader: Grader) -> None:
    code = "import asyncio\nasync def square(x):\n    await asyncio.sleep(0)\n    return x * x"
    plain = "import asyncio\nassert asyncio.run(square(3)) == 9"
    check = "async def check(candidate):\n    assert await candidate(3) == 9"
    assert grade_function(grader, code, plain, check="").passed
    assert grade_function(grader, code, check).passed
    wrong = code.replace("x * x", "x")
    assert grade_function(grader, wrong, plain, check="").reason == "failed"
    assert grade_function(grader, wrong, check).reason == "failed"
    assert grader.calls_sync(code, "square", [([3], 9), ([4], 16)]).passed
    assert not grader.calls_sync(wrong, "square", [([3], 9)]).passed


def test_dates_and_exact_numbers_cross_as_what_they_are(grader: Grader) -> None:
    code = (
        "from datetime import timedelta\nfrom fractions import Fraction\n"
        "def next_day(day, price): return day + timedelta(days=1), price * 2, Fraction(1, 3)"
    )
    tests = (
        "from datetime import date\nfrom decimal import Decimal\nfrom fractions import Fraction\n"
        "assert next_day(date(2024, 2, 28), Decimal('0.1')) == (date(2024, 2, 29), Decimal('0.2'), Fraction(1, 3))"
    )
    assert grade_function(grader, code, tests, "next_day", check="").passed
    assert not grade_function(grader, code.replace("days=1", "days=2"), tests, "next_day", check="").passed


def test_a_program_is_run_on_every_input(grader: Grader) -> None:
    code = "import sys\nn = int(input())\nprint(sum(map(int, sys.stdin.read().split())) * n)\n"
    cases = [("2\n1 2 3\n", "12"), ("3\n1\n", "3\n"), ("1\n4 5", "9 ")]
    verdict = grader.inputs_sync(code, cases)
    assert (verdict.passed, verdict.fraction, verdict.reason) == (True, 1.0, "passed")


@pytest.mark.parametrize("read", ["open(0).read()", "__import__('os').read(0, 100).decode()", "input()"])
def test_stdin_is_real_however_it_is_read(grader: Grader, read: str) -> None:
    assert grader.inputs_sync(f"print({read}.strip()[::-1])", [("abc", "cba"), ("xyz\n", "zyx")]).passed


def test_globals_and_streams_are_new_for_every_input(grader: Grader) -> None:
    code = "import sys\nassert 'seen' not in globals()\nseen = 1\nprint(input())\nsys.stdout = None\nsys.exit(0)"
    assert grader.inputs_sync(code, [("a", "a"), ("b", "b")]).passed


def test_the_first_failure_ends_it_unless_all_are_wanted(grader: Grader) -> None:
    cases = [("1", "1"), ("2", "no"), ("3", "3"), ("4", "no")]
    code = "print(input())"
    early, whole = grader.inputs_sync(code, cases), grader.inputs_sync(code, cases, all_of_them=True)
    assert (early.passed, early.fraction, early.detail) == (False, 0.25, "case 2: another output was expected")
    assert (whole.passed, whole.fraction, whole.detail) == (False, 0.5, "case 2: another output was expected")


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("while True: pass", "timeout"),
        ("import ctypes; ctypes.string_at(0)", "crash"),
        ("import os; os._exit(0)", "failed"),
        ("import os; os._exit(1)", "error"),
        ("1 / 0", "error"),
        ("x = [0] * (1 << 40)", "memory"),
    ],
)
def test_what_one_input_breaks_is_whole_for_the_next(grader: Grader, end: str, reason: str | None) -> None:
    code = f"x = input()\nif x == 'b':\n    {end}\nprint(x)"
    limits = Limits(seconds=0.2)
    verdict = grader.inputs_sync(code, [(x, x) for x in "abc"], all_of_them=True, limits=limits)
    assert (verdict.passed, verdict.fraction) == (False, 2 / 3), verdict
    if reason:
        assert verdict.reason == reason


def test_what_was_expected_is_not_there_to_be_found(grader: Grader) -> None:
    code = "import gc\nprint([x for x in gc.get_objects() if isinstance(x, str) and 'sesame' in x][:1] or input())"
    verdict = grader.inputs_sync(code, [("a", "open-sesame"), ("b", "open-sesame")], all_of_them=True)
    assert verdict.fraction == 0.0


def test_a_function_is_called_with_every_input(grader: Grader) -> None:
    code = "def pair(a, b): return (a, {'b': [b]})"
    cases = [([1, 2], [1, {"b": [2]}]), ([None, [1.5]], [None, {"b": [[1.5]]}])]
    assert grader.calls_sync(code, "pair", cases).passed
    assert grader.calls_sync("class Solution:\n    " + code.replace("a,", "self, a,", 1), "pair", cases).passed


@pytest.mark.parametrize(
    "code",
    [
        "def f(x): return True",
        "def f(x): return 1.1",
        "class Yes:\n    __eq__ = lambda *_: True\ndef f(x): return Yes()",
        "def g(x): return 1",
        "def f(x): return '1'",
        "def f(): return 1",
        "import os\ndef f(x): os._exit(0)",
        "def f(x): return [1] * (1 << 23)",
        "def f(x): return 1.4",
    ],
)
def test_another_value_does_not_pass(grader: Grader, code: str) -> None:
    assert not grader.calls_sync(code, "f", [([1], 1)]).passed


def test_no_cases_are_no_tests(grader: Grader) -> None:
    with pytest.raises(TestsBroken, match="no cases"):
        grader.inputs_sync("print(1)", [])
    with pytest.raises(TestsBroken, match="an object of object"):
        grader.calls_sync("def f(x): return 1", "f", [([object()], 1)])


def test_the_rule_is_the_tasks(grader: Grader) -> None:
    code = "print('Yes', 0.1)"
    assert not grader.inputs_sync(code, [("", "YES 0.1000001")]).passed
    assert grader.inputs_sync(code, [("", "YES 0.1000001")], rule=Rule(tolerance=1e-4, case=False)).passed


THIEVES = {
    "its frame": "def total(it): return it.gi_frame.f_globals['EXPECTED']",
    "its builtins": "def total(it): return it.gi_frame.f_builtins['eval']('EXPECTED', it.gi_frame.f_globals)",
    "its code": "def total(it): return it.gi_code.co_consts",
    "the frame of an iterator": "def total(it): return iter(it).gi_frame.f_globals['EXPECTED']",
}


@pytest.mark.parametrize("name", THIEVES)
def test_a_generator_handed_over_leads_nowhere(grader: Grader, name: str) -> None:
    tests = "EXPECTED = 6\nassert total(x for x in [1, 2, 3]) == EXPECTED"
    assert grade_function(grader, THIEVES[name], tests, "total", check="").reason == "failed"
    assert grade_function(grader, "def total(it): return sum(it)", tests, "total", check="").passed


def test_what_an_object_claims_to_hold_decides_nothing(grader: Grader) -> None:
    code = "class All:\n    def __contains__(self, item): return True\ndef f(x): return All()"
    assert grade_function(grader, code, "assert 5 in f(5)", "f", check="").reason == "refused"


SILENT = ["", "# lost", "def check(c):\n    assert c(1) == 2", "def test_f():\n    assert f(1) == 2", "str(f)"]


@pytest.mark.parametrize("code", ["def f(x): return 'wrong'", "class Solution:\n    def f(self, x): return 'wrong'"])
@pytest.mark.parametrize("tests", SILENT)
def test_tests_that_ask_nothing_pass_nobody(grader: Grader, tests: str, code: str) -> None:
    with pytest.raises(TestsBroken):
        grade_function(grader, code, tests, "f", check="")


def test_an_input_is_whole_however_little_may_be_kept_in_files(grader: Grader) -> None:
    code = "import sys\nprint(len(sys.stdin.read()))"
    cases = [("x" * size, str(size)) for size in (2 << 20, 5, 3 << 20)]
    assert grader.inputs_sync(code, cases, limits=Limits(seconds=2, files_mb=1)).passed


def test_a_value_made_to_hash_without_end_costs_the_host_nothing(grader: Grader) -> None:
    code = "def f(x): return {k * ((1 << 61) - 1): 1 for k in range(1, 9)}"
    keys = "','.join(str(k * ((1 << 61) - 1)) for k in range(1, 40000))"
    forged = f"import json\ns = '[\"s\",[' + {keys} + ']]'\njson.dumps = lambda v: s\ndef f(x): return 1"
    began = time.process_time()
    assert not grader.calls_sync(forged, "f", [([1], 1)]).passed
    assert not grader.calls_sync(code, "f", [([1], 1)]).passed
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    "code",
    [
        "import threading\nthreading.Thread(target=lambda: print(int(input()) * 2)).start()",
        "import atexit\natexit.register(lambda: print(int(input()) * 2))",
        "import sys\nprint(int(input()) * 2)\nsys.exit()",
    ],
)
def test_a_program_ends_as_python_ends_it(grader: Grader, code: str) -> None:
    assert grader.inputs_sync(code, [("1", "2"), ("2", "4")]).passed


def test_what_is_expected_is_never_more_than_is_kept(grader: Grader) -> None:
    limits = Limits(output_kb=1)
    lines = "\n".join(map(str, range(5000)))
    code = "print(*range(int(input())), sep='\\n')"
    assert grader.inputs_sync(code, [("5000", lines)], limits=limits).passed
    assert not grader.inputs_sync(code, [("50000", lines)], limits=limits).passed
    size = 5 << 20
    assert grader.calls_sync("def f(n): return 'x' * n", "f", [([size], "x" * size)], limits=limits).passed
    assert grader.calls_sync("def f(n): return 10**n", "f", [([5000], 10**5000)]).passed


def test_a_set_has_the_same_order_in_every_sandbox(grader: Grader) -> None:
    code = "import sys\nprint(*{f'word {n}' for n in range(50)}, sys.flags.hash_randomization)"
    with Sandbox(size=1) as another:
        orders = [box.run_sync(code).stdout for box in (grader._sandbox, another)]
    assert orders[0] == orders[1]
    assert orders[0].endswith(" 0\n")
