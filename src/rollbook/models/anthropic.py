"""Anthropic's models through the Messages API: requests and answers are translated, all else is as for any endpoint.

The system prompt is a field of its own, results of tools are blocks of a user's message, and there is no seed. Blocks
of thinking are recorded as reasoning; those of a turn that called tools are sent back, as the API requires.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import aiohttp
import msgspec
from yarl import URL

from rollbook.core import JSON, JSON_ERRORS, Message, ModelSpec, Sampling, Settings, ToolCall, decode, encode
from rollbook.errors import RolloutFailed, UsageError
from rollbook.models.chat import ChatModel, EndpointModels
from rollbook.models.chat_protocol import is_token_count, sampling_fields
from rollbook.models.model import Completion, join_url
from rollbook.models.router import Replica, open_http_session
from rollbook.models.server_errors import make_bad_completion

API_VERSION = "2023-06-01"
"""The version that has temperature, top_p and top_k, for the models that take them; 2026-10-21 has removed them."""
MAX_KEPT_TURNS = 16_384
"""Turns whose blocks of thinking are remembered: a rollout needs those of its last turn."""

Block = dict[str, JSON]

_FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
"""What is not here, such as pause_turn, is an answer that was not finished."""
_TOOL_CHOICES = {"auto": "auto", "required": "any", "none": "none"}
_DATA_URL = re.compile(r"data:([\w/+.-]+);base64,(.*)", re.DOTALL)


class AnthropicUsage(msgspec.Struct):
    """The counts of tokens; those of the prompt that were written to or read from the cache are counted apart."""

    input_tokens: int | float = 0
    output_tokens: int | float = 0
    cache_creation_input_tokens: int | float | None = None
    cache_read_input_tokens: int | float | None = None


class AnthropicAnswer(msgspec.Struct):
    """The body of an answer."""

    content: list[Block]
    stop_reason: str | None = None
    usage: AnthropicUsage | None = None


_decoder = msgspec.json.Decoder(AnthropicAnswer)


class AnthropicModel(ChatModel):
    """A model that is asked through the Messages API. It has no tokens, and no seed."""

    def __init__(
        self, spec: ModelSpec, settings: Settings, *, say: Callable[[str], None] | None = None, answered: bool = False
    ) -> None:
        super().__init__(spec, settings, tokens=False, say=say, answered=answered)
        self._thinking: OrderedDict[str, list[Block]] = OrderedDict()

    def _open_session(self) -> aiohttp.ClientSession:
        key = {"x-api-key": self._key} if self._key else {}
        headers = {"anthropic-version": API_VERSION, **key, **self._headers}
        return open_http_session(self._settings.connect_s, more_headers=headers)

    def _find_url(self, replica: Replica) -> URL:
        return URL(join_url(replica.base, "messages"))

    def _make_body(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        seed: int,
        tools: Sequence[JSON],
        prompt_ids: list[int] | None,
        wire_names: Mapping[str, str],
    ) -> bytes:
        return make_body(self.spec.name, messages, sampling, tools, self._thinking)

    def _read_completion(self, raw: bytes, seconds: float, version: str | None, text: bool) -> Completion:
        try:
            answer = _decoder.decode(raw)
        except JSON_ERRORS as error:
            quoted = " ".join(raw[:200].decode(errors="replace").split())
            failure = make_bad_completion(f"not a message of the Messages API ({error}): {quoted}")
            raise self._explain_error_body(raw, failure) from None
        self._remember_thinking(answer)
        return super()._read_completion(encode(to_chat_answer(answer)), seconds, version, False)

    def _remember_thinking(self, answer: AnthropicAnswer) -> None:
        blocks = [block for block in answer.content if block.get("type") in ("thinking", "redacted_thinking")]
        for call in answer.content:
            if blocks and call.get("type") == "tool_use":
                self._thinking[str(call.get("id"))] = blocks
        while len(self._thinking) > MAX_KEPT_TURNS:
            self._thinking.popitem(last=False)

    async def _fetch_models(self, replica: Replica) -> EndpointModels | RolloutFailed:
        """Return that it answers: the list has only some of the names that it takes."""
        served = await super()._fetch_models(replica)
        return msgspec.structs.replace(served, names=None) if isinstance(served, EndpointModels) else served


def make_body(
    name: str,
    messages: Sequence[Message],
    sampling: Sampling,
    tools: Sequence[JSON],
    thinking: Mapping[str, list[Block]],
) -> bytes:
    """Return a request; `thinking` has blocks to send back, by the id of a tool call of the same turn."""
    fields = sampling_fields(sampling, 0, {})
    fields.pop("seed", None)
    if "max_tokens" not in fields:
        raise UsageError("--sampling max_tokens=null: Anthropic's API requires max_tokens; leave it in")
    form = fields.pop("response_format", None)
    if form is not None:
        fields["output_config"] = {**fields.get("output_config", {}), "format": _make_output_format(form)}
    stop = fields.pop("stop", None)
    if stop is not None:
        fields["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    choice = fields.pop("tool_choice", None)
    body: dict[str, JSON] = {"model": name, **fields, "messages": make_messages(messages, thinking)}
    system = "\n\n".join(message.text for message in messages if message.role in ("system", "developer"))
    if system:
        body["system"] = system
    if tools:
        body["tools"] = [_make_tool(tool) for tool in tools]
        if choice is not None:
            body["tool_choice"] = _make_tool_choice(choice)
    return encode(body)


def make_messages(messages: Sequence[Message], thinking: Mapping[str, list[Block]]) -> list[JSON]:
    """Return a conversation without its system prompt, where users and assistants take turns."""
    made: list[dict[str, JSON]] = []
    for message in messages:
        if message.role in ("system", "developer"):
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _make_blocks(message, thinking)
        if not blocks:
            continue  # an empty answer: the API takes no empty text
        if made and made[-1]["role"] == role:
            made[-1]["content"] += blocks
        else:
            made.append({"role": role, "content": blocks})
    return list[JSON](made)


def _make_blocks(message: Message, thinking: Mapping[str, list[Block]]) -> list[Block]:
    if message.role == "tool":
        result = {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": _make_parts(message)}
        return [result]
    calls = message.tool_calls or []
    before = next((thinking[call.id] for call in calls if call.id in thinking), [])
    return [*before, *_make_parts(message), *map(_make_tool_use, calls)]


def _make_parts(message: Message) -> list[Block]:
    if isinstance(message.content, str) or message.content is None:
        return [{"type": "text", "text": message.content}] if (message.content or "").strip() else []
    return [_make_part(part) for part in message.content]


def _make_part(part: Block) -> Block:
    """Return a text or an image of a chat message as a block."""
    if part.get("type") == "text":
        return {"type": "text", "text": part["text"]}
    if part.get("type") == "image_url":
        url = part["image_url"]["url"] if isinstance(part["image_url"], dict) else part["image_url"]
        data = _DATA_URL.fullmatch(url)
        if data:
            return {"type": "image", "source": {"type": "base64", "media_type": data[1], "data": data[2]}}
        return {"type": "image", "source": {"type": "url", "url": url}}
    raise RolloutFailed("model_rejected", "model", f"Anthropic's API takes no part of type {part.get('type')!r:.40}")


def _make_tool_use(call: ToolCall) -> Block:
    # `prepare_messages` has made an object of whatever the model wrote
    return {"type": "tool_use", "id": call.id, "name": call.function.name, "input": decode(call.function.arguments)}


def _make_tool(tool: JSON) -> Block:
    function = tool["function"]
    made: Block = {"name": function["name"], "input_schema": function.get("parameters") or {"type": "object"}}
    if function.get("description"):
        made["description"] = function["description"]
    return made


def _make_output_format(form: JSON) -> Block:
    if not isinstance(form, dict) or not isinstance(form.get("json_schema"), dict):
        raise UsageError("response_format: Anthropic's API takes a json_schema only")
    return {"type": "json_schema", "schema": form["json_schema"].get("schema")}


def _make_tool_choice(choice: JSON) -> Block:
    if isinstance(choice, dict):
        return {"type": "tool", "name": choice["function"]["name"]}
    return {"type": _TOOL_CHOICES.get(str(choice), "auto")}


def to_chat_answer(answer: AnthropicAnswer) -> dict[str, JSON]:
    """Return an answer as a chat completion."""
    texts = {kind: [b for b in answer.content if b.get("type") == kind] for kind in ("text", "thinking", "tool_use")}
    message: dict[str, JSON] = {"content": "".join(str(block.get("text", "")) for block in texts["text"])}
    if texts["thinking"]:
        message["reasoning"] = "".join(str(block.get("thinking", "")) for block in texts["thinking"])
    if texts["tool_use"]:
        message["tool_calls"] = [
            {"id": block.get("id"), "function": {"name": block.get("name"), "arguments": block.get("input") or {}}}
            for block in texts["tool_use"]
        ]
        message["content"] = message["content"] or None
    choice = {"message": message, "finish_reason": _FINISH_REASONS.get(answer.stop_reason or "")}
    return {"choices": [choice], "usage": _to_chat_usage(answer.usage)}


def _to_chat_usage(usage: AnthropicUsage | None) -> JSON:
    if usage is None or not all(map(is_token_count, msgspec.structs.astuple(usage))):  # a sum may hide a wrong count
        return None
    cached = usage.cache_read_input_tokens or 0
    return {
        "prompt_tokens": usage.input_tokens + cached + (usage.cache_creation_input_tokens or 0),
        "completion_tokens": usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
