"""Continue a conversation in its own tokens: the next prompt as ids, derived from what the server renders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, Unpack, cast

import msgspec
from yarl import URL

from rollbook.core import JSON, JSON_ERRORS, Function, Message, Sampling, decode, encode
from rollbook.errors import UsageError
from rollbook.models.chat_protocol import prepare_messages, without_reasoning
from rollbook.models.model import Completion, Model, ModelCall
from rollbook.models.router import Replica
from rollbook.models.server_errors import make_http_error, read_server_message
from rollbook.tokens import CUT, Renders, Unproven, continuation

RENDERING_FIELDS = ("chat_template", "chat_template_kwargs", "add_special_tokens")
"""Sampling options that in fact decide how a conversation is rendered."""

CONTINUABLE_ROLES = frozenset(("user", "tool", "system"))
FIRST_VERSION_WITH_IDS = (0, 27)
"""The first vLLM whose chat completions accept a prompt as ids."""

MAX_REASONS = 16
"""How many reasons are reported; a server may word the same one differently every time."""

EDITED = "the conversation does not continue from the unchanged last answer"
NOT_TEXT = "the new messages are not only text of the user, the system and tools"
IGNORED = "the server answered another prompt than the ids it was given"
NEEDS_PARSERS = "a server before vLLM 0.27 takes ids only where neither tools nor reasoning are to be parsed"
STAND_IN_ANSWER = "Yes!"
_QUESTION, _OTHER_ANSWER, _BLANK = "Hello", "No?", "Blank"


class AnsweredCall(msgspec.Struct, frozen=True):
    """A call that was answered: the messages it was asked with, and the completion."""

    messages: Sequence[Message]
    completion: Completion

    def precedes(self, messages: Sequence[Message]) -> bool:
        """Whether a conversation begins with these messages and this answer, reasoning aside."""
        before = without_reasoning([*self.messages, self.completion.message])
        return len(messages) > len(before) and without_reasoning(messages[: len(before)]) == list(before)


class TokenContinuingModel(Protocol):
    """A model that can continue in tokens."""

    tokens: bool

    async def complete_from(
        self, previous: AnsweredCall, messages: Sequence[Message], sampling: Sampling, **call: Unpack[ModelCall]
    ) -> Completion:
        """Answer once, in the tokens that an earlier call ended with where that can be proven."""
        ...


def require_continuing(model: Model) -> TokenContinuingModel:
    """Return the model as one that continues in tokens; UsageError if it cannot, or does not report tokens."""
    if not hasattr(model, "complete_from"):
        raise UsageError("--continue-tokens: only an endpoint takes a prompt as ids; give -m URL of a vLLM")
    continuing = cast(TokenContinuingModel, model)
    if not continuing.tokens:
        raise UsageError("--continue-tokens: the endpoint does not report token ids, as vLLM does; leave it out")
    return continuing


class PromptContinuer:
    """Makes the prompts of later turns. `say` gets each reason for not doing so, once."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._reported: set[str] = set()
        self._versions: dict[Replica, tuple[int, ...]] = {}
        self._ignoring: set[Replica] = set()
        self._stand_ins: dict[Replica, list[int]] = {}

    async def make_prompt(
        self,
        replica: Replica,
        name: str,
        previous: AnsweredCall,
        messages: Sequence[Message],
        sampling: Sampling,
        tools: JSON,
    ) -> list[int] | Unproven:
        """Return the ids to continue with, or why they cannot be proven or the server does not take them."""
        if replica in self._ignoring:
            return Unproven(IGNORED)
        answer, turn = previous.completion.message, previous.completion.turn
        new = find_new_messages(previous, messages)
        if isinstance(new, Unproven):
            return new
        if turn.finish_reason == "length" and answer.reasoning and not answer.text:
            return Unproven(CUT)
        if await self.needs_text_completions(replica) and (tools or answer.reasoning):
            return Unproven(NEEDS_PARSERS)
        rendering = {key: sampling.extra[key] for key in RENDERING_FIELDS if key in sampling.extra}
        conversations = (messages, *make_stand_ins(answer, new))
        rendered = await asyncio.gather(
            *(_render(replica, name, each, rendering, tools) for each in conversations),
            self._stand_in_ids(replica, name),
        )
        for each in rendered:
            if isinstance(each, Unproven):
                return each
        ids = [each for each in rendered if not isinstance(each, Unproven)]
        return continuation(turn, Renders(*ids), called_tools=bool(answer.tool_calls))

    def accept(self, prompt: list[int] | Unproven) -> list[int] | None:
        """Return a prompt that was made; None if there is none, with its reason reported."""
        if isinstance(prompt, Unproven):
            self._report_once(prompt.why)
            return None
        return prompt

    async def _stand_in_ids(self, replica: Replica, name: str) -> list[int] | Unproven:
        """Return the ids of the stand-in answer, which do not change while a server runs."""
        if replica not in self._stand_ins:
            body = {"model": name, "prompt": STAND_IN_ANSWER, "add_special_tokens": False}
            ids = await _tokenize(replica, body)
            if isinstance(ids, Unproven):
                return ids
            self._stand_ins[replica] = ids
        return self._stand_ins[replica]

    async def needs_text_completions(self, replica: Replica) -> bool:
        """Whether ids have to go through text completions, which parse nothing."""
        if replica not in self._versions:
            status, raw = await replica.get(make_server_url(replica, "version"), within_s=10.0)
            self._versions[replica] = parse_version(raw) if status == 200 else FIRST_VERSION_WITH_IDS
        return self._versions[replica] < FIRST_VERSION_WITH_IDS

    def mark_ignoring(self, replica: Replica) -> None:
        """Stop sending ids to a server that answered another prompt than the ids: it will always do so."""
        self._ignoring.add(replica)
        self._report_once(IGNORED)

    def _report_once(self, why: str) -> None:
        if why not in self._reported and len(self._reported) < MAX_REASONS:
            self._reported.add(why)
            self._say(f"a turn did not continue the earlier token ids and may fork: {why}")


