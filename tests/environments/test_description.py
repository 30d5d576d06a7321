"""What is said of the built-in environments is true of them."""

import re

import pytest

from rollbook.environments import describe_environment, list_environments, parameters_of
from rollbook.environments.registry import BUILT_IN, find_class

WITH_ROWS = [name for name in BUILT_IN if "data" in parameters_of(find_class(name))]
NEEDS_MORE = {name: f"{name}:NAME" for name in ("harbor", "openenv", "reasoning_gym", "verifiers")}


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_is_described_with_its_scoring_and_an_example(name):
    found = describe_environment(name)
    assert found.description
    assert found.about
    assert found.scoring.endswith(".")
    if name in NEEDS_MORE:
        assert (found.example, found.no_example) == (None, f"a name is missing: {NEEDS_MORE[name]}")
    else:
        assert found.example
        assert found.example.messages


@pytest.mark.parametrize("name", WITH_ROWS)
def test_the_example_row_makes_a_task_and_has_only_fields_that_are_explained(name, tmp_path):
    import msgspec

    cls = find_class(name)
    assert set(cls.example_row) <= set(cls.row_fields)
    path = tmp_path / "rows.jsonl"
    path.write_bytes(msgspec.json.encode(dict(cls.example_row)))
    [task] = cls(data=str(path)).tasks()
    assert task.answer is not None or name in ("code", "json_schema", "rubric", "rubric_calibration")


def test_every_environment_that_takes_rows_explains_their_fields():
    graded = {"code", "gsm8k", "json_schema", "math", "mcqa", "python_tool", "string_match"}
    assert set(WITH_ROWS) == graded | {"rubric", "rubric_calibration"}


@pytest.mark.parametrize("name", [name for name in BUILT_IN if find_class(name).prompt_template])
def test_the_fields_of_a_prompt_template_are_explained(name):
    cls = find_class(name)
    assert cls.kind == "benchmark"
    assert set(re.findall(r"\{(\w+)\}", cls.prompt_template)) <= set(cls.row_fields)
    assert describe_environment(name).prompt_template == cls.prompt_template


def test_url_schemes_are_told_from_environments():
    schemes = {known.name for known in list_environments() if known.is_url_scheme}
    assert schemes == {"http", "https", "gym+agent", "gym+head", "gym+step"}
