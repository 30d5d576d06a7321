"""Rewards that tests left: a number or a failure, never something in between."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollbook import RolloutFailed
from rollbook.environments.harbor import choose_reward, read_rewards
from rollbook.environments.harbor.rewards import combine_rewards, misses_reward


@pytest.mark.parametrize(
    ("files", "rewards"),
    [
        ({"reward.txt": "1\n"}, {"reward": 1.0}),
        ({"reward.txt": " 0.25 "}, {"reward": 0.25}),
        ({"reward.json": '{"a": 1, "b": 0.5}'}, {"a": 1.0, "b": 0.5}),
        ({"reward.json": "0.5"}, {"reward": 0.5}),
        ({"reward.json": '{"reward": 1, "b": 2}', "reward.txt": "1"}, {"reward": 1.0, "b": 2.0}),
        ({"reward.txt": "-1.5e-1"}, {"reward": -0.15}),
        ({"reward.txt": ".5"}, {"reward": 0.5}),
        ({"reward.txt": "+1."}, {"reward": 1.0}),
    ],
)
def test_rewards_are_read(tmp_path: Path, files: dict[str, str], rewards: dict[str, float]) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert read_rewards(tmp_path) == rewards


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({}, "verifier_error"),
        ({"reward.txt": ""}, "invalid_reward"),
        ({"reward.txt": "nan"}, "invalid_reward"),
        ({"reward.txt": "1e999"}, "invalid_reward"),
        ({"reward.txt": "one"}, "invalid_reward"),
        ({"reward.json": "{}"}, "invalid_reward"),
        ({"reward.json": "[1]"}, "invalid_reward"),
        ({"reward.json": '{"reward": true}'}, "invalid_reward"),
        ({"reward.json": '{"reward": "1"}'}, "invalid_reward"),
        ({"reward.json": '{"reward": NaN}'}, "invalid_reward"),
        ({"reward.json": '{"reward": 0, "reward": 1}'}, "invalid_reward"),
        ({"reward.json": '{"reward": 1, "reward": 1}'}, "invalid_reward"),
        ({"reward.json": '{"reward": 1' + "0" * 400 + "}"}, "invalid_reward"),
        ({"reward.json": '{"reward": 1}', "reward.txt": "0"}, "invalid_reward"),
        ({"reward.json": '{"style": 1}', "reward.txt": "0"}, "invalid_reward"),
        ({"reward.json": '{"reward": 1, "\\ud800": 0.5}'}, "invalid_reward"),
        ({"reward.txt": "1" * (1 << 21)}, "invalid_reward"),
        ({"reward.txt": "1_0"}, "invalid_reward"),
        ({"reward.txt": "\u0661"}, "invalid_reward"),
        ({"reward.txt": "infinity"}, "invalid_reward"),
        ({"reward.txt": "0x1"}, "invalid_reward"),
        ({"reward.txt": "1 0"}, "invalid_reward"),
    ],
)
def test_anything_else_is_a_failure(tmp_path: Path, files: dict[str, str], kind: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(RolloutFailed) as caught:
        read_rewards(tmp_path)
    assert caught.value.kind == kind
    caught.value.message.encode()  # it can be written


def test_links_and_pipes_are_no_rewards(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("1")
    (tmp_path / "reward.txt").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RolloutFailed, match=r"reward.txt cannot be read"):
        read_rewards(tmp_path)
    (tmp_path / "reward.txt").unlink()
    os.mkfifo(tmp_path / "reward.txt")
    with pytest.raises(RolloutFailed, match="is not a file"):
        read_rewards(tmp_path)


def test_which_of_several_rewards_counts() -> None:
    assert choose_reward({"reward": 1.0, "a": 0.5}) == (1.0, {"a": 0.5})
    assert choose_reward({"a": 0.5}) == (0.5, {})
    assert choose_reward({"a": 0.5, "b": 1.0}, "b") == (1.0, {"a": 0.5})
    for rewards, named in (({"a": 0.5, "b": 1.0}, ""), ({"a": 0.5}, "c")):
        with pytest.raises(RolloutFailed, match=r"\?reward=NAME"):
            choose_reward(rewards, named)


def test_rewards_of_steps() -> None:
    assert combine_rewards([{"reward": 1.0}, {"reward": 0.0}], final=False) == {"reward": 0.5}
    assert combine_rewards([{"reward": 1.0}, {"reward": 0.0}], final=True) == {"reward": 0.0}
    assert misses_reward({"reward": 0.5}, {"reward": 1.0})
    assert misses_reward({}, {"reward": 0.0})
    assert not misses_reward({}, {})
