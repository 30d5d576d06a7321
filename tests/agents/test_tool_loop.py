"""The tool loop and the dialogue, with a scripted model and environment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from rollbook.agents import choose_agent
from rollbook.agents.agent import MAX_CALLS, Dialogue, SingleAnswer, ToolLoop
from rollbook.agents.tool_formats import NativeToolCalls, TextToolCalls
from rollbook.core import JSON, EnvironmentSpec, Function, Limits, Message, Rollout, Task, ToolCall, Turn
from rollbook.errors import LimitReached
from rollbook.models import Completion

TOOL = {"type": "function", "function": {"name": "add", "description": "", "parameters": {"type": "object"}}}


class Told:
    """A world that repeats what it is asked, and replies what it was given."""

    tools: Sequence[JSON] = (TOOL,)

    def __init__(self, replies: Sequence[str] = ()) -> None:
        self._replies = list(replies)

    async def use(self, name: str, arguments: str) -> str:
        return f"{name} {arguments}"

    async def reply(self, rollout: Rollout) -> Message | None:
        return Message("user", self._replies.pop(0)) if self._replies else None


class Script:
    """A model that says one message after the other, and remembers what it was asked with."""

    def __init__(self, *answers: Message) -> None:
        self._said, self.asked = list(answers), list[dict[str, JSON]]()

    async def __call__(
        self, messages: Sequence[Message], *, tools: Sequence[JSON] = (), extra: Mapping[str, JSON] | None = None
    ) -> Completion:
        self.asked.append({"messages": list(messages), "tools": tools, "extra": extra})
        return Completion(self._said.pop(0), Turn())


def calling(*calls: tuple[str, str]) -> Message:
    calls_made = [ToolCall(f"c{i}", Function(name, arguments)) for i, (name, arguments) in enumerate(calls)]
    return Message("assistant", None, tool_calls=calls_made)


def fresh() -> Rollout:
    task = Task(id="a", prompt="q")
    return Rollout(task=task, sample=0, seed=0, messages=task.messages, turns=[])


def test_calls_are_carried_out_in_their_order_and_answered_by_their_ids() -> None:
    rollout, ask = fresh(), Script(calling(("add", "1"), ("add", "2")), Message("assistant", "done"))
    asyncio.run(ToolLoop(NativeToolCalls()).play(rollout, ask, Told()))
    assert [(m.role, m.content, m.tool_call_id) for m in rollout.messages[2:]] == [
        ("tool", "add 1", "c0"),
        ("tool", "add 2", "c1"),
        ("assistant", "done", None),
    ]
    assert len(rollout.turns) == 2
    assert ask.asked[0]["tools"] == (TOOL,)
    assert rollout.task.messages == [Message("user", "q")]


def test_a_tool_that_is_not_there_is_answered_with_those_that_are() -> None:
    rollout, ask = fresh(), Script(calling(("sub", "{}"), ("", "")), Message("assistant", "done"))
    asyncio.run(ToolLoop(NativeToolCalls()).play(rollout, ask, Told()))
    assert [m.content for m in rollout.messages if m.role == "tool"] == [
        "Error: there is no tool called 'sub'; there are add",
        "Error: the call names no tool",
    ]


def test_every_call_of_a_flood_is_answered_and_only_so_many_are_carried_out() -> None:
    rollout, ask = fresh(), Script(calling(*[("add", "{}")] * (MAX_CALLS + 5)), Message("assistant", "done"))
    asyncio.run(ToolLoop(NativeToolCalls()).play(rollout, ask, Told()))
    results = [m.text for m in rollout.messages if m.role == "tool"]
    assert len(results) == MAX_CALLS + 5
    assert sum(text.startswith("add") for text in results) == MAX_CALLS
    assert results[-1] == f"Error: not run: one message may have at most {MAX_CALLS} calls"


def test_only_calls_running_count_as_repeats() -> None:
    answers = [calling(("add", '{"a": 1, "b": 2}')), calling(("add", "{}")), calling(("add", '{"b":2,"a":1}'))]
    rollout, ask = fresh(), Script(*answers, calling(("add", '{"a": 1, "b": 2}')))
    with pytest.raises(LimitReached) as caught:
        asyncio.run(ToolLoop(NativeToolCalls(), stop_repeats=2).play(rollout, ask, Told()))
    assert (caught.value.which, len(rollout.turns)) == ("repeats", 4)


@pytest.mark.parametrize("constrained", [True, False])
def test_as_text_tools_are_asked_for_in_words(constrained: bool) -> None:
    written = Message("assistant", '{"calls": [{"name": "add", "arguments": {}}]}')
    rollout, ask = fresh(), Script(written, Message("assistant", "done"))
    asyncio.run(ToolLoop(TextToolCalls(constrained)).play(rollout, ask, Told()))
    first, then = ask.asked
    assert not first["tools"]
    assert (first["extra"] is not None) == constrained
    assert [m.role for m in then["messages"]] == ["system", "user", "assistant", "user"]
    assert then["messages"][2:] == [written, Message("user", "Result of add:\nadd {}")]
    assert [m.role for m in rollout.messages] == ["user", "assistant", "tool", "assistant"]


def test_a_broken_call_as_text_is_told_where_it_broke() -> None:
    rollout, ask = fresh(), Script(Message("assistant", '{"calls": ['), Message("assistant", "done"))
    asyncio.run(ToolLoop(TextToolCalls(False)).play(rollout, ask, Told()))
    assert "not valid JSON at line 1 column 12" in rollout.messages[2].text


def test_a_dialogue_ends_when_the_environment_is_silent() -> None:
    rollout, ask = fresh(), Script(*[Message("assistant", str(i)) for i in range(3)])
    asyncio.run(Dialogue(SingleAnswer()).play(rollout, ask, Told(["more", "and more"])))
    assert [m.text for m in rollout.messages] == ["q", "0", "more", "1", "and more", "2"]
    assert len(rollout.turns) == 3


@pytest.mark.parametrize(
    ("tools", "replies", "kind"),
    [([], False, SingleAnswer), ([TOOL], False, ToolLoop), ([], True, Dialogue), ([TOOL], True, Dialogue)],
)
def test_the_environment_says_which_agent_it_needs(tools: list[JSON], replies: bool, kind: type) -> None:
    spec = EnvironmentSpec("x", "x:X", tools=tools, replies=replies)
    assert type(choose_agent(spec, Limits(), "native")) is kind


@pytest.mark.parametrize("form", [NativeToolCalls(), TextToolCalls(constrained=True)], ids=["native", "schema"])
def test_where_a_task_has_no_tools_one_answer_is_asked_for(form: NativeToolCalls | TextToolCalls) -> None:
    rollout, ask, environment = fresh(), Script(Message("assistant", '{"answer": "as it stands"}')), Told()
    environment.tools = ()
    asyncio.run(ToolLoop(form).play(rollout, ask, environment))
    assert rollout.text == '{"answer": "as it stands"}'
    assert ask.asked == [{"messages": [Message("user", "q")], "tools": (), "extra": None}]


def test_tools_that_are_only_offered_make_a_tool_loop_too() -> None:
    assert type(choose_agent(EnvironmentSpec("x", "x:X", offers=True), Limits(), "native")) is ToolLoop
