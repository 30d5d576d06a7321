"""How tests see the code: as in one process where that is sound, and a refusal where it is not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rollbook.sandbox import Limits, Sandbox
from rollbook.sandbox.grading import Grader


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Sandbox(Limits(seconds=1, wall_seconds=5), size=1, packages=["numpy"]) as box:
        yield Grader(box)


def grade(grader: Grader, code: str, tests: str, *, entry: str = "f", **options: bool) -> tuple[str, bool]:
    verdict = grader.function_sync(code, tests, entry, **options)
    assert verdict.passed is (verdict.reason == "passed")
    return verdict.reason, verdict.weak


SORTS = """
for a in ([3, 1, 2], [5, 4]):
    r = Sort(list(a))
    assert len(r) == len(a) and all(r[i] <= r[i + 1] for i in range(len(r) - 1)) and sorted(r) == sorted(a)
"""
SORT = """
class Sort:
    def __init__(self, a): self.a = a
    def __len__(self): return len(self.a)
    def __getitem__(self, i): return i
    def __iter__(self): return iter(self.a)
    def count(self, x): return self.a.count(x)
def copy(): return [1]
Sort.copy = staticmethod(copy)
"""


@pytest.mark.parametrize("more", ["", "assert Sort([1]).count(1) == 1", "assert Sort([1]).copy()"])
def test_a_capital_letter_alone_makes_no_class_of_what_is_used_as_data(grader: Grader, more: str) -> None:
    assert grade(grader, SORT, SORTS + more, entry="Sort") == ("refused", False)
    assert grade(grader, SORT, SORTS + more, entry="Sort", allow_weak=True) == ("passed", True)
    assert grade(grader, "def Sort(a): return sorted(a)", SORTS + more, entry="Sort") == ("passed", False)


@pytest.mark.parametrize("use", ["Bag().a", "Bag(a=5).a == 5 and Bag(5)[0]", "Bag(a=2).put(1) is None"])
def test_a_class_that_is_used_as_one_answers_as_one(grader: Grader, use: str) -> None:
    code = "class Bag:\n    def __init__(self, a=7): self.a = a\n    def __getitem__(self, i): return self.a\n"
    code += "    def __len__(self): return 3\n    def put(self, x): pass"
    assert grade(grader, code, f"assert {use}\nassert len(Bag(2)) == 3", entry="Bag") == ("passed", False)


BOUNDED_QUEUE = """
class BoundedQueue:
    def __init__(self, size): self.size, self.data = size, []
    def append(self, x):
        if len(self.data) == self.size: raise OverflowError
        self.data.append(x)
    def pop(self): return self.data.pop(0)
    def __len__(self): return len(self.data)
"""
COUNTDOWN = """
class Countdown:
    def __init__(self, start): self.start = start
    def __iter__(self):
        n = self.start
        while n > 0:
            yield n
            n -= 1
"""
CACHE = """
class Cache:
    def __init__(self, size): self.size, self.data = size, {}
    def __setitem__(self, key, value):
        self.data[key] = value
        while len(self.data) > self.size: del self.data[next(iter(self.data))]
    def __getitem__(self, key): return self.data[key]
    def __len__(self): return len(self.data)
"""
RATIO = """
class Ratio:
    def __init__(self, a, b): self.numerator, self.denominator = a, b
    def __float__(self): return self.numerator / self.denominator
    def __str__(self): return f"{self.numerator}/{self.denominator}"
"""
SENTENCE = """
class Sentence:
    def __init__(self, text): self.words = text.split()
    def __len__(self): return len(self.words)
    def __getitem__(self, i): return self.words[i]
    def __iter__(self): return iter(self.words)
    def __str__(self): return " ".join(self.words)
