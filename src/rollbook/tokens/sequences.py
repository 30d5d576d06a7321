"""Merge turns into token sequences for training: a turn that provably continues extends its sequence, any other forks.

A sequence is one prompt and one response that a trainer can use as they are. The common prefix of two lists of ids is
found at the speed of list comparison.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from rollbook.core import Turn
from rollbook.errors import TokenError


def shared_prefix_length(one: list[int], other: list[int]) -> int:
    """Return the number of leading ids the two share: linear, by halving, so that each step is one comparison in C.

    >>> shared_prefix_length([5, 6, 7], [5, 6, 8, 9])
    2
    """
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


def overlap_length(tail: list[int], head: list[int]) -> int:
    """Return the length of the longest end of `tail` that `head` begins with, in linear time.

    >>> overlap_length([1, 2, 3, 4], [3, 4, 9])
    2
    """
    borders = [0]
    length = 0
    for value in head[1:]:
        while length and head[length] != value:
            length = borders[length - 1]
        length += head[length] == value
        borders.append(length)
    return _match_length(tail, head, borders) if head else 0


def _match_length(tail: list[int], head: list[int], borders: list[int]) -> int:
    length = 0
    for value in tail:
        while length and (length == len(head) or head[length] != value):
            length = borders[length - 1]
        length += head[length] == value
    return length


if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Ids: TypeAlias = NDArray[numpy.int64]
    Mask: TypeAlias = NDArray[numpy.int8]
    Floats: TypeAlias = NDArray[numpy.float32]


class Fork(msgspec.Struct, frozen=True):
    """Why a new sequence begins: the turn that did not continue, and the first position where it differs."""

    turn: int
    at: int
    reason: str


class SequenceArrays(NamedTuple):
    """The numbers of a sequence as arrays, for batches."""

    prompt_ids: Ids
    response_ids: Ids
    mask: Mask
    logprobs: Floats


class Sequence(msgspec.Struct, frozen=True, dict=True):
    """Ids that the model saw and sampled. `mask` is 1 on sampled tokens; only there must a logprob be finite.

    `fork` is None where the sequence begins with the first turn of its rollout.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    mask: list[int]
    logprobs: list[float]
    fork: Fork | None = None

    def __post_init__(self) -> None:
        import numpy as np

        lengths = [len(self.response_ids), len(self.mask), len(self.logprobs)]
        if len(set(lengths)) != 1:
            raise TokenError("a sequence has {} response ids, {} mask values and {} logprobs".format(*lengths))
        arrays = self.arrays
        if ((arrays.mask != 0) & (arrays.mask != 1)).any():
            raise TokenError(f"a mask holds 0 and 1 only, not {sorted(set(self.mask) - {0, 1})[:3]}")
        unknown = ~np.isfinite(arrays.logprobs)
        if len(invalid := np.flatnonzero(unknown & (arrays.mask == 1))):
            index = int(invalid[0])
            raise TokenError(f"the logprob of sampled token {index} of {len(self.mask)} is {self.logprobs[index]}")
        arrays.logprobs[unknown] = 0.0  # these tokens are not trained, but 0 times NaN would be NaN in a loss

    @cached_property
    def arrays(self) -> SequenceArrays:
        """The numbers as arrays, made once with the sequence: a batch only copies them."""
        import numpy as np

        return SequenceArrays(
            _to_array(self.prompt_ids, "token ids", np.int64),
            _to_array(self.response_ids, "token ids", np.int64),
            _to_array(self.mask, "mask values", np.int8),
            _to_array(self.logprobs, "logprobs", np.float32),
        )

    @property
    def trained(self) -> int:
        """How many tokens the model sampled."""
        return sum(self.mask)

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)


def _to_array(values: list[Any], what: str, dtype: Any) -> NDArray[Any]:
    """Return a flat array of a list of numbers; whole and not negative, unless they are logprobs."""
    import numpy as np

    try:
        array = np.array(values)
        converted = array.astype(dtype, copy=False)
    except (OverflowError, TypeError, ValueError) as error:
        raise TokenError(f"a sequence holds invalid {what}: {error}") from None
    fits = array.dtype.kind in ("fiuO" if what == "logprobs" else "iub")
    if array.size and (array.ndim != 1 or not fits):
        raise TokenError(f"a sequence holds invalid {what}: {str(values)[:60]}")
    if what == "token ids" and array.size and int(converted.min()) < 0:
        raise TokenError(f"a sequence holds the token id {int(converted.min())}")
    return converted


