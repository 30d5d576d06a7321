"""A sequence: one prompt and one response that a trainer can take as they are."""

from __future__ import annotations

import math
from itertools import compress

import msgspec

from rollbook.errors import TokenError


class Fork(msgspec.Struct, frozen=True):
    """Why a sequence begins anew: the turn that did not continue, and the first position where it differs."""

    turn: int
    at: int
    reason: str


class Sequence(msgspec.Struct, frozen=True):
    """Ids the model saw and sampled. `mask` is 1 on what it sampled; only there must a logprob be finite.

    `fork` is None where the sequence begins with the first turn of its rollout.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    mask: list[int]
    logprobs: list[float]
    fork: Fork | None = None

    def __post_init__(self) -> None:
        lengths = [len(self.response_ids), len(self.mask), len(self.logprobs)]
        if len(set(lengths)) != 1:
            raise TokenError("a sequence has {} response ids, {} mask values and {} logprobs".format(*lengths))
        if not {0, 1}.issuperset(self.mask):
            raise TokenError(f"a mask holds 0 and 1 only, not {sorted(set(self.mask) - {0, 1})[:3]}")
        if not all(map(math.isfinite, compress(self.logprobs, self.mask))):
            raise TokenError(self._nonfinite())

    def _nonfinite(self) -> str:
        pairs = enumerate(zip(self.logprobs, self.mask, strict=True))
        at, logprob = next((i, p) for i, (p, trained) in pairs if trained and not math.isfinite(p))
        return f"the logprob of sampled token {at} of {len(self.mask)} is {logprob}"

    @property
    def trained(self) -> int:
        """How many tokens the model sampled."""
        return sum(self.mask)

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)
