"""Tools of a single task: read from the environment, shown to the model, executed on the loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from rollbook import run
from rollbook.core import JSON, Limits, Task
from rollbook.environments.environment import Environment, ExecutionMode, execution_mode, overrides
from rollbook.environments.registry import load_instance, resolve
from rollbook.environments.runtime import EnvironmentRuntime
from rollbook.environments.tools import find_argument_error, read_offered_tools, tool
from rollbook.errors import RolloutFailed, UsageError

T = TypeVar("T")


def offer(name: str, **properties: JSON) -> dict[str, JSON]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


class Shop(Environment):
    def tasks(self):
        yield Task(id="a", prompt="q", goods=["tea"])

    async def verify(self, task, rollout):
        return True

    async def open(self, task):
        return []

    @tool
    async def look(self) -> str:
        """Look around."""
        return "tea"

    def offers(self, task):
        return [offer(f"buy_{name}", count={"type": "integer"}) for name in task.fields["goods"]]

    async def use(self, name, arguments, state):
        state.append([name, arguments])
        match arguments["count"]:
            case 0:
                raise ValueError("none is no purchase")
            case 1:
                raise ConnectionError("the shop is closed")
            case 2:
                await asyncio.sleep(60)
        return "x" * arguments["count"]

    async def close(self, state):
        self.closed = True


def with_session(environment: Environment, work: Callable[[Any], Awaitable[T]], *, goods: JSON = ("tea",)) -> T:
    async def go() -> T:
        runtime = EnvironmentRuntime(
            load_instance(environment).spec, Limits(tool_s=0.5, tool_chars=200), environment=lambda: environment
        )
        await runtime.open()
        try:
            session = await runtime.open_session(Task(id="a", prompt="q", goods=goods), "a")
            try:
                return await work(session)
            finally:
                await runtime.close_session(session)
        finally:
            await runtime.close()

    return asyncio.run(go())


def test_a_seat_has_its_own_tools_and_those_of_its_task() -> None:
    async def work(session: Any) -> list[str]:
        assert await session.use("look", "") == "tea"
        assert await session.use("buy_milk", '{"count": 3}') == "xxx"
        return [tool["function"]["name"] for tool in session.tools]

    assert with_session(Shop(), work, goods=["tea", "milk"]) == ["look", "buy_tea", "buy_milk"]
    assert load_instance(Shop()).spec.offers
    assert [tool["function"]["name"] for tool in load_instance(Shop()).spec.tools] == ["look"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("{", "the arguments of buy_tea are not valid JSON at line 1 column 2"),
        ("[]", "the arguments of buy_tea are not a JSON object but a list"),
        ("{}", "the arguments of buy_tea do not fit: Object missing required field `count`"),
        ('{"count": "3"}', "the arguments of buy_tea do not fit: Expected `integer`, got `string` - at `$.count`"),
        ('{"count": 0}', "ValueError: none is no purchase"),
    ],
)
def test_what_the_model_gets_wrong_is_told_to_it(arguments: str, words: str) -> None:
    text = with_session(Shop(), lambda session: session.use("buy_tea", arguments))
    assert text.startswith(f"Error: {words}")


@pytest.mark.parametrize(("count", "words"), [(1, "the shop is closed"), (2, "took longer than 0.5 s")])
def test_a_world_that_breaks_fails_the_attempt_and_closes_the_state(count: int, words: str) -> None:
    shop = Shop()
    with pytest.raises(RolloutFailed, match=words) as caught:
        with_session(shop, lambda session: session.use("buy_tea", json.dumps({"count": count})))
    assert (caught.value.kind, caught.value.where) == ("environment_error", "tool buy_tea")
    assert shop.closed


def test_output_is_cut() -> None:
    text = with_session(Shop(), lambda session: session.use("buy_tea", '{"count": 260}'))
    assert text == f"{'x' * 200}\n[cut here: 60 of 260 characters left out]"


def test_offers_that_raise_fail_the_attempt_and_close_the_state() -> None:
    shop = Shop()
    with pytest.raises(RolloutFailed, match="TypeError: 'NoneType' object is not iterable") as caught:
        with_session(shop, lambda session: session.use("look", ""), goods=None)
    assert (caught.value.kind, caught.value.where) == ("environment_error", "offers")
    assert shop.closed


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([offer("look")], "offers(task) names 'look', and so does the @tool method look: rename one"),
        ([offer("a"), offer("a")], "names 'a', and so does it once more"),
        ([offer("a b")], "names 'a b'; models take up to 64 ASCII letters"),
        (None, "returned a NoneType; it must be a list"),
        (["a"], "returned 'a'; each must be"),
        ([{"function": {}}], "each must be"),
        ([{"function": {"name": "a", "parameters": {"type": "string"}}}], "gives a parameters that are not the schema"),
    ],
)
def test_offers_that_no_model_can_be_shown_are_the_environments_mistake(given: object, words: str) -> None:
    with pytest.raises(RolloutFailed) as caught:
        read_offered_tools(given, {"look": "the @tool method look"})
    assert words in caught.value.message
    assert caught.value.kind == "environment_error"


def test_what_an_offer_leaves_out_is_filled_in_and_what_it_adds_is_kept() -> None:
    found = read_offered_tools([{"function": {"name": "a", "strict": True}}], {})
    function = {
        "name": "a",
        "strict": True,
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    }
    assert found == {"a": {"type": "function", "function": function}}


@pytest.mark.parametrize(
    ("schema", "value", "fits"),
    [
        ({"type": "integer"}, 3, True),
        ({"type": "integer"}, 3.0, True),
        ({"type": "integer"}, 3.5, False),
        ({"type": "integer"}, True, False),
        ({"type": "number"}, 3, True),
        ({"type": "number"}, True, False),
        ({"type": "boolean"}, True, True),
        ({"type": ["string", "null"]}, None, True),
        ({"type": "string"}, None, False),
        ({"type": "array"}, [1], True),
        ({"type": "object"}, [1], False),
        ({"enum": [1]}, "x", True),
        (True, "x", True),
    ],
)
def test_the_type_of_an_argument_is_held_to(schema: JSON, value: JSON, fits: bool) -> None:
    assert (find_argument_error({"properties": {"a": schema}}, {"a": value}) is None) == fits


def test_an_unknown_argument_is_refused_where_the_schema_does() -> None:
    assert find_argument_error({}, {"b": 1}) is None
    assert find_argument_error({"additionalProperties": False}, {"b": 1}) == "Object contains unknown field `b`"


class Sums(Environment):
    def tasks(self):
        yield Task(id="a", prompt="q")

    def verify(self, task, rollout):
        return True


class Offering(Sums):
    def offers(self, task):
        return []

    async def use(self, name, arguments, state):
        return ""


def test_offering_makes_the_state_async() -> None:
    assert execution_mode(Offering) == ExecutionMode("sync", "async")
    assert overrides(Offering, "offers")
    assert not overrides(Sums, "offers")


def test_what_cannot_be_carried_out_is_refused() -> None:
    class Silent(Sums):
        def offers(self, task):
            return []

    class Unasked(Sums):
        async def use(self, name, arguments, state):
            return ""

    class Blocking(Offering):
        def use(self, name, arguments, state):
            return ""

    class Waiting(Offering):
        async def offers(self, task):
            return []

    class Mixed(Offering):
        def open(self, task):
            return []

    for cls, words in (
        (Silent, "Silent.offers names tools, but nothing runs them; write async def use"),
        (Unasked, "Unasked.use would never be called"),
        (Blocking, "Blocking.use must be async"),
        (Waiting, "Waiting.offers must not be async"),
        (Mixed, "Mixed: the methods that share state must all be async or all sync; async: use; sync: open"),
    ):
        with pytest.raises(UsageError, match=words):
            execution_mode(cls)


SHOP = """
from rollbook import Environment, Task


