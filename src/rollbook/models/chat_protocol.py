"""The chat completions protocol: the request bodies that we send, the fields that we read. No I/O.

The differences between servers are handled here: two names for reasoning, arguments sent as an object, missing ids.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from rollbook.core import JSON, JSON_ERRORS, Function, Message, Sampling, ToolCall, decode, encode
from rollbook.errors import RolloutFailed, UsageError
from rollbook.models.server_errors import MAX_COMPLETION_TOKENS, WHERE, make_bad_completion, shorten_page

RESERVED_FIELDS = frozenset(
    {"messages", "model", "n", "stream", "tools", "logprobs", "return_token_ids", "kv_transfer_params"}
)
NO_NAMES: Mapping[str, str] = {}

UNSHAPED_SAMPLING: dict[str, JSON] = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""The values that vLLM would otherwise take from the generation_config.json of the weights."""

_UNFINISHED = frozenset({None, "", "abort", "error"})
_NOT_A_NUMBER = re.compile(rb'"(logprob"\s*:\s*|token_logprobs"\s*:\s*\[[^\]]*)(NaN|-?Infinity)')


class AnswerFunction(msgspec.Struct):
    """The function of a tool call; some servers send the arguments as an object."""

    name: str
    arguments: JSON = ""


class AnswerToolCall(msgspec.Struct):
    """A tool call; some servers omit the id."""

    function: AnswerFunction
    id: str | None = None


class AnswerMessage(msgspec.Struct, gc=False):
    """The message of a choice; its reasoning has two names."""

    content: str | list[dict[str, JSON]] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[AnswerToolCall] | None = None


class AnswerLogprob(msgspec.Struct, gc=False):
    """One sampled token."""

    logprob: float | None = None


class AnswerLogprobs(msgspec.Struct, gc=False):
    """All sampled tokens."""

    content: list[AnswerLogprob] | None = None


class AnswerChoice(msgspec.Struct, gc=False):
    """One answer."""

    message: AnswerMessage | None = None
    finish_reason: str | None = None
    logprobs: AnswerLogprobs | None = None
    token_ids: list[int] | None = None


class AnswerPromptDetails(msgspec.Struct, gc=False):
    """More about the tokens of the prompt."""

    cached_tokens: int | float | None = None


MAX_TOKEN_COUNT = 2**40
"""No call has more tokens; a server that reports more is not believed."""


def is_token_count(value: float | None) -> bool:
    """Return whether a count that a server reports can be true; None is one that it does not report.

    >>> [is_token_count(value) for value in (None, 0, 20, -20, 1e30, 2.5)]
    [True, True, True, False, False, False]
    """
    return value is None or (0 <= value <= MAX_TOKEN_COUNT and value == int(value))


class AnswerUsage(msgspec.Struct, gc=False):
    """The server's own count of tokens, as it was sent; `read_counts` is what is believed."""

    prompt_tokens: int | float | None = 0
    completion_tokens: int | float | None = 0
    prompt_tokens_details: AnswerPromptDetails | None = None

    def read_counts(self) -> tuple[int | None, int | None]:
        """Return the counts of the prompt and of the completion; both are unknown if one of them cannot be true.

        A negative count would lower the cost of a run, so that it never reaches its limit.
        """
        prompt, completion = self.prompt_tokens, self.completion_tokens
        if not (is_token_count(prompt) and is_token_count(completion)):
            return None, None
        return _to_int(prompt), _to_int(completion)

    def read_cached(self) -> int | None:
        """Return how many tokens of the prompt were cached; None if that is unknown or cannot be true."""
        cached = self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None
        return _to_int(cached) if is_token_count(cached) else None


def _to_int(count: float | None) -> int | None:
    return None if count is None else int(count)


class ChatAnswer(msgspec.Struct, gc=False):
    """The body of an answer."""

    choices: list[AnswerChoice] | None = None
    usage: AnswerUsage | None = None
    prompt_token_ids: list[int] | None = None


class ServedModel(msgspec.Struct):
    """One row of GET models."""

    id: str
    owned_by: str | None = None


class ServedModels(msgspec.Struct):
    """The body of GET models."""

    data: list[ServedModel]


_chat_decoder = msgspec.json.Decoder(ChatAnswer)
read_models = msgspec.json.Decoder(ServedModels).decode


class TextLogprobs(msgspec.Struct):
    """All sampled tokens of a text completion."""

    token_logprobs: list[float | None] | None = None


class TextChoice(msgspec.Struct):
    """One answer of a text completion."""

    text: str
    finish_reason: str | None = None
    logprobs: TextLogprobs | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class TextAnswer(msgspec.Struct):
    """The body of a text completion."""

    choices: list[TextChoice]
    usage: AnswerUsage | None = None

    def to_chat_answer(self) -> ChatAnswer:
        """Return the same as an answer to a chat."""
        if not self.choices:
            return ChatAnswer()
        source = self.choices[0]
        numbers = source.logprobs.token_logprobs if source.logprobs else None
        logprobs = None if numbers is None else AnswerLogprobs([AnswerLogprob(number) for number in numbers])
        choice = AnswerChoice(AnswerMessage(source.text), source.finish_reason, logprobs, source.token_ids)
        return ChatAnswer([choice], self.usage, source.prompt_token_ids)


_text_decoder = msgspec.json.Decoder(TextAnswer)


def check_extra(sampling: Sampling) -> None:
    """Refuse extra sampling fields that would change what an answer is."""
    for field in RESERVED_FIELDS.intersection(sampling.extra):
        raise UsageError(f"--sampling {field}=...: this field is set by Rollbook; remove it")


