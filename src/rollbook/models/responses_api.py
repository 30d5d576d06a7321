"""The Responses API: items, tools, usage, responses and requests, from and to our messages and turns. No I/O.

NeMo Gym's servers and the gateway share this codec. Gym stores a request in each row as `responses_create_params`; the
gateway reads the same form from agents.

A message of the model becomes up to three kinds of items, in this order: its reasoning, its text, its tool calls. So
an item that cannot follow the one before it begins a new message, and so does the first item after one with token
fields. What the Responses API has no field for (`name`, `written`) is carried under our own names; what chat
completions has none for (annotations, encrypted reasoning, several summaries) is stored with the message as its
`items`, and comes back.

The token fields that trainers look for are flat on the last item of each model call: all three or none. Tools are
nested in `function` for chat completions and flat for the Responses API. What was not counted in `usage` is null, not
zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from rollbook.core import (
    JSON,
    JSON_ERRORS,
    SAMPLING_FIELDS,
    Function,
    Message,
    Sampling,
    ToolCall,
    Turn,
    Usage,
    decode,
)
from rollbook.errors import UsageError

COMPLETED, INCOMPLETE = "completed", "incomplete"
_COMPLETE_REASONS = ("stop", "tool_calls", "function_call")
INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}


def make_status_fields(finish_reason: str, ended: str = "") -> dict[str, JSON]:
    """Return `status` and `incomplete_details` of a response; `ended` is our limit that ended the conversation.

    What the Responses API has no field for is added under our own names.
    """
    if finish_reason in _COMPLETE_REASONS and not ended:
        return {"status": COMPLETED, "incomplete_details": None}
    details: dict[str, JSON] = {"reason": INCOMPLETE_REASONS.get(finish_reason)}
    if finish_reason == "context_length":
        details["reason"] = "max_output_tokens"
    if finish_reason not in INCOMPLETE_REASONS:
        details["finish_reason"] = finish_reason
    return {"status": INCOMPLETE, "incomplete_details": {**details, **({"ended": ended} if ended else {})}}


Part = dict[str, JSON]

_INPUT_TYPES = {"text": "input_text", "video_url": "input_video"}
_CHAT_TYPES = {"input_text": "text", "output_text": "text", "input_video": "video_url"}


def to_input_part(part: Part) -> Part:
    """Convert a chat part to an input part; a part that only one side has stays as it is."""
    kind = part.get("type")
    if kind == "image_url" and isinstance(part.get("image_url"), dict):
        image = {"image_url" if name == "url" else name: value for name, value in part["image_url"].items()}
        return {"type": "input_image", **image}
    return {**part, "type": _INPUT_TYPES[kind]} if kind in _INPUT_TYPES else part


def to_chat_part(part: Part) -> Part:
    """Convert an input or output part to a chat part."""
    kind = part.get("type")
    if kind == "input_image":
        image = {"url" if name == "image_url" else name: value for name, value in part.items() if name != "type"}
        return {"type": "image_url", "image_url": image}
    return {**part, "type": _CHAT_TYPES[kind]} if kind in _CHAT_TYPES else part


TurnTokens = tuple[list[int], list[int], list[float]]
"""The ids of the prompt, the ids of the answer, and their logprobs."""

TOKEN_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")


def read_tokens(item: Mapping[str, JSON], where: str) -> TurnTokens | None:
    """Return the ids and logprobs of an item, if any; incomplete fields or unequal lengths are refused."""
    values: list[JSON] = [item.get(name) for name in TOKEN_FIELDS]
    if all(value is None for value in values):
        return None
    prompt, ids, logprobs = values
    if not (_is_list_of(prompt, int) and _is_list_of(ids, int) and _is_list_of(logprobs, (int, float))):
        raise UsageError(f"{where}: {', '.join(TOKEN_FIELDS)} must be three lists of numbers, or none of them there")
    if any(number < 0 for number in (*prompt, *ids)):
        raise UsageError(f"{where}: a token id is negative")
    if len(ids) != len(logprobs):
        raise UsageError(f"{where}: {len(ids)} generation_token_ids but {len(logprobs)} generation_log_probs")
    return prompt, ids, [float(number) for number in logprobs]


def _is_list_of(value: JSON, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, list) and all(isinstance(v, kind) and not isinstance(v, bool) for v in value)


def remove_token_fields(item: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return an item without the token fields."""
    return {name: value for name, value in item.items() if name not in TOKEN_FIELDS}


