"""The workplace: every task can be solved through the real tool loop, and only by doing exactly what it asks."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from rollbook.book import Book, rollouts
from rollbook.core import Rollout, Task, encode
from rollbook.environments.builtin.workplace.office import ME
from rollbook.environments.builtin.workplace.task_kinds import TASK_KINDS
from rollbook.environments.builtin.workplace.workplace import Workplace
from rollbook.environments.environment import execution_mode
from rollbook.environments.registry import resolve
from rollbook.environments.tools import Toolbox, tool_schemas
from rollbook.errors import UsageError
from support.tool_environment import call

TASKS = list(Workplace().tasks())
READS = ("find_", "list_", "search_", "get_", "read_")
SOMETHING_ELSE = {
    "name": "send_mail",
    "arguments": {"to": ["nora.lindqvist@brightwater.example"], "subject": "x", "body": "y"},
}


def writes(path: list[dict[str, object]]) -> list[dict[str, object]]:
    return [step for step in path if not str(step["name"]).startswith(READS)]


def list_attempts(task: Task) -> list[list[dict[str, object]]]:
    """Return calls by sample: the solution, no changes, all twice, an extra change, all but the last change."""
    done = writes(task.path)
    return [
        [*task.path, {"name": "search_mail", "arguments": {}}],
        [step for step in task.path if step not in done],
        [*task.path, *task.path],
        [*task.path, SOMETHING_ELSE],
        done[:-1],
    ]


def test_200_tasks_and_more_than_20_tools():
    assert len(TASKS) == 200
    assert [task.id for task in TASKS[:2]] == ["workplace-000", "workplace-001"]
    assert len({task.prompt for task in TASKS}) == 200
    assert len(tool_schemas(Workplace)) == 29
    assert str(len(tool_schemas(Workplace))) in Workplace.description
    assert execution_mode(Workplace) == execution_mode(resolve("workplace?size=3").cls)


def test_there_are_many_kinds_and_each_is_said_in_several_ways():
    kinds = Counter(task.kind for task in TASKS)
    assert set(kinds) == set(TASK_KINDS)
    assert "escalated" in kinds  # stored with tasks, whatever the function is called
    assert min(kinds.values()) >= 12
    for kind in kinds:
        assert len({task.prompt.split()[0] for task in TASKS if task.kind == kind}) > 1, kind


def test_every_task_takes_several_steps():
    for task in TASKS:
        assert len(writes(task.path)) >= 2, task.id
        assert len(task.path) > len(writes(task.path)), task.id


def test_all_that_a_task_needs_to_know_is_said_or_can_be_found_out():
    for task in TASKS:
        world, toolbox = Workplace().open(task), Toolbox(Workplace(), 1 << 20)
        known = "".join(message.text for message in task.messages)
        for step in task.path:
            for value in identifiers(step["arguments"]):
                assert value in known, (task.id, step)
            message = toolbox.use(step["name"], encode(step["arguments"]).decode(), world)
            known += message if step["name"].startswith(READS) else ""


def identifiers(arguments: dict[str, object]) -> list[str]:
    """Return all ids and addresses in arguments."""
    flat = [item for value in arguments.values() for item in (value if isinstance(value, list) else [value])]
    return [item for item in flat if isinstance(item, str) and ("@" in item or item[1:2] == "-")]


def test_the_tasks_are_those_that_they_always_were():
    lines = b"".join(encode(task.line()) for task in TASKS)
    assert hashlib.sha256(lines).hexdigest() == GOLDEN
    assert list(Workplace(size=20).tasks()) == TASKS[:20]
    assert [task.prompt for task in Workplace(size=20, seed=1).tasks()] != [task.prompt for task in TASKS[:20]]


def test_every_task_is_solved_by_its_path_alone(tmp_path: Path) -> None:
    lines = []
    for task in TASKS:
        for sample, path in enumerate(list_attempts(task)):
            steps = [{"tool_calls": [call(step["name"], step["arguments"], n)]} for n, step in enumerate(path)]
            message = [*steps, {"answer": "It is done."}]
            lines += [json.dumps({"task": task.id, "sample": sample, **one}) for one in message]
    script = tmp_path / "script.jsonl"
    script.write_text("\n".join(lines) + "\n")
    words = ["workplace", "-m", f"scripted:{script}", "-k", "5", "-o", str(tmp_path / "run"), "--max-turns", "100"]
    command = [sys.executable, "-m", "rollbook", "run", *words, "-c", "64"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    rewards: dict[int, Counter[float]] = {sample: Counter() for sample in range(5)}
    for rollout in rollouts(Book(tmp_path / "run")):
        rewards[rollout.sample][rollout.reward] += 1
        assert bool(rollout.score.info) == (rollout.reward == 0.0)
    assert rewards[0] == {1.0: 200}
    for sample in range(1, 5):
        assert rewards[sample] == {0.0: 200}, sample


def score_path(task: Task, path: list[dict[str, object]]) -> float:
    env = Workplace()
    world, toolbox = env.open(task), Toolbox(env, 1 << 20)
    for step in path:
        toolbox.use(step["name"], encode(step["arguments"]).decode(), world)
    rollout = Rollout(task=task, sample=0, seed=0, outcome=json.loads(encode(env.outcome(world))))
    return env.verify(task, rollout).reward


def test_neither_order_nor_spelling_matters():
    for task in TASKS[:32]:
        done = writes(task.path)
        free_of_order = task.kind not in ("closed_tickets", "swapped_attendee")
        assert score_path(task, done[::-1] if free_of_order else done) == 1.0, task.id
        loud = [{**step, "arguments": {k: respell(k, v) for k, v in step["arguments"].items()}} for step in done]
        assert score_path(task, loud) == 1.0, task.id


def respell(name: str, value: object) -> object:
    if name in ("title", "subject", "body", "text"):
        return f'  "{str(value).upper().rstrip(".")}" '
    return value[::-1] if isinstance(value, list) else value


def test_two_rollouts_have_two_worlds():
    env, task = Workplace(), TASKS[0]
    one, other = env.open(task), env.open(task)
    Toolbox(env, 1000).use("delete_mail", '{"mail_id": "M-101"}', one)
    assert env.outcome(one) == {"mails": {"removed": ["M-101"]}}
    assert env.outcome(other) == {}


def test_what_is_sent_stays_sent_whatever_is_deleted_afterwards():
    deletes = [{"name": "delete_mail", "arguments": {"mail_id": f"M-{number}"}} for number in range(117, 120)]
    for task in TASKS[:32]:
        assert score_path(task, [SOMETHING_ELSE, *deletes, *writes(task.path)]) == 0.0, task.id
        assert score_path(task, [*writes(task.path), *deletes]) == 1.0, task.id


@pytest.mark.parametrize("act", [("reply_mail", {"body": "x"}), ("forward_mail", {"to": [ME]})], ids=str)
def test_a_sent_mail_cannot_be_deleted_or_archived(act):
    env, (name, arguments) = Workplace(), act
    world, toolbox = env.open(TASKS[0]), Toolbox(env, 1000)
    toolbox.use(name, json.dumps({"mail_id": "M-101", **arguments}), world)
    assert "M-117 was sent, and what is sent cannot be deleted" in toolbox.use(
        "delete_mail", '{"mail_id": "M-117"}', world
    )
    assert "not in the inbox" in toolbox.use("archive_mail", '{"mail_id": "M-117"}', world)
    assert len(env.outcome(world)["mails"]["added"]) == 1


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("read_mail", {"mail_id": "M-999"}, "there is no 'M-999' among the mails"),
        ("send_mail", {"to": ["x@y.z"], "subject": "", "body": ""}, "nobody has the address 'x@y.z'"),
        ("send_mail", {"to": [], "subject": "", "body": ""}, "at least one address"),
        (
            "create_event",
            {"title": "", "start": "noon", "minutes": 5, "attendees": []},
            "write it like 2026-03-02 14:30",
        ),
        ("list_events", {"on": "tomorrow"}, "write it like 2026-03-02"),
        ("set_priority", {"ticket_id": "T-101", "priority": "asap"}, "do not fit"),
        ("find_free_time", {"attendees": [], "on": "2026-03-02", "minutes": 0}, "1 to 480"),
    ],
)
def test_what_is_wrong_with_a_call_is_said(tool, arguments, message):
    env = Workplace()
    world = env.open(TASKS[0])
    answer = Toolbox(env, 1000).use(tool, json.dumps(arguments), world)
    assert answer.startswith("Error")
    assert message in answer
    assert env.outcome(world) == {}


def test_a_size_of_nothing_is_refused():
    with pytest.raises(UsageError, match="size=0"):
        Workplace(size=0)


GOLDEN = "d40224b163dc805b50aaef2b73c9206f1cc5d11b3f0cc93c8940c1fa156e4823"
