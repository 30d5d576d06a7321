import pytest

from rollbook.environments.data_rows import PromptTemplate
from rollbook.environments.registry import resolve
from rollbook.errors import UsageError


def template(tmp_path, text):
    (tmp_path / "t.txt").write_text(text)
    return PromptTemplate.read(str(tmp_path / "t.txt"))


def test_fields_are_filled_in_and_other_braces_are_left(tmp_path):
    made = template(tmp_path, "{a} is {b.c}: \\boxed{} and \\frac{1}{2}, {{a}}\n")
    assert made.fill({"a": "x{b}", "b": {"c": [1, 2]}}, "w") == "x{b} is [1,2]: \\boxed{} and \\frac{1}{2}, {a}"


def test_a_field_that_a_row_lacks_names_the_row(tmp_path):
    made = template(tmp_path, "{a} {b.c}")
    with pytest.raises(UsageError, match=r"rows.jsonl:7: no 'b.c', which .*t.txt uses; it has: a, b"):
        made.fill({"a": "1", "b": {}}, "rows.jsonl:7")


def test_a_template_without_fields_or_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UsageError, match="names no field"):
        template(tmp_path, "Solve it in \\boxed{}.")
    with pytest.raises(UsageError, match=r"--prompt-template none.txt: No such file"):
        PromptTemplate.read("none.txt")
    (tmp_path / "t.txt").write_bytes(b"\xff{a}")
    with pytest.raises(UsageError, match="not UTF-8"):
        PromptTemplate.read(str(tmp_path / "t.txt"))


def test_it_reaches_an_environment_by_its_option(tmp_path):
    (tmp_path / "rows.csv").write_text("topic,answer\nsums,2\n")
    (tmp_path / "t.txt").write_text("About {topic}: 1 + 1?")
    loaded = resolve("gsm8k", str(tmp_path / "rows.csv"), str(tmp_path / "t.txt"))
    assert [task.prompt for task in loaded.instance.tasks()] == ["About sums: 1 + 1?"]
    with pytest.raises(UsageError, match=r"--prompt-template t.txt: ReasoningGym takes no template"):
        resolve("reasoning_gym:chain_sum", None, "t.txt")
