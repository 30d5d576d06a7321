"""The simulated user: it sees the conversation from its side, and ends it when it is done or at its limits."""

import json
import shutil
from pathlib import Path

import pytest

from rollbook import Shortfall, run
from rollbook.book import Book, rollouts
from support.role_server import RoleServer

EXAMPLE = Path(__file__).parents[3] / "examples/simulated_user"
TALK = """
from rollbook import Task, UserSimulator

class Talk(UserSimulator):
    max_user_turns = 3
    max_user_tokens = 40

    def tasks(self):
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "I need help."}]
        yield Task("t", messages=messages, goal="Learn the time.", persona="A tired traveller.")

    async def verify(self, task, rollout):
        return 1.0
"""


def play(folder: Path, user: RoleServer, source: str = TALK, **options):
    (folder / "talk.py").write_text(source)
    (folder / "said.jsonl").write_text(json.dumps({"answer": "<think>Hm.</think>It is noon."}))
    options = {"attempts": {"role_error": 1, "environment_error": 1}, **options}
    model = f"scripted:{folder / 'said.jsonl'}"
    run(f"{folder / 'talk.py'}:Talk", model, out=folder / "a", roles={"user": user.url}, progress=False, **options)
    (rollout,) = rollouts(Book(folder / "a"))
    return rollout


def test_the_user_sees_the_conversation_from_its_own_side(tmp_path):
    with RoleServer(lambda messages: "Thanks, [DONE]" if len(messages) > 5 else "And where am I?") as user:
        found = play(tmp_path, user)
        first, second = (body["messages"] for body in user.asked)
    assert first[0]["role"] == "system"
    assert "A tired traveller." in first[0]["content"]
    assert "Learn the time." in first[0]["content"]
    assert [(m["role"], m["content"]) for m in second[2:]] == [
        ("assistant", "I need help."),
        ("user", "It is noon."),
        ("assistant", "And where am I?"),
        ("user", "It is noon."),
    ]
    assert [(m.role, m.text) for m in found.messages[1:]] == [
        ("user", "I need help."),
        ("assistant", "<think>Hm.</think>It is noon."),
        ("user", "And where am I?"),
        ("assistant", "<think>Hm.</think>It is noon."),
    ]
    assert [call.text for call in found.role_calls] == ["And where am I?", "Thanks, [DONE]"]


def test_its_turns_are_limited(tmp_path):
    with RoleServer(lambda messages: "More?") as user:
        found = play(tmp_path, user)
    assert len(found.role_calls) == 3
    assert len(found.turns) == 4
    assert found.reward == 1.0


def test_its_tokens_are_limited_together(tmp_path):
    with RoleServer(lambda messages: "word " * 25) as user:
        found = play(tmp_path, user)
        assert [body["max_tokens"] for body in user.asked] == [40, 15]
    assert len(found.role_calls) == 2


def test_a_user_that_writes_nothing_is_a_role_error(tmp_path):
    with RoleServer(lambda messages: "") as user, pytest.raises(Shortfall) as caught:
        play(tmp_path, user)
    assert caught.value.failed == {"role_error": 1}


def test_a_task_without_a_goal_is_named(tmp_path):
    with RoleServer() as user, pytest.raises(Shortfall, match="task 't' has no goal for its user"):
        play(tmp_path, user, TALK.replace('goal="Learn the time.", ', ""))


def test_the_example_is_scored_by_the_orders_that_are_left(tmp_path):
    folder = tmp_path / "desk"
    shutil.copytree(EXAMPLE, folder)
    model, user = (f"scripted:{folder / name}" for name in ("answers.jsonl", "user.jsonl"))
    run(f"{folder / 'orders.py'}:HelpDesk", model, out=folder / "a", roles={"user": user}, progress=False)
    found = {r.task.id: r for r in rollouts(Book(folder / "a"))}
    assert {name: (r.reward, r.score.parts) for name, r in found.items()} == {
        "cancel": (1.0, {"orders": 1.0}),
        "too_late": (0.0, {"orders": 0.5}),
    }
    assert found["cancel"].outcome["A17"]["status"] == "cancelled"
    assert [len(r.role_calls) for r in found.values()] == [3, 3]
