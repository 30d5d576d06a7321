"""The sandbox of an environment is opened once and always closed; where there is none, the run is refused."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rollbook import Collector
from rollbook.core import Limits
from rollbook.environments import sandboxed
from rollbook.environments.builtin.humaneval import HumanEval
from rollbook.environments.registry import load_instance
from rollbook.environments.runtime import EnvironmentRuntime
from rollbook.errors import UsageError
from rollbook.sandbox import SandboxError
from support.alive import eventually


def children() -> set[int]:
    """Return the child processes of this one, whichever thread started them."""
    return {int(pid) for listed in Path("/proc/self/task").glob("*/children") for pid in listed.read_text().split()}


def test_what_is_started_is_stopped_and_can_be_started_again():
    async def play() -> list[int]:
        env, before = HumanEval(), children()
        counts = []
        for _ in range(2):
            await env.start()
            counts.append(len(children() - before))
            assert (await env.box.run("print(1)")).stdout == "1\n"
            await env.stop()
            assert eventually(lambda: children() <= before)
        return counts

    assert min(asyncio.run(play())) > 0


def test_one_that_is_cancelled_while_it_starts_leaves_nothing_behind():
    async def play() -> None:
        env, before = HumanEval(), children()
        runtime = EnvironmentRuntime(load_instance(env).spec, Limits(), environment=lambda: env)
        opening = asyncio.create_task(runtime.open())
        await asyncio.sleep(0.02)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await runtime.close()
        assert eventually(lambda: children() <= before)

    asyncio.run(play())


class NoSandbox:
    def __init__(self, *_: object, **__: object) -> None:
        pass

    async def __aenter__(self) -> NoSandbox:
        raise SandboxError("the sandbox did not start:\nno namespaces here")


def test_where_there_is_no_sandbox_nothing_is_scored(monkeypatch, tmp_path):
    monkeypatch.setattr(sandboxed, "Sandbox", NoSandbox)
    script = tmp_path / "s.jsonl"
    script.write_text('{"answer": "x"}\n')

    async def play() -> None:
        async with Collector("humaneval", f"scripted:{script}"):
            pytest.fail("it must not open")

    with pytest.raises(UsageError) as refused:
        asyncio.run(play())
    said = "environment humaneval cannot start: the sandbox did not start: no namespaces here"
    assert str(refused.value) == said


RIGHT = """```python
def has_close_elements(n, t):
    n = sorted(n)
    return any(b - a < t for a, b in zip(n, n[1:]))
```"""


def test_the_collector_scores_in_the_sandbox(tmp_path):
    script = tmp_path / "s.jsonl"
    lines = [{"task": "HumanEval/0", "answer": RIGHT}, {"answer": "```python\nimport os\nos._exit(0)\n```"}]
    script.write_text("".join(json.dumps(line) + "\n" for line in lines))
    tasks = list(HumanEval().tasks())[:3]

    async def play() -> list[list[float]]:
        async with Collector("humaneval", f"scripted:{script}", samples=2) as collector:
            return sorted([[r.reward for r in group.rollouts] async for group in collector.groups(tasks)])

    before = children()
    assert asyncio.run(play()) == [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
    assert eventually(lambda: children() <= before)


def test_a_run_can_be_verified_again(tmp_path):
    script = tmp_path / "s.jsonl"
    script.write_text(json.dumps({"answer": RIGHT}) + "\n")

    def rollbook(*words: str) -> dict[str, object]:
        command = [sys.executable, "-m", "rollbook", *words, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    first = rollbook("run", "humaneval", "-m", f"scripted:{script}", "-n", "2", "-o", "first")
    again = rollbook("reverify", "first", "-o", "again")
    assert first["scored"] == again["scored"] == 2
    assert (again["verified"], again["changed"]) == (2, 0)
    assert first["environments"]["humaneval"]["mean"] == 0.5


BREAKING = """
from pathlib import Path
from rollbook import Environment, Task
from rollbook.sandbox import SandboxError


class Breaking(Environment):
    def __init__(self, mended: str):
        self.mended = Path(mended)

    def tasks(self):
        yield Task(id="t", prompt="?")

    async def verify(self, task, rollout):
        if not self.mended.exists():
            raise SandboxError("it broke")
        return 1.0
"""


def test_what_failed_for_want_of_a_sandbox_is_scored_later(tmp_path):
    (tmp_path / "breaking.py").write_text(BREAKING)
    (tmp_path / "s.jsonl").write_text('{"answer": "x"}\n')

    def rollbook(*words: str) -> tuple[int, dict[str, object]]:
        command = [sys.executable, "-m", "rollbook", *words, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
        return done.returncode, json.loads(done.stdout)

    spec = f"breaking.py:Breaking?mended={tmp_path / 'mended'}"
    code, first = rollbook("run", spec, "-m", "scripted:s.jsonl", "-o", "first")
    assert (code, first["scored"], first["failed"]) == (3, 0, {"sandbox_error": 1})
    (tmp_path / "mended").touch()
    code, again = rollbook("reverify", "first", "--only", "failed", "-o", "again")
    assert (code, again["scored"], again["verified"]) == (0, 1, 1)
