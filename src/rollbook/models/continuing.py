"""Going on in the tokens that a conversation has: the next prompt as ids, made of what the server renders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast

import msgspec
from yarl import URL

from rollbook.core.json import JSON, decode, encode
from rollbook.core.manifest import Sampling
from rollbook.core.message import Function, Message
from rollbook.errors import UsageError
from rollbook.models.model import Completion, Model
from rollbook.models.protocol import sendable, without_reasoning
from rollbook.models.refusal import refusal, server_words
from rollbook.models.replica import Replica
from rollbook.tokens.continuation import CUT, Renders, Unproven, continuation

RENDERED_BY = ("chat_template", "chat_template_kwargs", "add_special_tokens")
"""Sampling that is none: it decides how a conversation is rendered."""

SPOKEN = frozenset(("user", "tool", "system"))
TAKES_IDS = (0, 27)
"""The first vLLM whose chat completions take a prompt as ids."""

MOST_SAID = 16
"""Reasons that are said; a server may word the same one ever differently."""

EDITED = "the conversation does not go on from the last answer as it was given"
NOT_TEXT = "what is new is not only text of the user, the system and tools"
IGNORED = "the server answered another prompt than the ids it was given"
NEEDS_PARSERS = "a server before vLLM 0.27 takes ids only where neither tools nor reasoning are to be parsed"
WORD = "Yes!"
_QUESTION, _OTHER, _BLANK = "Hello", "No?", "Blank"


class Held(msgspec.Struct, frozen=True):
    """A call that was answered: the messages it was asked with, and what came."""

    messages: Sequence[Message]
    completion: Completion

    def precedes(self, messages: Sequence[Message]) -> bool:
        """Whether a conversation begins with these messages and this answer, whatever was thought."""
        before = without_reasoning([*self.messages, self.completion.message])
        return len(messages) > len(before) and without_reasoning(messages[: len(before)]) == list(before)


class Continues(Protocol):
    """A model that can go on in tokens."""

    tokens: bool

    async def go_on(
        self,
        held: Held,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        seed: int,
        rollout: str,
        tools: Sequence[JSON] = (),
    ) -> Completion:
        """Answer once, in the tokens that an earlier call ended with where that can be proven."""
        ...


def continuing(model: Model) -> Continues:
    """The model as one that goes on in tokens; UsageError if it is none, or does not report any."""
    if not hasattr(model, "go_on"):
        raise UsageError("--continue-tokens: only an endpoint takes a prompt as ids; give -m URL of a vLLM")
    found = cast(Continues, model)
    if not found.tokens:
        raise UsageError("--continue-tokens: the endpoint does not report token ids, as vLLM does; leave it out")
    return found


class Continuer:
    """Makes the prompts of later turns. `say` hears each reason for not doing so, once."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said: set[str] = set()
        self._versions: dict[Replica, tuple[int, ...]] = {}
        self._deaf: set[Replica] = set()
        self._words: dict[Replica, list[int]] = {}

    async def prompt(
        self, replica: Replica, name: str, held: Held, messages: Sequence[Message], sampling: Sampling, tools: JSON
    ) -> list[int] | None:
        """The ids to go on with; None where they cannot be proven, or the server does not take them."""
        if replica in self._deaf:
            return None
        found = await self._prompt(replica, name, held, messages, sampling, tools)
        if isinstance(found, Unproven):
            self._note(found.why)
            return None
        return found

    async def _prompt(
        self, replica: Replica, name: str, held: Held, messages: Sequence[Message], sampling: Sampling, tools: JSON
    ) -> list[int] | Unproven:
        answer, turn = held.completion.message, held.completion.turn
        new = added(held, messages)
        if isinstance(new, Unproven):
            return new
        if turn.finish_reason == "length" and answer.reasoning and not answer.text:
            return Unproven(CUT)
        if await self.by_text(replica) and (tools or answer.reasoning):
            return Unproven(NEEDS_PARSERS)
        rendering = {key: sampling.extra[key] for key in RENDERED_BY if key in sampling.extra}
        told = (messages, *stand_ins(answer, new))
        rendered = await asyncio.gather(
            *(_render(replica, name, each, rendering, tools) for each in told), self._word(replica, name)
        )
        for each in rendered:
            if isinstance(each, Unproven):
                return each
        ids = [each for each in rendered if not isinstance(each, Unproven)]
        return continuation(turn, Renders(*ids), called=bool(answer.tool_calls))

    async def _word(self, replica: Replica, name: str) -> list[int] | Unproven:
        """The ids of the stand-in answer; they do not change while a server runs."""
        if replica not in self._words:
            body = {"model": name, "prompt": WORD, "add_special_tokens": False}
            found = await _tokenized(replica, body)
            if isinstance(found, Unproven):
                return found
            self._words[replica] = found
        return self._words[replica]

    async def by_text(self, replica: Replica) -> bool:
        """Whether ids have to go through text completions, which parse nothing."""
        if replica not in self._versions:
            status, raw = await replica.get(beside(replica, "version"), within_s=10.0)
            self._versions[replica] = version_of(raw) if status == 200 else TAKES_IDS
        return self._versions[replica] < TAKES_IDS

    def ignored(self, replica: Replica) -> None:
        """A server that answered another prompt than the ids it was given will always do so: ask it as ever."""
        self._deaf.add(replica)
        self._note(IGNORED)

    def _note(self, why: str) -> None:
        if why not in self._said and len(self._said) < MOST_SAID:
            self._said.add(why)
            self._say(f"not continued in its tokens, so that it may fork: {why}")


