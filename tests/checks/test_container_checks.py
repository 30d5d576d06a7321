"""What is found about tasks in containers, from rollouts without a model."""

import pytest

from rollbook.checks.container_checks import _check_nop, _check_oracle
from rollbook.core import Rollout, Score, Task


def play(*rewards):
    rollouts = [Rollout(task=Task(f"t{i}", "p"), sample=0, seed=0) for i in range(len(rewards))]
    for rollout, reward in zip(rollouts, rewards, strict=True):
        rollout.score = None if reward is None else Score(reward)
    return rollouts


@pytest.mark.parametrize(
    ("check", "rewards", "verdict", "words", "example"),
    [
        (_check_oracle, (1, 1), "ok", "every one", None),
        (_check_oracle, (1, None), "not checked", "1 of 2 tasks have no score", "t1"),
        (_check_oracle, (None, 0, 1), "unsound", "1 solutions get no reward", "t1"),
        (_check_nop, (0, 0), "ok", "never", None),
        (_check_nop, (0, None), "not checked", "1 of 2 tasks have no score", "t1"),
        (_check_nop, (1, 0), "unsound", "1 tasks reward an agent that does nothing", "t0"),
    ],
)
def test_a_task_without_a_score_has_not_passed(check, rewards, verdict, words, example):
    finding = check(play(*rewards))
    assert (finding.verdict, finding.found, finding.example) == (verdict, words, example)


def test_a_solution_whose_changes_the_tests_do_not_see_names_them():
    (rollout,) = play(0)
    rollout.outcome = {"steps": [{"name": "", "tests": {"restored": ["/etc/environment", "/root/.profile"]}}]}
    found = _check_oracle([rollout]).found
    assert found.endswith(
        "the tests do not see their changes of /etc/environment, /root/.profile: list them in [metadata] keep"
    )
