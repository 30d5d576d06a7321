"""Requests of the Responses API as our messages, tools and sampling, and back.

NeMo Gym stores such a request in each row as `responses_create_params`; the gateway reads the same form from agents.
No I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from rollbook.core import JSON, Message, Sampling, decode
from rollbook.errors import UsageError
from rollbook.models.responses_api import make_items, read_items, to_chat_tools, to_response_tools

CREATE_PARAMS = "responses_create_params"
UNSUPPORTED = ("previous_response_id", "prompt", "background", "stream")
"""What would make the request mean something that we cannot do."""


class CreateParams(msgspec.Struct, frozen=True):
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


def make_create_params(
    messages: Sequence[Message], tools: Sequence[JSON] = (), sampling: Sampling | None = None
) -> JSON:
    """What a row holds for these messages and chat tools; without `sampling` it leaves that to others."""
    asked: dict[str, JSON] = {"input": make_items(messages)}
    if tools:
        asked["tools"] = to_response_tools(tools)
    if sampling is not None:
        asked |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
        asked["max_output_tokens"] = sampling.max_tokens
    return asked


def read_create_params(value: JSON, where: str = CREATE_PARAMS) -> CreateParams:
    """What is asked for; UsageError says what is missing, wrong, or beyond us."""
    if not isinstance(value, dict):
        raise UsageError(f"{where} is missing" if value is None else f"{where} is no object")
    for name in UNSUPPORTED:
        if value.get(name):
            raise UsageError(f"{where}.{name} is not supported here")
    if not value.get("input"):
        raise UsageError(f"{where}.input is missing or empty")
    tools = value.get("tools") or []
    if not isinstance(tools, list):
        raise UsageError(f"{where}.tools is no list")
    if not isinstance(value.get("metadata"), dict | None):
        raise UsageError(f"{where}.metadata is no object")
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


def _prepend_instructions(messages: list[Message], instructions: JSON) -> list[Message]:
    """Instructions come first, in one message with those that the input begins with: many servers take only one."""
    if not instructions:
        return messages
    leading = 0
    while leading < len(messages) and messages[leading].role in ("system", "developer"):
        leading += 1
    words = [str(instructions), *(message.text for message in messages[:leading])]
    return [Message("system", "\n\n".join(words)), *messages[leading:]]


def _read_extra_options(value: Mapping[str, JSON], has_tools: bool, where: str) -> dict[str, JSON]:
    """The rest, by the names that chat completions has for it."""
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
    """An object that travels as text, for metadata holds nothing else."""
    try:
        found = decode(value) if isinstance(value, str) else value
    except msgspec.DecodeError as error:
        raise UsageError(f"{where} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{where} is no object")
    return found


def _read_number(value: Mapping[str, JSON], name: str, where: str) -> float | None:
    number = value.get(name)
    if number is not None and (not isinstance(number, int | float) or isinstance(number, bool)):
        raise UsageError(f"{where}.{name} is no number but {number!r:.80}")
    return None if number is None else float(number)


def _read_int(value: JSON, where: str) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise UsageError(f"{where} is no whole number but {value!r:.80}")
    return value
