"""Messages of chat completions as items of the Responses API, and back.

A message of the model becomes up to three kinds of items, in this order: its reasoning, its text, its tool calls. So an
item that cannot follow the one before it begins a new message, and so does the first item after one with token fields.
What the Responses API has no place for (`name`, `written`) rides along under our own names; what chat completions has
none for (annotations, encrypted reasoning, several summaries) is kept with the message as its `items`, and comes back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from rollbook.core.json import JSON
from rollbook.core.message import Function, Message, ToolCall
from rollbook.core.turn import Turn
from rollbook.errors import UsageError
from rollbook.wire.gym.ending import COMPLETED, INCOMPLETE, item_status
from rollbook.wire.gym.parts import chat_parts, input_parts, text_of
from rollbook.wire.gym.tokens import Tokens, read_tokens, token_fields, without_token_fields

Item = dict[str, JSON]

SHOWN = ("user", "system", "developer")
FOREIGN = "responses_item"
"""The one part of a message that holds an item which chat completions cannot say: a hosted search, an MCP call."""

_OWN = ("name", "written")
_ENDS = (COMPLETED, INCOMPLETE)


def items_of(messages: Sequence[Message], turns: Sequence[Turn] = (), name: str = "") -> list[Item]:
    """Messages as items. The turns are those of the model's messages, in order; `name` makes the items' ids unique."""
    items: list[Item] = []
    left = iter(turns)
    before: Message | None = None
    for number, message in enumerate(messages):
        if foreign := foreign_item(message):
            items.append(foreign)
        elif message.role == "assistant":
            apart = before is not None and before.role == "assistant" and not foreign_item(before)
            made = [dict(item) for item in message.items or _answer(message, f"{name}{number}", apart)]
            made[-1] |= _ended(made[-1], next(left, None))
            items += made
        else:
            items += message.items or [_given(message)]
        before = message
    return items


def _given(message: Message) -> Item:
    """What the model did not say itself."""
    content = input_parts(message.content) if isinstance(message.content, list) else message.content or ""
    if message.role == "tool":
        call = message.tool_call_id or ""
        return {"type": "function_call_output", "call_id": call, "output": content, **_own(message)}
    return {"type": "message", "role": message.role, "content": content, **_own(message)}


def _answer(message: Message, name: str, apart: bool) -> Iterator[Item]:
    """What the model said. `apart`: another message of its own came right before, and must not swallow this one."""
    own = _own(message)
    if message.reasoning is not None:
        summary = [{"type": "summary_text", "text": message.reasoning}] if message.reasoning else []
        yield {"type": "reasoning", "id": f"rs_{name}", "summary": summary, **own}
    own = {} if message.reasoning is not None else own
    if message.content is not None or not message.tool_calls or (apart and message.reasoning is None) or own:
        yield {**_text(message.content, name), **own}
    for call in message.tool_calls or []:
        yield _call(call)


def _text(content: str | list[dict[str, JSON]] | None, name: str) -> Item:
    if isinstance(content, list):
        return {"type": "message", "role": "assistant", "content": input_parts(content)}
    parts = [] if content is None else [{"type": "output_text", "text": content, "annotations": []}]
    return {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": COMPLETED, "content": parts}


def _call(call: ToolCall) -> Item:
    function = {"name": call.function.name, "arguments": call.function.arguments}
    return {"type": "function_call", "id": call.id, "call_id": call.id, **function, "status": COMPLETED}


def _ended(item: Item, turn: Turn | None) -> Item:
    status = {"status": item_status(turn.finish_reason)} if turn and item.get("status") in _ENDS else {}
    return {**status, **token_fields(turn)}


def _own(message: Message) -> Item:
    return {name: value for name in _OWN if (value := getattr(message, name)) is not None}


def foreign_item(message: Message) -> Item | None:
    """The item that a message was made for, as it came."""
    content = message.content
    if isinstance(content, list) and len(content) == 1 and content[0].get("type") == FOREIGN:
        item: Item = content[0]["item"]
        return item
    return None


def read_items(value: JSON, where: str = "input") -> list[Message]:
    """The messages that items say; text alone is a user's message. UsageError names the item that is wrong."""
    return read_output(value, where)[0]


def read_output(value: JSON, where: str = "output") -> tuple[list[Message], list[Turn]]:
    """The same, with one turn for each message of the model: exact tokens where the items carry them."""
    if isinstance(value, str):
        return [Message("user", value)], []
    if not isinstance(value, list):
        raise UsageError(f"{where} is neither text nor a list of items")
    reading = _Reading()
    for number, item in enumerate(value):
        if not isinstance(item, dict):
            raise UsageError(f"{where}[{number}] is no object but {item!r:.80}")
        reading.take(item, f"{where}[{number}]")
    reading.flush()
    return reading.messages, reading.turns


_ORDER = {"reasoning": 0, "message": 1, "function_call": 2}


