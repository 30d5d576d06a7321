"""Programs against tests: right ones pass, wrong ones do not, and what the policy does badly is a score."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rollbook.core import JSON, Message, Rollout, Score, Task
from rollbook.environments.builtin.code import FUNCTION_INSTRUCTION, PROGRAM_INSTRUCTION, Code
from rollbook.environments.registry import resolve
from rollbook.errors import UsageError

ADDING = [["1 2\n", "3\n"], ["2 2\n", "4\n"], ["10 5\n", "15\n"], ["0 0\n", "0\n"]]
RIGHT = "a, b = map(int, input().split())\nprint(a + b)"


def problem(cases: list[list[JSON]], entry: str = "", **fields: JSON) -> Task:
    return Task("p", "Add.", cases=cases, entry=entry, **fields)


def score_all(env: Code, task: Task, *codes: str) -> list[Score]:
    async def play() -> list[Score]:
        await env.start()
        try:
            return [await env.verify(task, answer_with(task, code)) for code in codes]
        finally:
            await env.stop()

    return asyncio.run(play())


def answer_with(task: Task, code: str) -> Rollout:
    text = code if code.startswith("no code") else f"```python\n{code}\n```"
    return Rollout(task=task, sample=0, seed=0, messages=[*task.messages, Message("assistant", text)])


def test_all_or_nothing_stops_at_the_first_failure():
    right, half, none = score_all(Code(), problem(ADDING), RIGHT, "print(3 if '1 2' in input() else 4)", "no code here")
    assert (right.reward, right.info["passed"], right.info["reason"]) == (1.0, 4, "passed")
    assert (half.reward, half.info["passed"], half.info["tests"]) == (0.0, 2, 4)
    assert half.info["detail"] == "test 3: another output was expected"
    assert (none.reward, none.info) == (0.0, {"reason": "no code"})


def test_the_fraction_counts_every_test():
    env = Code(reward="fraction")
    task = problem(ADDING)
    programs = RIGHT, "print(3 if '1 2' in input() else 15)", "a, b = map(int, input().split())\nprint(a // b)"
    right, half, none = score_all(env, task, *programs)
    assert [right.reward, half.reward, none.reward] == [1.0, 0.5, 0.0]
    assert none.info["detail"].startswith("test 1: ")


WRITTEN = {
    "exit": f"import sys\n{RIGHT}\nsys.exit(0)",
    "main": "def main():\n    print(sum(map(int, input().split())))\nif __name__ == '__main__':\n    main()",
    "read": "import sys\nprint(sum(map(int, sys.stdin.read().split())))",
    "buffer": "import sys\nsys.stdout.write(str(sum(map(int, sys.stdin.buffer.readline().split()))))",
    "open(0)": "print(sum(map(int, open(0).read().split())))",
    "trailing space": "print(sum(map(int, input().split())), ' ')",
    "a float": "print(float(sum(map(int, input().split()))))",
    "threads": (
        "import sys, threading\nsys.setrecursionlimit(10 ** 6)\n"
        "t = threading.Thread(target=lambda: print(sum(map(int, input().split()))))\nt.start()\nt.join()"
    ),
}


@pytest.mark.parametrize("way", WRITTEN)
def test_programs_may_be_written_in_many_ways(way):
    (score,) = score_all(Code(), problem(ADDING), WRITTEN[way])
    assert score.reward == 1.0, score.info


BAD = {
    "a failure": ("1 / 0", "error"),
    "another exit": (f"{RIGHT}\nimport sys\nsys.exit(1)", "error"),
    "no end": ("while True: pass", "timeout"),
    "a sleep": ("import time\ntime.sleep(60)", "timeout"),
    "much memory": ("x = 'x' * (1 << 31)", "memory"),
    "much output": ("while True: print('x' * 10000)", None),
    "a syntax error": ("print(", "error"),
    "the expected output is not there": ("import glob\nprint(glob.glob('/**', recursive=True))", "failed"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_the_policy_does_badly_is_a_score_of_0(what):
    code, reason = BAD[what]
    (score,) = score_all(Code(seconds=0.3), problem(ADDING), code)
    assert score.reward == 0.0
    assert reason is None or score.info["reason"] == reason, score.info


def test_slow_tests_have_their_own_limit_and_share_one():
    slow = f"import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass\n{RIGHT}"
    (fits,) = score_all(Code(seconds=1, total_seconds=20), problem(ADDING), slow)
    assert fits.reward == 1.0, fits.info
    began = time.monotonic()
    (late,) = score_all(Code(seconds=1, total_seconds=2, reward="fraction"), problem(ADDING * 5), slow)
    assert time.monotonic() - began < 20
    assert 0 < late.info["passed"] < 20
    assert late.info["reason"] == "timeout"


def test_a_sleeper_cannot_hold_up_the_others_test_by_test():
    began = time.monotonic()
    (score,) = score_all(
        Code(seconds=1, total_seconds=1.0, reward="fraction"), problem(ADDING * 20), "import time\ntime.sleep(99)"
    )
    assert score.reward == 0.0
    assert time.monotonic() - began < 6


RULES: list[tuple[dict[str, JSON], str, bool]] = [
    ({}, "0.33333\n", False),
    ({"tolerance": 1e-3}, "0.33333\n", True),
    ({}, "1\n2\n", False),
    ({"spaces": "words"}, "1\n2\n", True),
    ({"spaces": "exact"}, "1 2", False),
    ({"case": False}, "YES", True),
    ({}, "YES", False),
]
EXPECTED = {"0.33333\n": "0.333333\n", "1\n2\n": "1 2\n", "1 2": "1 2\n", "YES": "yes"}


@pytest.mark.parametrize(("rule", "printed", "right"), RULES)
def test_the_rule_may_be_an_argument_or_a_rows_own(rule, printed, right):
    code, cases = f"print({printed!r}, end='')", [["", EXPECTED[printed]]]
    by_argument = score_all(Code(**rule), problem(cases), code)
    by_row = score_all(Code(), problem(cases, rule=rule), code)
    assert [by_argument[0].reward, by_row[0].reward] == [float(right)] * 2


TWO_SUM = [[[[2, 7, 11, 15], 9], [0, 1]], [[[3, 2, 4], 6], [1, 2]]]


def test_functions_are_called_with_their_arguments():
    bare = _function("")
    method = "class Solution:\n" + _function("    ", "self, ")
    scores = score_all(
        Code(),
        problem(TWO_SUM, "two"),
        bare,
        method,
        f"from __future__ import annotations\n{bare}",
        bare.replace("return [", "return (").replace("i]", "i)"),
        "def two(nums, t): return [0, 1]",
        "def other(nums, t): return [0, 1]",
    )
    assert [score.reward for score in scores] == [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]


def _function(indent: str, first: str = "") -> str:
    lines = [
        f"def two({first}nums: List[int], t: int) -> List[int]:",
        "    seen = defaultdict(list)",
        "    for i, n in enumerate(nums):",
        "        if seen[t - n]: return [seen[t - n][0], i]",
        "        seen[n].append(i)",
    ]
    return "".join(f"{indent}{line}\n" for line in lines)


SHARED = Path(__file__).with_name("code_gen_rows.jsonl")
"""Rows of NeMo Gym (Apache-2.0, NVIDIA), their problems cut to a line: the tests and what they expect are whole."""


def test_the_known_rows_of_nemo_gym_are_right_with_hand_written_solutions(tmp_path):
    task_of = {task.id: task for task in Code(data=str(SHARED)).tasks()}
    assert task_of.keys() == SOLUTIONS.keys()
    env = Code(spaces="words")  # one of the rows expects on one line what others expect on five
    for name, task in task_of.items():
        right, wrong = score_all(env, task, SOLUTIONS[name], SOLUTIONS[name].replace("print(", "print(7, "))
        assert (right.reward, right.info["passed"]) == (1.0, len(task.cases)), right.info
        assert wrong.reward == 0.0


def write_rows(folder: Path, *rows: dict[str, JSON]) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_rows_of_livecodebench_are_asked_with_their_starter_code(tmp_path):
    rows = [
        {
            "question_id": "abc",
            "question_content": "Add two numbers.",
            "starter_code": "class Solution:\n    def add(self, a: int, b: int) -> int:\n        ",
            "public_test_cases": json.dumps([{"input": "1\n2", "output": "3", "testtype": "functional"}]),
            "private_test_cases": json.dumps([{"input": "5\n5", "output": "10", "testtype": "functional"}]),
            "metadata": json.dumps({"func_name": "add"}),
        },
        {"id": "own", "prompt": "Add.", "tests": [{"input": "1 2", "output": "3"}], "solution": RIGHT, "level": 3},
    ]
    env = Code(data=write_rows(tmp_path, *rows))
    first, second = env.tasks()
    assert (first.id, first.entry, first.cases) == ("abc", "add", [[[1, 2], 3], [[5, 5], 10]])
    assert "def add(self, a: int, b: int)" in first.prompt
    assert first.prompt.endswith(FUNCTION_INSTRUCTION.format(entry="add"))
    assert "public_test_cases" not in first.fields
    assert (second.id, second.prompt, second.level) == ("own", f"Add.\n\n{PROGRAM_INSTRUCTION}", 3)
    assert env.solution(first) is None
    assert score_all(env, second, RIGHT)[0].reward == 1.0
    assert env.solution(second) == f"```python\n{RIGHT}\n```"


MISTAKES: list[tuple[Callable[[Path], object], str]] = [
    (lambda _: list(Code().tasks()), "--data FILE"),
    (lambda _: Code(reward="some"), "all or fraction"),  # type: ignore[arg-type]
    (lambda _: Code(spaces="none"), "spaces"),  # type: ignore[arg-type]
    (lambda _: Code(tolerance=-1), "from 0 to 1"),
    (lambda _: Code(seconds=0), "seconds=0"),
    (lambda _: Code(total_seconds=0), "total_seconds=0"),
    (lambda f: list(Code(data=write_rows(f, {"prompt": "?", "tests": []})).tasks()), r"rows.jsonl:1: no tests"),
    (lambda f: list(Code(data=write_rows(f, {"tests": [{"input": "", "output": ""}]})).tasks()), r"rows.jsonl:1: "),
    (
        lambda f: list(
            Code(data=write_rows(f, {"prompt": "?", "tests": [{"input": "", "output": ""}], "rule": {"x": 1}})).tasks()
        ),
        r"rows.jsonl:1: rule: .*spaces",
    ),
]


@pytest.mark.parametrize(("make", "words"), MISTAKES)
def test_a_mistake_is_one_line(make, words, tmp_path):
    with pytest.raises(UsageError, match=words) as refused:
        make(tmp_path)
    assert "\n" not in str(refused.value)


def test_it_is_known_by_name(tmp_path):
    loaded = resolve("code?reward=fraction&tolerance=0.001", write_rows(tmp_path, {"prompt": "?"}))
    assert (loaded.cls, loaded.spec.verify, loaded.spec.state) == (Code, "async", "none")


SOLUTIONS = {
    "c69268d8bdb4da0685d7b187c88296c1": """\
