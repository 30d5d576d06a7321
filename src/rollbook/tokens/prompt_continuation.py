"""The next prompt in the tokens that a conversation already has: those seen and sampled, then the new ones.

A template renders whole conversations, and its rendering of an answer may differ from what was sampled: reasoning is
left out, text is tokenised differently. So only the end of a rendering is used, and only where other renderings prove
which end:

    whole   the real conversation, including the new messages and the opening of the answer
    one     a short one: some question, an answer in place of the real one, the same new messages, the same opening
    other   the same after another such answer: what `one` and `other` share at the end follows any answer
    blank   `one` with other words in the new messages: what `one` and `blank` share at the start is not from them
    word    the answer of `one` and nothing else

Between the end of the answer and the first new word is the token that ends a turn. Nothing here tokenises.
"""

from __future__ import annotations

import msgspec

from rollbook.core import Turn
from rollbook.tokens.sequences import shared_prefix_length

NO_TOKENS = "the last answer came without token ids"
NOT_SHOWN = "the template does not show what was answered before what is new"
OTHER_END = "the last answer ended differently from the template"
OTHER_TAIL = "the template continues differently in this conversation than in a short one"
CUT = "the last answer was cut within its reasoning or a tool call"


class Renders(msgspec.Struct, frozen=True):
    """The token ids of the renderings described above."""

    whole: list[int]
    one: list[int]
    other: list[int]
    blank: list[int]
    word: list[int]


class Unproven(msgspec.Struct, frozen=True):
    """The reason why a conversation cannot be continued in its tokens."""

    why: str


def continuation(turn: Turn, renders: Renders, *, called_tools: bool = False) -> list[int] | Unproven:
    """Return the prompt that continues a turn, or the reason why it cannot be proven to match the template.

    `called_tools`: the answer called tools. An answer that was cut by its limit has no end of its own: it gets the
    template's, which was not sampled.

    >>> END, NL, USER, MODEL = 9, 8, 7, 6
    >>> renders = [[USER, *q, END, NL, MODEL, *a, END, NL, USER, *n, END, NL, MODEL]
    ...            for q, a, n in (([1, 2], [3, 4], [5]), ([0], [10], [5]), ([0], [11], [5]), ([0], [10], [12]))]
    >>> continuation(Turn([USER, 1, 2, END, NL, MODEL], [33, END], [-0.1, -0.1]), Renders(*renders, word=[10]))
    [7, 1, 2, 9, 8, 6, 33, 9, 8, 7, 5, 9, 8, 6]
    """
    if turn.prompt_ids is None or turn.ids is None:
        return Unproven(NO_TOKENS)
    if called_tools and turn.finish_reason == "length":
        return Unproven(CUT)
    one = renders.one
    answer_end, new_start = (
        len(one) - shared_suffix_length(one, renders.other),
        shared_prefix_length(one, renders.blank),
    )
    if not 0 < answer_end <= new_start < len(one) or not renders.word:
        return Unproven(NOT_SHOWN)
    if turn.finish_reason == "length":
        end = answer_end if one[answer_end - 1] == renders.word[-1] else None
    else:
        end = _find_turn_end(turn.ids, one[answer_end:new_start], answer_end, called_tools)
    if end is None:
        return Unproven(OTHER_END)
    if not ends_with(renders.whole, one[max(end - 1, answer_end) :]):
        return Unproven(OTHER_TAIL)
    return turn.prompt_ids + turn.ids + one[end:]


def _find_turn_end(ids: list[int], between: list[int], answer_end: int, called_tools: bool) -> int | None:
    """Return where the template has written the token that ended the answer; None if it does not, or adds new words.

    After a tool call the template's own rendering of the call may come first, but must contain the token only once:
    otherwise an answer cut by a stop string may have ended with the first. After text nothing may come first.
    """
    if not ids or ids[-1] not in between or (called_tools and between.count(ids[-1]) > 1):
        return None
    length = between.index(ids[-1]) + 1
    return answer_end + length if called_tools or ends_with(ids, between[:length]) else None


def shared_suffix_length(one: list[int], other: list[int]) -> int:
    """Return the number of trailing ids that two lists share.

    >>> shared_suffix_length([1, 2, 3], [9, 2, 3])
    2
    """
    return shared_prefix_length(one[::-1], other[::-1])


def ends_with(ids: list[int], tail: list[int]) -> bool:
    """Return whether a list ends with another."""
    return len(tail) <= len(ids) and ids[len(ids) - len(tail) :] == tail
