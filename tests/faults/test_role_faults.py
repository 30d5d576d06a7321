"""Models of roles that go away, and kill -9 of either side of the pipe: never a score, and the same seeds again."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import msgspec
import pytest

from rollbook.book import Book, rollouts
from rollbook.core import FailedLine
from support.alive import eventually
from support.commands import Commands
from support.role_server import RoleServer

ASYNC = """
from rollbook import Environment, Task

class Talk(Environment):
    roles = ("user",)

    def tasks(self):
        for number in range(6):
            yield Task(id=f"t{number}", prompt="Greet the user.")

    async def reply(self, task, rollout, state):
        if len(rollout.turns) == 3:
            return None
        return (await self.model("user").ask(f"{task.id}: {rollout.text}")).text

    async def verify(self, task, rollout):
        return 1.0
"""
SYNC = """
from rollbook import Environment, Task

class Talk(Environment):
    roles = ("user",)

    def tasks(self):
        for number in range(6):
            yield Task(id=f"t{number}", prompt="Greet the user.")

    def reply(self, task, rollout, state):
        if len(rollout.turns) == 3:
            return None
        return self.model("user").ask_blocking(f"{task.id}: {rollout.text}").text

    def verify(self, task, rollout):
        return 1.0
"""
FORMS = {"async": ASYNC, "sync": SYNC}


@pytest.fixture(params=FORMS)
def words(tmp_path: Path, request: pytest.FixtureRequest) -> list[str]:
    """The words of a run whose environment asks a user."""
    (tmp_path / "talk.py").write_text(FORMS[request.param])
    (tmp_path / "said.jsonl").write_text(json.dumps({"answer": "Good day."}))
    return ["run", "talk.py:Talk", "-m", "scripted:said.jsonl", "-c", "3", "--outage", "1"]


def seeds_by_task(path: Path) -> dict[str, list[int]]:
    return {r.task.id: [call.seed for call in r.role_calls] for r in rollouts(Book(path))}


def failed_lines(path: Path) -> list[FailedLine]:
    lines = [line for file in (path / "journals").glob("*.failures.jsonl") for line in file.read_text().splitlines()]
    return [msgspec.json.decode(line, type=FailedLine) for line in lines]


def test_a_role_that_goes_away_stops_the_run_costs_no_attempt_and_is_never_a_score(
    rollbook: Commands, tmp_path: Path, words: list[str]
) -> None:
    with RoleServer() as user:
        user.answer = lambda messages: stop(user, 503) if len(user.asked) > 8 else "Yes."
        done = rollbook.run(*words, "-o", "a", "--role", f"user={user.url}", within_s=120)
        assert done.code == 75, done.stderr
        assert "the model of the role user: no model answered for 1 s" in done.complaint
        assert "the model of the role user: no endpoint answers for" in done.stderr
        found = list(rollouts(Book(tmp_path / "a")))
        assert all(len(r.role_calls) == 2 for r in found if r.score)
        assert len([r for r in found if r.score]) < 6
        assert not failed_lines(tmp_path / "a")
        user.status, user.answer = 200, lambda messages: "Yes."
        again = rollbook.run("resume", "a", within_s=120)
        assert again.code == 0, again.stderr
    assert {len(seeds) for seeds in seeds_by_task(tmp_path / "a").values()} == {2}


def test_a_role_that_refuses_its_calls_is_a_role_error_after_three_attempts_and_never_a_score(
    rollbook: Commands, tmp_path: Path, words: list[str]
) -> None:
    with RoleServer() as user:
        user.answer = lambda messages: stop(user, 400) if len(user.asked) > 8 else "Yes."
        done = rollbook.run(*words, "-o", "a", "--role", f"user={user.url}", within_s=120)
        assert done.code == 3, done.stderr
        assert "role_error" in done.stderr
        found = list(rollouts(Book(tmp_path / "a")))
        assert all(len(r.role_calls) == 2 for r in found if r.score)
        assert len([r for r in found if r.score]) < 6
        attempts = {line.attempt for line in failed_lines(tmp_path / "a") if line.failure.kind == "role_error"}
        assert attempts == {1, 2, 3}
        user.status, user.answer = 200, lambda messages: "Yes."
        again = rollbook.run("resume", "a", within_s=120)
        assert again.code == 0, again.stderr
    assert {len(seeds) for seeds in seeds_by_task(tmp_path / "a").values()} == {2}


def stop(user: RoleServer, status: int) -> str:
    user.status = status
    return "Bye."


def test_after_kill_9_resume_asks_with_the_same_seeds(rollbook: Commands, tmp_path: Path, words: list[str]) -> None:
    with RoleServer() as user:
        calm = rollbook.run(*words, "-o", "calm", "--role", f"user={user.url}")
        assert calm.code == 0, calm.stderr
        user.asked.clear()
        user.delay_s = 0.2
        victim = rollbook.start(*words, "-o", "killed", "--role", f"user={user.url}")
        assert eventually(lambda: len(user.asked) >= 5, 30), victim.stderr
        victim.kill()
        assert rollbook.nothing_left(), "an environment process outlived its worker"
        done = rollbook.run("resume", "killed", within_s=60)
        assert done.code == 0, done.stderr
    assert seeds_by_task(tmp_path / "killed") == seeds_by_task(tmp_path / "calm")


def test_an_environment_process_that_is_killed_while_it_asks_is_replaced(rollbook: Commands, tmp_path: Path) -> None:
    (tmp_path / "talk.py").write_text(SYNC)
    (tmp_path / "said.jsonl").write_text(json.dumps({"answer": "Good day."}))
    with RoleServer(delay_s=0.5) as user:
        running = rollbook.start(
            "run", "talk.py:Talk", "-m", "scripted:said.jsonl", "-o", "a", "--role", f"user={user.url}"
        )
        assert eventually(lambda: len(user.asked) >= 1, 30), running.stderr
        killed = [pid for pid, command in rollbook.left().items() if "environment_process" in command]
        assert killed
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        user.delay_s = 0.0
        assert running.wait(60).code == 0, running.stderr
    assert {len(seeds) for seeds in seeds_by_task(tmp_path / "a").values()} == {2}
    assert {line.failure.kind for line in failed_lines(tmp_path / "a")} <= {"environment_error"}
    assert rollbook.nothing_left()
