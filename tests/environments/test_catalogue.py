"""The catalogue: every entry can be run on rows with the columns of its set.

The rows here are made for these tests: no set of the catalogue is downloaded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbook.environments import read_catalogue, resolve
from rollbook.environments.catalogue import find_entry
from rollbook.environments.data_rows import HUB_SCHEME, PromptTemplate, parse_hub_path
from rollbook.environments.registry import BUILT_IN, list_names
from rollbook.errors import UsageError
from support.rollouts import make_rollout

ROWS = json.loads(Path(__file__).with_name("catalogue_rows.json").read_text())


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder for sets that the package `datasets` itself reads, without the network."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    pytest.importorskip("datasets")
    return tmp_path


def write_set(folder: Path, name: str) -> str:
    """Write the rows of an entry as a set with the entry's split; return its address."""
    _, options = parse_hub_path(read_catalogue()[name].data)
    (folder / name).mkdir()
    lines = "".join(json.dumps(row) + "\n" for row in ROWS[name])
    (folder / name / f"{options['split']}.jsonl").write_text(lines)
    return f"{HUB_SCHEME}{folder / name}?split={options['split']}"


def test_every_entry_has_rows_with_its_columns():
    assert set(ROWS) == set(read_catalogue())
    assert len(ROWS) <= 12
    for name, entry in read_catalogue().items():
        assert all(set(entry.columns) <= set(row) for row in ROWS[name]), name


def test_no_entry_hides_an_environment():
    assert not set(read_catalogue()) & set(BUILT_IN)
    assert set(read_catalogue()) <= set(list_names())


@pytest.mark.parametrize("name", ROWS)
def test_an_entry_says_where_its_rows_are_and_what_scores_them(name: str):
    entry = read_catalogue()[name]
    path, options = parse_hub_path(entry.data)
    assert re.fullmatch(r"[\w-]+/[\w.-]+", path)
    assert set(options) >= {"split", "revision"}
    assert entry.environment.partition("?")[0] in BUILT_IN
    assert entry.licence
    fields = set(re.findall(r"\{(\w+)\}", entry.template))
    assert fields
    assert fields <= {*entry.columns, "lettered_options"}


@pytest.mark.parametrize("name", ROWS)
def test_rows_with_the_columns_of_an_entry_are_asked_and_scored(name: str, hub: Path):
    environment = resolve(name, data=write_set(hub, name)).instance
    tasks = list(environment.tasks())
    assert len(tasks) == len(ROWS[name])
    for task, row in zip(tasks, ROWS[name], strict=True):
        question = next(
            row[key] for key in ("question", "question_stem", "problem", "Problem", "Question") if key in row
        )
        assert task.prompt.startswith(question)
        assert "\\boxed{}" in task.prompt
        assert environment.verify(task, make_rollout(task, environment.solution(task))).reward == 1.0
        wrong = "\\boxed{A}" if task.answer in ("B", "C") else "\\boxed{D}" if task.answer == "A" else "\\boxed{1}"
        assert environment.verify(task, make_rollout(task, wrong)).reward == 0.0
        assert environment.verify(task, make_rollout(task, "")).reward == 0.0


def test_options_are_shown_under_their_labels(hub: Path):
    first, second = resolve("arc_challenge", data=write_set(hub, "arc_challenge")).instance.tasks()
    assert "A: wood\nB: iron\nC: glass\nD: paper\n" in first.prompt
    assert "1: iron\n2: salt\n" in second.prompt
    assert (first.answer, second.answer) == ("B", "3")


def test_the_arguments_of_an_entry_can_be_changed(tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROWS["mmlu"][0]))
    (tmp_path / "ask.txt").write_text("{subject}: {question}")
    loaded = resolve("mmlu?grading=strict", str(tmp_path / "rows.jsonl"), str(tmp_path / "ask.txt"))
    assert loaded.spec.args["grading"] == "strict"
    assert next(iter(loaded.instance.tasks())).prompt == "elementary_mathematics: Which of these is a prime number?"


def test_an_entry_stores_where_its_rows_came_from():
    spec = resolve("aime_2024").spec
    assert spec.target == "builtin:math"
    assert spec.args == {"data": find_entry("aime_2024").data, "template": "catalogue:aime_2024"}


def test_a_set_that_cannot_be_had_is_one_line(hub: Path):
    with pytest.raises(UsageError, match=r"hf://cais/mmlu.*: cannot be read") as caught:
        next(iter(resolve("mmlu").instance.tasks()))
    assert "\n" not in str(caught.value)


def test_an_unknown_template_of_the_catalogue_is_one_line():
    with pytest.raises(UsageError, match="--prompt-template catalogue:none: No such file"):
        PromptTemplate.read("catalogue:none")