"""
CONTAINERS = {
    "append, pop, len": (
        BOUNDED_QUEUE,
        "q = BoundedQueue(2)\nq.append(1)\nq.append(2)\nassert len(q) == 2\n"
        "try: q.append(3)\nexcept OverflowError: pass\nelse: assert 0\nassert q.pop() == 1 and len(q) == 1",
    ),
    "start and iteration": (COUNTDOWN, "c = Countdown(3)\nassert c.start == 3\nassert list(c) == [3, 2, 1] == list(c)"),
    "items that are set": (CACHE, "c = Cache(1)\nc['a'] = 1\nc['b'] = 2\nassert len(c) == 1 and c['b'] == 2"),
    "parts of a number": (RATIO, "r = Ratio(1, 2)\nassert r.numerator == 1 and float(r) == 0.5 and str(r) == '1/2'"),
}
READ_ONLY = "s = Sentence('a b')\nassert len(s) == 2 and s[1] == 'b' and list(s) == ['a', 'b'] and str(s) == 'a b'"


@pytest.mark.parametrize("name", CONTAINERS)
def test_ordinary_container_classes_need_no_word_of_the_task(grader: Grader, name: str) -> None:
    code, tests = CONTAINERS[name]
    entry = code.split()[1].rstrip(":")
    assert grade(grader, code, tests, entry=entry) == ("passed", False)
    broken = code.replace("data.pop(0)", "data.pop()").replace("n > 0", "n > 1").replace("> self.size", "> 9")
    assert grade(grader, broken.replace("{self.numerator}/", "{9}/"), tests, entry=entry) == ("failed", False)


def test_a_class_that_is_only_read_is_one_if_the_task_says_so(grader: Grader) -> None:
    """Without that it could be a function whose result judges itself."""
    assert grade(grader, SENTENCE, READ_ONLY, entry="Sentence") == ("refused", False)
    assert grade(grader, SENTENCE, READ_ONLY, entry="Sentence", is_class=True) == ("passed", False)
    wrong = SENTENCE.replace("return len(self.words)", "return 3")
    assert grade(grader, wrong, READ_ONLY, entry="Sentence", is_class=True) == ("failed", False)
    lower = (SENTENCE.replace("Sentence", "sentence"), READ_ONLY.replace("Sentence", "sentence"))
    assert grade(grader, *lower, entry="sentence") == ("refused", False)
    assert grade(grader, *lower, entry="sentence", is_class=True) == ("passed", False)


def test_a_class_is_none_if_the_task_says_so(grader: Grader) -> None:
    code, tests = CONTAINERS["append, pop, len"]
    assert grade(grader, code, tests, entry="BoundedQueue", is_class=False) == ("refused", False)


def test_what_a_function_returns_is_not_judged_by_its_own_remove(grader: Grader) -> None:
    code = (
        "class Sort:\n    def __init__(self, a): pass\n    def remove(self, x): pass\n    def __len__(self): return 0"
    )
    tests = "r = Sort([3, 1])\nfor x in (1, 3): r.remove(x)\nassert len(r) == 0"
    assert grade(grader, code, tests, entry="Sort") == ("refused", False)


@pytest.mark.parametrize(
    ("gives", "test"),
    [
        ("namedtuple('P', 'x y')(1, [2])", "r == (1, [2]) and r.x == 1 and r.y == [2]"),
        ("Counter('aab')", "isinstance(r, Counter) and r.most_common(1) == [('a', 2)] and r == {'a': 2, 'b': 1}"),
        ("OrderedDict(a=1, b=2)", "r != OrderedDict(b=2, a=1) and r == {'b': 2, 'a': 1}"),
        ("defaultdict(int, a=1)", "r['zz'] == 0 and r['a'] == 1"),
        ("deque([1, 2], maxlen=2)", "r.maxlen == 2 and r == deque([1, 2])"),
        ("slice(1, 2)", "[1, 2, 3][r] == [2]"),
    ],
)
def test_pythons_own_kinds_of_data_arrive_as_themselves(grader: Grader, gives: str, test: str) -> None:
    known = "from collections import *\n"
    assert grade(grader, f"{known}def f(): return {gives}", f"{known}r = f()\nassert {test}") == ("passed", False)


@pytest.mark.parametrize(
    ("code", "tests"),
    [
        ("R = namedtuple('R', 'startswith')\ndef f(): return R(lambda text: True)", "f().startswith('http')"),
        ("def f(): return slice(lambda: True)", "f().stop()"),
        ("def f(): return defaultdict(lambda: True)", "f()['anything']"),
    ],
)
def test_no_function_of_the_codes_hides_in_them(grader: Grader, code: str, tests: str) -> None:
    assert grade(grader, f"from collections import *\n{code}", f"assert {tests}") == ("failed", False)


def test_what_becomes_of_such_an_argument_is_seen(grader: Grader) -> None:
    tests = "from collections import *\nc, d = Counter('a'), defaultdict(list)\nf(c, d)\n"
    tests += "assert (c, d) == (Counter('aa'), {'x': [1]}) and type(c) is Counter and d['y'] == []"
    code = "def f(c, d):\n    c['a'] += 1\n    d['x'].append(1)"
    assert grade(grader, code, tests, in_place=True) == ("passed", False)


STACK = "class Stack:\n    def __init__(self): self.d = [1, 2]\n    def __getitem__(self, i): return self.d[i]\n"


def test_an_object_is_asked_for_slices(grader: Grader) -> None:
    assert grade(grader, STACK, "assert Stack()[0:1] == [1] and Stack()[::-1] == [2, 1]", entry="Stack")[0] == "passed"


def test_the_same_object_is_the_same_handle(grader: Grader) -> None:
    code = "class One:\n    it = None\n    def __new__(cls): cls.it = cls.it or object.__new__(cls); return cls.it\n"
    code += "    def me(self): return self\n    def other(self): return object.__new__(One)"
    tests = "a = One()\nassert a is One() and a.me() is a and a.other() is not a"
    assert grade(grader, code, tests, entry="One") == ("passed", False)


def test_classes_beside_a_class_under_test_can_be_used(grader: Grader) -> None:
    code = "class Item:\n    def __init__(self, n): self.n = n\n"
    code += "class Cart:\n    def __init__(self): self.i = []\n    def add(self, x): self.i.append(x)\n"
    code += "    def total(self): return sum(x.n for x in self.i)"
    tests = "c = Cart()\nc.add(Item(3))\nassert c.total() == 3"
    assert grade(grader, code, tests, entry="Cart") == ("passed", False)


def test_no_function_of_the_code_judges_another_unless_its_word_will_do(grader: Grader) -> None:
    code, tests = "def f(s): return s\ndef g(s): return s", "assert g(f('ab')) == 'ab'"
    assert grade(grader, code, tests) == ("refused", False)
    verdict = grader.function_sync(code, tests, "f", allow_weak=True)
    assert (verdict.reason, verdict.weak) == ("passed", True)


@pytest.mark.parametrize(
    ("name", "tests"),
    [
        ("len", "assert len([1]) == 1 and f(1) == 2"),
        ("helper", "def helper(x): return x + 1\nassert f(1) == helper(1)"),
        ("xrange", "try: xrange\nexcept NameError: xrange = range\nfor x in xrange(1, 3): assert f(x) == 2 * x"),
        ("sqrt", "from math import *\nassert f(4) == 4 * sqrt(4)"),
        ("AssertionError", "assert f(1) == 2"),
    ],
)
def test_no_name_of_the_codes_takes_the_place_of_the_tests_own_or_pythons(
    grader: Grader, name: str, tests: str
) -> None:
    code = f"def f(x): return 1\ndef {name}(*given): return []"
    assert grade(grader, code, f"f(0)\n{tests}") == ("failed", False)


@pytest.mark.parametrize(
    ("code", "tests"),
    [
        ("def f(o): o.x = 1", "class O: x = 0\no = O()\nf(o)\nassert o.x == 1"),
        ("def f(m): m.go(1)", "from unittest.mock import Mock\nm = Mock()\nf(m)\nm.go.assert_called_once_with(1)"),
        (STACK + "    __hash__ = lambda self: 1\n    __eq__ = lambda *_: True", "assert len({Stack(), Stack()}) == 1"),
    ],
    ids=["an attribute set", "a mock", "a set of objects"],
)
def test_what_would_work_in_one_process_is_refused_and_not_called_wrong(grader: Grader, code: str, tests: str) -> None:
    assert grade(grader, code, tests, entry="Stack" if "Stack" in tests else "f") == ("refused", False)


def test_a_function_of_the_tests_tells_its_name(grader: Grader) -> None:
    code = "import functools\ndef f(g):\n    @functools.wraps(g)\n    def h(*a): return g(*a) + 1\n    return h"
    tests = (
        "@f\ndef add(x):\n    'doc'\n    return x\nassert add(1) == 2 and (add.__name__, add.__doc__) == ('add', 'doc')"
    )
    assert grade(grader, code, tests) == ("passed", False)


def test_an_error_of_the_system_tells_its_file(grader: Grader) -> None:
    tests = "try: f('nope')\nexcept FileNotFoundError as e: assert (e.errno, e.filename) == (2, 'nope')\nelse: assert 0"
    assert grade(grader, "def f(p): return open(p)", tests) == ("passed", False)


def test_words_that_no_encoding_has_do_not_hide_the_reason(grader: Grader) -> None:
    verdict = grader.function_sync("def f(x): raise ValueError('\\ud800')", "assert f(1) == 1", "f")
    assert (verdict.reason, verdict.detail) == ("failed", "ValueError: ?")


@pytest.mark.parametrize(("gives", "expected"), [("int64(3)", 3), ("bool_(True)", True), ("float64(0.5)", 0.5)])
def test_numbers_of_numpy_are_numbers(grader: Grader, gives: str, expected: float) -> None:
    code = f"import numpy\ndef f(): return numpy.{gives}"
    assert grader.calls_sync(code, "f", [([], expected)]).passed
    assert not grader.calls_sync(code, "f", [([], 7)]).passed
    assert grade(grader, code, f"assert f() == {expected}") == ("passed", False)


def test_calls_compare_pythons_own_containers_as_json(grader: Grader) -> None:
    code = "from collections import *\ndef f(): return [{}]"
    given = "Counter('aab'), namedtuple('P', 'x')(1), deque([1], 2), defaultdict(int, a=1), float('nan')"
    expected = [{"a": 2, "b": 1}, [1], [1], {"a": 1}, float("nan")]
    assert grader.calls_sync(code.format(given), "f", [([], expected)]).passed