Item = dict[str, JSON]

INPUT_ROLES = ("user", "system", "developer")
FOREIGN_ITEM = "responses_item"
"""The type of a message's only part if it holds an item that chat completions cannot express, as an MCP call."""

_EXTRA_FIELDS = ("name", "written")
_FINAL_STATUSES = (COMPLETED, INCOMPLETE)


def make_items(messages: Sequence[Message], turns: Sequence[Turn] = (), id_prefix: str = "") -> list[Item]:
    """Return messages as items. `turns` belong to the model's messages, in order; `id_prefix` makes item ids unique."""
    items: list[Item] = []
    remaining = iter(turns)
    before: Message | None = None
    for number, message in enumerate(messages):
        if foreign := get_foreign_item(message):
            items.append(foreign)
        elif message.role == "assistant":
            apart = before is not None and before.role == "assistant" and not get_foreign_item(before)
            output = [
                dict(item) for item in message.items or _make_output_items(message, f"{id_prefix}{number}", apart)
            ]
            output[-1] |= _make_turn_fields(output[-1], next(remaining, None))
            items += output
        else:
            items += message.items or [_make_input_item(message)]
        before = message
    return items


def _make_input_item(message: Message) -> Item:
    """Return the item of a message that is not the model's."""
    content = [*map(to_input_part, message.content)] if isinstance(message.content, list) else message.content or ""
    if message.role == "tool":
        call = message.tool_call_id or ""
        return {"type": "function_call_output", "call_id": call, "output": content, **_get_extra_fields(message)}
    return {"type": "message", "role": message.role, "content": content, **_get_extra_fields(message)}


def _make_output_items(message: Message, name: str, apart: bool) -> Iterator[Item]:
    """Yield the items of a model's message. `apart`: the model's previous message must not absorb this one."""
    extra = _get_extra_fields(message)
    if message.reasoning is not None:
        summary = [{"type": "summary_text", "text": message.reasoning}] if message.reasoning else []
        yield {"type": "reasoning", "id": f"rs_{name}", "summary": summary, **extra}
    extra = {} if message.reasoning is not None else extra
    if message.content is not None or not message.tool_calls or (apart and message.reasoning is None) or extra:
        yield {**_make_text_item(message.content, name), **extra}
    for call in message.tool_calls or []:
        yield _make_call_item(call)


