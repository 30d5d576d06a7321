"""The real embedded model plays the user of a conversation, next to the policy, and is recorded apart from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollbook import reverify, run
from rollbook.book import Book, rollouts
from rollbook.core import derive_role_seed

pytestmark = pytest.mark.model

TALK = """
from rollbook import Task, UserSimulator

class Talk(UserSimulator):
    max_user_turns = 2
    max_message_tokens = 24

    def tasks(self):
        for name in ("tea", "coffee"):
            yield Task(id=name, prompt=f"Hello, I would like some {name}.", goal=f"Order {name} without sugar.")

    async def verify(self, task, rollout):
        return float(len(rollout.turns) > 1)
"""


def test_a_real_model_plays_the_user(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="the embedded model's runtime is not installed")
    (tmp_path / "talk.py").write_text(TALK)
    options = {"roles": {"user": "embedded"}, "max_tokens": 24, "progress": False}
    result = run(f"{tmp_path / 'talk.py'}:Talk", out=tmp_path / "a", **options)
    book = Book(tmp_path / "a")
    assert book.manifest.roles["user"].model.kind == "embedded"
    for one in rollouts(book, tokens=True):
        assert 1 <= len(one.role_calls) <= 2
        for call in one.role_calls:
            assert call.seed == derive_role_seed(one.seed, "user", call.number)
            assert 0 < call.completion_tokens <= 24
            assert call.prompt_tokens > 50
        assert sum(turn.completion_tokens for turn in one.turns) == one.usage.completion_tokens
        said = [m.text for m in one.messages if m.role == "user"][1:]
        assert said == [call.text for call in one.role_calls][: len(said)]
    use = result.report.roles["user"]
    assert (use.calls, use.cost) == (sum(len(r.role_calls) for r in rollouts(book)), None)


JUDGED = """
from rollbook import Environment, Task

class Judged(Environment):
    roles = ("judge",)

    def tasks(self):
        yield Task(id="sky", prompt="What colour is the sky?")

    async def verify(self, task, rollout):
        call = await self.model("judge").ask("Is this polite? " + rollout.text, max_tokens=8)
        return float(bool(call.text))
"""


def test_a_real_model_judges_and_judges_again(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="the embedded model's runtime is not installed")
    (tmp_path / "judged.py").write_text(JUDGED)
    (tmp_path / "said.jsonl").write_text('{"answer": "Blue, sir."}')
    model = f"scripted:{tmp_path / 'said.jsonl'}"
    result = run(f"{tmp_path / 'judged.py'}:Judged", model, judge="embedded", out=tmp_path / "a", progress=False)
    assert (result.report.scored, result.report.roles["judge"].calls) == (1, 1)
    again = reverify(tmp_path / "a", tmp_path / "b", judge="embedded")
    assert (again.report.scored, again.changed) == (1, 0)
