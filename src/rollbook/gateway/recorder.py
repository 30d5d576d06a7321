"""The recorder of one rollout: asks the model for an agent and records every answer and failure.

An agent sends whole conversations. A call whose messages begin with a branch's whole conversation so far continues that
branch. Any other begins a branch of its own: a sub-agent, the same question once more, a history that was edited. This
groups and orders calls; which tokens continue which is proven by `rollbook.tokens.sequences`, from the ids alone.
`Record` is what the gateway returns: all messages and turns with their tokens, or why the rollout does not count.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from rollbook.core import (
    JSON,
    JSON_ERRORS,
    Failure,
    Message,
    Rollout,
    ToolCall,
    Turn,
    decode,
    derive_seed,
    encode,
    identify_part,
    list_sources,
    read_reference,
)
from rollbook.errors import ContextFull, LimitReached, RolloutFailed, Stopped, UsageError
from rollbook.gateway.bodies import BodyBudget
from rollbook.gateway.protocol import ModelRequest, RolloutEnded, TooManyCalls
from rollbook.models import AskModel, Completion


class Branch(msgspec.Struct):
    """A conversation: its messages, and a turn for each of its answers."""

    messages: list[Message]
    turns: list[Turn]


class Branches:
    """The branches of one rollout."""

    def __init__(self) -> None:
        self._tips: dict[bytes, Branch] = {}
        self._answers: dict[bytes, Message] = {}
        self._by_call: dict[int, Branch] = {}
        """The branches by identity, the most recently called one last."""

    def add(self, messages: Sequence[Message], digests: Sequence[bytes], answer: Message, turn: Turn) -> None:
        """Add an answered call; `digests` are those of `messages`."""
        end = next((n for n in range(len(digests) - 1, -1, -1) if digests[n] in self._tips), None)
        if end is None:
            branch = Branch([*messages, answer], [turn])
        else:
            branch = self._by_call.pop(id(self._tips.pop(digests[end])))
            branch.messages += [*messages[end + 1 :], answer]
            branch.turns.append(turn)
        self._by_call[id(branch)] = branch
        tip = _extend_digest(digests[-1], answer)
        self._tips[tip] = branch
        self._answers[tip] = answer

    def restore_answers(self, messages: Sequence[Message], digests: Sequence[bytes]) -> list[Message]:
        """Return the messages with the model's own answers: an agent's wording might be other tokens."""
        pairs = zip(messages, map(self._answers.get, digests), strict=True)
        return [_restore_answer(answer, message) if answer else message for message, answer in pairs]

    def in_call_order(self) -> list[Branch]:
        """Return the branches, the most recently called one last."""
        return list(self._by_call.values())

    def turns(self) -> list[Turn]:
        """Return all turns, branch after branch."""
        return [turn for branch in self.in_call_order() for turn in branch.turns]

    def messages(self, first: Sequence[Message]) -> list[Message]:
        """Return all messages, branch after branch, after the `first` ones that every reader expects."""
        recorded = [message for branch in self.in_call_order() for message in branch.messages]
        shared = (
            len(first)
            if list(map(_normalize_message, recorded[: len(first)])) == list(map(_normalize_message, first))
            else 0
        )
        return [*first, *recorded[shared:]]


def _restore_answer(answer: Message, message: Message) -> Message:
    """Return the model's answer with the agent's ids for its calls, and the reasoning that the agent sent."""
    pairs = zip(answer.tool_calls or (), message.tool_calls or (), strict=True)
    calls = [msgspec.structs.replace(original, id=call.id) for original, call in pairs]
    return msgspec.structs.replace(answer, tool_calls=calls or None, reasoning=message.reasoning, name=message.name)


def hash_prefixes(messages: Sequence[Message]) -> list[bytes]:
    """Return, for each message, a digest of the conversation up to it."""
    digests = []
    digest = b""
    for message in messages:
        digest = _extend_digest(digest, message)
        digests.append(digest)
    return digests


def _extend_digest(digest: bytes, message: Message) -> bytes:
    return blake2b(digest + encode(_normalize_message(message)), digest_size=16).digest()


def _normalize_message(message: Message) -> JSON:
    """Return a message without what agents may change when they send it back: reasoning, call ids, white space."""
    calls = [_normalize_call(call) for call in message.tool_calls or ()]
    shown = [identify_part(part) for part in message.content] if isinstance(message.content, list) else []
    media = [each for each in shown if each]
    return [message.role, message.text.strip(), calls, *([media] if media else [])]


def _normalize_call(call: ToolCall) -> JSON:
    try:
        arguments = decode(call.function.arguments or "{}")
    except JSON_ERRORS:
        return [call.function.name, call.function.arguments]
    return [call.function.name, sorted(arguments.items()) if isinstance(arguments, dict) else arguments]


MAX_CALLS_AT_ONCE = 64
"""Calls that one rollout may have in progress; further ones get a Retry-After."""

MAX_FAILED_CALLS = 64
"""Different calls that may fail before the rollout is given up: an agent may retry forever."""


class Recorder:
    """Answers the calls of one rollout with `ask`. The rollout always contains everything answered so far.

    `broken` is set when an error concerns more than one call: then the rollout is over. `url` is its address, if it has
    one of its own: then it is a program's endpoint, see `agents.program.GatewayEndpoint`. `bodies` admits its requests.
    """

    def __init__(self, rollout: Rollout, ask: AskModel) -> None:
        self.url = ""
        self.bodies = BodyBudget()
        self._rollout, self._ask = rollout, ask
        self._branches = Branches()
        self._failed: dict[bytes, RolloutFailed] = {}
        self._ended: ContextFull | LimitReached | None = None
        self._fatal_error: BaseException | None = None
        self._times_asked: Counter[bytes] = Counter()
        self._in_progress = 0
        self._closed = False
        self.broken = asyncio.Event()

    @property
    def branches(self) -> list[Branch]:
        """The branches so far, the most recently called one last."""
        return self._branches.in_call_order()

    @property
    def calls(self) -> int:
        """The number of answered calls."""
        return len(self._rollout.turns)

    def close(self) -> None:
        """Stop answering."""
        self._closed = True

    def raise_failure(self) -> None:
        """Raise the failure of the calls, if not every one was answered.

        A call that failed and was answered when the agent made it again is not a failure. A too long prompt ends the
        rollout only if no other followed it.
        """
        if self._fatal_error is not None:
            raise self._fatal_error
        for error in self._failed.values():
            raise error
        if self._ended is not None:
            raise self._ended

    async def complete(self, request: ModelRequest) -> Completion:
        """Return one answer; RolloutFailed, ContextFull or LimitReached if there is none."""
        if self._closed or self.broken.is_set():
            raise RolloutEnded
        if self._in_progress >= MAX_CALLS_AT_ONCE:
            raise TooManyCalls(f"{MAX_CALLS_AT_ONCE} calls of this rollout are under way")
        self._check_references(request.messages)
        digests = hash_prefixes(request.messages)
        request = msgspec.structs.replace(request, messages=self._branches.restore_answers(request.messages, digests))
        self._in_progress += 1
        try:
            completion = await self._ask_model(request, digests[-1])
        finally:
            self._in_progress -= 1
        if self._closed:
            raise RolloutEnded
        self._record_answer(request, digests, completion)
        return completion

    def _check_references(self, messages: Sequence[Message]) -> None:
        """Refuse references to stored images other than the task's own: an agent has no others."""
        named = {source for source in list_sources(messages) if read_reference(source) is not None}
        unknown = named - set(list_sources(self._rollout.task.messages)) if named else set()
        if unknown:
            raise UsageError(f"{min(unknown)[:80]}: the task has no such image or sound; send the data")

    async def _ask_model(self, request: ModelRequest, prompt: bytes) -> Completion:
        extra = self._choose_seed(request.extra, prompt)
        self._times_asked[prompt] += 1
        try:
            return await self._ask(request.messages, tools=request.tools, extra=extra)
        except BaseException as error:
            self._times_asked[prompt] -= 1  # this answer was never delivered: the next call may get it
            self._remember_error(error, prompt)
            raise

    def _choose_seed(self, extra: dict[str, JSON], prompt: bytes) -> dict[str, JSON]:
        """A repeated question gets another seed, the same one each time the rollout is run."""
        times = self._times_asked[prompt]
        if not times or "seed" in extra:
            return extra
        return {**extra, "seed": derive_seed(self._rollout.seed, prompt.hex(), times)}

    def _remember_error(self, error: BaseException, prompt: bytes) -> None:
        if isinstance(error, RolloutFailed):
            self._failed[prompt] = error
            if len(self._failed) >= MAX_FAILED_CALLS:
                self.broken.set()
        elif isinstance(error, ContextFull | LimitReached):
            self._ended = error
        elif not isinstance(error, asyncio.CancelledError | UsageError):
            self._fatal_error = error
            self.broken.set()

    def _record_answer(self, request: ModelRequest, digests: list[bytes], completion: Completion) -> None:
        self._failed.pop(digests[-1], None)
        if isinstance(self._ended, ContextFull):
            self._ended = None
        self._branches.add(request.messages, digests, completion.message, completion.turn)
        self._rollout.turns = self._branches.turns()
        self._rollout.messages = self._branches.messages(self._rollout.task.messages)


