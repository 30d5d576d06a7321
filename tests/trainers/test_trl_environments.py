"""TRL's environment_factory: tools as methods with types and a docstring, state of its own, our verdict."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from rollbook.errors import RolloutFailed, UsageError
from rollbook.trainers.trl import Environments

SHOP = '''
from rollbook import Environment, Task, tool


class Shop(Environment):
    def tasks(self):
        yield Task(id="two", prompt="Buy two apples.", answer=2)
        yield Task(id="odd", prompt="Buy nothing.", answer=0, broken=True)

    def open(self, task):
        return {"apples": 0}

    @tool
    def buy(self, state, count: int, kind: str = "red") -> str:
        """Buy apples.

        Args:
            count: how many
            kind: of which kind
        """
        state["apples"] += count
        return f"You have {state['apples']} {kind} apples."

    def outcome(self, state):
        return state["apples"]

    def verify(self, task, rollout):
        assert "broken" not in task.fields
        return rollout.outcome == task.answer and rollout.text == "Done."
'''


@pytest.fixture
def shop(tmp_path: Path) -> str:
    path = tmp_path / "shop_env.py"
    path.write_text(SHOP)
    return f"{path}:Shop"


def test_tools_have_types_and_words_and_a_state_for_each_rollout(shop: str) -> None:
    environments = Environments(shop)
    one, other = environments(), environments()
    for environment in (one, other):
        assert environment.reset(**environments.rows()[0]) is None
    buy = one.buy  # type: ignore[attr-defined]
    assert buy.__annotations__ == {"count": int, "kind": str, "return": str}
    assert list(inspect.signature(buy).parameters) == ["count", "kind"]
    assert "Args:\n    count: how many" in (buy.__doc__ or "")
    assert buy(count=1) == "You have 1 red apples."
    assert buy(count=1, kind="green") == "You have 2 green apples."
    assert "number" in other.buy(number=3)  # type: ignore[attr-defined] - a mistake is told, not raised
    done = [{"role": "assistant", "content": "Done."}]
    assert environments.reward(completions=[done, done], environments=[one, other], prompts=[]) == [1.0, 0.0]
    one.reset(task="two")
    assert environments.reward(completions=["Done."], environments=[one]) == [0.0]
    environments.close()


def test_a_verdict_that_fails_raises_or_is_none_and_counted(shop: str) -> None:
    spec = shop
    for on_failure in ("raise", "mask"):
        environments = Environments(spec, on_failure=on_failure)  # type: ignore[arg-type]
        environment = environments()
        environment.reset(task="odd")
        if on_failure == "raise":
            with pytest.raises(RolloutFailed, match="verifier_error"):
                environments.reward(completions=["Done."], environments=[environment])
        else:
            assert environments.reward(completions=["Done."], environments=[environment]) == [None]
            assert environments.masked == 1
        environments.close()


def test_what_trl_cannot_do_is_refused(shop: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="raise or mask"):
        Environments(shop, on_failure="drop_group")
    path = tmp_path / "talk_env.py"
    replies = "    def reply(self, task, rollout, state):\n        return None\n\n    def open"
    path.write_text(SHOP.replace("    def open", replies).replace("Shop", "Talk"))
    with pytest.raises(UsageError, match="replies to the model; use Rollouts"):
        Environments(f"{path}:Talk")
