"""MBPP: the reference solutions pass, nothing else does, and every answer gets a score."""

from __future__ import annotations

import asyncio
import random

import pytest

from rollbook.core import Score, Task
from rollbook.environments import resolve
from rollbook.environments.builtin import MBPP
from rollbook.environments.builtin.mbpp import BROKEN
from rollbook.errors import UsageError
from support.rollouts import make_rollout

TASKS = {name: list(MBPP(name).tasks()) for name in ("whole", "sanitized")}
SPECIAL = (596, 601, 737, 781, 787, 794, 803, 804)
"""Problems whose tests use an import of the code, make its objects, or only ask whether a value is true."""


def take_sample(name: str, size: int = 20) -> list[Task]:
    special = [task for task in TASKS[name] if task.task_id in SPECIAL]
    return [*special, *random.Random(11).sample(TASKS[name], size)]


def score_all(answers: list[tuple[Task, str]]) -> list[Score]:
    async def play() -> list[Score]:
        env = MBPP()
        await env.start()
        try:
            return await asyncio.gather(*(env.verify(task, make_rollout(task, text)) for task, text in answers))
        finally:
            await env.stop()

    return asyncio.run(play())


def find_scores(tasks: list[Task], form, wanted: float) -> list[str]:
    """Return the tasks whose answer in this form has another score than the wanted one."""
    scores = score_all([(task, form(task)) for task in tasks])
    return [f"{task.id} {score.info}" for task, score in zip(tasks, scores, strict=True) if score.reward != wanted]


RIGHT = {
    "the solution": MBPP().solution,
    "the code alone": lambda task: task.fields["solution"],
    "after thoughts": lambda task: f"<think>```python\nx\n```</think>Here:\n{MBPP().solution(task)}\nIt works.",
}
WRONG = {
    "a stub": lambda task: f"```python\ndef {task.entry}(*args):\n    pass\n```",
    "wrapped": lambda task: (
        f"```python\n{task.fields['solution']}\n_right = {task.entry}\n"
        f"def {task.entry}(*args):\n    return [_right(*args), 'more']\n```"
    ),
    "an exit": lambda task: f"```python\nimport os\ndef {task.entry}(*args):\n    os._exit(0)\n```",
    "equal to everything": lambda task: (
        "```python\nclass Yes:\n    __eq__ = lambda *a: True\n    __hash__ = None\n"
        f"def {task.entry}(*args):\n    return Yes()\n```"
    ),
    "prose": lambda task: "I would rather not.",
    "the question": lambda task: task.prompt,
}
TRUE_ANYWAY = (781, 804)
"""Their tests accept a stub's wrong value, such as a list that is never empty."""


def test_both_sets_are_there_under_their_own_numbers():
    assert [len(TASKS["whole"]), len(TASKS["sanitized"])] == [972, 427]
    assert [TASKS["whole"][0].id, TASKS["whole"][-1].id] == ["mbpp-1", "mbpp-974"]
    assert {task.task_id for task in TASKS["whole"]} == set(range(1, 975)) - set(BROKEN)
    assert "367 and 927 are left out" in resolve("mbpp").instance.notes[0]
    assert resolve("mbpp:sanitized").instance.notes == ()


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("form", RIGHT)
def test_a_sample_of_the_reference_solutions_passes(name: str, form: str):
    assert find_scores(take_sample(name), RIGHT[form], 1.0) == []


@pytest.mark.parametrize("form", WRONG)
def test_a_sample_of_wrong_variants_does_not_score(form: str):
    tasks = [task for task in take_sample("sanitized", 12) if task.task_id not in TRUE_ANYWAY]
    assert find_scores([*tasks, *take_sample("whole", 4)], WRONG[form], 0.0) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_every_reference_solution_passes_and_no_stub_does(name: str):
    assert find_scores(TASKS[name], RIGHT["the solution"], 1.0) == []
    assert find_scores(TASKS[name], WRONG["a stub"], 0.0) == []
    assert find_scores(TASKS[name], WRONG["prose"], 0.0) == []


def test_the_tests_are_shown_and_the_solution_is_not():
    for task in TASKS["whole"]:
        assert task.text in task.prompt
        assert task.public_tests in task.prompt
        assert task.fields["solution"].strip() not in task.prompt


def test_the_template_can_be_changed(tmp_path):
    (tmp_path / "ask.txt").write_text("Write {entry}: {text}")
    first = next(iter(resolve("mbpp:sanitized", template=str(tmp_path / "ask.txt")).instance.tasks()))
    assert first.prompt.startswith("Write similar_elements: Write a function to find the shared elements")
    (score,) = score_all([(first, MBPP().solution(first))])
    assert score.reward == 1.0


def test_an_unknown_set_is_one_line():
    with pytest.raises(UsageError, match="mbpp has no set 'sanitised'; did you mean sanitized"):
        resolve("mbpp:sanitised")
