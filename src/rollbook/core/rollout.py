"""One rollout in memory: its turns, its score or failure, its usage, its timing and its seed.

A turn is one model call with exactly the tokens that the server reports. A score is always a finite number.
"""

from __future__ import annotations

import math
from numbers import Real

import msgspec

from rollbook.core.failure import Failure
from rollbook.core.json import JSON
from rollbook.core.roles import RoleCall
from rollbook.core.task import Message, Task
from rollbook.errors import InvalidReward


class Turn(msgspec.Struct, frozen=True, gc=False):
    """One call. The three id fields are all present (token for token what the server reported) or all None."""

    prompt_ids: list[int] | None = None
    ids: list[int] | None = None
    logprobs: list[float] | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str = "stop"
    seconds: float = 0.0
    model_version: str | None = None
    cached_tokens: int | None = None
    """How many tokens of the prompt the server had cached; None where it does not say."""

    @property
    def truncated(self) -> bool:
        """Whether the answer was cut: by the token limit, or because the prompt no longer fitted."""
        return self.finish_reason in ("length", "context_length")

    @property
    def has_tokens(self) -> bool:
        """Whether exact ids were recorded for this call."""
        return self.ids is not None


class Score(msgspec.Struct, frozen=True):
    """A reward with its parts, the answer that was extracted, and further information to store."""

    reward: float
    parts: dict[str, float] = {}
    answer: str | None = None
    info: dict[str, JSON] = {}

    def __post_init__(self) -> None:
        set_field = msgspec.structs.force_setattr
        set_field(self, "reward", require_finite(self.reward, "the reward"))
        set_field(self, "parts", {str(k): require_finite(v, f"part {k!r}") for k, v in self.parts.items()})
        if self.answer is not None:
            set_field(self, "answer", str(self.answer))


def require_finite(value: object, what: str) -> float:
    """Return the value as a finite float; an InvalidReward names anything else."""
    if not isinstance(value, Real | bool) and not hasattr(value, "__float__"):
        raise InvalidReward(f"{what} is {value!r} ({type(value).__name__}), not a number")
    number = float(value)
    if not math.isfinite(number):
        raise InvalidReward(f"{what} is {number}, not a finite number")
    return number


def as_score(value: object) -> Score:
    """Return the result of a verifier (bool, number or Score) as a Score.

    >>> as_score(True).reward
    1.0
    """
    return value if isinstance(value, Score) else Score(require_finite(value, "the reward"))


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens over all turns, as the server counted them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class Timing(msgspec.Struct, frozen=True, gc=False):
    """When the attempt began (Unix time) and where its seconds went."""

    start: float = 0.0
    seconds: float = 0.0
    model_s: float = 0.0
    environment_s: float = 0.0
    verify_s: float = 0.0


class Rollout(msgspec.Struct, kw_only=True):
    """The result of one attempt. Exactly one of `score` and `failure` is set once it has ended."""

    task: Task
    sample: int
    seed: int
    round: int = 1
    attempt: int = 1
    messages: list[Message] = []
    turns: list[Turn] = []
    outcome: JSON = None
    score: Score | None = None
    failure: Failure | None = None
    timing: Timing = Timing()
    ended: str = ""
    """The limit that ended the conversation, or empty: max_turns, max_tokens_total, max_response_tokens, repeats or
    context_length."""
    role_calls: list[RoleCall] = []
    """The calls of models of other roles, such as a simulated user. They are never turns of the policy."""

    @property
    def key(self) -> tuple[str, int]:
        """The name of this rollout: (task id, sample)."""
        return self.task.id, self.sample

    @property
    def text(self) -> str:
        """The text of the model's last message; empty if there is none."""
        for message in reversed(self.messages[len(self.task.messages) :]):
            if message.role == "assistant":
                return message.text
        return ""

    @property
    def reward(self) -> float:
        """The reward; a failed rollout has none and raises."""
        if self.score is None:
            raise AttributeError(f"rollout {self.key} has no score: {self.failure}")
        return self.score.reward

    @property
    def truncated(self) -> bool:
        """Whether the conversation was cut short: its last answer, or all of it by a limit."""
        return bool(self.ended) or (bool(self.turns) and self.turns[-1].truncated)

    @property
    def usage(self) -> Usage:
        """Tokens over all turns."""
        return Usage(sum(t.prompt_tokens for t in self.turns), sum(t.completion_tokens for t in self.turns))


class Group(msgspec.Struct, frozen=True):
    """All samples of one task, in order. All are scored, unless the policy is to mask failed ones."""

    task: Task
    rollouts: list[Rollout]

    @property
    def rewards(self) -> list[float]:
        """The rewards in the order of the samples; raises if a rollout failed."""
        return [rollout.reward for rollout in self.rollouts]

    @property
    def scored(self) -> list[Rollout]:
        """The scored rollouts: the group's statistics are over them alone."""
        return [rollout for rollout in self.rollouts if rollout.score]

    @property
    def failed(self) -> list[Rollout]:
        """The failed rollouts."""
        return [rollout for rollout in self.rollouts if rollout.failure]