class _Reading:
    """Gathers the items of one message until the next one begins."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.turns: list[Turn] = []
        self._held: list[Item] = []

    def take(self, item: Item, where: str) -> None:
        kind = item.get("type") or ("message" if "role" in item else None)
        if kind is None:
            raise UsageError(f"{where} has neither a type nor a role")
        if not isinstance(kind, str):
            raise UsageError(f"{where}: its type is no text but {kind!r:.80}")
        if kind in _ORDER and (kind != "message" or item.get("role") == "assistant"):
            self._said({**item, "type": kind}, where)
            return
        self.flush()
        if kind == "message":
            self.messages.append(_whole(_read_given(item, where), [item]))
        elif kind == "function_call_output":
            self.messages.append(_whole(_read_result(item, where), [item]))
        else:
            role = "tool" if kind.endswith(("_output", "_response")) else "assistant"
            self.messages.append(Message(role, [{"type": FOREIGN, "item": item}]))

    def _said(self, item: Item, where: str) -> None:
        _check(item, where)
        last = _ORDER[self._held[-1]["type"]] if self._held else -1
        now = _ORDER[item["type"]]
        if now < last or now == last == _ORDER["message"]:
            self.flush()
        self._held.append(item)
        if tokens := read_tokens(item, where):
            self.flush(tokens)

    def flush(self, tokens: Tokens | None = None) -> None:
        """End the message of the model that is being read, if one is."""
        held, self._held = self._held, []
        if not held:
            return
        message = _read_answer(held)
        cut = held[-1].get("status") == INCOMPLETE
        reason = "length" if cut else "tool_calls" if message.tool_calls else "stop"
        self.messages.append(_whole(message, held))
        self.turns.append(_turn(tokens, reason))


def _whole(message: Message, held: Sequence[Item]) -> Message:
    """A message with the items that it was read from, unless it says all that they do."""
    said = list(_answer(message, "", _opens(held))) if message.role == "assistant" else [_given(message)]
    if [*map(_gist, said)] == [*map(_gist, held)]:
        return message
    return msgspec.structs.replace(message, items=[without_token_fields(item) for item in held])


def _opens(held: Sequence[Item]) -> bool:
    """Whether an empty text stands before the calls, to keep two messages apart."""
    return len(held) > 1 and held[0]["type"] == "message" and held[0].get("content") == []


def _gist(item: Item) -> Item:
    """What an item says; its id, its good end, its tokens and what it would be taken for anyway do not count."""
    kind = item.get("type") or "message"
    gist = {name: value for name, value in without_token_fields(item).items() if name != "id"}
    if gist.get("status") in _ENDS:
        del gist["status"]
    if kind == "message" and isinstance(gist.get("content"), list):
        gist["content"] = [*map(_annotated, gist["content"])]
    return {**gist, "type": kind}


def _annotated(part: Item) -> Item:
    return {"annotations": [], **part} if part.get("type") == "output_text" else part


def _turn(tokens: Tokens | None, reason: str) -> Turn:
    if tokens is None:
        return Turn(finish_reason=reason)
    return Turn(*tokens, len(tokens[0]), len(tokens[1]), reason)


def _check(item: Item, where: str) -> None:
    """Refuse an item that would be read as something else than it says."""
    wanted = {"reasoning": (), "message": (), "function_call": ("call_id", "name", "arguments")}[item["type"]]
    for name in wanted:
        if not isinstance(item.get(name), str):
            raise UsageError(f"{where}: a function_call needs its {name} as text")
    content = item.get("content")
    if item["type"] == "message" and not (content is None or isinstance(content, str) or _is_parts(content)):
        raise UsageError(f"{where}: content is neither text nor a list of parts")
    for name in ("summary", "content") if item["type"] == "reasoning" else ():
        if not _is_parts(item.get(name) or []):
            raise UsageError(f"{where}: {name} is no list of parts")


def _is_parts(value: JSON) -> bool:
    return isinstance(value, list) and all(isinstance(part, dict) and _is_named(part) for part in value)


def _is_named(part: Item) -> bool:
    return isinstance(part.get("type"), str | None)


def _read_given(item: Item, where: str) -> Message:
    role, content = item.get("role"), item.get("content")
    if role not in SHOWN:
        raise UsageError(f"{where}: role {role!r}; there are assistant, {', '.join(SHOWN)}")
    return Message(role, _read_content(content, f"{where}: content"), name=_word(item, "name"))


def _read_result(item: Item, where: str) -> Message:
    if not isinstance(item.get("call_id"), str):
        raise UsageError(f"{where}: a function_call_output needs its call_id as text")
    content = _read_content(item.get("output"), f"{where}: output")
    return Message("tool", content, tool_call_id=item["call_id"], name=_word(item, "name"))


def _read_content(value: JSON, where: str) -> str | list[dict[str, JSON]]:
    if isinstance(value, str):
        return value
    if not _is_parts(value):
        raise UsageError(f"{where} is neither text nor a list of parts")
    return chat_parts(value)


def _read_answer(held: Sequence[Item]) -> Message:
    thoughts = [_thought(item) for item in held if item["type"] == "reasoning"]
    texts = [_said_text(item) for item in held if item["type"] == "message"]
    calls = [
        ToolCall(item["call_id"], Function(item["name"], item["arguments"]))
        for item in held
        if item["type"] == "function_call"
    ]
    return Message(
        "assistant",
        texts[0] if texts else None,
        "\n".join(thoughts) if thoughts else None,
        calls or None,
        name=_first(held, "name"),
        written=_first(held, "written"),
    )


def _first(held: Sequence[Item], name: str) -> str | None:
    """A field of ours, which the first item that is not a call carries."""
    return next(
        (word for item in held if item["type"] != "function_call" and (word := _word(item, name)) is not None), None
    )


def _word(item: Item, name: str) -> str | None:
    value = item.get(name)
    return value if isinstance(value, str) else None


def _thought(item: Mapping[str, JSON]) -> str:
    """What was thought: word for word where the item has that, else its summary."""
    return "\n".join(str(part.get("text", "")) for part in item.get("content") or item.get("summary") or [])


def _said_text(item: Mapping[str, JSON]) -> str | list[dict[str, JSON]] | None:
    content = item.get("content")
    if not isinstance(content, list):
        return content
    if not content:
        return None
    kinds = {part.get("type") for part in content}
    spoken = kinds <= {"output_text", "refusal"} and ("output_text" in kinds or "id" in item)
    return text_of(content) if spoken else chat_parts(content)
