"""A sequence: one prompt and one response that a trainer can take as they are."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from rollbook.errors import TokenError

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Ids: TypeAlias = NDArray[numpy.int64]
    Mask: TypeAlias = NDArray[numpy.int8]
    Floats: TypeAlias = NDArray[numpy.float32]


class Fork(msgspec.Struct, frozen=True):
    """Why a sequence begins anew: the turn that did not continue, and the first position where it differs."""

    turn: int
    at: int
    reason: str


class Arrays(NamedTuple):
    """The same numbers in flat memory, as a batch takes them."""

    prompt_ids: Ids
    response_ids: Ids
    mask: Mask
    logprobs: Floats


class Sequence(msgspec.Struct, frozen=True, dict=True):
    """Ids the model saw and sampled. `mask` is 1 on what it sampled; only there must a logprob be finite.

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
        wrong = np.flatnonzero(~np.isfinite(arrays.logprobs) & (arrays.mask == 1))
        if len(wrong):
            at = int(wrong[0])
            raise TokenError(f"the logprob of sampled token {at} of {len(self.mask)} is {self.logprobs[at]}")

    @cached_property
    def arrays(self) -> Arrays:
        """The numbers as arrays, made once, when the sequence is: a batch only copies them."""
        import numpy as np

        try:
            return Arrays(
                np.array(self.prompt_ids, np.int64),
                np.array(self.response_ids, np.int64),
                np.array(self.mask, np.int8),
                np.array(self.logprobs, np.float32),
            )
        except (OverflowError, TypeError, ValueError) as error:
            raise TokenError(f"a sequence holds what is no token id, mask or logprob: {error}") from None

    @property
    def trained(self) -> int:
        """How many tokens the model sampled."""
        return sum(self.mask)

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)
