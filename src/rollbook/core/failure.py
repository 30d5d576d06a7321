"""Why a rollout has no score: the table of failure kinds, and how many attempts each kind has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

import msgspec

from rollbook.errors import RolloutFailed, UsageError

FailureSide: TypeAlias = Literal["infra", "data"]


class FailureKind(msgspec.Struct, frozen=True):
    """A row of the table: whose fault it usually is, and how often it is tried in one round."""

    side: FailureSide
    attempts: int


FAILURE_KINDS: Mapping[str, FailureKind] = {
    "model_unavailable": FailureKind("infra", 4),
    "model_timeout": FailureKind("infra", 4),
    "bad_completion": FailureKind("infra", 4),
    "nonfinite_logprobs": FailureKind("infra", 4),
    "environment_error": FailureKind("infra", 3),
    "sandbox_error": FailureKind("infra", 3),
    "judge_error": FailureKind("infra", 3),
    "agent_error": FailureKind("infra", 3),
    "worker_lost": FailureKind("infra", 3),
    "verifier_timeout": FailureKind("data", 2),
    "model_rejected": FailureKind("data", 1),
    "verifier_error": FailureKind("data", 1),
    "invalid_reward": FailureKind("data", 1),
    "token_mismatch": FailureKind("data", 1),
    "rollout_timeout": FailureKind("data", 1),
}

MAX_MESSAGE_CHARS = 2000


class Failure(msgspec.Struct, frozen=True):
    """What broke, on whose side, where, and its own words."""

    kind: str
    side: FailureSide
    where: str
    message: str

    @classmethod
    def from_error(cls, error: RolloutFailed) -> Failure:
        """The failure that an attempt's exception describes."""
        return cls(error.kind, FAILURE_KINDS[error.kind].side, error.where, error.message[:MAX_MESSAGE_CHARS])


def attempts_allowed(kind: str, budgets: Mapping[str, int]) -> int:
    """How many attempts a kind has: the round's own budget, else the table's."""
    return budgets.get(kind, FAILURE_KINDS[kind].attempts)


def reopens(retry: Iterable[str], kind: str) -> bool:
    """Whether a round with this retry rule tries a kind of failure again.

    >>> reopens(["infra"], "model_timeout"), reopens(["infra"], "verifier_error"), reopens(["all"], "verifier_error")
    (True, False, True)
    """
    return any(rule in ("all", kind, FAILURE_KINDS[kind].side) for rule in retry)


def check_retry_rules(retry: Iterable[str]) -> list[str]:
    """The rules of `--retry`, or a UsageError that lists what is known."""
    rules = [rule for rule in retry if rule != "none"]
    known = {"all", "infra", "data", *FAILURE_KINDS}
    for rule in rules:
        if rule not in known:
            raise UsageError(f"--retry {rule}: not a failure kind; known: none, {', '.join(sorted(known))}")
    return rules
