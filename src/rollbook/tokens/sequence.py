"""A sequence: one prompt and one response that a trainer can take as they are."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

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
        unknown = ~np.isfinite(arrays.logprobs)
        if len(wrong := np.flatnonzero(unknown & (arrays.mask == 1))):
            at = int(wrong[0])
            raise TokenError(f"the logprob of sampled token {at} of {len(self.mask)} is {self.logprobs[at]}")
        arrays.logprobs[unknown] = 0.0  # nothing of it is trained, but 0 times NaN would be NaN in a loss

    @cached_property
    def arrays(self) -> Arrays:
        """The numbers as arrays, made once, when the sequence is: a batch only copies them."""
        import numpy as np

        return Arrays(
            _numbers(self.prompt_ids, "token ids", np.int64),
            _numbers(self.response_ids, "token ids", np.int64),
            _numbers(self.mask, "mask values", np.int8),
            _numbers(self.logprobs, "logprobs", np.float32),
        )

    @property
    def trained(self) -> int:
        """How many tokens the model sampled."""
        return sum(self.mask)

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)


def _numbers(given: list[Any], what: str, kind: Any) -> NDArray[Any]:
    """A flat array of a list of numbers; whole and not negative, unless they are logprobs."""
    import numpy as np

    try:
        found = np.array(given)
        wide = found.astype(kind, copy=False)
    except (OverflowError, TypeError, ValueError) as error:
        raise TokenError(f"a sequence holds {what} that are none: {error}") from None
    fits = found.dtype.kind in ("fiuO" if what == "logprobs" else "iub")
    if found.size and (found.ndim != 1 or not fits):
        raise TokenError(f"a sequence holds {what} that are none: {str(given)[:60]}")
    if what == "token ids" and found.size and int(wide.min()) < 0:
        raise TokenError(f"a sequence holds the token id {int(wide.min())}")
    return wide
