"""Tasks in containers as jobs: every worker starts its own on its node, and removes them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from clustered import Submit

import rollbook
from rollbook.containers import Owner

CONTAINERS = Path(__file__).parents[2] / "containers"


def test_a_task_folder_runs_in_jobs_and_no_container_is_left(submit: Submit) -> None:
    sys.path.insert(0, str(CONTAINERS / "real"))
    from base_image import list_owned, missing

    if why := missing():
        pytest.skip(f"NO CONTAINERS HERE: {why}")
    task = CONTAINERS / "tasks" / "write-word"
    sent = submit(f"harbor:{task}", "--agent", "oracle", "-k", 4, "--workers", 2)
    assert sent.over() == "COMPLETED", sent.logs()
    scores = [rollout.score for rollout in rollbook.load(sent.run).rollouts()]
    assert [score.reward for score in scores if score] == [1.0] * 4
    left: list[tuple[str, Owner]] = list_owned()
    assert [name for name, owner in left if owner.run == str(sent.run)] == []
