"""Tasks in containers on a Ray cluster: every worker starts its own on its node, and removes them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import rollbook
from rollbook.containers import Owner
from support.commands import Commands

CONTAINERS = Path(__file__).parents[2] / "containers"


def test_a_task_folder_runs_on_ray_and_no_container_is_left(commands: Commands, tmp_path: Path) -> None:
    sys.path.insert(0, str(CONTAINERS / "real"))
    from base_image import list_owned, missing

    if why := missing():
        pytest.skip(f"NO CONTAINERS HERE: {why}")
    task = CONTAINERS / "tasks" / "write-word"
    words = ["run", f"harbor:{task}", "--agent", "oracle", "-k", 4, "--workers", 2, "--on", "ray", "-o", "run"]
    done = commands.run(*words)
    assert done.code == 0, done.stderr
    scores = [rollout.score for rollout in rollbook.load(tmp_path / "run").rollouts()]
    assert [score.reward for score in scores if score] == [1.0] * 4
    left: list[tuple[str, Owner]] = list_owned()
    assert [name for name, owner in left if owner.run == str(tmp_path / "run")] == []
