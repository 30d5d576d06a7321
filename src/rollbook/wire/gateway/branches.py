"""Which call continues which. An agent sends whole conversations: they are told apart by what they begin with.

A call whose messages begin with everything that some branch has said so far goes on with that branch. Any other begins
a branch of its own: a sub-agent, the same question once more, a history that was edited. This groups and orders calls;
which tokens continue which is proven by `rollbook.tokens.merge`, from the ids alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from rollbook.core.json import JSON, decode, encode
from rollbook.core.message import Message, ToolCall
from rollbook.core.turn import Turn


class Branch(msgspec.Struct):
    """A conversation: what was asked and answered in it, and a turn for each of its answers. `last` orders branches."""

    messages: list[Message]
    turns: list[Turn]
    last: int


class Branches:
    """The branches of one rollout."""

    def __init__(self) -> None:
        self._tips: dict[bytes, Branch] = {}
        self._answers: dict[bytes, Message] = {}
        self._all: list[Branch] = []
        self._calls = 0

    def add(self, asked: Sequence[Message], digests: Sequence[bytes], answer: Message, turn: Turn) -> None:
        """Take in an answered call; `digests` are those of `asked`."""
        self._calls += 1
        at = next((n for n in range(len(digests) - 1, -1, -1) if digests[n] in self._tips), None)
        if at is None:
            branch = Branch([*asked, answer], [turn], self._calls)
            self._all.append(branch)
        else:
            branch = self._tips.pop(digests[at])
            branch.messages += [*asked[at + 1 :], answer]
            branch.turns.append(turn)
            branch.last = self._calls
        tip = _next(digests[-1], answer)
        self._tips[tip] = branch
        self._answers[tip] = answer

    def restored(self, asked: Sequence[Message], digests: Sequence[bytes]) -> list[Message]:
        """What an agent sends, its model's answers in the model's own words: others might be other tokens."""
        pairs = zip(asked, map(self._answers.get, digests), strict=True)
        return [_in_words_of(said, message) if said else message for message, said in pairs]

    def ordered(self) -> list[Branch]:
        """The branches, the one that the model was last asked in at the end."""
        return sorted(self._all, key=lambda branch: branch.last)

    def turns(self) -> list[Turn]:
        """All turns, branch after branch."""
        return [turn for branch in self.ordered() for turn in branch.turns]

    def messages(self, first: Sequence[Message]) -> list[Message]:
        """All messages, branch after branch, behind those that every reader expects to come first."""
        said = [message for branch in self.ordered() for message in branch.messages]
        shared = len(first) if list(map(_meant, said[: len(first)])) == list(map(_meant, first)) else 0
        return [*first, *said[shared:]]


def _in_words_of(said: Message, message: Message) -> Message:
    """What the model said, with the ids that the agent gave its calls, and the thoughts that the agent sent."""
    pairs = zip(said.tool_calls or (), message.tool_calls or (), strict=True)
    calls = [msgspec.structs.replace(own, id=call.id) for own, call in pairs]
    return msgspec.structs.replace(said, tool_calls=calls or None, reasoning=message.reasoning, name=message.name)


def digests_of(messages: Sequence[Message]) -> list[bytes]:
    """For each message, a digest of the conversation up to it."""
    found = []
    held = b""
    for message in messages:
        held = _next(held, message)
        found.append(held)
    return found


def _next(held: bytes, message: Message) -> bytes:
    return blake2b(held + encode(_meant(message)), digest_size=16).digest()


def _meant(message: Message) -> JSON:
    """A message without what agents do not send back as it was: reasoning, ids of calls, spaces around and within."""
    calls = [_call(call) for call in message.tool_calls or ()]
    return [message.role, message.text.strip(), calls]


def _call(call: ToolCall) -> JSON:
    try:
        given = decode(call.function.arguments or "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return [call.function.name, call.function.arguments]
    return [call.function.name, sorted(given.items()) if isinstance(given, dict) else given]
