"""Tests in Python against code in another process: as in one process, or refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rollbook.errors import TestsBroken
from rollbook.sandbox import Limits, Sandbox
from rollbook.sandbox.grading import Grader


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Sandbox(Limits(seconds=1, wall_seconds=5), size=1) as box:
        yield Grader(box)


def grade(grader: Grader, code: str, tests: str, *, entry: str = "f", **options: bool) -> tuple[str, bool]:
    verdict = grader.function_sync(code, tests, entry, **options)
    assert verdict.passed is (verdict.reason == "passed")
    return verdict.reason, verdict.weak


@pytest.mark.parametrize("end", ["SystemExit(0)", "KeyboardInterrupt()"])
def test_an_exit_in_a_function_of_the_tests_is_the_codes_to_deal_with(grader: Grader, end: str) -> None:
    tests = f"def cb(): raise {end}\nassert f(cb) == 'ended'"
    assert grade(grader, "def f(cb): return cb()", tests) == ("failed", False)
    right = "def f(cb):\n    try: cb()\n    except BaseException: return 'ended'"
    assert grade(grader, right, tests) == ("passed", False)
    through = f"def cb(): raise {end}\ntry: f(cb)\nexcept {end.partition('(')[0]}: pass\nelse: assert 0"
    assert grade(grader, "def f(cb): return cb()", through) == ("passed", False)


def test_an_error_of_the_tests_own_comes_back_as_itself(grader: Grader) -> None:
    tests = "class Own(Exception): pass\ndef cb(): raise Own\ntry: f(cb)\nexcept Own: pass\nelse: assert 0"
    assert grade(grader, "def f(cb): cb()", tests) == ("passed", False)
    assert grade(grader, "class Own(Exception): pass\ndef f(cb): raise Own", tests) == ("failed", False)


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
    assert grade(grader, code, tests) == (reason, False)


UNITTEST = (
    "import unittest\nhandle = f\nclass Tests(unittest.TestCase):\n"
    "    def test_square(self):\n        self.assertEqual(f(3), 9)\n"
)


def test_failures_that_unittest_keeps_to_itself_are_found(grader: Grader) -> None:
    suite = "unittest.defaultTestLoader.loadTestsFromTestCase(Tests)"
    for run in ("unittest.main(argv=['x'], exit=False)", f"unittest.TextTestRunner().run({suite})"):
        assert grade(grader, "def f(x): return x * x", UNITTEST + run) == ("passed", False)
        assert grade(grader, "def f(x): return x + 5", UNITTEST + run) == ("failed", False)


def test_a_check_that_fails_before_it_asks_is_broken(grader: Grader) -> None:
    with pytest.raises(TestsBroken):
        grader.function_sync("def f(x): return x", "def check(c): nowhere", "f", check="check")


LOOKS = {
    "a name": ("f = lambda x: x", "assert f.__name__ == 'f'\nassert f(1) == 1", "f"),
    "a text": ("def f(x): return x", "assert f.__doc__.startswith('Return')\nassert f(1) == 1", "f"),
    "a member": ("class Color: pass", "assert Color.RED.value == 1", "Color"),
    "a value of a member": ("import enum\nclass Color(enum.Enum): RED = 2", "assert Color.RED.value == 1", "Color"),
    "a class beside it": ("class Stack: pass", "item = Item(1)\nassert Stack().push(item) is None", "Stack"),
}


@pytest.mark.parametrize("name", LOOKS)
def test_tests_that_look_at_the_code_and_fail_are_not_broken(grader: Grader, name: str) -> None:
    code, tests, entry = LOOKS[name]
    assert grader.function_sync(code, tests, entry).reason == "failed"


def test_a_look_alone_passes_no_function_but_a_class(grader: Grader) -> None:
    with pytest.raises(TestsBroken):
        grader.function_sync("def f(x): return 'wrong'", "print(f.__name__)\ndef test(): assert f(1) == 1", "f")
    members = "import enum\nclass Color(enum.Enum): RED = 1"
    assert grader.function_sync(members, "assert Color.RED.value == 1", "Color").passed


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
    assert grade(grader, code, tests) == (reason, False)


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
    assert grade(grader, code, tests) == ("refused", False)
    reason, weak = grade(grader, code, tests, allow_weak=True)
    assert weak or reason != "passed"


def test_only_what_can_be_called_is_callable(grader: Grader) -> None:
    code = "class X: pass\ndef f(n): return X() if n else X"
    assert grade(grader, code, "assert callable(f(0)) and not callable(f(1))") == ("passed", False)


def test_a_handle_does_what_its_object_does(grader: Grader) -> None:
    code = (
        "class F:\n    def __init__(self, x): self.x, self._y = x, [1, 2]\n    def __int__(self): return self.x\n"
        "    def __add__(self, other): return F(self.x + other.x)\n    def __delitem__(self, n): del self._y[n]\n"
        "    def twice(self): return 2 * self.x\n"
    )
    tests = (
        "a = F(1)\nassert int(a) == 1 and (a + F(2)).x == 3\na.x = 5\nassert a.twice() == 10\ndel a[0]\n"
        "assert a._y == [2]\nassert F.__name__ == 'F'"
    )
    assert grade(grader, code, tests, entry="F") == ("passed", False)
    swallow = "class F:\n    def __enter__(self): return self\n    def __exit__(self, *_): return True"
    assert grade(grader, swallow, "with F(): assert False", entry="F") == ("refused", False)


def test_tests_may_ask_from_many_threads(grader: Grader) -> None:
    tests = (
        "from concurrent.futures import ThreadPoolExecutor as Pool\nassert [*Pool(8).map(f, range(50))] == [*range(50)]"
    )
    assert grade(grader, "def f(x): return x", tests) == ("passed", False)


LIAR = """
class Liar:
    def __init__(self, n): self.n, self.asked, self.inner = n, 0, [n]
    def __float__(self): return 0.0
    def __mul__(self, other): return self.n
    def __iter__(self): return iter([self.n])
    def __len__(self): return self.n
    def __getitem__(self, at): return self.n
    def __bool__(self): return True
    def __str__(self): return "3"
    def startswith(self, text): return True
    @property
    def changing(self):
        self.asked += 1
        return self.asked
