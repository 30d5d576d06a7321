"""What a verification came to, as NeMo Gym writes it down: the request again, with the reward."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from rollbook.core.failure import KINDS
from rollbook.core.json import JSON
from rollbook.core.score import Score
from rollbook.errors import RolloutFailed

OURS = "rollbook"
"""Under this name stands what Gym has no field for: the whole score, and the outcome it was made from."""

FAILURE, FAILURE_WORDS, TERMINAL = "_ng_failure_class", "_ng_failure_message", "_ng_failure_terminal"
JUDGE_FAILED, JUDGE_WORDS = "judge_failed", "_ng_failure_judge_error"
MASK, NO_PERSIST = "mask_sample", "_ng_no_persist"


def scored(body: Mapping[str, JSON], score: Score, outcome: JSON = None) -> dict[str, JSON]:
    """The request with what it is worth. Parts are numbers at the top, where Gym's statistics look for them."""
    parts = {name: value for name, value in score.parts.items() if name not in body}
    made = {"reward_components": score.parts} if _adds_up(score) else {}
    own = {"score": msgspec.to_builtins(score), "outcome": outcome}
    said = {"reward": score.reward, "extracted_answer": score.answer}
    return {**parts, **body, **made, **said, OURS: own}


def _adds_up(score: Score) -> bool:
    """Whether the reward is the sum of its parts: what NeMo RL takes `reward_components` to mean."""
    return bool(score.parts) and math.isclose(sum(score.parts.values()), score.reward, abs_tol=1e-9)


def judge_failed(body: Mapping[str, JSON], error: RolloutFailed) -> dict[str, JSON]:
    """No verdict for want of a judge. Gym's agents insist on a number here; its collector counts no such row."""
    return {**body, "reward": 0.0, FAILURE: JUDGE_FAILED, JUDGE_WORDS: error.message}


def failed(body: Mapping[str, JSON], kind: str, words: str) -> dict[str, JSON]:
    """A rollout that has no score, as a row of Gym's failures: no reward, and nothing to train on.

    It is no HTTP error, for one of those ends Gym's whole collection.
    """
    failure = {FAILURE: JUDGE_FAILED, JUDGE_WORDS: words} if kind == "judge_error" else {FAILURE: kind}
    terminal = {TERMINAL: True} if KINDS[kind].side == "data" else {}
    return {**body, **failure, FAILURE_WORDS: words, MASK: True, **terminal}
