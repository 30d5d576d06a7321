"""A message of a conversation, in the shape of the chat completions protocol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from rollbook.core.json import JSON


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
