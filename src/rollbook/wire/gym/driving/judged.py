"""What a server says a rollout is worth, read: a score, or the failure that it is."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rollbook.core.failure import KINDS
from rollbook.core.json import JSON, encode
from rollbook.core.score import Score
from rollbook.errors import InvalidReward, RolloutFailed
from rollbook.wire.gym.driving.client import Answer, object_in
from rollbook.wire.gym.params import KEY
from rollbook.wire.gym.row import AGENT
from rollbook.wire.gym.verdict import (
    FAILURE,
    FAILURE_WORDS,
    JUDGE_FAILED,
    JUDGE_WORDS,
    MASK,
    NO_PERSIST,
    OURS,
    TERMINAL,
)

FOR_GOOD = "verifier_error"
"""The kind of what the server says would fail again."""

AWAY = (502, 503, 504)
"""What a proxy says when the server itself is not there."""

COMPONENTS, ANSWER = "reward_components", "extracted_answer"
_KNOWN = frozenset((KEY, "response", "reward", COMPONENTS, ANSWER, AGENT, OURS))


def told_failure(answer: Answer) -> RolloutFailed | None:
    """The failure that a server of ours names in an error, as `KIND in WHERE: MESSAGE`."""
    if answer.status < 500:
        return None
    kind, inside, rest = answer.words.partition(" in ")
    where, colon, message = rest.partition(": ")
    return RolloutFailed(kind, where, message) if kind in KINDS and inside and colon else None


def verified(answer: Answer, where: str, broken: str) -> Mapping[str, JSON]:
    """The object that a server says; anything else is a failure of the kind `broken`."""
    if answer.status in AWAY:
        raise told_failure(answer) or RolloutFailed("environment_error", where, f"HTTP {answer.status}: {answer.words}")
    if answer.status != 200:
        raise told_failure(answer) or RolloutFailed(broken, where, f"HTTP {answer.status}: {answer.words}")
    said = object_in(answer)
    if said is None:
        raise RolloutFailed(broken, where, f"HTTP 200 that is no JSON object: {answer.words}")
    return said


def failure_of(said: Mapping[str, JSON], where: str, broken: str) -> RolloutFailed | None:
    """The failure that stands in an answer instead of a verdict, whatever reward stands beside it."""
    kind = said.get(FAILURE)
    if kind is None:
        return _unwanted(said, where)
    if kind == JUDGE_FAILED:
        return RolloutFailed("judge_error", where, str(said.get(JUDGE_WORDS) or "the judge failed"))
    words = str(said.get(FAILURE_WORDS) or said.get("error") or "no words")
    if kind in KINDS:
        return RolloutFailed(str(kind), where, words)
    return RolloutFailed(FOR_GOOD if said.get(TERMINAL) is True else broken, where, f"{kind}: {words}")


def _unwanted(said: Mapping[str, JSON], where: str) -> RolloutFailed | None:
    """A reward that does not count: the rollout is to be played again, or must not be trained on."""
    if said.get(NO_PERSIST) is True:
        return RolloutFailed("environment_error", where, f"it is to be played again ({NO_PERSIST})")
    if said.get(MASK) is True:
        return RolloutFailed(FOR_GOOD, where, f"it must not be trained on ({MASK})")
    return None


def score_of(said: Mapping[str, JSON], row: Mapping[str, JSON]) -> Score:
    """The score in a verdict: InvalidReward where it is none. What the server adds of its own is kept as `info`.

    `reward` decides; the whole score that a server of ours sends along says more of it, or contradicts it.
    """
    if "reward" not in said:
        raise InvalidReward("the server's answer has no reward")
    own = said.get(OURS)
    if isinstance(own, dict) and isinstance(own.get("score"), dict) and own != row.get(OURS):
        return _agreeing(_whole(own["score"]), said["reward"])
    parts = said.get(COMPONENTS) or {}
    if not isinstance(parts, dict):
        raise InvalidReward(f"{COMPONENTS} is {parts!r:.80}, not a number for each name")
    return Score(said["reward"], parts, _text(said.get(ANSWER)), _added(said, row))


def _agreeing(score: Score, reward: JSON) -> Score:
    if isinstance(reward, bool) or score.reward != reward:
        raise InvalidReward(f"the reward is {reward!r:.80}, and {score.reward:g} in {OURS}.score")
    return score


def _whole(value: JSON) -> Score:
    try:
        return msgspec.convert(value, Score)
    except msgspec.ValidationError as error:
        raise InvalidReward(f"the score is not as it should be: {error}") from None


def _text(value: JSON) -> str | None:
    return value if value is None or isinstance(value, str) else encode(value).decode()


def _added(said: Mapping[str, JSON], row: Mapping[str, JSON]) -> dict[str, JSON]:
    """What the server says beyond what it was told."""
    return {
        name: value
        for name, value in said.items()
        if name not in _KNOWN and not name.startswith("_ng_") and (name not in row or row[name] != value)
    }
