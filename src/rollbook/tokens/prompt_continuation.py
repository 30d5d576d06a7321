"""The next prompt in the tokens that a conversation already has: what was seen and sampled, then what is new.

A template renders whole conversations, and its rendering of an answer need not be what was sampled: reasoning is left
out, text is tokenised differently. So only the end of a rendering is used, and only where others prove which end:

    whole   the real conversation, new messages and the opening of the answer included
    one     a short one: some question, an answer that stands for ours, the same new messages, the same opening
    other   the same after another such answer: what `one` and `other` share at the end follows whatever is answered
    blank   `one` with other words in the new messages: what `one` and `blank` share at the start is not from them
    word    the answer of `one` and nothing else

Between the end of the answer and the first new word lies the token that ends a turn. Nothing here tokenises.
"""

from __future__ import annotations

import msgspec

from rollbook.core import Turn
from rollbook.tokens.sequences import shared_prefix_length

NO_TOKENS = "the last answer came without token ids"
NOT_SHOWN = "the template does not show what was answered before what is new"
OTHER_END = "the last answer ended otherwise than the template ends it"
OTHER_TAIL = "the template goes on otherwise in this conversation than in a short one"
CUT = "the last answer was cut within its reasoning or a tool call"


class Renders(msgspec.Struct, frozen=True):
    """The ids of what was rendered; see above."""

    whole: list[int]
    one: list[int]
    other: list[int]
    blank: list[int]
    word: list[int]


class Unproven(msgspec.Struct, frozen=True):
    """That a conversation cannot be continued in its tokens, and why."""

    why: str


def continuation(turn: Turn, renders: Renders, *, called_tools: bool = False) -> list[int] | Unproven:
    """The prompt that goes on from a turn, or why it cannot be proven to be what the template means.

    `called_tools` says that the answer called tools. An answer that was cut by its limit has no end of its own: it gets
    the template's, which nobody sampled.

    >>> END, NL, USER, MODEL = 9, 8, 7, 6
    >>> told = [[USER, *q, END, NL, MODEL, *a, END, NL, USER, *n, END, NL, MODEL]
    ...         for q, a, n in (([1, 2], [3, 4], [5]), ([0], [10], [5]), ([0], [11], [5]), ([0], [10], [12]))]
    >>> continuation(Turn([USER, 1, 2, END, NL, MODEL], [33, END], [-0.1, -0.1]), Renders(*told, word=[10]))
    [7, 1, 2, 9, 8, 6, 33, 9, 8, 7, 5, 9, 8, 6]
    """
    if turn.prompt_ids is None or turn.ids is None:
        return Unproven(NO_TOKENS)
    if called_tools and turn.finish_reason == "length":
        return Unproven(CUT)
    one = renders.one
    answered, spoken = len(one) - shared_suffix_length(one, renders.other), shared_prefix_length(one, renders.blank)
    if not 0 < answered <= spoken < len(one) or not renders.word:
        return Unproven(NOT_SHOWN)
    if turn.finish_reason == "length":
        end = answered if one[answered - 1] == renders.word[-1] else None
    else:
        end = _find_turn_end(turn.ids, one[answered:spoken], answered, called_tools)
    if end is None:
        return Unproven(OTHER_END)
    if not ends_with(renders.whole, one[max(end - 1, answered) :]):
        return Unproven(OTHER_TAIL)
    return turn.prompt_ids + turn.ids + one[end:]


def _find_turn_end(ids: list[int], between: list[int], answered: int, called_tools: bool) -> int | None:
    """Where the template has said all that the answer ended with; None where it says it never, or with new words.

    Behind a tool call the template's own writing of it may come first, but must say it only once: else an answer cut by
    a stop string may have ended with the first. Behind text nothing may.
    """
    if not ids or ids[-1] not in between or (called_tools and between.count(ids[-1]) > 1):
        return None
    length = between.index(ids[-1]) + 1
    return answered + length if called_tools or ends_with(ids, between[:length]) else None


def shared_suffix_length(one: list[int], other: list[int]) -> int:
    """The number of trailing ids that two lists share.

    >>> shared_suffix_length([1, 2, 3], [9, 2, 3])
    2
    """
    return shared_prefix_length(one[::-1], other[::-1])


def ends_with(ids: list[int], tail: list[int]) -> bool:
    """Whether a list ends with another."""
    return len(tail) <= len(ids) and ids[len(ids) - len(tail) :] == tail
