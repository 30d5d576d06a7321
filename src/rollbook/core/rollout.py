"""A rollout: one key (task id, sample) carried to its end."""

from __future__ import annotations

import hashlib

import msgspec

from rollbook.core.failure import Failure
from rollbook.core.json import JSON
from rollbook.core.message import Message
from rollbook.core.score import Score
from rollbook.core.task import Task
from rollbook.core.turn import Turn


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
    """What one attempt came to. Exactly one of `score` and `failure` is set once it has ended."""

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
    """The limit that ended the conversation (max_turns, max_tokens_total, context_length, repeats); else empty."""

    @property
    def key(self) -> tuple[str, int]:
        """The name of this rollout: (task id, sample)."""
        return self.task.id, self.sample

    @property
    def text(self) -> str:
        """The last thing the model said; empty if it said nothing."""
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


def seed_of(run_seed: int, task_id: str, sample: int) -> int:
    """A sample's seed: a hash, so that adding tasks or samples changes no other; 31 bits, which every server takes."""
    digest = hashlib.blake2b(f"{run_seed}\0{task_id}\0{sample}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1