def f(n): return Liar(n)
"""


@pytest.mark.parametrize(
    "test",
    [
        "float(r) == 0",
        "r * r == 3",
        "list(r) == [3]",
        "len(r) == 3",
        "r[0] == 3",
        "r",
        "str(r) == '3'",
        "f'{r}' == '3'",
        "r.startswith('http')",
        "not setattr(r, 'n', 4)",
    ],
)
def test_what_a_function_gives_back_is_data_and_does_not_judge_itself(grader: Grader, test: str) -> None:
    tests = f"r = f(3)\nassert {test}"
    assert grade(grader, LIAR, tests) == ("refused", False)
    assert grade(grader, LIAR, tests, allow_weak=True) == ("passed", True)
    of_a_class = "assert Liar(3).n == 3\n" + tests.replace("f(3)", "Liar(3)").replace("r * r", "r * Liar(3)")
    assert grade(grader, LIAR, of_a_class, entry="Liar") == ("passed", False)


def test_data_that_an_object_holds_is_believed_and_does_not_change_between_two_looks(grader: Grader) -> None:
    tests = "r = f(3)\nassert (r.n, r.inner) == (3, [3])\nassert [r.changing, r.changing] == [1, 1]\n"
    assert grade(grader, LIAR, tests + "f(1)\nassert r.changing == 2") == ("passed", False)


@pytest.mark.parametrize(
    ("gives", "test"),
    [
        ("{1: 2}.keys()", "set(r) == {1} and 1 in r and len(r) == 1"),
        ("{1: 2}.values()", "list(r) == [2]"),
        ("{1: 2}.items()", "list(r) == [(1, 2)]"),
        ("map(str, [1, 2])", "list(r) == ['1', '2'] and list(r) == []"),
        ("(i for i in [1])", "next(r) == 1 and next(r, None) is None"),
        ("lambda x: x + n", "r(2) == 5 and r and callable(r)"),
        ("int", "r is int and r('5') == 5"),
    ],
)
def test_what_is_not_plain_but_nobodys_own_class_can_be_used(grader: Grader, gives: str, test: str) -> None:
    assert grade(grader, f"def f(n): return {gives}", f"r = f(3)\nassert {test}") == ("passed", False)


REVIVING = """
class Reviving:
    ended = 0
    def __next__(self):
        self.ended += 1
        if self.ended % 2: raise StopIteration
        return 3
    def __iter__(self): return self
    def __len__(self): return 3
def f(n): return Reviving()
"""


def test_an_iterator_that_has_ended_stays_so_and_does_nothing_else(grader: Grader) -> None:
    assert grade(grader, REVIVING, "r = f(3)\nassert list(r) == list(r) == [] == list(iter(r))") == ("passed", False)
    assert grade(grader, REVIVING, "len(f(3))") == ("failed", False)
    assert grade(grader, REVIVING, "assert f(3).ended == 0") == ("refused", False)
    called = "class X:\n    def __call__(self): pass\n    def __float__(self): return 3.0\ndef f(n): return X()"
    assert grade(grader, called, "assert float(f(3)) == 3") == ("failed", False)


@pytest.mark.parametrize("end", ["StopIteration", "StopAsyncIteration", "GeneratorExit", "unittest.SkipTest('no')"])
def test_what_ends_a_loop_or_skips_a_test_ends_neither_when_it_comes_out_of_the_code(grader: Grader, end: str) -> None:
    begin = f"import unittest\ndef end(): raise {end}\n"
    suite = "class Tests(unittest.TestCase):\n    def test_it(self): self.assertEqual(f(end), 3)\nunittest.main()"
    loop = "assert all(map(lambda expected: f(end) == expected, [3, 4]))"
    for code in ("def f(end): end()", f"import unittest\ndef f(end): raise {end}"):
        for tests in (suite, loop, "for _ in map(f, [end]): assert False"):
            assert grade(grader, code, begin + tests)[0] in ("failed", "exit")


def test_the_tests_own_end_of_iteration_does_not_come_back_as_one(grader: Grader) -> None:
    code = "def f(it):\n    while True: next(it)"
    assert grade(grader, code, "try: f(iter([1]))\nexcept StopIteration: pass") == ("failed", False)
    assert grade(grader, "def f(it): return map(str, it)", "assert [*f(iter([1]))] == ['1']") == ("passed", False)


FORGED = """
import json, os, struct
def f(d):
    body = json.dumps({"value": None, "raised": ["ValueError", [], "", 0], "changed": [[0, ["d", [["n", 0]]]]]})
    os.write(4, struct.pack("<I", len(body)) + body.encode())
    os.read(4, 1 << 20)
