"""MATH-500: every reference solution is right, and the answer of another problem is not."""

from __future__ import annotations

import pytest

from rollbook.core import Task
from rollbook.environments import resolve
from rollbook.environments.answers import is_same_answer
from rollbook.environments.builtin import Math500
from support.rollouts import make_rollout

TASKS = list(Math500().tasks())


def score(task: Task, text: str) -> float:
    return Math500().verify(task, make_rollout(task, text)).reward


def test_all_500_are_there_under_their_own_names():
    assert len({task.id for task in TASKS}) == 500
    assert TASKS[0].id == "test/precalculus/807.json"
    assert len({task.subject for task in TASKS}) == 7
    assert {task.level for task in TASKS} == {1, 2, 3, 4, 5}
    assert resolve("math500").spec.report_by == "subject"


def test_every_reference_solution_is_right():
    assert [task.id for task in TASKS if score(task, Math500().solution(task)) != 1.0] == []
    assert all(Math500().solution(task) == task.fields["solution"] for task in TASKS)


FORMS = ("The answer is \\boxed{%s}.", "**Final answer:** %s", "<think>\\boxed{no}</think>\n\\boxed{%s}")


@pytest.mark.parametrize("form", FORMS)
def test_every_reference_answer_is_right_in_other_words(form: str):
    assert [task.id for task in TASKS if score(task, form % task.answer) != 1.0] == []


def test_the_answer_of_another_problem_is_wrong():
    pairs = list(zip(TASKS, [*TASKS[1:], TASKS[0]], strict=True))[::20]
    right = [task.id for task, other in pairs if score(task, f"\\boxed{{{other.answer}}}")]
    assert right == [task.id for task, other in pairs if is_same_answer(other.answer, task.answer)]
    assert len(right) < 3


@pytest.mark.parametrize("text", ["", "I do not know.", "\\boxed{}", "The answer is unknown.", "So it is $7$."])
def test_no_answer_is_wrong(text: str):
    assert sum(score(task, text) for task in TASKS) == 0


def test_the_question_is_no_answer():
    assert sum(score(task, task.prompt) for task in TASKS) == 0


def test_the_model_is_shown_the_problem_and_nothing_else():
    for task in TASKS:
        assert task.prompt == f"{task.problem}\n\nReason step by step, and put your final answer within \\boxed{{}}."


def test_the_template_can_be_changed(tmp_path):
    (tmp_path / "ask.txt").write_text("[{subject}] {problem}")
    first = next(iter(resolve("math500", template=str(tmp_path / "ask.txt")).instance.tasks()))
    assert first.prompt.startswith("[Precalculus] Convert the point")
    assert score(first, Math500().solution(first)) == 1.0