def _make_text_item(content: str | list[dict[str, JSON]] | None, name: str) -> Item:
    if isinstance(content, list):
        return {"type": "message", "role": "assistant", "content": [*map(to_input_part, content)]}
    parts = [] if content is None else [{"type": "output_text", "text": content, "annotations": []}]
    return {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": COMPLETED, "content": parts}


def _make_call_item(call: ToolCall) -> Item:
    function = {"name": call.function.name, "arguments": call.function.arguments}
    return {"type": "function_call", "id": call.id, "call_id": call.id, **function, "status": COMPLETED}


def _make_turn_fields(item: Item, turn: Turn | None) -> Item:
    """Return the fields of the last item of a model call: its status, and its tokens if they were recorded."""
    fields: Item = {}
    if turn and item.get("status") in _FINAL_STATUSES:
        fields["status"] = INCOMPLETE if turn.finish_reason == "length" else COMPLETED
    if turn and turn.ids is not None:
        fields |= zip(TOKEN_FIELDS, (turn.prompt_ids, turn.ids, turn.logprobs), strict=True)
    return fields


def _get_extra_fields(message: Message) -> Item:
    return {name: value for name in _EXTRA_FIELDS if (value := getattr(message, name)) is not None}


def get_foreign_item(message: Message) -> Item | None:
    """Return the item that a message was made for, unchanged."""
    content = message.content
    if isinstance(content, list) and len(content) == 1 and content[0].get("type") == FOREIGN_ITEM:
        item: Item = content[0]["item"]
        return item
    return None


def read_items(value: JSON, where: str = "input") -> list[Message]:
    """Return the messages of items; a plain text is a user's message. UsageError names the invalid item."""
    return read_output(value, where)[0]


def read_output(value: JSON, where: str = "output") -> tuple[list[Message], list[Turn]]:
    """Return messages, and one turn for each message of the model: with exact tokens where the items have them."""
    if isinstance(value, str):
        return [Message("user", value)], []
    if not isinstance(value, list):
        raise UsageError(f"{where} is neither text nor a list of items")
    reader = _ItemReader()
    for number, item in enumerate(value):
        if not isinstance(item, dict):
            raise UsageError(f"{where}[{number}] is not an object but {item!r:.80}")
        reader.add(item, f"{where}[{number}]")
    reader.flush()
    return reader.messages, reader.turns


_ITEM_ORDER = {"reasoning": 0, "message": 1, "function_call": 2}


class _ItemReader:
    """Collects the items of one message until the next one begins."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.turns: list[Turn] = []
        self._pending: list[Item] = []

    def add(self, item: Item, where: str) -> None:
        kind = item.get("type") or ("message" if "role" in item else None)
        if kind is None:
            raise UsageError(f"{where} has neither a type nor a role")
        if not isinstance(kind, str):
            raise UsageError(f"{where}: its type is not text but {kind!r:.80}")
        if kind in _ITEM_ORDER and (kind != "message" or item.get("role") == "assistant"):
            self._add_output({**item, "type": kind}, where)
            return
        self.flush()
        if kind == "message":
            self.messages.append(_keep_items(_read_input_message(item, where), [item]))
        elif kind == "function_call_output":
            self.messages.append(_keep_items(_read_result(item, where), [item]))
        else:
            role = "tool" if kind.endswith(("_output", "_response")) else "assistant"
            self.messages.append(Message(role, [{"type": FOREIGN_ITEM, "item": item}]))

    def _add_output(self, item: Item, where: str) -> None:
        _check_item(item, where)
        last = _ITEM_ORDER[self._pending[-1]["type"]] if self._pending else -1
        position = _ITEM_ORDER[item["type"]]
        if position < last or position == last == _ITEM_ORDER["message"]:
            self.flush()
        self._pending.append(item)
        if tokens := read_tokens(item, where):
            self.flush(tokens)

    def flush(self, tokens: TurnTokens | None = None) -> None:
        """End the model's message that is being read, if any."""
        items, self._pending = self._pending, []
        if not items:
            return
        message = _read_answer(items)
        cut = items[-1].get("status") == INCOMPLETE
        reason = "length" if cut else "tool_calls" if message.tool_calls else "stop"
        self.messages.append(_keep_items(message, items))
        self.turns.append(_make_turn(tokens, reason))


def _keep_items(message: Message, items: Sequence[Item]) -> Message:
    """Return a message with the items it was read from, unless it converts back to the same items."""
    rebuilt = (
        list(_make_output_items(message, "", apart=items[0]["type"] == "message"))  # its text may be empty
        if message.role == "assistant"
        else [_make_input_item(message)]
    )
    if [*map(_normalize_item, rebuilt)] == [*map(_normalize_item, items)]:
        return message
    return msgspec.structs.replace(message, items=[remove_token_fields(item) for item in items])


def _normalize_item(item: Item) -> Item:
    """Return an item without what does not matter: id, final status, tokens and default fields."""
    kind = item.get("type") or "message"
    fields = {name: value for name, value in remove_token_fields(item).items() if name != "id"}
    if fields.get("status") in _FINAL_STATUSES:
        del fields["status"]
    if kind == "message" and isinstance(fields.get("content"), list):
        fields["content"] = [*map(_add_annotations, fields["content"])]
    return {**fields, "type": kind}


def _add_annotations(part: Item) -> Item:
    return {"annotations": [], **part} if part.get("type") == "output_text" else part


def _make_turn(tokens: TurnTokens | None, reason: str) -> Turn:
    if tokens is None:
        return Turn(finish_reason=reason)
    return Turn(*tokens, len(tokens[0]), len(tokens[1]), reason)


def _check_item(item: Item, where: str) -> None:
    """Refuse an item with fields of the wrong type."""
    required = {"reasoning": (), "message": (), "function_call": ("call_id", "name", "arguments")}[item["type"]]
    for name in required:
        if not isinstance(item.get(name), str):
            raise UsageError(f"{where}: a function_call needs its {name} as text")
    content = item.get("content")
    if item["type"] == "message" and not (content is None or isinstance(content, str) or _is_parts(content)):
        raise UsageError(f"{where}: content is neither text nor a list of parts")
    for name in ("summary", "content") if item["type"] == "reasoning" else ():
        if not _is_parts(item.get(name) or []):
            raise UsageError(f"{where}: {name} is not a list of parts")


def _is_parts(value: JSON) -> bool:
    return isinstance(value, list) and all(
        isinstance(part, dict) and isinstance(part.get("type"), str | None) for part in value
    )


def _read_input_message(item: Item, where: str) -> Message:
    role, content = item.get("role"), item.get("content")
    if role not in INPUT_ROLES:
        raise UsageError(f"{where}: role {role!r}; there are assistant, {', '.join(INPUT_ROLES)}")
    return Message(role, _read_content(content, f"{where}: content"), name=_get_text_field(item, "name"))


def _read_result(item: Item, where: str) -> Message:
    if not isinstance(item.get("call_id"), str):
        raise UsageError(f"{where}: a function_call_output needs its call_id as text")
    content = _read_content(item.get("output"), f"{where}: output")
    return Message("tool", content, tool_call_id=item["call_id"], name=_get_text_field(item, "name"))


def _read_content(value: JSON, where: str) -> str | list[dict[str, JSON]]:
    if isinstance(value, str):
        return value
    if not _is_parts(value):
        raise UsageError(f"{where} is neither text nor a list of parts")
    return [*map(to_chat_part, value)]


def _read_answer(items: Sequence[Item]) -> Message:
    thoughts = [_read_reasoning(item) for item in items if item["type"] == "reasoning"]
    texts = [_read_output_content(item) for item in items if item["type"] == "message"]
    calls = [
        ToolCall(item["call_id"], Function(item["name"], item["arguments"]))
        for item in items
        if item["type"] == "function_call"
    ]
    return Message(
        "assistant",
        texts[0] if texts else None,
        "\n".join(thoughts) if thoughts else None,
        calls or None,
        name=_get_first_text_field(items, "name"),
        written=_get_first_text_field(items, "written"),
    )


def _get_first_text_field(items: Sequence[Item], name: str) -> str | None:
    """Return a field of our own, which is on the first item that is not a call."""
    return next(
        (
            text
            for item in items
            if item["type"] != "function_call" and (text := _get_text_field(item, name)) is not None
        ),
        None,
    )


def _get_text_field(item: Item, name: str) -> str | None:
    value = item.get(name)
    return value if isinstance(value, str) else None


def _read_reasoning(item: Mapping[str, JSON]) -> str:
    """Return the reasoning in full if the item has it, else its summary."""
    return "\n".join(str(part.get("text", "")) for part in item.get("content") or item.get("summary") or [])


def _read_output_content(item: Mapping[str, JSON]) -> str | list[dict[str, JSON]] | None:
    content = item.get("content")
    if not isinstance(content, list):
        return content
    if not content:
        return None
    kinds = {part.get("type") for part in content}
    only_text = kinds <= {"output_text", "refusal"} and ("output_text" in kinds or "id" in item)
    if not only_text:
        return [*map(to_chat_part, content)]
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in content)  # a refusal counts as text


