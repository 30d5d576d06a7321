"""BIG-Bench Hard: every target is right in every wording, and another answer in none."""

from __future__ import annotations

from collections import Counter

import pytest

from rollbook.core import Task
from rollbook.environments import resolve
from rollbook.environments.builtin import BBH
from rollbook.environments.builtin.bbh import TASKS, WORD_PAIRS
from rollbook.errors import UsageError
from support.rollouts import make_rollout

QUESTIONS = list(BBH().tasks())
OTHER_WORD = {a.casefold(): b for pair in WORD_PAIRS for a, b in (pair, pair[::-1])}


def score(task: Task, text: str) -> float:
    return BBH().verify(task, make_rollout(task, text)).reward


def by_task(name: str) -> Task:
    return next(task for task in QUESTIONS if task.task == name)


def make_wrong(task: Task) -> str:
    """Return a wrong answer of the same kind as the target."""
    target = task.answer
    if target.startswith("(") and len(target) == 3:
        return "(B)" if target == "(A)" and "(B)" in task.fields["input"] else "(A)" if target != "(A)" else "(Z)"
    if target.casefold() in OTHER_WORD:
        return OTHER_WORD[target.casefold()]
    if target.lstrip("-").isdigit():
        return str(int(target) + 1)
    words = target.split()
    return f"{target} )" if words[0] in ")]}>" else " ".join([*words[1:], words[0]])


WORDINGS = {
    "a sentence": "The answer is {}",
    "after reasoning": "Let us think. First this, then that.\n\nSo the answer is {}.",
    "alone": "{}",
    "the last line": "We look at each in turn.\n\n{}",
    "in bold": "Reasoning.\n\n**Answer: {}**",
    "in tags": "Hm.\n<answer>{}</answer>",
    "in a box": "So $\\boxed{{{}}}$.",
    "after thoughts": "<think>The answer is nothing.</think>**Final answer:** {}",
}


def test_all_tasks_are_there():
    assert len(QUESTIONS) == 6511
    counts = Counter(task.task for task in QUESTIONS)
    assert sorted(counts) == sorted(TASKS)
    assert len(TASKS) == 27
    assert counts["snarks"] == 178
    assert resolve("bbh").spec.report_by == "task"


FAST = ("a sentence", "after reasoning", "the last line", "in tags", "in a box")
SLOW = [pytest.param(wording, marks=pytest.mark.slow) for wording in WORDINGS if wording not in FAST]


@pytest.mark.parametrize("wording", [*FAST, *SLOW])
def test_every_target_is_right_and_a_wrong_answer_is_not(wording: str):
    form = WORDINGS[wording]
    assert [task.id for task in QUESTIONS if score(task, form.format(task.answer)) != 1.0] == []
    assert [task.id for task in QUESTIONS if score(task, form.format(make_wrong(task))) != 0.0] == []


@pytest.mark.parametrize("text", ["", "I do not know.", "The answer is", "\\boxed{}", "<answer></answer>"])
def test_no_answer_is_wrong(text: str):
    assert sum(score(task, text) for task in QUESTIONS) == 0


def test_the_question_is_no_answer():
    for form in ("{prompt}", "{input}", "You asked:\n\n{input}\n", "{input}\n\n{input}", "Options:\n{options}"):
        for task in QUESTIONS:
            question = task.fields["input"]
            copied = form.format(prompt=task.prompt, input=question, options=question.partition("Options:\n")[2])
            assert score(task, copied) == 0.0, (task.id, form)


def test_an_answer_after_a_copy_of_the_question_is_read():
    for task in QUESTIONS[::7]:
        assert score(task, f"{task.fields['input']}\n\nThe answer is {task.answer}") == 1.0, task.id
        assert score(task, f"{task.fields['input']}\n{task.answer}") == 1.0, task.id


def test_one_task_is_asked_by_its_name():
    asked = list(resolve("bbh:word_sorting").instance.tasks())
    assert [task.id for task in asked[:2]] == ["word_sorting-000", "word_sorting-001"]
    assert len(asked) == 250
    with pytest.raises(UsageError, match="bbh has no task 'wordsorting'; did you mean word_sorting"):
        resolve("bbh:wordsorting")


def test_the_target_is_not_shown():
    for task in QUESTIONS:
        assert task.prompt == BBH.prompt_template.replace("{input}", task.fields["input"])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("navigate", "The answer is Yes or No."),
        ("navigate", "The answer is No or Yes"),
        ("navigate", "The answer is No/Yes"),
        ("boolean_expressions", "The answer is False or True."),
        ("boolean_expressions", "The answer is False and TRUE."),
        ("causal_judgement", "Is the answer yes? Is it no?"),
        ("formal_fallacies", "The answer is valid or invalid."),
        ("date_understanding", "The answer is (A) or (B)."),
        ("object_counting", "The answer is 6 or 7 or 8."),
        ("word_sorting", "The answer is therefrom syndrome."),
        ("dyck_languages", "The answer is [ [ ] ]"),
        ("dyck_languages", "The answer is ] ] or ] )"),
    ],
)
def test_two_answers_are_none(name: str, text: str):
    assert score(by_task(name), text) == 0.0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("word_sorting", "The answer is:\n1. syndrome\n2. therefrom\n\nI hope this helps."),
        ("word_sorting", "Sorted.\n\nFinal answer: syndrome, therefrom"),
        ("word_sorting", "The answer is **Syndrome**, **Therefrom**."),
        ("dyck_languages", "The answer is `]]`."),
        ("dyck_languages", r"The answer is $\boxed{\text{] ]}}$."),
        ("boolean_expressions", "The answer is **false**."),
        ("navigate", "The answer is: no"),
        ("date_understanding", "The answer is (B) 12/25/1937."),
        ("date_understanding", "The answer is 12/25/1937"),
    ],
)
def test_other_ways_to_write_the_same_answer(name: str, text: str):
    assert score(by_task(name), text) == 1.0


def test_the_template_can_be_changed(tmp_path):
    (tmp_path / "ask.txt").write_text("({task}) {input}")
    first = next(iter(resolve("bbh", template=str(tmp_path / "ask.txt")).instance.tasks()))
    assert first.prompt == "(boolean_expressions) not ( True ) and ( True ) is"
    assert score(first, "The answer is False") == 1.0
