"""MCP servers that break in the middle of a run: a failure for those that it concerns, and no process left behind."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import support.mcp_server
from support.alive import alive, eventually
from support.book_assertions import assert_adds_up, assert_complete
from support.commands import MARK, Commands
from support.tool_environment import call, write_talk

SOURCE = f"""
import sys
from rollbook import Environment, McpServer, Task, tool

COMMAND = [sys.executable, {support.mcp_server.__file__!r}]


class Shared(Environment):
    mcp = [McpServer(command=COMMAND, env=[{MARK!r}, "EXTRA_TOOL"])]

    def __init__(self, tasks=6):
        self.count = tasks

    def tasks(self):
        for i in range(self.count):
            yield Task(id=f"t{{i}}", prompt="Add.", answer="so")

    def verify(self, task, rollout):
        return rollout.text == task.answer


class Own(Shared):
    mcp = [McpServer(command=COMMAND, env=[{MARK!r}, "EXTRA_TOOL"], per_rollout=True)]

    @tool
    async def whisper(self, text: str) -> str:
        "Say it softly."
        return text.lower()
"""


def written(folder: Path, name: str, talks: dict[str, list[object]], **extra: object) -> tuple[str, str]:
    (folder / "env.py").write_text(SOURCE)
    return f"{folder}/env.py:{name}?tasks={len(talks)}", write_talk(folder, talks, **extra)


def lines(run: Path, failures: bool = False) -> list[dict[str, Any]]:
    paths = [p for p in run.glob("journals/*.jsonl") if p.name.endswith(".failures.jsonl") == failures]
    return [json.loads(line) for p in paths for line in p.read_text().splitlines()]


def test_what_breaks_fails_its_own_rollout_and_what_the_model_does_wrong_is_told_to_it(rollbook: Commands) -> None:
    run = rollbook.folder / "run"
    broken = [call("add", "{"), call("add", {"a": "x"}), call("refuse", {"why": "no"}), call("whisper", {"text": "A"})]
    fine = [broken, call("flood", {"size": 3_000_000}), call("add", {"a": 3}), "so"]
    talks: dict[str, list[object]] = {"t0": [call("hang"), "so"], "t1": [call("die"), "so"], "t2": fine}
    env, script = written(rollbook.folder, "Own", talks)
    limits = "limits=Limits(tool_s=3.0), attempts={'environment_error': 1}, allow_shortfall=True"
    words = f"from rollbook.core import Limits; rollbook.run({env!r}, {script!r}, out={str(run)!r}, {limits})"
    done = rollbook.python("-c", f"import rollbook; {words}", EXTRA_TOOL="").wait(90)
    assert done.code == 0, done.stderr
    assert_adds_up(json.loads((run / "metrics.json").read_text()), 3)
    failed = {line["task"]: line["failure"] for line in lines(run, failures=True)}
    assert {task: (f["kind"], f["where"]) for task, f in failed.items()} == {
        "t0": ("environment_error", "tool hang"),
        "t1": ("environment_error", "tool die"),
    }
    (line,) = lines(run)
    told = [message["content"] for message in line["messages"] if message["role"] == "tool"]
    assert [words.splitlines()[-1] for words in told] == [
        "Error: the arguments of add are not valid JSON at line 1 column 2: "
        "Expecting property name enclosed in double quotes; write a JSON object",
        "Error: the arguments of add do not fit: Expected `integer`, got `string` - at `$.a`",
        "Error: Error executing tool refuse: no",
        "a",
        "[cut here: 2983616 of 3000000 characters left out]",
        "3",
    ]
    assert (line["task"], line["reward"]) == ("t2", 1.0)
    assert rollbook.nothing_left(), rollbook.left()
    assert list(json.loads((run / "tools" / "Own.json").read_text()))[:2] == ["add", "die"]
    resumed = rollbook.run("resume", run, EXTRA_TOOL="1")
    assert resumed.code == 2
    assert resumed.complaint.endswith("its MCP servers have changed: new extra; start a new run")
    assert rollbook.nothing_left(), rollbook.left()


def servers(rollbook: Commands) -> list[int]:
    return [
        pid
        for pid, words in rollbook.left().items()
        if "mcp_server" in words and "rollbook.processes.supervisor" not in words
    ]


def test_a_server_that_is_killed_in_the_middle_is_started_again_and_all_is_scored(rollbook: Commands) -> None:
    run = rollbook.folder / "run"
    talks: dict[str, list[object]] = {f"t{i}": [call("add", {"a": 1})] * 3 + ["so"] for i in range(6)}
    env, script = written(rollbook.folder, "Shared", talks, delay_s=0.2)
    process = rollbook.start("run", env, "-m", script, "-c", 2, "-o", run, EXTRA_TOOL="")
    assert eventually(lambda: bool(lines(run)) or process.code is not None, 60), process.stderr
    (pid,) = servers(rollbook)
    os.kill(pid, signal.SIGKILL)
    assert process.wait(60).code == 0, process.stderr
    assert_complete(run)
    assert all(line["reward"] == 1.0 for line in lines(run))
    assert {line["failure"]["kind"] for line in lines(run, failures=True)} <= {"environment_error"}
    again = rollbook.run("reverify", run, "-o", rollbook.folder / "again")
    assert again.code == 0, "to score what was played no server is needed: " + again.stderr
    assert rollbook.nothing_left(), rollbook.left()


def test_no_server_outlives_a_worker_that_was_killed(rollbook: Commands) -> None:
    talks: dict[str, list[object]] = {"t0": [call("hang")]}
    env, script = written(rollbook.folder, "Shared", talks)
    process = rollbook.start("run", env, "-m", script, "-o", rollbook.folder / "run", EXTRA_TOOL="")
    assert eventually(lambda: bool(servers(rollbook)) or process.code is not None, 60), process.stderr
    (pid,) = servers(rollbook)
    process.kill()
    assert eventually(lambda: not alive(pid), 20)
    assert rollbook.nothing_left(), rollbook.left()


def test_a_server_that_will_not_start_refuses_the_run_in_one_line(rollbook: Commands) -> None:
    (rollbook.folder / "env.py").write_text(SOURCE.replace("COMMAND = [", "COMMAND = ['no-such-command', "))
    env, script = f"{rollbook.folder}/env.py:Shared", write_talk(rollbook.folder, {"t0": ["so"]})
    done = rollbook.run("run", env, "-m", script, "-o", rollbook.folder / "run", EXTRA_TOOL="")
    assert done.code == 2
    assert done.complaint.endswith("(cannot start no-such-command: No such file or directory)")
    assert sys.executable in done.complaint
