"""A harness is an environment, an environment is a harness, and a package's harness is found by its name."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from rollbook import Environment, Score, Task
from rollbook.engine import score
from rollbook.environments import load_instance
from rollbook.errors import RolloutFailed, UsageError
from rollbook.gym.dataset import write_rows
from rollbook.gym.harness import EnvironmentHarness, Harness, HarnessEnvironment

ROWS = [
    {"responses_create_params": {"input": [{"role": "user", "content": "1 + 1?"}]}, "expected_answer": "2", "level": 3},
    {"responses_create_params": {"input": "2 + 2?"}, "expected_answer": "4", "id": "four"},
]

PACKAGE = """
from rollbook import Harness as Base

class Harness(Base):
    def __init__(self, eval_type, **kwargs):
        super().__init__(eval_type)
        self.kwargs = kwargs
        if kwargs.get("bad"):
            raise ValueError("no such evaluation")

    def get_dataset(self):
        return [{"responses_create_params": {"input": "1 + 1?"}, "expected_answer": "2", "kind": self.eval_type}]

    async def verify(self, response_text, expected_answer, **kwargs):
        return float(expected_answer in response_text), f"{kwargs['kind']} {self.kwargs.get('say', '')}".strip()
"""


class Sums(Harness):
    def get_dataset(self) -> list[dict[str, Any]]:
        return ROWS

    async def verify(self, response_text: str, expected_answer: str, **kwargs: Any) -> tuple[float, str | None]:
        if response_text == "odd":
            return 3  # type: ignore[return-value]
        if response_text == "raise":
            raise RuntimeError("cannot say")
        return float(response_text == expected_answer) * kwargs.get("level", 1), response_text


class Shouts(Environment):
    def tasks(self):
        yield Task("shout", "Say hey, loud.", answer="HEY", least=2)

    async def verify(self, task, rollout):
        if rollout.text == "raise":
            raise RuntimeError("cannot say")
        return Score(float(task.answer in rollout.text and rollout.text.count("!") >= task.least), answer=rollout.text)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"sums_{tmp_path.name.replace('-', '_')}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    (tmp_path / name / "gym_harness.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def make_harness_environment(harness: Harness) -> HarnessEnvironment:
    """Wrap a harness made in Python. No other process can create it, so it runs in this one."""

    class WrappedHarness(HarnessEnvironment):
        def __init__(self) -> None:
            self.harness = harness

    WrappedHarness.__name__ = type(harness).__name__
    return WrappedHarness()


def test_a_harness_is_an_environment() -> None:
    env = make_harness_environment(Sums("sums"))
    tasks = list(env.tasks())
    rows_read = [(task.id, task.answer, task.fields) for task in tasks]
    assert rows_read == [("row-0", "2", {"level": 3}), ("four", "4", {})]
    assert score(env, tasks[0], "2") == Score(3.0, answer="2")
    assert score(env, tasks[1], "2") == Score(0.0, answer="2")


@pytest.mark.parametrize(("verdicts", "kind"), [("odd", "invalid_reward"), ("raise", "verifier_error")])
def test_a_harness_that_gives_no_reward_is_a_failure(verdicts: str, kind: str) -> None:
    env = make_harness_environment(Sums("sums"))
    with pytest.raises(RolloutFailed) as error:
        score(env, "four", verdicts)
    assert error.value.kind == kind


def test_an_environment_is_a_harness() -> None:
    async def go() -> list[Any]:
        async with EnvironmentHarness(Shouts()) as harness:
            (row,) = harness.get_dataset()
            expected = row.pop("expected_answer")
            verdicts = [await harness.verify(text, expected, **row) for text in ("HEY!!", "HEY!", "hey!!")]
            with pytest.raises(RolloutFailed, match="verifier_error"):
                await harness.verify("raise", expected, **row)
            return verdicts

    assert asyncio.run(go()) == [(1.0, "HEY!!"), (0.0, "HEY!"), (0.0, "hey!!")]


def test_a_harness_opens_itself_once_and_can_be_closed() -> None:
    async def go() -> list[Any]:
        harness = EnvironmentHarness(Shouts(), "shouts")
        verdicts = await asyncio.gather(*(harness.verify("HEY!!", "HEY", least=2) for _ in range(4)))
        await harness.close()
        return verdicts

    assert asyncio.run(go()) == [(1.0, "HEY!!")] * 4


def test_a_packages_harness_is_found_by_its_name(package: str) -> None:
    env = HarnessEnvironment(package, "easy", say="hi")
    (task,) = env.tasks()
    assert task.fields == {"kind": "easy"}
    assert score(env, task, "2!") == Score(1.0, answer="easy hi")


def test_a_package_that_lies_where_one_works_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lies_here").mkdir()
    source = "class Harness:\n    def __init__(self, eval_type): pass\n    def get_dataset(self): return []\n"
    (tmp_path / "lies_here" / "gym_harness.py").write_text(source + "    async def verify(self, text, expected): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", sys.path[:])
    assert list(HarnessEnvironment("lies_here").tasks()) == []


def test_a_package_without_a_harness_is_one_line(package: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="harness:nowhere: no module nowhere"):
        HarnessEnvironment("nowhere")
    with pytest.raises(UsageError, match="raised ValueError: no such evaluation"):
        HarnessEnvironment(package, "easy", bad=True)
    for message, code in (
        ("has no class Harness", ""),
        ("cannot be imported: SyntaxError", "def"),
        ("no get_dataset", "class Harness:\n    def __init__(self, eval_type): pass"),
    ):
        name = f"{package}_{len(code)}"
        (tmp_path / name).mkdir()
        (tmp_path / name / "gym_harness.py").write_text(code)
        with pytest.raises(UsageError, match=message):
            HarnessEnvironment(name)


def test_a_row_that_is_wrong_is_named() -> None:
    class Broken(Sums):
        def get_dataset(self) -> list[dict[str, Any]]:
            return [*ROWS, {"expected_answer": "2"}]

    with pytest.raises(UsageError, match=r"row 2 of get_dataset\(\): responses_create_params is missing"):
        list(make_harness_environment(Broken("sums")).tasks())


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (None, "get_dataset() gave a NoneType, not a list of rows"),
        (["a"], "row 0 of get_dataset() is a str, not an object"),
        ([{"expected_answer": "2"}], "row 0 of get_dataset(): responses_create_params is missing"),
    ],
)
def test_rows_that_cannot_be_written_are_named(rows: Any, message: str, tmp_path: Path) -> None:
    class Broken(Sums):
        def get_dataset(self) -> list[dict[str, Any]]:
            return rows

    with pytest.raises(UsageError) as caught:
        write_rows(load_instance(make_harness_environment(Broken("sums"))), tmp_path / "rows.jsonl")
    assert str(caught.value) == message