"""


def test_an_answer_that_says_two_things_does_both(grader: Grader) -> None:
    tests = "d = {'n': 5}\ntry: f(d)\nexcept ValueError: pass\nelse: assert False\nassert d['n'] == 0"
    assert grade(grader, FORGED, tests) == ("refused", False)


def test_names_of_arguments_are_the_codes_own(grader: Grader) -> None:
    names = ("self", "target", "what", "number", "given", "named")
    tests = f"wanted = dict.fromkeys({names}, 1)\nassert f(**wanted) == wanted"
    assert grade(grader, "def f(**named): return named", tests) == ("passed", False)


def test_types_and_errors_of_pythons_own_are_the_same_at_both_ends(grader: Grader) -> None:
    code = "def f(items, kind): return [item for item in items if isinstance(item, kind)]"
    assert grade(grader, code, "assert f((4, 5.5, 'a'), int) == [4]") == ("passed", False)
    code = "def f(bad, error):\n    try: bad()\n    except error: return 'caught'"
    tests = "def bad(): raise KeyError(3)\nassert f(bad, LookupError) == 'caught'"
    assert grade(grader, code, tests) == ("passed", False)


def test_halves_of_characters_cross_as_they_are(grader: Grader) -> None:
    tests = "assert f('\\ud800') == '\\ud800' != '?'"
    assert grade(grader, "def f(text): return text", tests) == ("passed", False)
    assert grade(grader, "def f(text): return '\\ud800'", "assert f('') == '?'") == ("failed", False)


@pytest.mark.parametrize("main", ["input()", "sys.exit(1)", "raise ValueError"])
def test_what_is_meant_for_a_programs_start_is_left_out(grader: Grader, main: str) -> None:
    code = (
        "import pickle, sys\nfrom dataclasses import dataclass\n@dataclass\nclass P:\n    x: 'int'\n"
        f"def f(x): return pickle.loads(pickle.dumps(P(x))).x\nif __name__ == '__main__': {main}\n"
    )
    assert grade(grader, code, "assert f(3) == 3") == ("passed", False)
    assert grader.calls_sync(code, "f", [([3], 3)]).passed
    assert not grader.inputs_sync(code, [("", "")]).passed


LRU = """
from collections import OrderedDict, namedtuple
Pair = namedtuple("Pair", "a b")
class LRU(OrderedDict):
    def put(self, key, value):
        self[key] = value
        while len(self) > 2: self.popitem(last=False)
    def get_or(self, key, other): return self.get(key, other)
    def last(self): return Pair(*list(self.items())[-1])
    def take(self, other, more):
        self.update(other)
        more.append(len(self))
def f(): return LRU(a=1)
"""


def test_an_object_of_a_class_under_test_keeps_its_methods_though_it_is_a_dict(grader: Grader) -> None:
    tests = (
        "c = LRU()\nc.put(1, 2)\nc.put(3, 4)\nc.put(5, 6)\nassert c.get_or(1, -1) == -1 and c[3] == 4 and len(c) == 2\n"
        "assert c.last() == (5, 6)\nd, more = LRU(), []\nd.take(c, more)\nassert more == [2] and d[5] == 6"
    )
    assert grade(grader, LRU, tests, entry="LRU", in_place=True) == ("passed", False)
    assert grade(grader, LRU, "assert f() == {'a': 1}") == ("passed", False)


def test_one_list_given_twice_is_one_there(grader: Grader) -> None:
    code = "def f(a, b):\n    a.append(1)\n    return len(b)"
    assert grade(grader, code, "x = []\nassert f(x, x) == 1\nassert f([], []) == 0") == ("passed", False)


def test_a_function_of_the_tests_and_one_of_the_code_may_call_each_other_deep_down(grader: Grader) -> None:
    code = (
        "def f(of):\n    known = {}\n    def remembered(n):\n        if n not in known: known[n] = of(n)\n"
        "        return known[n]\n    return remembered"
    )
    tests = "@f\ndef total(n): return n and n + total(n - 1)\nassert total(200) == 20100"
    assert grade(grader, code, tests) == ("passed", False)
