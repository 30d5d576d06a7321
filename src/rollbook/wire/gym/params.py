"""What a row asks of the model: `responses_create_params`, as our messages, tools and sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from rollbook.core.json import JSON, decode
from rollbook.core.manifest import Sampling
from rollbook.core.message import Message
from rollbook.errors import UsageError
from rollbook.wire.gym.items import items_of, read_items
from rollbook.wire.gym.tools import chat_tools, flat_tools

KEY = "responses_create_params"
REFUSED = ("previous_response_id", "prompt", "background", "stream")
"""What would make the request mean something that we cannot do."""


class Params(msgspec.Struct, frozen=True):
    """A request for a response, in our words. What is None was not asked for."""

    messages: list[Message]
    tools: list[JSON] = []
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    extra: dict[str, JSON] = {}

    def sampling(self, base: Sampling) -> Sampling:
        """How to sample: as was asked for, else as usual here."""
        asked = {name: getattr(self, name) for name in ("temperature", "top_p", "max_tokens")}
        given = {name: value for name, value in asked.items() if value is not None}
        return msgspec.structs.replace(base, **given, extra={**base.extra, **self.extra})


def params_of(messages: Sequence[Message], tools: Sequence[JSON] = (), sampling: Sampling | None = None) -> JSON:
    """What a row holds for these messages and chat tools; without `sampling` it leaves that to others."""
    asked: dict[str, JSON] = {"input": items_of(messages)}
    if tools:
        asked["tools"] = flat_tools(tools)
    if sampling is not None:
        asked |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
        asked["max_output_tokens"] = sampling.max_tokens
    return asked


def read_params(value: JSON, where: str = KEY) -> Params:
    """What is asked for; UsageError says what is missing, wrong, or beyond us."""
    if not isinstance(value, dict):
        raise UsageError(f"{where} is missing" if value is None else f"{where} is no object")
    for name in REFUSED:
        if value.get(name):
            raise UsageError(f"{where}.{name} is not supported here")
    if not value.get("input"):
        raise UsageError(f"{where}.input is missing or empty")
    tools = value.get("tools") or []
    if not isinstance(tools, list):
        raise UsageError(f"{where}.tools is no list")
    if not isinstance(value.get("metadata"), dict | None):
        raise UsageError(f"{where}.metadata is no object")
    extra = _extra(value, bool(tools), where)
    return Params(
        _instructed(read_items(value["input"], f"{where}.input"), value.get("instructions")),
        chat_tools(tools),
        _number(value, "temperature", where),
        _number(value, "top_p", where),
        _whole(value.get("max_output_tokens"), f"{where}.max_output_tokens"),
        _whole(extra.pop("seed", None), f"{where}.metadata.extra_body.seed"),
        extra,
    )


def _instructed(messages: list[Message], instructions: JSON) -> list[Message]:
    """Instructions come first, in one message with those that the input begins with: many servers take only one."""
    if not instructions:
        return messages
    leading = 0
    while leading < len(messages) and messages[leading].role in ("system", "developer"):
        leading += 1
    words = [str(instructions), *(message.text for message in messages[:leading])]
    return [Message("system", "\n\n".join(words)), *messages[leading:]]


def _extra(value: Mapping[str, JSON], tools: bool, where: str) -> dict[str, JSON]:
    """The rest, by the names that chat completions has for it."""
    extra: dict[str, JSON] = {}
    if tools and value.get("tool_choice") not in (None, "auto"):
        extra["tool_choice"] = _choice(value["tool_choice"])
    if tools and value.get("parallel_tool_calls") is False:
        extra["parallel_tool_calls"] = False
    if effort := _inside(value.get("reasoning"), "effort"):
        extra["reasoning_effort"] = effort
    if form := _form(_inside(value.get("text"), "format")):
        extra["response_format"] = form
    metadata = value.get("metadata")
    if kwargs := _inside(metadata, "chat_template_kwargs"):
        extra["chat_template_kwargs"] = _object(kwargs, f"{where}.metadata.chat_template_kwargs")
    if body := _inside(metadata, "extra_body"):
        extra |= _object(body, f"{where}.metadata.extra_body")
    return extra


def _inside(value: JSON, name: str) -> JSON:
    return value.get(name) if isinstance(value, dict) else None


def _choice(value: JSON) -> JSON:
    if isinstance(value, dict) and value.get("type") == "function" and "name" in value:
        return {"type": "function", "function": {"name": value["name"]}}
    return value


def _form(value: JSON) -> JSON:
    kind = _inside(value, "type")
    if kind != "json_schema":
        return value if kind == "json_object" else None
    schema = {name: part for name, part in value.items() if name != "type"}
    return {"type": "json_schema", "json_schema": schema}


def _object(value: JSON, where: str) -> dict[str, JSON]:
    """An object that travels as text, for metadata holds nothing else."""
    try:
        found = decode(value) if isinstance(value, str) else value
    except msgspec.DecodeError as error:
        raise UsageError(f"{where} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{where} is no object")
    return found


def _number(value: Mapping[str, JSON], name: str, where: str) -> float | None:
    number = value.get(name)
    if number is not None and (not isinstance(number, int | float) or isinstance(number, bool)):
        raise UsageError(f"{where}.{name} is no number but {number!r:.80}")
    return None if number is None else float(number)


def _whole(value: JSON, where: str) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise UsageError(f"{where} is no whole number but {value!r:.80}")
    return value
