import json

import pytest

from rollbook.core import Rollout
from rollbook.environments.builtin.gsm8k import GSM8K, INSTRUCTION
from rollbook.environments.environment import ExecutionMode, execution_mode
from rollbook.environments.registry import resolve
from rollbook.errors import UsageError
from support.rollouts import make_rollout


@pytest.fixture(scope="module")
def tasks():
    return list(GSM8K().tasks())


def test_the_whole_test_set_is_there_in_order(tasks):
    assert len(tasks) == 1319
    assert [tasks[0].id, tasks[-1].id] == ["gsm8k-0000", "gsm8k-1318"]
    assert tasks[0].prompt.startswith("Janet’s ducks lay 16 eggs")
    assert tasks[0].prompt.endswith(INSTRUCTION)
    assert tasks[0].answer == "18"


def test_every_reference_solution_is_right_and_every_wrong_number_is_not(tasks):
    env = GSM8K()
    for task in tasks:
        right = env.verify(task, make_rollout(task, env.solution(task)))
        wrong = env.verify(task, make_rollout(task, f"\\boxed{{{int(task.answer) + 1}}}"))
        assert (right.reward, right.answer, wrong.reward) == (1.0, task.answer, 0.0), task.id


def test_the_model_is_not_shown_the_solution(tasks):
    for task in tasks:
        assert "####" not in task.prompt
        assert task.solution not in task.prompt
        assert len(task.messages) == 1


@pytest.mark.parametrize("form", ["\\boxed{%s}", "#### %s", "The answer is $%s.", "It is %s eggs", "= **%s.00**"])
def test_the_right_number_is_right_however_it_is_written(tasks, form):
    assert GSM8K().verify(tasks[0], make_rollout(tasks[0], form % "18")).reward == 1.0


def test_no_answer_is_a_score_of_zero_without_an_answer(tasks):
    score = GSM8K().verify(tasks[0], make_rollout(tasks[0], "I cannot say."))
    assert (score.reward, score.answer) == (0.0, None)
    assert GSM8K().verify(tasks[0], Rollout(task=tasks[0], sample=0, seed=0)).reward == 0.0


def test_rows_of_ones_own_are_asked_instead(tmp_path):
    path = tmp_path / "mine.jsonl"
    lines = [
        {"question": "1 + 1?", "answer": "It is.\n#### 2", "level": 1},
        {"id": "b", "prompt": "2?", "answer": 1_000},
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    loaded = resolve("gsm8k", data=str(path))
    first, second = loaded.instance.tasks()
    assert (first.id, first.answer, first.level, first.solution) == ("mine-1", "2", 1, "It is.\n#### 2")
    assert (second.id, second.answer) == ("b", "1000")
    for task in (first, second):
        assert loaded.instance.verify(task, make_rollout(task, loaded.instance.solution(task))).reward == 1.0


def test_a_row_without_an_answer_is_named(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"question": "1 + 1?"}\n')
    with pytest.raises(UsageError, match=r"mine.jsonl:1: no answer"):
        list(GSM8K(str(path)).tasks())


def test_verifying_does_not_need_the_rows(tmp_path, tasks):
    env = GSM8K(data=str(tmp_path / "elsewhere.jsonl"))
    assert env.verify(tasks[0], make_rollout(tasks[0], "\\boxed{18}")).reward == 1.0


def test_it_is_hosted_in_processes():
    assert execution_mode(GSM8K) == ExecutionMode("sync", "none")