class Shop(Environment):
    def tasks(self):
        for what in ("tea", "cake", ""):
            yield Task(id=what or "nothing", prompt="Buy it.", what=what)

    async def open(self, task):
        return []

    def offers(self, task):
        what = task.fields["what"]
        return [{"type": "function", "function": {"name": f"buy_{what}"}}] if what else []

    async def use(self, name, arguments, state):
        state.append(name)
        return "yours"

    async def outcome(self, state):
        return state

    def verify(self, task, rollout):
        return rollout.outcome == ([f"buy_{task.fields['what']}"] if task.fields["what"] else [])
"""


def test_a_run_shows_each_task_its_own_tools(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    calls = {what: {"tool_calls": [{"id": "a", "function": {"name": f"buy_{what}"}}]} for what in ("tea", "cake")}
    lines = [{"task": "nothing", "answer": "done"}]
    for what, text in calls.items():
        lines += [{"task": what, "sample": 0, **text}, {"task": what, "sample": 0, "answer": "done"}]
    (tmp_path / "said.jsonl").write_text("\n".join(map(json.dumps, lines)))
    env = f"{tmp_path}/shop.py"
    assert resolve(env).spec.offers
    report = run(env, f"scripted:{tmp_path}/said.jsonl", out=tmp_path / "run").report
    assert (report.scored, report.json()["environments"]["Shop"]["mean"]) == (3, 1.0)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["environments"]["Shop"]["offers"] is True
