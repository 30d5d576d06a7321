"""An environment's tasks as rows of TRL's dataset, found again by what TRL hands back of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from uuid import uuid4

import msgspec

from rollbook.core.json import JSON, encode
from rollbook.core.message import Function, Message, ToolCall, as_messages
from rollbook.core.task import Task
from rollbook.errors import UsageError


class Prompts:
    """Tasks by their prompts and by their ids."""

    def __init__(self, tasks: Iterable[Task], limit: int | None = None) -> None:
        self._tasks = list(islice(tasks, limit))
        self._by_id = {task.id: task for task in self._tasks}
        self._by_prompt: dict[bytes, Task] = {}
        for task in self._tasks:
            other = self._by_prompt.setdefault(encode(task.messages), task)
            if other is not task and other.answer != task.answer:
                raise UsageError(
                    f"tasks {other.id} and {task.id} have one prompt and two answers: TRL gives us the prompt"
                )

    def rows(self) -> list[dict[str, JSON]]:
        """One row a task: `prompt` in messages, and `task`, its id."""
        return [{"prompt": msgspec.to_builtins(task.messages), "task": task.id} for task in self._tasks]

    def asked(self, prompt: Sequence[Mapping[str, JSON]] | str) -> Task:
        """The task of a prompt."""
        given = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        task = self._by_prompt.get(encode(messages_of(given)))
        if task is None:
            raise UsageError(f"a prompt of no task: {str(given)[:80]}; train on the dataset of rows()")
        return task

    def named(self, name: str) -> Task:
        """The task of an id."""
        if name not in self._by_id:
            raise UsageError(f"no task is called {name!r}; train on the dataset of rows()")
        return self._by_id[name]


def messages_of(told: Sequence[Mapping[str, JSON]]) -> list[Message]:
    """Messages as datasets and TRL hold them: absent fields as None, arguments of calls as objects."""
    return as_messages([_message(dict(one)) for one in told])


def _message(one: dict[str, JSON]) -> dict[str, JSON]:
    calls = one.pop("tool_calls", None)
    kept = {name: value for name, value in one.items() if value is not None and name in Message.__struct_fields__}
    return {**kept, "tool_calls": [_call(call) for call in calls]} if calls else kept


def _call(call: Mapping[str, JSON]) -> JSON:
    function = call.get("function", call)
    arguments = function.get("arguments", "")
    text = arguments if isinstance(arguments, str) else encode(arguments).decode()
    made = ToolCall(str(call.get("id") or uuid4().hex), Function(str(function["name"]), text))
    return msgspec.to_builtins(made)
