"""IFEval: every prompt has rules that decide it, and both verdicts of an answer are reported."""

from __future__ import annotations

import importlib.util

import pytest

from rollbook.core import Score, Task
from rollbook.environments import load_instance, resolve
from rollbook.environments.builtin import IFEval, ifeval
from rollbook.environments.builtin.instruction_rules import RULES
from rollbook.errors import UsageError
from support.rollouts import make_rollout

TASKS = {task.id: task for task in IFEval().tasks()}
NO_COMMA = "ifeval-1001"
"""Its only instruction is to use no comma."""


def score(task: Task, text: str) -> Score:
    return IFEval().verify(task, make_rollout(task, text))


def test_all_541_are_there_with_834_instructions():
    assert len(TASKS) == 541
    kinds = [each["kind"] for task in TASKS.values() for each in task.instructions]
    assert (len(kinds), set(kinds)) == (834, set(RULES))
    assert next(iter(TASKS)) == "ifeval-1000"
    assert load_instance(IFEval()).spec.target == resolve("ifeval").spec.target == "builtin:ifeval"


def test_prompts_can_be_decided():
    for task in list(TASKS.values())[::4]:
        for text in ("Words, words.\n\nMore *words* here.", "WORDS", ""):
            parts = score(task, text).parts
            assert 0 <= parts["followed_strictly"] <= parts["followed_loosely"] <= parts["instructions"]


def test_no_answer_is_wrong():
    assert sum(score(task, "").parts["loose"] for task in TASKS.values()) == 0


def test_both_verdicts_are_reported():
    task = TASKS[NO_COMMA]
    followed = score(task, "Go to Kyoto. Stay a week.")
    assert (followed.reward, followed.info) == (1.0, {})
    assert followed.parts == {"strict": 1, "loose": 1, "instructions": 1, "followed_strictly": 1, "followed_loosely": 1}
    loosely = score(task, "Sure, here it is:\nGo to Kyoto.")
    assert (loosely.reward, loosely.parts["strict"], loosely.parts["loose"]) == (0.0, 0, 1)
    assert loosely.info == {"missed": ["punctuation:no_comma"]}
    assert score(task, "Go to Kyoto.\nStay, rest.\nGo to Nara.").parts["loose"] == 0


def test_the_reward_needs_every_instruction():
    task = TASKS["ifeval-1000"]  # no commas, three highlighted parts, 300 words
    found = score(task, "*a* *b* *c* " + "word " * 200)
    assert (found.reward, found.parts["followed_strictly"]) == (0.0, 2)
    assert found.info == {"missed": ["length_constraints:number_words"]}
    assert score(task, "*a* *b* *c* " + "word " * 300).reward == 1.0


def test_thoughts_are_no_part_of_the_answer():
    task = TASKS[NO_COMMA]
    assert score(task, "<think>First, second, third.</think>\n\nGo to Kyoto.").reward == 1.0
    assert score(task, "<think>None</think>Go, to Kyoto.").reward == 0.0


def test_the_template_can_be_changed(tmp_path):
    (tmp_path / "ask.txt").write_text("Follow this exactly.\n{prompt}")
    first = next(iter(resolve("ifeval", template=str(tmp_path / "ask.txt")).instance.tasks()))
    assert first.prompt == f"Follow this exactly.\n{TASKS['ifeval-1000'].prompt}"


def test_without_the_package_for_languages_nothing_is_asked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ifeval, "find_spec", lambda name: None)
    assert importlib.util.find_spec("langdetect")
    with pytest.raises(UsageError, match=r"pip install 'rollbook\[ifeval\]'"):
        next(iter(IFEval().tasks()))
