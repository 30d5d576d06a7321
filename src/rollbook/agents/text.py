"""The text format of tool calls: one JSON object an answer, either `calls` or the `answer`. No I/O here.

    {"calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}
    {"answer": "3"}

Reading is lenient: text around the object, a code fence, several objects, a bare {"name": ..., "arguments": ...}.
What is only thought is not read: a call that the model weighs is none that it makes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from rollbook.core.json import JSON, encode
from rollbook.core.message import Function, Message, ToolCall

MOST_AT_ONCE = 8
"""Calls that the schema lets a model write in one answer."""

MOST_STARTS = 256
"""Braces that open no JSON object and are passed over; whoever writes more of them is not calling a tool."""

_ATTEMPT = re.compile(r"""\{\s*["'](calls|name)["']\s*:""")
_decoder = json.JSONDecoder()


def instructions(tools: Sequence[JSON]) -> str:
    """What a model is told of its tools and of how to call them."""
    shown = "\n".join(encode(tool["function"]).decode() for tool in tools)
    return (
        f"You can call these tools:\n{shown}\n\n"
        "To call tools, answer with one JSON object and nothing else:\n"
        '{"calls": [{"name": "TOOL", "arguments": {...}}]}\n'
        "You are then told what they returned. When you need no more tools, answer with:\n"
        '{"answer": "..."}'
    )


def answer_schema(tools: Sequence[JSON]) -> JSON:
    """The JSON schema of an answer: calls that fit the tools, or the answer."""
    calls: list[JSON] = []
    others: dict[str, JSON] = {}
    for tool in tools:
        name, parameters = tool["function"]["name"], dict(tool["function"]["parameters"])
        named = {f"{name}.{other}": schema for other, schema in parameters.pop("$defs", {}).items()}
        others |= {other: _moved(schema, name) for other, schema in named.items()}
        calls.append(_object(name={"const": name}, arguments=_moved(parameters, name)))
    items = {"type": "array", "items": {"anyOf": calls}, "minItems": 1, "maxItems": MOST_AT_ONCE}
    schema = {"anyOf": [_object(calls=items), _object(answer={"type": "string"})]}
    return {**schema, "$defs": others} if others else schema


def _object(**properties: JSON) -> JSON:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _moved(schema: JSON, tool: str) -> JSON:
    """A tool's schema with its references leading to where its definitions now are."""
    if isinstance(schema, list):
        return [_moved(item, tool) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value.replace("#/$defs/", f"#/$defs/{tool}.")
        if key == "$ref" and isinstance(value, str)
        else _moved(value, tool)
        for key, value in schema.items()
    }


def rendered(messages: Sequence[Message], words: str) -> list[Message]:
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
            said = f"{_title(names.get(message.tool_call_id or '', ''))}\n{message.text}"
            if results:
                sent[-1] = Message("user", f"{sent[-1].text}\n\n{said}")
            else:
                sent.append(Message("user", said))
        results = message.role == "tool"
    return _explained(sent, words)


def _title(name: str) -> str:
    return f"Result of {name}:" if name else "Result:"


def _explained(messages: list[Message], words: str) -> list[Message]:
    if messages and messages[0].role == "system":
        first = Message("system", f"{messages[0].text}\n\n{words}")
        return [first, *messages[1:]]
    return [Message("system", words), *messages]


def read_calls(message: Message, turn: int) -> Message:
    """The message with the calls, or the answer, that stand in its text; `written` keeps the text."""
    text, said = message.text, _said(message.text)
    functions = list(_functions(said))
    if functions:
        calls = [ToolCall(f"call_{turn}_{at}", function) for at, function in enumerate(functions)]
        return msgspec.structs.replace(message, content=None, tool_calls=calls, written=text)
    answer = _answer(said)
    return message if answer is None else msgspec.structs.replace(message, content=answer, written=text)


def _said(text: str) -> str:
    """A text without its thoughts; thoughts that were cut before their end leave nothing said."""
    _, ended, said = text.rpartition("</think>")
    return "" if not ended and text.lstrip().startswith("<think>") else said


def _functions(text: str) -> Iterator[Function]:
    """The calls in a text, in their order; an attempt at one that is no JSON comes without a name."""
    at = passed = 0
    while (at := text.find("{", at)) >= 0 and passed < MOST_STARTS:
        value, end = _object_at(text, at)
        if end is not None:
            yield from _calls_in(value)
            at = end
        elif _ATTEMPT.match(text, at):
            yield Function("", text[at:])
            return
        else:
            at, passed = at + 1, passed + 1


def _object_at(text: str, at: int) -> tuple[JSON, int | None]:
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
            yield _function(call) or Function("", json.dumps(call))
    elif function := _function(value):
        yield function
    elif "calls" in value and (calls or "answer" not in value):
        yield Function("", json.dumps(value))


def _function(call: JSON) -> Function | None:
    """A call that names its tool and its arguments; what else stands in it does not matter."""
    if not isinstance(call, Mapping) or not isinstance(call.get("name"), str) or "arguments" not in call:
        return None
    arguments = call["arguments"]
    return Function(call["name"], arguments if isinstance(arguments, str) else json.dumps(arguments))


def _answer(text: str) -> str | None:
    """The answer of a text that is nothing but {"answer": "..."}, fences and an empty `calls` aside."""
    bare = re.sub(r"^```\w*\n(.*)\n```$", r"\1", text.strip(), flags=re.DOTALL)
    value, end = _object_at(bare, 0) if bare.startswith("{") else (None, None)
    if end != len(bare) or not isinstance(value, dict) or value.keys() - {"calls"} != {"answer"}:
        return None
    answer = value["answer"]
    return answer if isinstance(answer, str) else json.dumps(answer)


def broken(written: str) -> str:
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
