"""How tools are offered to a model and its calls read: by the server's own fields, or in the text as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import msgspec

from rollbook.agents.agent import Ask
from rollbook.agents.text import answer_schema, broken, instructions, read_calls, rendered
from rollbook.core.json import JSON, encode
from rollbook.core.manifest import ToolFormat
from rollbook.core.message import Message
from rollbook.models.model import Completion


class Format(Protocol):
    """Asks a model that has tools. A call that could not even be read has an empty name; `misread` says why."""

    async def ask(self, ask: Ask, messages: Sequence[Message], tools: Sequence[JSON]) -> Completion:
        """One answer, its calls read out of it."""
        ...

    def misread(self, written: str) -> str:
        """What is wrong with a call that could not be read, in words for the model."""
        ...


class Native:
    """The server parses the calls."""

    async def ask(self, ask: Ask, messages: Sequence[Message], tools: Sequence[JSON]) -> Completion:
        """One answer."""
        return await ask(messages, tools=tools)

    def misread(self, written: str) -> str:
        """A server that found a call without a name in the answer."""
        return "Error: the call names no tool"


class Text:
    """The model writes its calls as JSON; with `held` the server lets it write nothing else."""

    def __init__(self, held: bool) -> None:
        self._held = held

    async def ask(self, ask: Ask, messages: Sequence[Message], tools: Sequence[JSON]) -> Completion:
        """One answer. The record holds calls and results as any other; only what is sent is text."""
        words, schema = _prepared(encode(tools))
        extra = {"response_format": schema} if self._held else None
        completion = await ask(rendered(messages, words), extra=extra)
        at = sum(message.role == "assistant" for message in messages)
        return msgspec.structs.replace(completion, message=read_calls(completion.message, at))

    def misread(self, written: str) -> str:
        """Where the JSON of a call is broken."""
        return f"Error: {broken(written)}"


@lru_cache(maxsize=64)
def _prepared(tools: bytes) -> tuple[str, JSON]:
    shown = msgspec.json.decode(tools)
    schema = {"name": "answer", "strict": True, "schema": answer_schema(shown)}
    return instructions(shown), {"type": "json_schema", "json_schema": schema}


def format_of(name: ToolFormat) -> Format:
    """The format of that name."""
    return Native() if name == "native" else Text(held=name == "schema")
