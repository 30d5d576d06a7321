"""A failure: why a rollout has no score. The table of kinds, and what each may cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

import msgspec

from rollbook.errors import RolloutFailed, UsageError

Side: TypeAlias = Literal["infra", "data"]


class Kind(msgspec.Struct, frozen=True):
    """A row of the table: whose fault it usually is, and how often it is tried in one round."""

    side: Side
    attempts: int


KINDS: Mapping[str, Kind] = {
    "model_unavailable": Kind("infra", 4),
    "model_timeout": Kind("infra", 4),
    "bad_completion": Kind("infra", 4),
    "nonfinite_logprobs": Kind("infra", 4),
    "environment_error": Kind("infra", 3),
    "sandbox_error": Kind("infra", 3),
    "judge_error": Kind("infra", 3),
    "agent_error": Kind("infra", 3),
    "worker_lost": Kind("infra", 3),
    "verifier_timeout": Kind("data", 2),
    "model_rejected": Kind("data", 1),
    "verifier_error": Kind("data", 1),
    "invalid_reward": Kind("data", 1),
    "token_mismatch": Kind("data", 1),
    "rollout_timeout": Kind("data", 1),
}

MESSAGE_LIMIT = 2000


class Failure(msgspec.Struct, frozen=True):
    """What broke, on whose side, where, and its own words."""

    kind: str
    side: Side
    where: str
    message: str

    @classmethod
    def of(cls, error: RolloutFailed) -> Failure:
        """The failure that an attempt's exception describes."""
        return cls(error.kind, KINDS[error.kind].side, error.where, error.message[:MESSAGE_LIMIT])


def attempts_allowed(kind: str, budgets: Mapping[str, int]) -> int:
    """How many attempts a kind has: the round's own budget, else the table's."""
    return budgets.get(kind, KINDS[kind].attempts)


def reopens(retry: Iterable[str], kind: str) -> bool:
    """Whether a round with this retry rule tries a kind of failure again.

    >>> reopens(["infra"], "model_timeout"), reopens(["infra"], "verifier_error"), reopens(["all"], "verifier_error")
    (True, False, True)
    """
    return any(rule in ("all", kind, KINDS[kind].side) for rule in retry)


def check_retry(retry: Iterable[str]) -> list[str]:
    """The rules of `--retry`, or a UsageError that lists what is known."""
    rules = [rule for rule in retry if rule != "none"]
    known = {"all", "infra", "data", *KINDS}
    for rule in rules:
        if rule not in known:
            raise UsageError(f"--retry {rule}: not a failure kind; known: none, {', '.join(sorted(known))}")
    return rules