NO_CALL = RolloutFailed("agent_error", "gateway", "the rollout ended without calling the model")


class Record(msgspec.Struct, frozen=True):
    """One rollout. With a `failure` it must not be scored; `ended` is the limit that ended it, if any."""

    rollout: str
    name: str
    seed: int
    open: bool
    branches: list[Branch]
    ended: str = ""
    failure: Failure | None = None

    @property
    def turns(self) -> list[Turn]:
        """All turns, branch after branch, in the form for `rollbook.tokens.sequences`."""
        return [turn for branch in self.branches for turn in branch.turns]


def make_record(
    rollout: str, name: str, seed: int, recorder: Recorder, late: RolloutFailed | None, over: bool
) -> Record:
    """Return the record of a recorder; `late` is the failure of a rollout that was not ended in time."""
    branches, ended, failure = recorder.branches, "", late
    try:
        recorder.raise_failure()
    except RolloutFailed as error:
        failure = error
    except Stopped as error:
        failure = RolloutFailed("model_unavailable", "model", str(error))
    except ContextFull:
        ended = "context_length"
    except LimitReached as error:
        ended = error.which
    if over and not (failure or ended or branches):
        failure = NO_CALL
    return Record(rollout, name, seed, not over, branches, ended, Failure.from_error(failure) if failure else None)