def main():
    out = []
    for _ in range(int(input())):
        words = [input().strip() for _ in range(int(input()))]
        there, back, ends = {}, {}, set()
        for i, w in enumerate(words, 1):
            ends.add(w[0] + w[-1])
            if w[0] == "0" and w[-1] == "1":
                there[w] = i
            elif w[0] == "1" and w[-1] == "0":
                back[w] = i
        if not there and not back and {"00", "11"} <= ends:
            out.append("-1")
            continue
        if len(there) < len(back):
            there, back = back, there
        count = (len(there) - len(back)) // 2
        free = [i for w, i in there.items() if w[::-1] not in back]
        out.append(str(count))
        out.append(" ".join(map(str, free[:count])))
    print("\\n".join(out))
main()
""",
    "570676e22bd21c28e452486b0668ec74": """\
for _ in range(int(input())):
    n, m, k = map(int, input().split())
    if max(n, m) > k:
        print(-1)
    elif (n + m) % 2:
        print(k - 1)
    elif (max(n, m) - k) % 2:
        print(k - 2)
    else:
        print(k)
""",
    "ff86821ed6f7260c7a17c4c9be03b663": """\
for _ in range(int(input())):
    n = int(input())
    rows = [input().split() for _ in range(3)]
    made = []
    for i, choices in enumerate(zip(*rows)):
        near = set(made[-1:]) | (set(made[:1]) if i == n - 1 else set())
        made.append(next(c for c in choices if c not in near))
    print(*made)
""",
    "f3e3b9f12d602bf80fdcd2c08a2f417f": """\
for _ in range(int(input())):
    n, k = map(int, input().split())
    print(sum(sorted(map(int, input().split()))[-k - 1:]))
""",
    "1a54a91d7294e33bed666e3bc94148fd": """\
for _ in range(int(input())):
    n = int(input())
    at = {int(v): i for i, v in enumerate(input().split())}
    low, high, out = n, -1, []
    for m in range(1, n + 1):
        low, high = min(low, at[m]), max(high, at[m])
        out.append("1" if high - low + 1 == m else "0")
    print("".join(out))
""",
}
