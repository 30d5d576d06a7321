"""How tools are offered to a model and its calls read: by the server's own fields, or as JSON in the text.

The text format is one JSON object an answer, either `calls` or the `answer`. No I/O here.

    {"calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}
    {"answer": "3"}

Reading is lenient: text around the object, a code fence, several objects, a bare {"name": ..., "arguments": ...}.
Reasoning is not read: a call that the model only considers is not a call that it makes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

import msgspec

from rollbook.core import JSON, Function, Message, ToolCall, ToolFormat, encode
from rollbook.models import AskModel, Completion

MAX_CALLS_AT_ONCE = 8
"""Calls that the schema lets a model write in one answer."""

MAX_BRACES = 256
"""Braces that open no JSON object and are passed over; whoever writes more of them is not calling a tool."""

_CALL_ATTEMPT = re.compile(r"""\{\s*["'](calls|name)["']\s*:""")
_decoder = json.JSONDecoder()


def write_instructions(tools: Sequence[JSON]) -> str:
    """What a model is told of its tools and of how to call them."""
    shown = "\n".join(encode(tool["function"]).decode() for tool in tools)
    return (
        f"You can call these tools:\n{shown}\n\n"
        "To call tools, answer with one JSON object and nothing else:\n"
        '{"calls": [{"name": "TOOL", "arguments": {...}}]}\n'
        "You are then told what they returned. When you need no more tools, answer with:\n"
        '{"answer": "..."}'
    )


def make_answer_schema(tools: Sequence[JSON]) -> JSON:
    """The JSON schema of an answer: calls that fit the tools, or the answer."""
    calls: list[JSON] = []
    others: dict[str, JSON] = {}
    for tool in tools:
        name, parameters = tool["function"]["name"], dict(tool["function"]["parameters"])
        named = {f"{name}.{other}": schema for other, schema in parameters.pop("$defs", {}).items()}
        others |= {other: _rewrite_references(schema, name) for other, schema in named.items()}
        calls.append(_object_schema(name={"const": name}, arguments=_rewrite_references(parameters, name)))
    items = {"type": "array", "items": {"anyOf": calls}, "minItems": 1, "maxItems": MAX_CALLS_AT_ONCE}
    schema = {"anyOf": [_object_schema(calls=items), _object_schema(answer={"type": "string"})]}
    return {**schema, "$defs": others} if others else schema


def _object_schema(**properties: JSON) -> JSON:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _rewrite_references(schema: JSON, tool: str) -> JSON:
    """A tool's schema with its references leading to where its definitions now are."""
    if isinstance(schema, list):
        return [_rewrite_references(item, tool) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value.replace("#/$defs/", f"#/$defs/{tool}.")
        if key == "$ref" and isinstance(value, str)
        else _rewrite_references(value, tool)
        for key, value in schema.items()
    }


def render_messages(messages: Sequence[Message], preamble: str) -> list[Message]:
    """A conversation as it is sent: the tools explained first, answers as they were written, results as text."""
    sent: list[Message] = []
    names: dict[str, str] = {}
    results = False
    for message in messages:
        names |= {call.id: call.function.name for call in message.tool_calls or ()}
        if message.role == "assistant":
            written = message.written if message.written is not None else message.text
            sent.append(Message("assistant", written, message.reasoning))
        elif message.role != "tool":
            sent.append(message)
        else:
            said = f"{_result_title(names.get(message.tool_call_id or '', ''))}\n{message.text}"
            if results:
                sent[-1] = Message("user", f"{sent[-1].text}\n\n{said}")
            else:
                sent.append(Message("user", said))
        results = message.role == "tool"
    return _add_preamble(sent, preamble)


def _result_title(name: str) -> str:
    return f"Result of {name}:" if name else "Result:"


def _add_preamble(messages: list[Message], preamble: str) -> list[Message]:
    if messages and messages[0].role == "system":
        first = Message("system", f"{messages[0].text}\n\n{preamble}")
        return [first, *messages[1:]]
    return [Message("system", preamble), *messages]


def read_calls(message: Message, turn: int) -> Message:
    """The message with the calls, or the answer, that stand in its text; `written` keeps the text."""
    text, said = message.text, _remove_thinking(message.text)
    functions = list(_find_functions(said))
    if functions:
        calls = [ToolCall(f"call_{turn}_{at}", function) for at, function in enumerate(functions)]
        return msgspec.structs.replace(message, content=None, tool_calls=calls, written=text)
    answer = _read_answer(said)
    return message if answer is None else msgspec.structs.replace(message, content=answer, written=text)


def _remove_thinking(text: str) -> str:
    """A text without its thoughts; thoughts that were cut before their end leave nothing said."""
    _, ended, said = text.rpartition("</think>")
    return "" if not ended and text.lstrip().startswith("<think>") else said


def _find_functions(text: str) -> Iterator[Function]:
    """The calls in a text, in their order; an attempt at one that is no JSON comes without a name."""
    at = passed = 0
    while (at := text.find("{", at)) >= 0 and passed < MAX_BRACES:
        value, end = _decode_at(text, at)
        if end is not None:
            yield from _calls_in(value)
            at = end
        elif _CALL_ATTEMPT.match(text, at):
            yield Function("", text[at:])
            return
        else:
            at, passed = at + 1, passed + 1


def _decode_at(text: str, at: int) -> tuple[JSON, int | None]:
    try:
        return _decoder.raw_decode(text, at)
    except (ValueError, RecursionError):
        return None, None


def _calls_in(value: JSON) -> Iterator[Function]:
    if not isinstance(value, dict):
        return
    calls = value.get("calls")
    if calls and isinstance(calls, list):
        for call in calls:
            yield _read_function(call) or Function("", json.dumps(call))
    elif function := _read_function(value):
        yield function
    elif "calls" in value and (calls or "answer" not in value):
        yield Function("", json.dumps(value))


def _read_function(call: JSON) -> Function | None:
    """A call that names its tool and its arguments; what else stands in it does not matter."""
    if not isinstance(call, Mapping) or not isinstance(call.get("name"), str) or "arguments" not in call:
        return None
    arguments = call["arguments"]
    return Function(call["name"], arguments if isinstance(arguments, str) else json.dumps(arguments))


def _read_answer(text: str) -> str | None:
    """The answer of a text that is nothing but {"answer": "..."}, fences and an empty `calls` aside."""
    bare = re.sub(r"^```\w*\n(.*)\n```$", r"\1", text.strip(), flags=re.DOTALL)
    value, end = _decode_at(bare, 0) if bare.startswith("{") else (None, None)
    if end != len(bare) or not isinstance(value, dict) or value.keys() - {"calls"} != {"answer"}:
        return None
    answer = value["answer"]
    return answer if isinstance(answer, str) else json.dumps(answer)


def describe_broken_call(written: str) -> str:
    """What is wrong with an attempt at a call, to the letter."""
    way = 'write {"calls": [{"name": "TOOL", "arguments": {...}}]}'
    try:
        value, _ = _decoder.raw_decode(written)
    except json.JSONDecodeError as error:
        return f"the call is not valid JSON at line {error.lineno} column {error.colno}: {error.msg}; {way}"
    except RecursionError:
        return f"the call is nested too deeply; {way}"
    if isinstance(value, dict) and "calls" in value:
        return f'`calls` must be a list of one call or more; {way}, or {{"answer": "..."}} when you need no tools'
    return f"a call needs a name and arguments; {way}"


class ToolCallFormat(Protocol):
    """Asks a model that has tools. A call that could not even be read has an empty name; `explain_misread` says why."""

    async def ask(self, ask: AskModel, messages: Sequence[Message], tools: Sequence[JSON]) -> Completion:
        """One answer, its calls read out of it."""
        ...

    def explain_misread(self, written: str) -> str:
        """What is wrong with a call that could not be read, in words for the model."""
        ...


class NativeToolCalls:
    """The server parses the calls."""

    async def ask(self, ask: AskModel, messages: Sequence[Message], tools: Sequence[JSON]) -> Completion:
        """One answer."""
        return await ask(messages, tools=tools)

    def explain_misread(self, written: str) -> str:
        """A server that found a call without a name in the answer."""
        return "Error: the call names no tool"


class TextToolCalls:
    """The model writes its calls as JSON; if `constrained`, the server lets it write nothing else."""

    def __init__(self, constrained: bool) -> None:
        self._held = constrained

    async def ask(self, ask: AskModel, messages: Sequence[Message], tools: Sequence[JSON]) -> Completion:
        """One answer. The record holds calls and results as any other; only what is sent is text."""
        words, schema = _make_instructions(encode(tools))
        extra = {"response_format": schema} if self._held else None
        completion = await ask(render_messages(messages, words), extra=extra)
        at = sum(message.role == "assistant" for message in messages)
        return msgspec.structs.replace(completion, message=read_calls(completion.message, at))

    def explain_misread(self, written: str) -> str:
        """Where the JSON of a call is broken."""
        return f"Error: {describe_broken_call(written)}"


@lru_cache(maxsize=64)
def _make_instructions(tools: bytes) -> tuple[str, JSON]:
    shown = msgspec.json.decode(tools)
    schema = {"name": "answer", "strict": True, "schema": make_answer_schema(shown)}
    return write_instructions(shown), {"type": "json_schema", "json_schema": schema}


def get_tool_format(name: ToolFormat) -> ToolCallFormat:
    """The format of that name."""
    return NativeToolCalls() if name == "native" else TextToolCalls(constrained=name == "schema")