def chat_body(
    name: str,
    messages: Sequence[Message],
    sampling: Sampling,
    seed: int,
    tools: Sequence[JSON],
    tokens: bool,
    prompt_ids: list[int] | None = None,
    wire_names: Mapping[str, str] = NO_NAMES,
) -> bytes:
    """Return the request. Sampling is always sent in full, so that no server default applies; `extra` overrides it.

    What is null in `extra` is omitted. `prompt_ids` replace the messages where the server accepts them. `wire_names`
    are the names of parameters that this endpoint takes instead of the usual ones.
    """
    fields = sampling_fields(sampling, seed, UNSHAPED_SAMPLING if tokens else {})
    if wire_names:
        fields = {wire_names.get(field, field): value for field, value in fields.items()}
    body = {"model": name, "messages": messages, **fields}
    if tools:
        body["tools"] = tools
    if tokens:
        body["logprobs"] = body["return_token_ids"] = True
    if prompt_ids is not None:
        body["kv_transfer_params"] = {"prompt_token_ids": prompt_ids}
    return encode(body)


def text_body(name: str, prompt_ids: list[int], sampling: Sampling, seed: int) -> bytes:
    """Return the request of a text completion that continues ids, and reports its own."""
    body = {"model": name, "prompt": prompt_ids, **sampling_fields(sampling, seed, UNSHAPED_SAMPLING)}
    return encode({**body, "logprobs": 1, "return_token_ids": True})


def sampling_fields(sampling: Sampling, seed: int, unless_given: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return the parameters of a call under their usual names, without those that are omitted."""
    fields: dict[str, JSON] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "seed": seed,
        **unless_given,
        **sampling.extra,
    }
    if None in sampling.extra.values():
        fields = {name: value for name, value in fields.items() if value is not None}
    if MAX_COMPLETION_TOKENS in fields:
        fields.pop("max_tokens", None)  # the same limit under its other name
    return fields


def list_sampling_fields(body: bytes) -> set[str]:
    """Return the parameters of a request that `--sampling NAME=null` can omit."""
    return set(decode(body)) - RESERVED_FIELDS - {"response_format", "tool_choice", "prompt"}


def without_reasoning(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages without reasoning, which is not sent back in this protocol."""
    if not any(m.reasoning for m in messages):
        return messages
    return [msgspec.structs.replace(m, reasoning=None) if m.reasoning else m for m in messages]


def prepare_messages(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages as servers accept them: templates read a call's arguments, so these must be a JSON object.

    Anything else that a model wrote is sent back inside of one. The record keeps the original.
    """
    if not any(m.tool_calls or m.items for m in messages):
        return messages
    without_items = [msgspec.structs.replace(m, items=None) if m.items else m for m in messages]
    return [
        msgspec.structs.replace(m, tool_calls=[*map(_prepare_call, m.tool_calls)]) if m.tool_calls else m
        for m in without_items
    ]


def _prepare_call(call: ToolCall) -> ToolCall:
    text = call.function.arguments
    try:
        readable = isinstance(decode(text), dict)
    except JSON_ERRORS:
        readable = False
    if readable:
        return call
    arguments = encode({"unreadable": text}).decode() if text.strip() else "{}"
    return msgspec.structs.replace(call, function=Function(call.function.name, arguments))


def read_answer(raw: bytes, text: bool = False) -> tuple[ChatAnswer, AnswerChoice, str]:
    """Return the answer, its one choice and its finish reason; RolloutFailed("bad_completion") if it is malformed.

    `text`: a text completion was requested.
    """
    try:
        answer = _text_decoder.decode(raw).to_chat_answer() if text else _chat_decoder.decode(raw)
    except JSON_ERRORS as error:
        raise _explain_undecodable(raw, error) from None
    if not answer.choices:
        raise make_bad_completion(f"an answer without choices: {_quote(raw)}")
    choice = answer.choices[0]
    if choice.message is None:
        raise make_bad_completion(f"a choice without a message: {_quote(raw)}")
    reason = choice.finish_reason
    if reason is None or reason in _UNFINISHED:
        raise make_bad_completion(f"the answer was not finished: finish_reason is {reason!r}")
    return answer, choice, reason


def make_message(answer: AnswerMessage) -> Message:
    """Return the model's message. No content and no tool call is an empty answer: the policy's fault."""
    calls = [_make_call(i, call) for i, call in enumerate(answer.tool_calls or ())] or None
    content = answer.content if answer.content is not None or calls else ""
    return Message("assistant", content, answer.reasoning or answer.reasoning_content or None, calls)


def _make_call(index: int, call: AnswerToolCall) -> ToolCall:
    arguments = call.function.arguments
    text = arguments if isinstance(arguments, str) else encode(arguments).decode()
    return ToolCall(call.id or f"call_{index}", Function(call.function.name, text))


def _explain_undecodable(raw: bytes, error: Exception) -> RolloutFailed:
    if _NOT_A_NUMBER.search(raw):
        return RolloutFailed("nonfinite_logprobs", WHERE, "a logprob is written as NaN or Infinity")
    page = shorten_page(raw[:2000].decode(errors="replace"))
    if page.startswith("an HTML page"):
        return make_bad_completion(
            f"{page}, not a chat completion: check the path of the URL: most endpoints end in /v1"
        )
    return make_bad_completion(f"not a chat completion ({error}): {_quote(raw)}")


def _quote(raw: bytes) -> str:
    return " ".join(raw[:200].decode(errors="replace").split())
