"""A score: what the verifier says about a rollout. It is always a finite number, or it is not a score."""

from __future__ import annotations

import math
from numbers import Real

import msgspec

from rollbook.core.json import JSON
from rollbook.errors import InvalidReward


class Score(msgspec.Struct, frozen=True):
    """A reward with what it is made of, the answer that was read, and anything worth keeping."""

    reward: float
    parts: dict[str, float] = {}
    answer: str | None = None
    info: dict[str, JSON] = {}

    def __post_init__(self) -> None:
        set_field = msgspec.structs.force_setattr
        set_field(self, "reward", finite(self.reward, "the reward"))
        set_field(self, "parts", {str(k): finite(v, f"part {k!r}") for k, v in self.parts.items()})
        if self.answer is not None:
            set_field(self, "answer", str(self.answer))


def finite(value: object, what: str) -> float:
    """The value as a finite float; anything else is an InvalidReward that names it."""
    if not isinstance(value, Real | bool) and not hasattr(value, "__float__"):
        raise InvalidReward(f"{what} is {value!r} ({type(value).__name__}), not a number")
    number = float(value)
    if not math.isfinite(number):
        raise InvalidReward(f"{what} is {number}, not a finite number")
    return number


def as_score(value: object) -> Score:
    """What a verifier may return (bool, number or Score) as a Score.

    >>> as_score(True).reward
    1.0
    """
    return value if isinstance(value, Score) else Score(finite(value, "the reward"))
