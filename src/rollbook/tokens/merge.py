"""Turns to sequences: what provably continues is one sequence, anything else forks."""

from __future__ import annotations

from collections.abc import Iterable

from rollbook.core.turn import Turn
from rollbook.errors import TokenError
from rollbook.tokens.prefix import overlap, shared_prefix
from rollbook.tokens.sequence import Fork, Sequence

SHORTER = "the prompt is shorter than what was held"
ANSWER_LEFT_OUT = "part of the last answer was left out, as templates do with reasoning"
HISTORY_LEFT_OUT = "part of the history before the last answer was left out"
HISTORY_EDITED = "the history before the last answer was edited"
ANSWER_DIFFERS = "the last answer came back as other tokens: edited, or tokenised differently"


def merge(turns: Iterable[Turn]) -> list[Sequence]:
    """Sequences in which every sampled token is trained once; each turn goes on with the last of them, or begins one.

    >>> first = Turn(prompt_ids=[1, 2], ids=[3], logprobs=[-0.5])
    >>> then = Turn(prompt_ids=[1, 2, 3, 4], ids=[5], logprobs=[-0.25])
    >>> [(s.prompt_ids, s.response_ids, s.mask) for s in merge([first, then])]
    [([1, 2], [3, 4, 5], [1, 0, 1])]
    """
    done: list[Sequence] = []
    draft: _Draft | None = None
    for index, turn in enumerate(turns):
        if _sampled_nothing(turn):
            continue
        prompt, ids, logprobs = tokens_of(turn, index)
        if draft is None:
            draft = _Draft(prompt, None)
        elif not draft.continues(prompt):
            done.append(draft.sequence())
            draft = _Draft(prompt, draft.fork(index, prompt))
        draft.add(prompt, ids, logprobs)
    return done if draft is None else [*done, draft.sequence()]


def tokens_of(turn: Turn, index: int = 0) -> tuple[list[int], list[int], list[float]]:
    """The prompt ids, sampled ids and logprobs of a turn; a TokenError if one is absent or two disagree."""
    if turn.prompt_ids is None or turn.ids is None or turn.logprobs is None:
        raise TokenError(f"turn {index} has no token ids: its model did not report them, and they are never guessed")
    if len(turn.ids) != len(turn.logprobs):
        raise TokenError(f"turn {index} has {len(turn.ids)} ids and {len(turn.logprobs)} logprobs")
    return turn.prompt_ids, turn.ids, turn.logprobs


def _sampled_nothing(turn: Turn) -> bool:
    """A prompt that no longer fitted was refused before any token, so there is nothing to train."""
    return turn.finish_reason == "context_length" and not turn.has_tokens and not turn.completion_tokens


class _Draft:
    """A sequence being built: `held` is all its ids so far, of which the last answer begins at `answer`."""

    def __init__(self, prompt: list[int], fork: Fork | None) -> None:
        self.held = list(prompt)
        self.start = self.answer = len(prompt)
        self.mask: list[int] = []
        self.logprobs: list[float] = []
        self.origin = fork

    def continues(self, prompt: list[int]) -> bool:
        return prompt[: len(self.held)] == self.held

    def add(self, prompt: list[int], ids: list[int], logprobs: list[float]) -> None:
        between = prompt[len(self.held) :]
        self.answer = len(prompt)
        self.held += between
        self.held += ids
        self.mask += [0] * len(between) + [1] * len(ids)
        self.logprobs += [0.0] * len(between) + logprobs

    def fork(self, turn: int, prompt: list[int]) -> Fork:
        at = shared_prefix(self.held, prompt)
        return Fork(turn, at, self._reason(at, prompt))

    def _reason(self, at: int, prompt: list[int]) -> str:
        if at == len(prompt):
            return SHORTER
        kept = overlap(self.held[at:], prompt[at:])
        if kept:
            return ANSWER_LEFT_OUT if len(self.held) - kept > self.answer else HISTORY_LEFT_OUT
        return HISTORY_EDITED if at < self.answer else ANSWER_DIFFERS

    def sequence(self) -> Sequence:
        return Sequence(self.held[: self.start], self.held[self.start :], self.mask, self.logprobs, self.origin)
