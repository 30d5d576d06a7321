import json
from pathlib import Path

import pytest

from rollbook.environments.builtin.math import INSTRUCTION, Math, question_text
from rollbook.environments.environment import ExecutionMode, execution_mode, overrides
from rollbook.environments.registry import resolve
from rollbook.errors import UsageError
from support.rollouts import make_rollout

DAPO = {
    "data_source": "math_dapo",
    "prompt": [{"role": "user", "content": "Solve it. The last line is Answer: $Answer.\n\nWhat is 30 + 4?"}],
    "ability": "MATH",
    "reward_model": {"ground_truth": "34", "style": "rule-lighteval/MATH_v2"},
    "extra_info": {"index": "9a9b6eb4"},
}
FORMS = {
    "AIME with capitals": ({"ID": "2024-I-1", "Problem": "What is 200 + 4?", "Solution": "Add.", "Answer": 204}, "204"),
    "AIME": ({"id": 60, "problem": "What is 200 + 4?", "solution": "Add.", "answer": "204", "year": "2024"}, "204"),
    "MATH": ({"problem": "Halve 1.", "level": "Level 1", "solution": r"So $\boxed{\frac12}$."}, r"\frac12"),
    "MATH-500": ({"problem": "Halve 1.", "solution": r"$\boxed{0.5}$", "answer": "0.5", "unique_id": "t/1"}, "0.5"),
    "DAPO": (DAPO, "34"),
    "DAPO processed": ({"prompt": "What is 30 + 4?", "solution": "34", "ability": "MATH"}, "34"),
    "a list of one answer": ({"problem": "1 + 1?", "reward_model": {"ground_truth": '["2"]'}}, "2"),
    "GSM8K": ({"question": "1 + 1?", "answer": "It is.\n#### 2"}, "2"),
    "NeMo Gym": (
        {
            "responses_create_params": {"input": [{"role": "user", "content": "Box it: 1 + 1?"}]},
            "question": "1 + 1?",
            "expected_answer": r"\(2\)",
        },
        "2",
    ),
}


def math(tmp_path, *rows, **arguments):
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Math(str(path), **arguments)


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_recognised_by_their_fields(tmp_path, form):
    row, answer = FORMS[form]
    env = math(tmp_path, row)
    task = next(env.tasks())
    assert task.answer == answer
    assert env.verify(task, make_rollout(task, env.solution(task))).reward == 1.0
    assert env.verify(task, make_rollout(task, "\\boxed{-17}")).reward == 0.0


def test_ids_and_prompts_are_the_rows_own(tmp_path):
    tasks = list(math(tmp_path, *(FORMS[name][0] for name in ("AIME with capitals", "MATH-500", "NeMo Gym"))).tasks())
    assert [task.id for task in tasks] == ["2024-I-1", "t/1", "mine-3"]
    assert tasks[0].prompt == f"What is 200 + 4?\n\n{INSTRUCTION}"
    assert tasks[2].prompt == "Box it: 1 + 1?"
    assert [question_text(task) for task in tasks] == ["What is 200 + 4?", "Halve 1.", "1 + 1?"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"problem": "1 + 1?"}, "no answer, expected_answer"),
        ({"problem": "1 + 1?", "solution": "Long. " * 100}, "no answer"),
        ({"problem": "1 + 1?", "answer": ["2"]}, "no answer"),
        ({"problem": "1 + 1?", "answer": " "}, "the answer is empty"),
        ({"answer": "2"}, "no messages / prompt / question / problem; it has: answer"),
        ({"responses_create_params": {}, "answer": "2"}, "responses_create_params.input must be text"),
    ],
)
def test_a_row_that_lacks_something_is_named(tmp_path, row, words):
    with pytest.raises(UsageError, match=f"mine.jsonl:1: {words}"):
        list(math(tmp_path, row).tasks())


def test_a_template_makes_the_prompt(tmp_path):
    (tmp_path / "t.txt").write_text("Level {level}: {problem} Use \\boxed{}.\n")
    env = math(tmp_path, {"problem": "1 + 1?", "answer": 2, "level": 3}, template=str(tmp_path / "t.txt"))
    assert next(env.tasks()).prompt == "Level 3: 1 + 1? Use \\boxed{}."


def test_the_rule_is_hosted_in_processes_and_may_be_appealed():
    assert (execution_mode(Math), overrides(Math, "appeal")) == (ExecutionMode("sync", "none"), True)


def test_it_needs_data():
    with pytest.raises(UsageError, match="data"):
        resolve("math")


def test_rows_of_nemo_gym_are_verified_against_their_known_answers():
    path = Path(__file__).parents[4] / "shared/data/nemo_gym/math_with_judge.jsonl"
    if not path.exists():
        pytest.skip("the rows of NeMo Gym are not here")
    env = Math(str(path))
    tasks = list(env.tasks())
    assert len(tasks) == 5
    for task in tasks:
        assert env.verify(task, make_rollout(task, f"So \\boxed{{{task.answer}}}.")).reward == 1.0
        assert env.verify(task, make_rollout(task, f"Answer: ${task.answer}$")).reward == 1.0
        assert env.verify(task, make_rollout(task, "\\boxed{-17}")).reward == 0.0
