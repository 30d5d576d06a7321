"""Exact tokens: what a server reports must add up, token for token, or it is a failure."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from rollbook.errors import RolloutFailed
from rollbook.models.refusal import WHERE

MINUS_INFINITY = -9999.0
"""What vLLM writes for -inf, which JSON cannot hold. Nothing that was sampled is as unlikely as that."""


def exact_logprobs(
    prompt_ids: Sequence[int],
    ids: Sequence[int],
    logprobs: Sequence[float | None],
    *,
    prompt_tokens: int | None = None,
    completion_tokens: int | None = None,
) -> list[float]:
    """The logprobs, one finite number for each id; RolloutFailed if the ids, they and the usage disagree."""
    if len(ids) != len(logprobs):
        raise _mismatch(f"{len(ids)} ids came with {len(logprobs)} logprobs")
    if completion_tokens is not None and completion_tokens != len(ids):
        raise _mismatch(f"{len(ids)} ids came, but usage counts {completion_tokens} completion tokens")
    if prompt_tokens is not None and prompt_tokens != len(prompt_ids):
        raise _mismatch(f"{len(prompt_ids)} prompt ids came, but usage counts {prompt_tokens} prompt tokens")
    return finite_logprobs(logprobs)


def finite_logprobs(logprobs: Sequence[float | None]) -> list[float]:
    """The same logprobs; RolloutFailed if one of them is null, infinite or not a number."""
    numbers = [p for p in logprobs if p is not None and isfinite(p) and p > MINUS_INFINITY]
    if len(numbers) != len(logprobs):
        at = next(i for i, p in enumerate(logprobs) if p is None or not isfinite(p) or p <= MINUS_INFINITY)
        raise RolloutFailed("nonfinite_logprobs", WHERE, f"the logprob of token {at} is {logprobs[at]}")
    return numbers


def _mismatch(message: str) -> RolloutFailed:
    return RolloutFailed("token_mismatch", WHERE, message)
