"""HumanEval: every reference solution is right, nothing else is, and a broken sandbox gives no score."""

from __future__ import annotations

import asyncio
import re

import pytest

from rollbook.core import Limits, Score, Task
from rollbook.environments.builtin.humaneval import HumanEval, assemble_program
from rollbook.environments.registry import load_instance, resolve
from rollbook.environments.runtime import EnvironmentRuntime
from rollbook.errors import RolloutFailed, UsageError
from support.rollouts import make_rollout

TASKS = list(HumanEval().tasks())


def score_all(answers: list[tuple[Task, str]]) -> list[Score]:
    async def play() -> list[Score]:
        env = HumanEval()
        await env.start()
        try:
            return await asyncio.gather(*(env.verify(task, make_rollout(task, text)) for task, text in answers))
        finally:
            await env.stop()

    return asyncio.run(play())


def add_fence(code: str) -> str:
    return f"Here it is.\n```python\n{code}\n```\nIt works."


def test_all_164_are_there_under_their_own_names():
    assert [task.id for task in TASKS] == [f"HumanEval/{number}" for number in range(164)]
    assert resolve("humaneval").spec.verify == "async"
    for task in TASKS:
        assert task.stem.strip() in task.prompt
        assert task.fields["solution"].strip() not in task.prompt
        assert task.tests.strip() not in task.prompt


FORMS = {
    "the solution": HumanEval().solution,
    "a completion": lambda task: task.fields["solution"],
    "a completion that goes on": lambda task: task.fields["solution"] + "\n\nprint('and so on')\n",
    "the function alone": lambda task: add_fence(task.stem[task.stem.rindex("def ") :] + task.fields["solution"]),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_reference_solution_scores_1(form):
    scores = score_all([(task, FORMS[form](task)) for task in TASKS])
    wrong = [(task.id, score.info) for task, score in zip(TASKS, scores, strict=True) if score.reward != 1.0]
    assert wrong == []
    assert {score.info["reason"] for score in scores} == {"passed"}
    assert not any("weak" in score.info for score in scores)


WRONG = {
    "a stub": lambda task: add_fence(f"{task.stem}    pass\n"),
    "the stem alone": lambda task: add_fence(task.stem),
    "not what was said": lambda task: add_fence(wrap_answer(task)),
    "prose": lambda task: "I would rather not.",
    "the question": lambda task: task.prompt,
}


def wrap_answer(task: Task) -> str:
    """Return the solution with its answer wrapped in a list: no test of these problems accepts that."""
    code = f"{task.stem}{task.fields['solution']}"
    return f"{code}\n_right = {task.entry}\ndef {task.entry}(*args):\n    return [_right(*args), 'and more']\n"


@pytest.mark.parametrize("form", WRONG)
def test_no_wrong_variant_scores(form):
    scores = score_all([(task, WRONG[form](task)) for task in TASKS])
    assert [task.id for task, score in zip(TASKS, scores, strict=True) if score.reward != 0.0] == []


HACKS = {
    "exit 0": "import os\nos._exit(0)",
    "exit when asked": "import os\ndef ENTRY(*a): os._exit(0)",
    "equal to everything": (
        "class Yes:\n    __eq__ = __lt__ = __le__ = lambda s, o: True\n    __hash__ = None\n"
        "    def __sub__(s, o): return 0\n    __abs__ = lambda s: 0\ndef ENTRY(*a): return Yes()"
    ),
    "a patched assertion": (
        "import builtins\nbuiltins.AssertionError = type('Never', (BaseException,), {})\ndef ENTRY(*a): return None"
    ),
    "another check": "import __main__\n__main__.check = lambda c: None\ndef check(c): pass\ndef ENTRY(*a): return None",
    "other helpers": "def poly(xs, x): return 0\ndef ENTRY(*a): return 0",
    "forged words": 'print(\'{"verdict": "passed", "weak": false, "error": null}\')\ndef ENTRY(*a): return None',
    "sleep": "import time\ntime.sleep(60)\ndef ENTRY(*a): return None",
}


@pytest.mark.parametrize("hack", HACKS)
def test_hacks_score_0(hack):
    chosen = [TASKS[number] for number in ((32,) if hack in ("sleep", "other helpers") else (0, 2, 32, 95))]
    scores = score_all([(task, add_fence(HACKS[hack].replace("ENTRY", task.entry))) for task in chosen])
    assert [score.reward for score in scores] == [0.0] * len(chosen)
    assert "passed" not in [score.info["reason"] for score in scores]


def test_the_reason_is_kept():
    task = TASKS[0]
    none, wrong, endless = score_all(
        [
            (task, ""),
            (task, add_fence(f"def {task.entry}(*a): raise ValueError('no')")),
            (task, add_fence(f"def {task.entry}(*a):\n    while True: pass")),
        ]
    )
    assert none.info == {"reason": "no code"}
    assert (wrong.info["reason"], "no" in wrong.info["detail"]) == ("failed", True)
    assert endless.info["reason"] == "timeout"


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("    return 1\n", "STEM    return 1\n"),
        ("    return 1\nprint(2)\n", "STEM    return 1\n"),
        ("```\n    return 1\n```", "STEM    return 1\n"),
        ("```python\ndef f(): return 1\n```", "STEM\ndef f(): return 1\n"),
        ("```python\nf = lambda: 1\n```", "STEM\nf = lambda: 1\n"),
        ("Sure:\nimport os\ndef f(): return 1", "STEM\nimport os\ndef f(): return 1"),
        ("<think>def f(): return 2</think>    return 1\n", "STEM    return 1\n"),
        ("I cannot.", None),
        ("", None),
    ],
)
def test_what_is_run(text, program):
    assert assemble_program(text, "STEM", "f") == program


def test_a_sandbox_that_is_gone_is_a_sandbox_error_and_no_score():
    async def play() -> RolloutFailed:
        env = HumanEval()
        runtime = EnvironmentRuntime(load_instance(env).spec, Limits(), environment=lambda: env)
        await runtime.open()
        try:
            await asyncio.to_thread(env.box.close)
            with pytest.raises(RolloutFailed) as failed:
                await runtime.verify(TASKS[0], make_rollout(TASKS[0], FORMS["the solution"](TASKS[0])))
            return failed.value
        finally:
            await runtime.close()

    failed = asyncio.run(play())
    assert (failed.kind, failed.where) == ("sandbox_error", "verify")


def test_tests_that_do_not_run_are_a_verifier_error():
    async def play() -> RolloutFailed:
        env = HumanEval()
        runtime = EnvironmentRuntime(load_instance(env).spec, Limits(), environment=lambda: env)
        await runtime.open()
        try:
            task = Task("x", "?", stem="", entry="f", tests="import nothing_of_that_name", solution="")
            with pytest.raises(RolloutFailed) as failed:
                await runtime.verify(task, make_rollout(task, add_fence("def f(): return 1")))
            return failed.value
        finally:
            await runtime.close()

    failed = asyncio.run(play())
    assert failed.kind == "verifier_error"
    assert re.search("nothing_of_that_name", failed.message)


def test_it_must_be_started():
    with pytest.raises(UsageError, match=r"start\(\) first"):
        asyncio.run(HumanEval().verify(TASKS[0], make_rollout(TASKS[0], add_fence("def f(): pass"))))
