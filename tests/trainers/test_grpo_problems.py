"""The GRPO example's problems: what is held out is never trained, in no order and with no sign."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed here: make test has it")

EXAMPLE = Path(__file__).parents[2] / "examples/grpo"
sys.path.insert(0, str(EXAMPLE))

from problems import Problems, read_problem  # noqa: E402

from rollbook import Task  # noqa: E402
from rollbook.environments import resolve  # noqa: E402
from support.rollouts import make_rollout  # noqa: E402

GENERATORS = {
    "chain_sum": {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 2},
    "products": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
    "gcd": {"max_value": 100},
}


@pytest.mark.parametrize("generator", GENERATORS)
def test_the_two_parts_share_no_problem(generator):
    settings = GENERATORS[generator]
    trained = {read_problem(task) for task in Problems(generator, "train", 2000, seed=1, **settings).tasks()}
    held_out = {read_problem(task) for task in Problems(generator, "held_out", 100, seed=1, **settings).tasks()}
    assert len(trained) > 500
    assert len(held_out) == 100
    assert not trained & held_out


def test_a_held_out_problem_occurs_once_and_a_trained_one_may_occur_again():
    digits = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}  # few different problems
    held_out = [read_problem(task) for task in Problems("products", "held_out", 4, **digits).tasks()]
    trained = [read_problem(task) for task in Problems("products", "train", 300, **digits).tasks()]
    assert len(held_out) == len(set(held_out)) == 4
    assert len(trained) == 300 > len(set(trained))


def test_order_and_sign_do_not_make_another_problem():
    first, second = (read_problem(Task("a", prompt=text)) for text in ("What is 3 + 14 - 15?", "What is 15 - 14 - 3?"))
    assert first == second == (3, 14, 15)


def test_answers_are_scored_by_the_generator():
    environment = Problems("gcd", "train", max_value=100)
    task = next(environment.tasks())
    assert environment.verify(task, make_rollout(task, f"It is {task.answer}.")).reward == 1.0
    assert environment.verify(task, make_rollout(task, f"It is {int(task.answer) + 1}.")).reward < 1.0


@pytest.mark.parametrize("name", ["sums", "products", "gcd"])
def test_the_kept_results_are_of_held_out_problems(name):
    """The problems of the plan that was trained, drawn again, are not those of the rollouts that are kept."""
    plan = json.loads((EXAMPLE / "results" / name / "plan.json").read_text())
    kept = (EXAMPLE / "results" / name / "book/tasks.jsonl").read_text().splitlines()
    asked = {read_problem(Task("a", prompt=json.loads(line)["messages"][0]["content"])) for line in kept}
    drawn = resolve(str(EXAMPLE.parents[1] / plan["environment"])).instance.tasks()
    assert len(asked) == 4
    assert not asked & {read_problem(next(drawn)) for _ in range(2000)}