def added(held: Held, messages: Sequence[Message]) -> Sequence[Message] | Unproven:
    """The messages that are new, if the others are those that were asked with and what was answered."""
    if not held.precedes(messages):
        return Unproven(EDITED)
    new = messages[len(held.messages) + 1 :]
    if any(m.role not in SPOKEN or not isinstance(m.content, str) for m in new):
        return Unproven(NOT_TEXT)
    return new


def stand_ins(answer: Message, new: Sequence[Message]) -> tuple[list[Message], list[Message], list[Message]]:
    """The short conversations of tokens.continuation: after one answer, after another, and with other words."""
    blank = [msgspec.structs.replace(message, content=_BLANK) for message in new]
    return _short(answer, WORD, new), _short(answer, _OTHER, new), _short(answer, WORD, blank)


def _short(answer: Message, word: str, new: Sequence[Message]) -> list[Message]:
    """The calls keep their names and ids, which the results of tools refer to."""
    arguments = encode({"x": word}).decode()
    calls = [msgspec.structs.replace(c, function=Function(c.function.name, arguments)) for c in answer.tool_calls or ()]
    said = Message("assistant", None if calls else word, tool_calls=calls or None)
    return [Message("user", _QUESTION), said, *new]


async def _render(
    replica: Replica, name: str, messages: Sequence[Message], rendering: Mapping[str, JSON], tools: JSON
) -> list[int] | Unproven:
    body = {"model": name, "messages": sendable(messages), "add_generation_prompt": True, **rendering}
    return await _tokenized(replica, {**body, "tools": tools} if tools else body)


async def _tokenized(replica: Replica, body: JSON) -> list[int] | Unproven:
    url = beside(replica, "tokenize")
    status, retry_after, raw = await replica.ask(url, encode(body))
    if status >= 500 or status in (408, 429):
        raise refusal(status, retry_after, raw)
    try:
        if status == 200:
            return msgspec.json.decode(raw, type=_Rendered).tokens
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    return Unproven(f"{url} does not render it: HTTP {status}: {server_words(raw)}")


class _Rendered(msgspec.Struct):
    tokens: list[int]


def beside(replica: Replica, name: str) -> URL:
    """An address of the server that is none of the API's."""
    return URL(f"{replica.base.removesuffix('/v1')}/{name}")


def version_of(raw: bytes) -> tuple[int, ...]:
    """The version that a vLLM gives, as numbers; where it gives none, one that takes ids, which the echo will tell.

    >>> version_of(b'{"version": "0.11.2rc1+cpu"}'), version_of(b"{}")
    ((0, 11), (0, 27))
    """
    try:
        text = str(decode(raw)["version"])
        return tuple(int(part) for part in text.split(".")[:2])
    except (msgspec.DecodeError, UnicodeDecodeError, LookupError, TypeError, ValueError):
        return TAKES_IDS
