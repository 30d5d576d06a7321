"""Why a rollout has no score: the table of failure kinds, which defines what each kind means everywhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

import msgspec

from rollbook.errors import RollbookError, RolloutFailed, Shortfall, UsageError

FailureSide: TypeAlias = Literal["infra", "data"]


class FailureKind(msgspec.Struct, frozen=True):
    """A row of the table: everything that the rest of the package decides by a failure's kind."""

    side: FailureSide
    """Whose fault it usually is; `rollbook resume` retries infra by default."""
    attempts: int
    """How many attempts a rollout has in one round."""
    hint: str = ""
    """What a user can do about it: part of the message of a Shortfall."""
    exit_code: int = Shortfall.exit_code
    """What a command exits with when most failures are of this kind."""
    delayed: bool = True
    """Whether the next attempt waits first; False where waiting does not help."""
    repeats_call: bool = False
    """Whether a model call that fails in this way is made again, so that a conversation keeps its earlier turns."""
    no_answer: bool = False
    """Whether the model server refused or did not answer: concurrency is lowered, its replica may be taken out."""
    in_verification: bool = False
    """Whether the answer is complete and only its verification failed: `rollbook reverify` can score it."""
    http_status: int = 502
    """What the gateway answers an agent with."""


FAILURE_KINDS: Mapping[str, FailureKind] = {
    "model_unavailable": FailureKind(
        "infra", 4, "check the server, or lower --concurrency", repeats_call=True, no_answer=True, http_status=503
    ),
    "model_timeout": FailureKind(
        "infra", 4, "lower --concurrency, or raise --call-timeout", repeats_call=True, no_answer=True, http_status=504
    ),
    "bad_completion": FailureKind("infra", 4, "look at the server's log", repeats_call=True),
    "nonfinite_logprobs": FailureKind(
        "infra", 4, "look at the server: it reports logprobs that are not numbers", repeats_call=True
    ),
    "environment_error": FailureKind(
        "infra", 3, "look at the environment's log; lower --concurrency if memory ran out"
    ),
    "sandbox_error": FailureKind("infra", 3),
    "container_error": FailureKind("infra", 3, "look at the message; lower --concurrency if memory or disk ran out"),
    "judge_error": FailureKind("infra", 3, in_verification=True),
    "role_error": FailureKind("infra", 3, "check the server of the role, then rollbook resume RUN"),
    "agent_error": FailureKind("infra", 3),
    "worker_lost": FailureKind(
        "infra", 3, "lower --concurrency or --workers: workers died, most often of memory", delayed=False
    ),
    "verifier_timeout": FailureKind(
        "data",
        2,
        "fix the verifier, or start a new run with a longer --verify-timeout",
        delayed=False,
        in_verification=True,
    ),
    "model_rejected": FailureKind("data", 1, "look at the message: the server refuses the request", http_status=400),
    "verifier_error": FailureKind(
        "data", 1, "fix the verifier, then rollbook reverify RUN --env NEW --only failed", in_verification=True
    ),
    "invalid_reward": FailureKind(
        "data",
        1,
        "return a finite number from the verifier, then rollbook reverify RUN --env NEW --only failed",
        in_verification=True,
    ),
    "image_error": FailureKind("data", 1, "fix the image or its Dockerfile, or pull it on every node"),
    "token_mismatch": FailureKind("data", 1, "look at the server: its ids and counts contradict each other"),
    "no_tokens": FailureKind("data", 1, "leave such prompts out, or serve the model with a longer context"),
    "rollout_timeout": FailureKind("data", 1, "start a new run with a longer --timeout"),
}
"""The only place that lists failure kinds by name. A new kind is one entry here, and the code that raises it."""

MAX_MESSAGE_CHARS = 2000


class Failure(msgspec.Struct, frozen=True):
    """Why an attempt failed: its kind, whose side that is, where it happened, and the message."""

    kind: str
    side: FailureSide
    where: str
    message: str

    @classmethod
    def from_error(cls, error: RolloutFailed) -> Failure:
        """Return the failure that an attempt's exception describes."""
        return cls(error.kind, FAILURE_KINDS[error.kind].side, error.where, error.message[:MAX_MESSAGE_CHARS])


START_ANEW = "start a new run"
"""The end of a message of what neither `resume` nor `reverify` can repeat."""

_ADVISED = re.compile(r"(?:probable cause: )?(?:\w+: )?HTTP (?:30\d|401|403|404|405)\b")


def choose_hint(kind: str, message: str) -> str:
    """Return what a user can do about failures of a kind; empty where the message of one names its own way out.

    >>> choose_hint("model_unavailable", "HTTP 401: bad key; set OPENAI_API_KEY to the key")
    ''
    >>> choose_hint("model_unavailable", "HTTP 503: overloaded")
    'check the server, or lower --concurrency'
    """
    advised = _ADVISED.match(message) or message.endswith(START_ANEW)
    return "" if advised or kind not in FAILURE_KINDS else FAILURE_KINDS[kind].hint


def attempts_allowed(kind: str, budgets: Mapping[str, int]) -> int:
    """Return how many attempts a kind has: the round's own budget, else the table's."""
    return budgets.get(kind, FAILURE_KINDS[kind].attempts)


def choose_exit_code(error: RollbookError) -> int:
    """Return what a command exits with that ends in this error."""
    return FAILURE_KINDS[error.kind].exit_code if isinstance(error, RolloutFailed) else error.exit_code


def reopens(retry: Iterable[str], kind: str) -> bool:
    """Return whether a round with this retry rule tries a kind of failure again.

    >>> reopens(["infra"], "model_timeout"), reopens(["infra"], "verifier_error"), reopens(["all"], "verifier_error")
    (True, False, True)
    """
    return any(rule in ("all", kind, FAILURE_KINDS[kind].side) for rule in retry)


def check_retry_rules(retry: Iterable[str]) -> list[str]:
    """Return the rules of `--retry`; a UsageError lists the known ones."""
    rules = [rule for rule in retry if rule != "none"]
    for rule in find_unknown_rules(rules):
        raise UsageError(f"--retry {rule}: not a failure kind; known: none, {', '.join(sorted(_RETRY_RULES))}")
    return rules


_RETRY_RULES = {"all", "infra", "data", *FAILURE_KINDS}


def find_unknown_rules(retry: Iterable[str]) -> list[str]:
    """Return what is neither a failure kind nor a group of them; such a rule on disk is damaged.

    >>> find_unknown_rules(["infra", "model_timeoux"])
    ['model_timeoux']
    """
    return [rule for rule in retry if rule not in _RETRY_RULES]
