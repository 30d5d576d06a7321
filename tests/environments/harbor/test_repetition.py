"""Tests that run again from stored artifacts: what a changed reward of one step means for the rollout."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rollbook import RolloutFailed
from rollbook.containers import ContainerHost
from rollbook.environments.harbor import harbor
from rollbook.environments.harbor.harbor import StepOutcome, repeat_steps
from rollbook.environments.harbor.task_files import HarborTask, read_task
from rollbook.environments.harbor.verification import TestsResult

CONFIG = """[verifier]
environment_mode = "separate"
[environment]
network_mode = "no-network"
docker_image = "x"
[[steps]]
name = "one"
min_reward = 1.0
[[steps]]
name = "two"
"""


def make_task(folder: Path) -> HarborTask:
    (folder / "task.toml").write_text(CONFIG)
    for name in ("one", "two"):
        (folder / "steps" / name / "tests").mkdir(parents=True)
        (folder / "steps" / name / "instruction.md").write_text(name)
        (folder / "steps" / name / "tests" / "test.sh").write_text("true")
    return read_task(folder)


async def open_nothing() -> ContainerHost:
    return None  # type: ignore[return-value]


def repeat(
    task: HarborTask, monkeypatch: pytest.MonkeyPatch, stored: dict[str, float], now: dict[str, float]
) -> list[float]:
    async def judge(_: object, __: object, step: harbor.TaskStep, *___: object) -> TestsResult:
        return TestsResult({"reward": now[step.name]})

    monkeypatch.setattr(harbor, "judge_separately", judge)
    monkeypatch.setattr(harbor, "find_recorded", lambda *_: [])
    outcomes = [StepOutcome(name, TestsResult({"reward": reward})) for name, reward in stored.items()]
    done = asyncio.run(repeat_steps(open_nothing, task, outcomes, Path()))
    return [each.tests.rewards["reward"] for each in done]


def test_every_step_is_judged_again_up_to_one_that_misses_its_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, stored = make_task(tmp_path), {"one": 1.0, "two": 1.0}
    assert repeat(task, monkeypatch, stored, {"one": 1.0, "two": 0.5}) == [1.0, 0.5]
    assert repeat(task, monkeypatch, stored, {"one": 0.0, "two": 1.0}) == [0.0]
    assert repeat(task, monkeypatch, {"one": 0.0}, {"one": 0.5}) == [0.5]
    assert repeat(task, monkeypatch, {"one": 1.0}, {"one": 1.0}) == [1.0]  # the agent's time was over


def test_a_step_that_passes_now_is_a_failure_if_the_next_was_not_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RolloutFailed, match="did not play the next"):
        repeat(make_task(tmp_path), monkeypatch, {"one": 0.0}, {"one": 1.0})


def test_a_step_that_the_task_no_longer_has_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RolloutFailed, match="has no step 'three'"):
        repeat(make_task(tmp_path), monkeypatch, {"three": 0.0}, {"three": 1.0})
