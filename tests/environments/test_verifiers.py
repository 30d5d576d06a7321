"""Tasksets of the real package `verifiers`, which is no dependency: where it is not installed, only that is tested."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rollbook import UsageError, run
from rollbook.environments.registry import resolve

SUMS = """
import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=1.0)
    async def correct(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.25)
    async def brief(self, task, trace) -> float:
        return float(len(trace.last_reply) < 4 and not trace.is_truncated)

    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)


class SumsConfig(vf.TasksetConfig):
    count: int = 3


class Sums(vf.Taskset[SumTask, SumsConfig]):
    def load(self):
        for i in range(self.config.count):
            data = SumData(prompt=f"What is {i} + {i}?", answer=str(2 * i), system_prompt="Be brief.")
            yield SumTask(data, self.config.task)


__all__ = ["Sums"]
"""
needs_package = pytest.mark.skipif(not find_spec("verifiers"), reason="the package verifiers is not installed")


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write modules that `verifiers` finds by name, here and in environment processes."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def write(name: str, source: str) -> str:
        (tmp_path / f"{name}.py").write_text(source)
        return f"verifiers:{name}"

    return write


@needs_package
def test_prompts_are_asked_here_and_scored_by_their_rewards(packages: Any, tmp_path: Path) -> None:
    spec = packages("vf_sums", SUMS)
    said = [{"task": "vf_sums-00000", "answer": " 0 "}, {"task": "vf_sums-00001", "answer": "two, I think"}]
    (tmp_path / "said.jsonl").write_text("\n".join(map(json.dumps, said)))
    run(f"{spec}?count=2", f"scripted:{tmp_path}/said.jsonl", out=tmp_path / "run")
    found = {}
    for path in (tmp_path / "run").glob("journals/*.1.jsonl"):
        found |= {line["task"]: line for line in map(json.loads, path.read_text().splitlines())}
    right, wrong = found["vf_sums-00000"], found["vf_sums-00001"]
    assert [m["content"] for m in right["messages"]] == ["Be brief.", "What is 0 + 0?", " 0 "]
    assert (right["reward"], right["parts"]) == (1.25, {"correct": 1.0, "brief": 1.0, "turns": 1.0})
    assert (wrong["reward"], wrong["parts"]) == (0.0, {"correct": 0.0, "brief": 0.0, "turns": 1.0})


SCORE = "        return float(trace.last_reply == self.data.answer)"
SETUP = """
    async def setup(self, trace, runtime):
        return None
"""


@needs_package
@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("correct(self, trace: vf.Trace)", "correct(self, trace, runtime)", "correct needs a runtime"),
        (SCORE, f"{SCORE}\n\n    NEEDS_CONTAINER = True", "needs a container"),
        (SCORE, f"{SCORE}\n{SETUP}", "needs setup or finalize"),
        ('prompt=f"What is {i} + {i}?", ', "", "its prompt is not text"),
    ],
    ids=["runtime", "container", "setup", "prompt"],
)
def test_what_cannot_be_scored_whole_is_refused(packages: Any, before: str, after: str, words: str) -> None:
    assert before in SUMS
    name = f"vf_{words.split()[-1]}"
    with pytest.raises(UsageError, match=words):
        list(resolve(packages(name, SUMS.replace(before, after))).instance.tasks())


@needs_package
def test_a_taskset_or_a_setting_that_is_not_there_is_told_in_one_line(packages: Any) -> None:
    with pytest.raises(UsageError, match="verifiers:no_such_thing: taskset 'no_such_thing' not found"):
        resolve("verifiers:no_such_thing")
    with pytest.raises(UsageError, match=r"verifiers:vf_set: .*cuont Extra inputs are not permitted"):
        resolve(f"{packages('vf_set', SUMS)}?cuont=2")


def test_without_the_package_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "verifiers"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "verifiers", None)
    with pytest.raises(UsageError, match=r"verifiers:sums needs a package: pip install 'verifiers>=0.4'"):
        resolve("verifiers:sums")