def find_new_messages(previous: AnsweredCall, messages: Sequence[Message]) -> Sequence[Message] | Unproven:
    """Return the new messages, if the others are exactly the earlier call and its answer."""
    if not previous.precedes(messages):
        return Unproven(EDITED)
    new = messages[len(previous.messages) + 1 :]
    if any(m.role not in CONTINUABLE_ROLES or not isinstance(m.content, str) for m in new):
        return Unproven(NOT_TEXT)
    return new


def make_stand_ins(answer: Message, new: Sequence[Message]) -> tuple[list[Message], list[Message], list[Message]]:
    """Return the short conversations of tokens.continuation: after one answer, after another, and with other words."""
    blank = [msgspec.structs.replace(message, content=_BLANK) for message in new]
    return (
        _make_short_conversation(answer, STAND_IN_ANSWER, new),
        _make_short_conversation(answer, _OTHER_ANSWER, new),
        _make_short_conversation(answer, STAND_IN_ANSWER, blank),
    )


def _make_short_conversation(answer: Message, word: str, new: Sequence[Message]) -> list[Message]:
    """Make a conversation whose calls keep their names and ids, which the results of tools refer to."""
    arguments = encode({"x": word}).decode()
    calls = [msgspec.structs.replace(c, function=Function(c.function.name, arguments)) for c in answer.tool_calls or ()]
    stand_in = Message("assistant", None if calls else word, tool_calls=calls or None)
    return [Message("user", _QUESTION), stand_in, *new]


async def _render(
    replica: Replica, name: str, messages: Sequence[Message], rendering: Mapping[str, JSON], tools: JSON
) -> list[int] | Unproven:
    body = {"model": name, "messages": prepare_messages(messages), "add_generation_prompt": True, **rendering}
    return await _tokenize(replica, {**body, "tools": tools} if tools else body)


async def _tokenize(replica: Replica, body: JSON) -> list[int] | Unproven:
    url = make_server_url(replica, "tokenize")
    status, retry_after, raw = await replica.post_any_status(url, encode(body))
    if status >= 500 or status in (408, 429):
        raise make_http_error(status, retry_after, raw)
    try:
        if status == 200:
            return msgspec.json.decode(raw, type=_TokenizeAnswer).tokens
    except JSON_ERRORS:
        pass
    return Unproven(f"{url} does not render it: HTTP {status}: {read_server_message(raw)}")


class _TokenizeAnswer(msgspec.Struct):
    tokens: list[int]


def make_server_url(replica: Replica, name: str) -> URL:
    """Return an address of the server outside the API."""
    path, mark, query = replica.base.partition("?")
    return URL(f"{path.removesuffix('/v1')}/{name}{mark}{query}")


def parse_version(raw: bytes) -> tuple[int, ...]:
    """Return a vLLM's version as numbers; if it has none, one that takes ids, which the echoed prompt then verifies.

    >>> parse_version(b'{"version": "0.11.2rc1+cpu"}'), parse_version(b"{}")
    ((0, 11), (0, 27))
    """
    try:
        text = str(decode(raw)["version"])
        return tuple(int(part) for part in text.split(".")[:2])
    except (LookupError, TypeError, ValueError, *JSON_ERRORS):
        return FIRST_VERSION_WITH_IDS