def to_response_tools(tools: Sequence[JSON]) -> list[JSON]:
    """Convert chat tools to Responses tools. `strict` is required there, and its default differs."""
    return [
        {"type": "function", "parameters": None, "strict": False, **tool["function"]}
        if tool.get("type", "function") == "function"
        else tool
        for tool in tools
    ]


def to_chat_tools(tools: Sequence[JSON]) -> list[JSON]:
    """Convert Responses tools to chat tools; a tool that is not a function stays as it is."""
    return [_to_chat_tool(tool, number) for number, tool in enumerate(tools)]


def _to_chat_tool(tool: JSON, number: int) -> JSON:
    if not isinstance(tool, dict):
        raise UsageError(f"tools[{number}] is not an object but {tool!r:.80}")
    if tool.get("type", "function") != "function" or "function" in tool:
        return tool
    if not isinstance(tool.get("name"), str):
        raise UsageError(f"tools[{number}] has no name")
    function = {name: value for name, value in tool.items() if name != "type"}
    for name, default in (("strict", (False, None)), ("parameters", (None,))):
        if function.get(name) in default:
            function.pop(name, None)
    return {"type": "function", "function": function}


def make_usage(usage: Usage, uncounted: int | None = None) -> dict[str, JSON]:
    """Return a response's `usage`; unknown counts are null, not zero, unless the reader needs a number."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": uncounted},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": uncounted},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def make_response(
    messages: Sequence[Message],
    turns: Sequence[Turn],
    *,
    name: str,
    model: str,
    created: float = 0.0,
    tools: Sequence[JSON] = (),
    ended: str = "",
    uncounted: int | None = None,
) -> dict[str, JSON]:
    """Return the response of one rollout; `messages` follow the prompt, `tools` are in chat completions form."""
    usage = Usage(sum(turn.prompt_tokens for turn in turns), sum(turn.completion_tokens for turn in turns))
    return {
        "id": f"resp_{name}",
        "created_at": created,
        "model": model,
        "object": "response",
        "output": make_items(messages, turns, f"{name}_"),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": to_response_tools(tools),
        **make_status_fields(turns[-1].finish_reason if turns else "stop", ended),
        "usage": make_usage(usage, uncounted),
    }


CREATE_PARAMS = "responses_create_params"
UNSUPPORTED = ("previous_response_id", "prompt", "background", "stream")
"""Fields that would make the request mean something we cannot do."""


class CreateParams(msgspec.Struct, frozen=True):
    """A request for a response, in our types. None means not requested."""

    messages: list[Message]
    tools: list[JSON] = []
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    extra: dict[str, JSON] = {}

    def sampling(self, base: Sampling) -> Sampling:
        """Return the sampling of the request, with `base` for what it leaves open."""
        requested = {name: getattr(self, name) for name in SAMPLING_FIELDS}
        values = {name: value for name, value in requested.items() if value is not None}
        return base.override({**self.extra, **values})


def make_create_params(
    messages: Sequence[Message], tools: Sequence[JSON] = (), sampling: Sampling | None = None
) -> JSON:
    """Return the parameters for these messages and chat tools; without `sampling`, the reader decides it."""
    params: dict[str, JSON] = {"input": make_items(messages)}
    if tools:
        params["tools"] = to_response_tools(tools)
    if sampling is not None:
        params |= make_sampling_params(sampling)
    return params


def make_sampling_params(sampling: Sampling) -> dict[str, JSON]:
    """Return sampling under the names of the Responses API."""
    names = {"temperature": "temperature", "top_p": "top_p", "max_tokens": "max_output_tokens"}
    return {theirs: getattr(sampling, ours) for ours, theirs in names.items() if not sampling.omits(ours)}


def read_create_params(value: JSON, where: str = CREATE_PARAMS) -> CreateParams:
    """Read a request; UsageError names what is missing, wrong or unsupported."""
    if not isinstance(value, dict):
        raise UsageError(f"{where} is missing" if value is None else f"{where} is not an object")
    for name in UNSUPPORTED:
        if value.get(name):
            raise UsageError(f"{where}.{name} is not supported here")
    if not value.get("input"):
        raise UsageError(f"{where}.input is missing or empty")
    tools = [] if value.get("tools") is None else value["tools"]
    if not isinstance(tools, list):
        raise UsageError(f"{where}.tools is not a list")
    if not isinstance(value.get("metadata"), dict | None):
        raise UsageError(f"{where}.metadata is not an object")
    if not isinstance(value.get("instructions"), str | None):
        raise UsageError(f"{where}.instructions is not text")
    extra = _read_extra_options(value, bool(tools), where)
    return CreateParams(
        _prepend_instructions(read_items(value["input"], f"{where}.input"), value.get("instructions")),
        to_chat_tools(tools),
        _read_number(value, "temperature", where),
        _read_number(value, "top_p", where),
        _read_int(value.get("max_output_tokens"), f"{where}.max_output_tokens"),
        _read_int(extra.pop("seed", None), f"{where}.metadata.extra_body.seed"),
        extra,
    )


def _prepend_instructions(messages: list[Message], instructions: str | None) -> list[Message]:
    """Put the instructions first, in one message with the system messages that follow: many servers take only one."""
    if not instructions:
        return messages
    leading = 0
    while leading < len(messages) and messages[leading].role in ("system", "developer"):
        leading += 1
    texts = [instructions, *(message.text for message in messages[:leading])]
    return [Message("system", "\n\n".join(texts)), *messages[leading:]]


def _read_extra_options(value: Mapping[str, JSON], has_tools: bool, where: str) -> dict[str, JSON]:
    """Return the remaining options under their names in chat completions."""
    extra: dict[str, JSON] = {}
    if has_tools and value.get("tool_choice") not in (None, "auto"):
        extra["tool_choice"] = _to_chat_tool_choice(value["tool_choice"])
    if has_tools and value.get("parallel_tool_calls") is False:
        extra["parallel_tool_calls"] = False
    if effort := _get_field(value.get("reasoning"), "effort"):
        extra["reasoning_effort"] = effort
    if form := _to_chat_response_format(_get_field(value.get("text"), "format")):
        extra["response_format"] = form
    metadata = value.get("metadata")
    if kwargs := _get_field(metadata, "chat_template_kwargs"):
        extra["chat_template_kwargs"] = _parse_object(kwargs, f"{where}.metadata.chat_template_kwargs")
    if body := _get_field(metadata, "extra_body"):
        extra |= _parse_object(body, f"{where}.metadata.extra_body")
    return extra


def _get_field(value: JSON, name: str) -> JSON:
    return value.get(name) if isinstance(value, dict) else None


def _to_chat_tool_choice(value: JSON) -> JSON:
    if isinstance(value, dict) and value.get("type") == "function" and "name" in value:
        return {"type": "function", "function": {"name": value["name"]}}
    return value


def _to_chat_response_format(value: JSON) -> JSON:
    kind = _get_field(value, "type")
    if kind != "json_schema":
        return value if kind == "json_object" else None
    schema = {name: part for name, part in value.items() if name != "type"}
    return {"type": "json_schema", "json_schema": schema}


def _parse_object(value: JSON, where: str) -> dict[str, JSON]:
    """Return an object that is sent as text, because metadata holds only text."""
    try:
        parsed = decode(value) if isinstance(value, str) else value
    except JSON_ERRORS as error:
        raise UsageError(f"{where} is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise UsageError(f"{where} is not an object")
    return parsed


def _read_number(value: Mapping[str, JSON], name: str, where: str) -> float | None:
    number = value.get(name)
    if number is not None and (not isinstance(number, int | float) or isinstance(number, bool)):
        raise UsageError(f"{where}.{name} is not a number but {number!r:.80}")
    return None if number is None else float(number)


def _read_int(value: JSON, where: str) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise UsageError(f"{where} is not a whole number but {value!r:.80}")
    return value
