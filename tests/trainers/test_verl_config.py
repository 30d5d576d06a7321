"""The rollbook: block: environments, a blend or Gym configurations; every mistake is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollbook.errors import UsageError
from rollbook.trainers.verl.config import read_config


def write(folder: Path, text: str) -> Path:
    path = folder / "rollbook.yaml"
    path.write_text(text)
    return path


def test_environments_are_known_by_the_names_that_rows_have_for_them(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "rollbook:\n  on_failure: mask\n  environments:\n"
        "    - {env: math, name: math_agent, data: rows.jsonl, limits: {max_turns: 4}}\n    - {env: workplace}\n",
    )
    block = read_config(path)
    entries = block.entries(tmp_path)
    assert block.on_failure == "mask"
    assert list(entries) == ["math_agent", "workplace"]
    assert entries["math_agent"].limits == {"max_turns": 4}


def test_a_blend_lies_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "blend.yaml").write_text("environments:\n  - {env: math, data: a.jsonl}\n  - {env: own.py:Own}\n")
    entries = read_config(write(tmp_path, "rollbook: {blend: blend.yaml}")).entries(tmp_path)
    assert entries["math"].data == str(tmp_path / "a.jsonl")
    assert [entry.env for entry in entries.values()] == ["math", str(tmp_path / "own.py:Own")]


def test_gym_configurations_are_one_environment(tmp_path: Path) -> None:
    entries = read_config(write(tmp_path, "rollbook: {gym: [a.yaml, b.yaml]}")).entries(tmp_path)
    assert entries["gym"].env == 'gym:a.yaml?config_paths=["b.yaml"]'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("- name: x", "no rollbook: block"),
        ("rollbook: {}", "exactly one of"),
        ("rollbook: {gym: [a], blend: b}", "exactly one of"),
        ("rollbook: {gym: [a], on_failure: ignore}", "on_failure"),
        ("rollbook: {gym: [a], colour: red}", "colour"),
        ("rollbook: [", "rollbook.yaml"),
    ],
)
def test_a_mistake_is_named_with_its_file(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        read_config(write(tmp_path, text))
    assert "rollbook.yaml" in str(caught.value)


def test_no_file_and_two_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="agent_loop_config_path"):
        read_config(None)
    with pytest.raises(UsageError, match="one name"):
        read_config(write(tmp_path, "rollbook: {environments: [{env: math}, {env: math}]}")).entries(tmp_path)
