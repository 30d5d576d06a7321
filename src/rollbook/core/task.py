"""A task: the messages that the model sees, and the answer and fields that only the verifier sees.

Messages have the shape of the chat completions protocol. `TaskLine` is a task's form in tasks.jsonl.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from rollbook.core.json import JSON
from rollbook.errors import UsageError


class Function(msgspec.Struct, frozen=True):
    """The function a tool call names, its arguments still the text the model wrote."""

    name: str
    arguments: str = ""


class ToolCall(msgspec.Struct, frozen=True):
    """One call of a tool by the model."""

    id: str
    function: Function
    type: str = "function"


class Message(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One message; absent fields stay absent in JSON."""

    role: str
    content: str | list[dict[str, JSON]] | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    written: str | None = None
    """What the model wrote, word for word, where `content` or `tool_calls` were read out of it."""
    items: list[dict[str, JSON]] | None = None
    """The Responses API items it was read from, where they hold more than the other fields. Never sent to a model."""

    @property
    def text(self) -> str:
        """The text of the message; the text parts joined where the content is a list."""
        if isinstance(self.content, list):
            return "".join(str(part.get("text", "")) for part in self.content)
        return self.content or ""


def as_messages(messages: Iterable[Message | Mapping[str, JSON]]) -> list[Message]:
    """Return messages; dictionaries are converted."""
    return [m if isinstance(m, Message) else msgspec.convert(m, Message) for m in messages]


class TaskLine(msgspec.Struct, frozen=True):
    """A line of tasks.jsonl."""

    id: str
    env: str
    messages: list[Message]
    answer: JSON = None
    fields: dict[str, JSON] = {}
    max_turns: int | msgspec.UnsetType = msgspec.UNSET


class Task:
    """One problem. `answer` and every extra field are for the verifier alone; the model sees only `messages`.

    `max_turns` limits the model calls of one rollout of this task; a lower limit of the run still applies.

    >>> Task(id="sum-1", prompt="What is 1 + 1?", answer="2", level=3).level
    3
    """

    __slots__ = ("answer", "env", "fields", "id", "max_turns", "messages")

    def __init__(
        self,
        id: str,
        prompt: str | None = None,
        *,
        messages: Iterable[Message | Mapping[str, JSON]] | None = None,
        answer: JSON = None,
        env: str = "",
        max_turns: int | None = None,
        **fields: JSON,
    ) -> None:
        if max_turns is not None and (type(max_turns) is not int or max_turns < 1):
            raise UsageError(f"task {id!r}: max_turns={max_turns!r}: give a whole number from 1 on")
        if (prompt is None) == (messages is None):
            raise UsageError(f"task {id!r}: give either prompt or messages")
        self.id = str(id)
        self.env = env
        self.messages = [Message("user", prompt)] if messages is None else as_messages(messages)
        self.answer = answer
        self.max_turns = max_turns
        self.fields = fields

    def __getattr__(self, name: str) -> JSON:
        try:
            return object.__getattribute__(self, "fields")[name]
        except KeyError:
            known = ", ".join(sorted(self.fields)) or "none"
            raise AttributeError(f"task {self.id!r} has no field {name!r}; extra fields: {known}") from None

    def __repr__(self) -> str:
        return f"Task(id={self.id!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Task) and self.line() == other.line()

    def __hash__(self) -> int:
        return hash((self.env, self.id))

    @property
    def prompt(self) -> str:
        """The text of the last message the model is shown."""
        return self.messages[-1].text if self.messages else ""

    def line(self) -> TaskLine:
        """Return this task as a line of tasks.jsonl."""
        turns = msgspec.UNSET if self.max_turns is None else self.max_turns
        return TaskLine(self.id, self.env, self.messages, self.answer, self.fields, turns)

    @classmethod
    def from_line(cls, line: TaskLine) -> Task:
        """Return the task of a line of tasks.jsonl."""
        task = cls(line.id, messages=line.messages, answer=line.answer, env=line.env)
        task.max_turns = line.max_turns or None
        task.fields = dict(line.fields)
        return task
