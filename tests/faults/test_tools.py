"""Tools that break, conversations that are broken off: a failure for exactly those, every state accounted for."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

from support.alive import eventually
from support.book_assertions import all_keys, assert_adds_up, assert_complete, scored_keys
from support.commands import Commands, Process
from support.tool_environment import SYNC, call, life, write_desk, write_talk

POISONS = {
    "hang": call("hang"),
    "die": call("die"),
    "lost": call("fail", {"how": "lost"}),
    "exit": call("fail", {"how": "exit"}),
    "thing": call("thing"),
}
HARMLESS = {
    "flood": call("flood"),
    "value": call("fail", {"how": "value"}),
    "unknown": call("no_such_tool"),
    "broken": call("add", '{"a": '),
    "fine": call("whose"),
}
TASKS = 40


def named(number: int) -> str:
    """Every eighth task is poisoned; the others are harmless."""
    if number % 8 == 4:
        return list(POISONS)[number // 8]
    return list(HARMLESS)[number % len(HARMLESS)]


def sum_up(number: int) -> list[object]:
    """A conversation that adds up to the right total, with something else in the middle."""
    between = {**POISONS, **HARMLESS}[named(number)]
    return [call("add", {"a": number}), between, call("add", {"a": number}), call("whose"), "so"]


def failures(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for p in run.glob("journals/*.failures.jsonl") for line in p.read_text().splitlines()]


def scores(run: Path) -> list[dict[str, Any]]:
    paths = [p for p in run.glob("journals/*.jsonl") if not p.name.endswith(".failures.jsonl")]
    return [json.loads(line) for p in paths for line in p.read_text().splitlines()]


def test_tools_that_break_fail_their_own_rollouts_and_cost_nobody_an_attempt(rollbook: Commands) -> None:
    folder, run = rollbook.folder, rollbook.folder / "run"
    env = write_desk(folder, tasks=TASKS)
    script = write_talk(folder, {f"desk-{i}": sum_up(i) for i in range(TASKS)})
    done = rollbook.run("run", env, "-m", script, "-c", 16, "--tool-timeout", 2, "-o", run, "--json", within_s=90)
    assert done.code == 3, done.stderr
    assert "Traceback" not in done.stderr
    report = json.loads((run / "metrics.json").read_text())
    assert_adds_up(report, TASKS)
    assert report["failed"] == {"environment_error": len(POISONS)}
    poisoned = {f"desk-{i}" for i in range(TASKS) if named(i) in POISONS}
    assert {task for task, _ in all_keys(run)} - {task for task, _ in scored_keys(run)} == poisoned
    tried = failures(run)
    assert Counter(line["task"] for line in tried) == dict.fromkeys(poisoned, 3)
    assert {line["failure"]["where"] for line in tried} == {"tool hang", "tool die", "tool fail", "tool thing"}
    assert all(line["reward"] == 1.0 and line["attempt"] == 1 for line in scores(run))
    floods = [m["content"] for line in scores(run) for m in line["messages"] if "cut here" in (m.get("content") or "")]
    assert floods
    assert max(map(len, floods)) < 17_000
    assert rollbook.nothing_left(), rollbook.left()


def begun(rollbook: Commands, delay_s: float, *words: object) -> tuple[Process, Path]:
    """A run of long conversations, some way into them."""
    folder, run = rollbook.folder, rollbook.folder / "run"
    env = write_desk(folder, tasks=6)
    talks = {f"desk-{i}": [call("add", {"a": i}), call("add", {"a": i}), "so"] for i in range(6)}
    script = write_talk(folder, talks, delay_s=delay_s)
    process = rollbook.start("run", env, "-m", script, "-c", 4, "-o", run, *words)
    assert eventually(lambda: (folder / "desk.log").exists() and sum(life(folder)[0].values()) >= 4, 30), process.stderr
    return process, run


def test_a_worker_killed_in_the_middle_of_conversations_loses_only_those(rollbook: Commands) -> None:
    process, run = begun(rollbook, 0.4)
    assert eventually(lambda: bool(scored_keys(run)) or process.code is not None, 30), process.stderr
    process.kill()
    assert rollbook.nothing_left(), rollbook.left()
    durable = set(scored_keys(run))
    opened = life(rollbook.folder)[0]
    resumed = rollbook.run("resume", run, within_s=60)
    assert resumed.code == 0, resumed.stderr
    assert_complete(run)
    assert all(line["reward"] == 1.0 for line in scores(run))
    again = life(rollbook.folder)[0] - opened
    assert not {task for task, _ in durable} & set(again), "a scored rollout was played again"
    assert not failures(run)


def test_states_are_closed_when_a_run_is_stopped_at_once(rollbook: Commands) -> None:
    process, _ = begun(rollbook, 30.0)
    process.signal(signal.SIGINT)
    assert eventually(lambda: "draining" in process.stderr, 10)
    process.signal(signal.SIGINT)
    assert process.wait(30).code == 75
    opened, closed = life(rollbook.folder)
    assert opened == closed
    assert rollbook.nothing_left(), rollbook.left()


def test_an_edited_limit_is_another_run(rollbook: Commands) -> None:
    process, run = begun(rollbook, 0.0, "--max-turns", 2)
    assert process.wait(60).code == 0, process.stderr
    assert {line["ended"] for line in scores(run)} == {"max_turns"}
    manifest = json.loads((run / "run.json").read_text())
    assert manifest["limits"]["max_turns"] == 2
    manifest["limits"]["max_turns"] = 9
    (run / "run.json").write_text(json.dumps(manifest))
    done = rollbook.run("extend", run, "-k", 2)
    assert done.code == 2
    assert "run.json was edited since the run began" in done.complaint


def test_an_environment_that_dies_with_every_tool_comes_to_an_end(rollbook: Commands) -> None:
    folder, run = rollbook.folder, rollbook.folder / "run"
    env = write_desk(folder, SYNC, tasks=4)
    script = write_talk(folder, {f"desk-{i}": [call("die")] for i in range(4)})
    done = rollbook.run("run", env, "-m", script, "-o", run, "--json", within_s=90)
    assert done.code == 3, done.stderr
    report = json.loads((run / "metrics.json").read_text())
    assert_adds_up(report, 4)
    assert report["failed"] == {"environment_error": 4}
    assert rollbook.nothing_left(), rollbook.left()
