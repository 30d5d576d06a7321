"""The chat completions protocol: the few fields that we read, and the body that we send. No I/O here."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from rollbook.core.json import JSON, decode, encode
from rollbook.core.manifest import Sampling
from rollbook.core.message import Function, Message, ToolCall
from rollbook.errors import RolloutFailed, UsageError
from rollbook.models.refusal import WHERE, bad_completion

RESERVED = frozenset({"messages", "model", "n", "stream", "tools", "logprobs", "return_token_ids"})
_UNFINISHED = frozenset({None, "", "abort", "error"})
_NOT_A_NUMBER = re.compile(rb'"logprob"\s*:\s*(NaN|-?Infinity)')


class SaidFunction(msgspec.Struct):
    """The function of a tool call; some servers write the arguments as an object."""

    name: str
    arguments: JSON = ""


class SaidCall(msgspec.Struct):
    """A tool call; some servers leave the id out."""

    function: SaidFunction
    id: str | None = None


class Said(msgspec.Struct):
    """The message of a choice; its reasoning goes by two names."""

    content: str | list[dict[str, JSON]] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[SaidCall] | None = None


class SaidLogprob(msgspec.Struct):
    """One sampled token."""

    logprob: float | None = None


class SaidLogprobs(msgspec.Struct):
    """All sampled tokens."""

    content: list[SaidLogprob] | None = None


class Choice(msgspec.Struct):
    """One answer."""

    message: Said | None = None
    finish_reason: str | None = None
    logprobs: SaidLogprobs | None = None
    token_ids: list[int] | None = None


class Counts(msgspec.Struct):
    """The server's own count of tokens."""

    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0


class ChatAnswer(msgspec.Struct):
    """The body of an answer."""

    choices: list[Choice] | None = None
    usage: Counts | None = None
    prompt_token_ids: list[int] | None = None


class ServedModel(msgspec.Struct):
    """One row of GET models."""

    id: str
    owned_by: str | None = None


class ServedModels(msgspec.Struct):
    """The body of GET models."""

    data: list[ServedModel]


_answers = msgspec.json.Decoder(ChatAnswer)
_models = msgspec.json.Decoder(ServedModels)
read_models = _models.decode


def check_extra(sampling: Sampling) -> None:
    """Refuse extra sampling fields that would change what an answer is."""
    for field in RESERVED.intersection(sampling.extra):
        raise UsageError(f"--sampling {field}=...: this field is set by Rollbook; remove it")


def chat_body(
    name: str, messages: Sequence[Message], sampling: Sampling, seed: int, tools: Sequence[JSON], tokens: bool
) -> bytes:
    """The request. Sampling is always sent in full, so that no server default can decide; `extra` has the last word."""
    body: dict[str, JSON] = {
        "model": name,
        "messages": messages,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "seed": seed,
    }
    if sampling.extra:
        body.update(sampling.extra)
    if tools:
        body["tools"] = tools
    if tokens:
        body["logprobs"] = body["return_token_ids"] = True
    return encode(body)


def without_reasoning(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages as the protocol knows them: what the model thought is not part of what is sent back."""
    if not any(m.reasoning for m in messages):
        return messages
    return [msgspec.structs.replace(m, reasoning=None) if m.reasoning else m for m in messages]


def sendable(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages as servers take them back: templates read a call's arguments, so they must be a JSON object.

    What a model wrote instead is told back to it inside of one. The record keeps it as it was.
    """
    if not any(m.tool_calls for m in messages):
        return messages
    return [_with_calls(m, m.tool_calls) if m.tool_calls else m for m in messages]


def _with_calls(message: Message, calls: Sequence[ToolCall]) -> Message:
    return msgspec.structs.replace(message, tool_calls=[_sendable(call) for call in calls])


def _sendable(call: ToolCall) -> ToolCall:
    text = call.function.arguments
    try:
        readable = isinstance(decode(text), dict)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        readable = False
    if readable:
        return call
    kept = encode({"unreadable": text}).decode() if text.strip() else "{}"
    return msgspec.structs.replace(call, function=Function(call.function.name, kept))


def read_answer(raw: bytes) -> tuple[ChatAnswer, Choice, str]:
    """The answer, its one choice and why it ended; RolloutFailed("bad_completion") if that is not what came."""
    try:
        answer = _answers.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _undecodable(raw, error) from None
    if not answer.choices:
        raise bad_completion(f"an answer without choices: {_quote(raw)}")
    choice = answer.choices[0]
    if choice.message is None:
        raise bad_completion(f"a choice without a message: {_quote(raw)}")
    reason = choice.finish_reason
    if reason is None or reason in _UNFINISHED:
        raise bad_completion(f"the answer was not finished: finish_reason is {reason!r}")
    return answer, choice, reason


def message_of(said: Said) -> Message:
    """What the model said. No content and no tool call is an empty answer: the policy's doing, not a failure."""
    calls = [_call(i, call) for i, call in enumerate(said.tool_calls or ())] or None
    content = said.content if said.content is not None or calls else ""
    return Message("assistant", content, said.reasoning or said.reasoning_content or None, calls)


def _call(at: int, call: SaidCall) -> ToolCall:
    arguments = call.function.arguments
    text = arguments if isinstance(arguments, str) else encode(arguments).decode()
    return ToolCall(call.id or f"call_{at}", Function(call.function.name, text))


def _undecodable(raw: bytes, error: Exception) -> RolloutFailed:
    if _NOT_A_NUMBER.search(raw):
        return RolloutFailed("nonfinite_logprobs", WHERE, "a logprob is written as NaN or Infinity")
    return bad_completion(f"not a chat completion ({error}): {_quote(raw)}")


def _quote(raw: bytes) -> str:
    return " ".join(raw[:200].decode(errors="replace").split())
