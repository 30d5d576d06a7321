"""How tools are offered to a model and its calls read: in the server's own fields, or as JSON in the text.

The text format is one JSON object per answer, either `calls` or the `answer`. No I/O here.

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
from typing import TypeAlias

import msgspec

from rollbook.core import JSON, Function, Message, ToolCall, ToolFormat, encode
from rollbook.models import AskModel, Completion

MAX_CALLS_AT_ONCE = 8
"""Calls that the schema lets a model write in one answer."""

MAX_BRACES = 256
"""Braces without a JSON object that are skipped; a text with more of them is not calling a tool."""

_CALL_ATTEMPT = re.compile(r"""\{\s*["'](calls|name)["']\s*:""")
_decoder = json.JSONDecoder()


def write_instructions(tools: Sequence[JSON]) -> str:
    """Return the system message that lists the tools and how to call them."""
    functions = "\n".join(encode(tool["function"]).decode() for tool in tools)
    return (
        f"You can call these tools:\n{functions}\n\n"
        "To call tools, answer with one JSON object and nothing else:\n"
        '{"calls": [{"name": "TOOL", "arguments": {...}}]}\n'
        "You are then told what they returned. When you need no more tools, answer with:\n"
        '{"answer": "..."}'
    )


def make_answer_schema(tools: Sequence[JSON]) -> JSON:
    """Return the JSON schema of an answer: calls that fit the tools, or the answer."""
    calls: list[JSON] = []
    definitions: dict[str, JSON] = {}
    for tool in tools:
        name, parameters = tool["function"]["name"], dict(tool["function"]["parameters"])
        named = {f"{name}.{definition}": schema for definition, schema in parameters.pop("$defs", {}).items()}
        definitions |= {definition: _rewrite_references(schema, name) for definition, schema in named.items()}
        calls.append(_object_schema(name={"const": name}, arguments=_rewrite_references(parameters, name)))
    items = {"type": "array", "items": {"anyOf": calls}, "minItems": 1, "maxItems": MAX_CALLS_AT_ONCE}
    schema = {"anyOf": [_object_schema(calls=items), _object_schema(answer={"type": "string"})]}
    return {**schema, "$defs": definitions} if definitions else schema


def _object_schema(**properties: JSON) -> JSON:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _rewrite_references(schema: JSON, tool: str) -> JSON:
    """Return a tool's schema with its references pointing to the renamed definitions."""
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
    """Return a conversation as it is sent: tools explained first, answers as they were written, results as text."""
    sent: list[Message] = []
    names: dict[str, str] = {}
    after_result = False
    for message in messages:
        names |= {call.id: call.function.name for call in message.tool_calls or ()}
        if message.role == "assistant":
            written = message.written if message.written is not None else message.text
            sent.append(Message("assistant", written, message.reasoning))
        elif message.role != "tool":
            sent.append(message)
        else:
            name = names.get(message.tool_call_id or "", "")
            result = f"{f'Result of {name}' if name else 'Result'}:\n{message.text}"
            if after_result:
                sent[-1] = Message("user", f"{sent[-1].text}\n\n{result}")
            else:
                sent.append(Message("user", result))
        after_result = message.role == "tool"
    return _add_preamble(sent, preamble)


def _add_preamble(messages: list[Message], preamble: str) -> list[Message]:
    if messages and messages[0].role == "system":
        first = Message("system", f"{messages[0].text}\n\n{preamble}")
        return [first, *messages[1:]]
    return [Message("system", preamble), *messages]


def read_calls(message: Message, turn: int) -> Message:
    """Return the message with the calls, or the answer, in its text; `written` keeps the text."""
    text, visible = message.text, _remove_thinking(message.text)
    functions = list(_find_functions(visible))
    if functions:
        calls = [ToolCall(f"call_{turn}_{index}", function) for index, function in enumerate(functions)]
        return msgspec.structs.replace(message, content=None, tool_calls=calls, written=text)
    answer = _read_answer(visible)
    return message if answer is None else msgspec.structs.replace(message, content=answer, written=text)


def _remove_thinking(text: str) -> str:
    """Return a text without its reasoning; nothing is left of reasoning that was cut off."""
    from rollbook.environments.answers import strip_thinking  # not at start-up: its module compiles many patterns

    visible = strip_thinking(text)
    return "" if visible == text and text.lstrip().startswith("<think>") else visible


def _find_functions(text: str) -> Iterator[Function]:
    """Yield the calls in a text, in order; an attempt at one that is not JSON has no name."""
    position = skipped = 0
    while (position := text.find("{", position)) >= 0 and skipped < MAX_BRACES:
        value, end = _decode_at(text, position)
        if end is not None:
            yield from _calls_in(value)
            position = end
        elif _CALL_ATTEMPT.match(text, position):
            yield Function("", text[position:])
            return
        else:
            position, skipped = position + 1, skipped + 1


def _decode_at(text: str, position: int) -> tuple[JSON, int | None]:
    try:
        return _decoder.raw_decode(text, position)
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
    """Return a call that names its tool and has arguments; further fields do not matter."""
    if not isinstance(call, Mapping) or not isinstance(call.get("name"), str) or "arguments" not in call:
        return None
    arguments = call["arguments"]
    return Function(call["name"], arguments if isinstance(arguments, str) else json.dumps(arguments))


def _read_answer(text: str) -> str | None:
    """Return the answer of a text that is only {"answer": "..."}, fences and an empty `calls` aside."""
    bare = re.sub(r"^```\w*\n(.*)\n```$", r"\1", text.strip(), flags=re.DOTALL)
    value, end = _decode_at(bare, 0) if bare.startswith("{") else (None, None)
    if end != len(bare) or not isinstance(value, dict) or value.keys() - {"calls"} != {"answer"}:
        return None
    answer = value["answer"]
    return answer if isinstance(answer, str) else json.dumps(answer)


def describe_broken_call(written: str) -> str:
    """Return what exactly is wrong with an attempt at a call."""
    advice = 'write {"calls": [{"name": "TOOL", "arguments": {...}}]}'
    try:
        value, _ = _decoder.raw_decode(written)
    except json.JSONDecodeError as error:
        return f"the call is not valid JSON at line {error.lineno} column {error.colno}: {error.msg}; {advice}"
    except RecursionError:
        return f"the call is nested too deeply; {advice}"
    if isinstance(value, dict) and "calls" in value:
        return f'`calls` must be a list of one call or more; {advice}, or {{"answer": "..."}} when you need no tools'
    return f"a call needs a name and arguments; {advice}"


class NativeToolCalls:
    """The server parses the calls."""

    async def ask(self, ask: AskModel, messages: Sequence[Message], tools: Sequence[JSON]) -> Completion:
        """Return one answer, with its calls read."""
        return await ask(messages, tools=tools)

    def explain_misread(self, written: str) -> str:
        """Return the error for a call without a name."""
        return "Error: the call names no tool"


class TextToolCalls:
    """The model writes its calls as JSON; if `constrained`, the server lets it write nothing else."""

    def __init__(self, constrained: bool) -> None:
        self._constrained = constrained

    async def ask(self, ask: AskModel, messages: Sequence[Message], tools: Sequence[JSON]) -> Completion:
        """Return one answer. The record holds calls and results as usual; only what is sent is text."""
        instructions, schema = _make_instructions(encode(tools))
        extra = {"response_format": schema} if self._constrained else None
        completion = await ask(render_messages(messages, instructions), extra=extra)
        turn = sum(message.role == "assistant" for message in messages)
        return msgspec.structs.replace(completion, message=read_calls(completion.message, turn))

    def explain_misread(self, written: str) -> str:
        """Return where the JSON of a call is broken."""
        return f"Error: {describe_broken_call(written)}"


ToolCallFormat: TypeAlias = NativeToolCalls | TextToolCalls
"""Asks a model that has tools. An unreadable call has an empty name; `explain_misread` tells the model why."""


@lru_cache(maxsize=64)
def _make_instructions(tools: bytes) -> tuple[str, JSON]:
    decoded = msgspec.json.decode(tools)
    schema = {"name": "answer", "strict": True, "schema": make_answer_schema(decoded)}
    return write_instructions(decoded), {"type": "json_schema", "json_schema": schema}


def get_tool_format(name: ToolFormat) -> ToolCallFormat:
    """Return the format of a name."""
    return NativeToolCalls() if name == "native" else TextToolCalls(constrained=name == "schema")
