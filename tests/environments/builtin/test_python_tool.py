"""Python as a tool: each rollout has its own session and clear results, and is scored on the answer."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rollbook.book import Book, rollouts
from rollbook.core import Limits, Message, Rollout, Task
from rollbook.environments.builtin.python_tool import INSTRUCTION, PythonTool
from rollbook.environments.registry import load_instance, resolve
from rollbook.environments.runtime import EnvironmentRuntime
from rollbook.environments.session import EnvironmentSession
from rollbook.errors import RolloutFailed, UsageError
from support.tool_environment import call, write_talk

TASK = Task("t", "?", answer="6")


def run_calls(*codes: str, task: Task = TASK, **arguments: object) -> list[str]:
    """Return the results of the tool, call by call, in one session."""

    async def play() -> list[str]:
        env = PythonTool(**arguments)  # type: ignore[arg-type]
        runtime = EnvironmentRuntime(load_instance(env).spec, Limits(), environment=lambda: env)
        runtime._pool = None  # nothing is verified here
        await runtime.open()
        try:
            session = await runtime.open_session(task, "t#0")
            output = [await session.use("python", json.dumps({"code": code})) for code in codes]
            await runtime.close_session(session)
            return output
        finally:
            await runtime.close()

    return asyncio.run(play())


def test_variables_stay_from_call_to_call():
    output = run_calls(
        "import math\nx = math.factorial(5)", "def twice(n):\n    return 2 * n", "print('so:')\ntwice(x)"
    )
    assert output == ["Done; nothing was printed.", "Done; nothing was printed.", "so:\nValue: 240"]


def test_an_error_is_told_and_the_state_is_kept():
    _, wrong, after = run_calls("x = 1", "y = 2\n1 / 0", "x, y")
    assert wrong.endswith("ZeroDivisionError: division by zero")
    assert after == "Value: (1, 2)"


ENDS = {"timeout": "while True: pass", "exit": "import os\nos._exit(1)", "crash": "import ctypes\nctypes.string_at(0)"}


@pytest.mark.parametrize("end", ENDS)
def test_what_ends_the_process_is_undone_and_told(end):
    _, wrong, after = run_calls("x = 1", f"x = 2\n{ENDS[end]}", "x", seconds=0.3)
    assert wrong.endswith("Variables are as they were before this call.")
    assert after == "Value: 1"


def test_without_snapshots_the_loss_is_told_twice():
    _, wrong, after, then = run_calls("x = 1", "while True: pass", "y = 5\ny", "y", seconds=0.3, snapshot=False)
    assert wrong.endswith("All variables are lost; the next call begins afresh.")
    assert after == "Earlier variables were lost; this call began afresh.\nValue: 5"
    assert then == "Value: 5"


def test_a_rows_files_lie_in_the_folder():
    task = Task("t", "?", answer="6", files={"data/numbers.csv": "a\n1\n2\n3\n"})
    (output,) = run_calls("sum(int(line) for line in open('data/numbers.csv').read().split()[1:])", task=task)
    assert output == "Value: 6"


def test_output_is_bounded():
    (output,) = run_calls("print('x' * 10_000_000)")
    assert len(output) < 10_000
    assert "characters left out" in output


def test_no_more_sessions_than_allowed_and_each_its_own():
    async def one(runtime: EnvironmentRuntime, number: int) -> str:
        session: EnvironmentSession = await runtime.open_session(TASK, f"t#{number}")
        await session.use("python", json.dumps({"code": f"x = {number}"}))
        output = await session.use("python", '{"code": "x"}')
        await runtime.close_session(session)
        return output

    async def play() -> list[str]:
        env = PythonTool(sessions=2)
        runtime = EnvironmentRuntime(load_instance(env).spec, Limits(), environment=lambda: env)
        await runtime.open()
        try:
            return await asyncio.gather(*(one(runtime, number) for number in range(6)))
        finally:
            await runtime.close()

    assert asyncio.run(play()) == [f"Value: {number}" for number in range(6)]


def test_a_sandbox_that_is_gone_is_a_failure():
    async def play() -> RolloutFailed:
        env = PythonTool()
        runtime = EnvironmentRuntime(load_instance(env).spec, Limits(), environment=lambda: env)
        await runtime.open()
        try:
            session = await runtime.open_session(TASK, "t#0")
            await asyncio.to_thread(env.box.close)
            with pytest.raises(RolloutFailed) as failed:
                await session.use("python", '{"code": "1"}')
            return failed.value
        finally:
            await runtime.close()

    assert asyncio.run(play()).kind == "sandbox_error"


def rows(folder: Path, *values: dict[str, object]) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in values))
    return str(path)


def test_rows_are_asked_and_the_final_answer_is_scored(tmp_path):
    env = PythonTool(data=rows(tmp_path, {"id": "a", "problem": "2 * 3?", "answer": "\\boxed{6}"}))
    (task,) = env.tasks()
    assert (task.id, task.answer, task.prompt) == ("a", "6", f"2 * 3?\n\n{INSTRUCTION}")
    for text, reward in (("\\boxed{6}", 1.0), ("It is 6.0", 1.0), ("\\boxed{7}", 0.0), ("", 0.0)):
        rollout = Rollout(task=task, sample=0, seed=0, messages=[*task.messages, Message("assistant", text)])
        assert env.verify(task, rollout).reward == reward, text


def test_gsm8k_is_asked_without_rows():
    tasks = list(PythonTool().tasks())
    assert (len(tasks), tasks[0].id, tasks[0].answer) == (1319, "gsm8k-0000", "18")
    assert resolve("python_tool").spec.state == "async"
    assert resolve("python_tool").spec.verify == "sync"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"problem": "?"}, "rows.jsonl:1: no answer"),
        ({"problem": "?", "answer": "1", "files": ["a"]}, "rows.jsonl:1: files must be an object"),
        ({"problem": "?", "answer": "1", "files": {"a": 1}}, "rows.jsonl:1: files must be an object"),
        ({"problem": "?", "answer": "1", "files": {"../a": ""}}, "rows.jsonl:1: file name '../a'"),
    ],
)
def test_a_bad_row_is_named(row, words, tmp_path):
    with pytest.raises(UsageError, match=words):
        list(PythonTool(data=rows(tmp_path, row)).tasks())


def test_conversations_are_played_through_the_tool_loop(tmp_path):
    data = rows(tmp_path, *({"id": name, "problem": "The sum of 1 to 100?", "answer": "5050"} for name in "abcd"))
    script = write_talk(
        tmp_path,
        {
            "a": [
                call("python", {"code": "total = sum(range(101))"}),
                call("python", {"code": "total"}),
                "\\boxed{5050}",
            ],
            "b": [call("python", {"code": "1 / 0"}), call("python", {"cod": "1"}), call("ruby", {}), "\\boxed{0}"],
            "c": [[call("python", {"code": "x = 5050"}, 1), call("python", {"code": "print(x)"}, 2)], "It is 5,050."],
            "d": ["I know: 5050"],
        },
    )
    command = [sys.executable, "-m", "rollbook", "run", "python_tool", "--data", data, "-m", script]
    done = subprocess.run([*command, "-o", str(tmp_path / "run")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = {rollout.task.id: rollout for rollout in rollouts(Book(tmp_path / "run"))}
    assert {name: rollout.reward for name, rollout in found.items()} == {"a": 1.0, "b": 0.0, "c": 1.0, "d": 1.0}
    assert found["a"].outcome == {"calls": 2, "errors": 0}
    assert found["b"].outcome == {"calls": 1, "errors": 1}
    output = {name: [m.text for m in r.messages if m.role == "tool"] for name, r in found.items()}
    assert output["a"] == ["Done; nothing was printed.", "Value: 5050"]
    assert output["c"] == ["Done; nothing was printed.", "5050"]
    assert output["b"][0].endswith("ZeroDivisionError: division by zero")
    assert "there is no tool called 'ruby'" in output["b"][2]


def test_its_solution_is_a_conversation():
    calls, answer = PythonTool().solution(TASK)
    assert json.loads(calls) == {"calls": [{"name": "python", "arguments": {"code": "print('6')"}}]}
    assert answer == "\\boxed{6}"
