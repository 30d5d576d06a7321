"""What only the verifier may see is found in what the model is shown, and nothing else is taken for it."""

import pytest

from rollbook.checks.task_checks import check_answer_leaks
from rollbook.core import Task

TEST = "assert f(3) == 231  # number {}"


def told(system, prompt="Guess.", **fields):
    return {"messages": [{"role": "system", "content": system}, {"role": "user", "content": prompt}], **fields}


def found(make):
    return check_answer_leaks([Task(f"t{i}", **make(i)) for i in range(6)])


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda i: {"prompt": f"Write f. {TEST.format(i)}", "answer": "x", "tests": TEST.format(i)}, "tests"),
        (lambda i: {"prompt": f"Write f. {TEST.format(i)}", "unit_tests": [TEST.format(i)]}, "unit_tests"),
        (lambda i: {"prompt": f"So: {TEST.format(i)}", "hidden_cases": TEST.format(i)}, "hidden_cases"),
        (lambda i: {"prompt": f"{i}? (the answer is {2 * i})", "answer": str(2 * i)}, "answer"),
        (lambda i: told(f"Hidden key {10007 + i}", answer=10007 + i), "answer (in the system message)"),
    ],
)
def test_what_is_shown_is_named(make, name):
    row = found(make)
    assert (row.verdict, row.example) == ("unsound", "t0")
    assert row.found == f"6 prompts contain what only the verifier may see: {name}"


@pytest.mark.parametrize(
    "make",
    [
        lambda i: {"prompt": f"Write f. {TEST.format(i)}", "answer": "x", "public_tests": TEST.format(i)},
        lambda i: {"prompt": f"{TEST.format(i)}", "answer": "x", "question": TEST.format(i)},
        lambda i: {
            "prompt": f"Round 7 of the great contest {i}",
            "answer": "x",
            "contest": "Round 7 of the great contest",
        },
        lambda i: {"prompt": TEST.format(i), "answer": "x", "tests": [TEST.format(i), TEST.format(i + 1)]},
        lambda i: told("Say positive or negative.", answer=["positive", "negative"][i % 2]),
        lambda i: told(f"{'A long story. ' * 40} The key was {10007 + i}.", answer=str(10007 + i)),
        lambda i: {"prompt": f"Which is bigger, {10007 + i} or 5?", "answer": str(10007 + i)},
    ],
)
def test_what_may_be_shown_is_no_leak(make):
    assert found(make).verdict == "ok"
