"""Several inputs to the same program: each one finds the same conditions as the first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rollbook.sandbox import Limits, Sandbox, grading
from rollbook.sandbox.grading import Grader
from rollbook.sandbox.session_state import PersistentState
from support.alive import open_fds

CASES = [("3\n1 2 3\n", "6\n"), ("4\n1 2 3 4\n", "10\n"), ("2\n5 5\n", "10\n")]
SUM = "print(sum(map(int, line().split())))"


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Sandbox(Limits(seconds=2, wall_seconds=10), size=1) as box:
        yield Grader(box)


@pytest.mark.parametrize(
    "opens",
    [
        "line = open(0).readline",
        "line = open(0, 'rb').readline",
        "file = open(0)\nline = file.readline",
        "import sys\nsys.stdin = open(0)\nline = input",
        "import os\nline = os.fdopen(0).readline",
        "import io\nline = io.BufferedReader(io.FileIO(0)).readline",
        "import sys\nline = sys.stdin.buffer.readline\nsys.stdin.buffer.peek()",
    ],
)
def test_a_programs_own_file_on_stdin_ends_with_its_input(grader: Grader, opens: str) -> None:
    verdict = grader.inputs_sync(f"{opens}\nline()\n{SUM}", CASES)
    assert verdict.passed, verdict


@pytest.mark.parametrize(
    "code",
    [
        "line()\nopen(1, 'w').write(str(sum(map(int, line().split()))))",
        f"import os, sys\nsys.stdout = os.fdopen(1, 'w')\nline()\n{SUM}",
        f"import os, sys\nline()\n{SUM}\nsys.stdout.flush()\nos.close(1)",
        f"import os, sys\nsys.stdin.read(0)\nline()\n{SUM}\nsys.stdout.flush()\nfor place in range(3): os.close(place)",
    ],
)
def test_stdout_is_there_again_whatever_a_program_did_to_it(grader: Grader, code: str) -> None:
    verdict = grader.inputs_sync(f"line = input\n{code}", CASES)
    assert verdict.passed, verdict


@pytest.mark.parametrize(
    "held",
    [
        "",
        "class A: pass\na = A()\na.a, a.b = a, big",
        "from typing import Optional\nclass A:\n    def f(self): return big\nB = Optional[A]",
    ],
    ids=["a global", "a cycle", "a class that a cache keeps"],
)
def test_memory_of_one_input_is_not_held_at_the_next(grader: Grader, held: str) -> None:
    code = f"big = bytearray(b'x') * (90 << 20)\n{held}\nline = input\nline()\n{SUM}"
    verdict = grader.inputs_sync(code, CASES, limits=Limits(seconds=2, wall_seconds=10, memory_mb=128))
    assert verdict.passed, verdict


@pytest.mark.parametrize(
    "code",
    [
        "import weakref\nclass A: pass\na = A()\nweakref.finalize(a, print, total())",
        "class A:\n    def __del__(self): said(self.x)\ndef said(x): print(x)\na = A()\na.x = total()",
        "import atexit, io, sys\nreal, sys.stdout = sys.stdout, io.StringIO()\n"
        "atexit.register(lambda: real.write(sys.stdout.getvalue()))\nprint(total())",
        "import builtins\nold = builtins.print\nbuiltins.print = lambda *a: old(*a, sep='')\nprint(total())",
        "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor()\npool.submit(print, total())",
        "import sys\nsys.stderr.write('debug' * 100_000)\nprint(total())",
    ],
    ids=["finalize", "__del__", "the first stdout at exit", "a builtin", "a pool left open", "much on stderr"],
)
def test_a_program_ends_as_python_ends_it_every_time(grader: Grader, code: str) -> None:
    verdict = grader.inputs_sync(f"def total(): return [input(), sum(map(int, input().split()))][1]\n{code}", CASES)
    assert verdict.passed, verdict


def test_a_process_that_leaves_with_0_is_judged_by_what_it_printed(grader: Grader) -> None:
    code = "import os\nline = input\nline()\n" + SUM.replace("))))", "))), flush=True)") + "\nos._exit({})"
    assert grader.inputs_sync(code.format(0), CASES).passed
    assert grader.inputs_sync(code.format(1), CASES).reason == "error"
    silent = grader.inputs_sync("import os\nos._exit(0)", CASES, all_of_them=True)
    assert (silent.reason, silent.fraction) == ("failed", 0.0)
    assert silent.detail == "case 1: another output was expected"


def test_output_that_was_cut_is_never_the_expected_one(grader: Grader) -> None:
    code = "import sys\nsys.stdout.write('6' + ' ' * 100_000 + 'more')"
    assert grader.inputs_sync(code, [("", "6")]).reason == "failed"


def test_a_mark_at_the_head_of_a_source_is_no_error(grader: Grader) -> None:
    assert grader.inputs_sync("\ufeffprint(input())", [("1", "1")]).passed
    assert grader.calls_sync("\ufeffdef f(x): return x", "f", [([1], 1)]).passed


def test_the_first_case_that_was_wrong_is_named_with_its_number_and_reason(grader: Grader) -> None:
    code = "n = int(input())\nif n == 2: raise KeyError('x')\nprint(n)"
    cases = [(str(n), str(n)) for n in (1, 2, 3)]
    verdict = grader.inputs_sync(code, cases, all_of_them=True)
    assert (verdict.passed, verdict.reason, verdict.detail) == (False, "error", "case 2: KeyError: 'x'")
    assert verdict.fraction == pytest.approx(2 / 3)
    stopped = grader.inputs_sync(code, cases)
    assert stopped.fraction == pytest.approx(1 / 3)
    other = grader.inputs_sync("print(input() + '!')", cases)
    assert (other.detail, other.fraction) == ("case 1: another output was expected", 0.0)
    assert 0 < verdict.cpu_seconds < 60
    assert 0 < verdict.seconds < 60


def test_every_guest_is_closed_once_it_was_lost_or_has_run_the_last_case(
    grader: Grader, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[PersistentState] = []
    closed: list[PersistentState] = []

    class Watched(PersistentState):
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            opened.append(self)

        def close(self) -> None:
            super().close()
            closed.append(self)

    monkeypatch.setattr(grading, "PersistentState", Watched)
    code = "import os\nif input() == 'leave': os._exit(3)\nprint(1)"
    cases = [("leave\n", "1\n"), ("stay\n", "1\n"), ("stay\n", "1\n")]
    assert grader.inputs_sync(code, cases, all_of_them=True).fraction == pytest.approx(2 / 3)
    assert len(opened) == 2
    assert closed == opened


def test_grading_leaves_no_descriptor_open(grader: Grader) -> None:
    def count_open() -> int:
        assert grader.function_sync("def f(x): return x", "assert f(1) == 1", "f").passed
        assert grader.inputs_sync("print(1)", [("", "1")]).passed
        return len(open_fds())

    before = count_open()
    assert count_open() == before