SHORTER = "the prompt is shorter than the sequence so far"
ANSWER_LEFT_OUT = "part of the last answer was left out, as templates do with reasoning"
HISTORY_LEFT_OUT = "part of the history before the last answer was left out"
HISTORY_EDITED = "the history before the last answer was edited"
ANSWER_DIFFERS = "the last answer came back as other tokens: edited, or tokenised differently"


def merge(turns: Iterable[Turn]) -> list[Sequence]:
    """Return sequences in which every sampled token is trained once; each turn continues the last one or begins one.

    >>> first = Turn(prompt_ids=[1, 2], ids=[3], logprobs=[-0.5])
    >>> then = Turn(prompt_ids=[1, 2, 3, 4], ids=[5], logprobs=[-0.25])
    >>> [(s.prompt_ids, s.response_ids, s.mask) for s in merge([first, then])]
    [([1, 2], [3, 4, 5], [1, 0, 1])]
    """
    sequences: list[Sequence] = []
    builder: _SequenceBuilder | None = None
    for index, turn in enumerate(turns):
        if turn.finish_reason == "context_length" and not turn.has_tokens and not turn.completion_tokens:
            continue  # a prompt that no longer fitted was refused before any token: there is nothing to train
        prompt, ids, logprobs = require_tokens(turn, index)
        if builder is None:
            builder = _SequenceBuilder(prompt, None)
        elif not builder.continues(prompt):
            sequences.append(builder.build())
            builder = _SequenceBuilder(prompt, builder.make_fork(index, prompt))
        builder.add(prompt, ids, logprobs)
    return sequences if builder is None else [*sequences, builder.build()]


def require_tokens(turn: Turn, index: int = 0) -> tuple[list[int], list[int], list[float]]:
    """Return the prompt ids, sampled ids and logprobs of a turn; TokenError if one is missing or lengths differ."""
    if turn.prompt_ids is None or turn.ids is None or turn.logprobs is None:
        raise TokenError(f"turn {index} has no token ids: its model did not report them, and they are never guessed")
    if len(turn.ids) != len(turn.logprobs):
        raise TokenError(f"turn {index} has {len(turn.ids)} ids and {len(turn.logprobs)} logprobs")
    return turn.prompt_ids, turn.ids, turn.logprobs


class _SequenceBuilder:
    """A sequence being built: `ids` are all its ids so far, of which the last answer begins at `answer`."""

    def __init__(self, prompt: list[int], fork: Fork | None) -> None:
        self.ids = list(prompt)
        self.start = self.answer = len(prompt)
        self.mask: list[int] = []
        self.logprobs: list[float] = []
        self.origin = fork

    def continues(self, prompt: list[int]) -> bool:
        return prompt[: len(self.ids)] == self.ids

    def add(self, prompt: list[int], sampled: list[int], logprobs: list[float]) -> None:
        between = prompt[len(self.ids) :]
        self.answer = len(prompt)
        self.ids += between
        self.ids += sampled
        self.mask += [0] * len(between) + [1] * len(sampled)
        self.logprobs += [0.0] * len(between) + logprobs

    def make_fork(self, turn: int, prompt: list[int]) -> Fork:
        index = shared_prefix_length(self.ids, prompt)
        return Fork(turn, index, self._explain_fork(index, prompt))

    def _explain_fork(self, index: int, prompt: list[int]) -> str:
        if index == len(prompt):
            return SHORTER
        overlap = overlap_length(self.ids[index:], prompt[index:])
        if overlap:
            return ANSWER_LEFT_OUT if len(self.ids) - overlap > self.answer else HISTORY_LEFT_OUT
        return HISTORY_EDITED if index < self.answer else ANSWER_DIFFERS

    def build(self) -> Sequence:
        return Sequence(self.ids[: self.start], self.ids[self.start :], self.mask, self.logprobs, self.origin)
