"""A turn: one model call, with exactly the tokens the server says it saw and sampled."""

from __future__ import annotations

import msgspec


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

    @property
    def truncated(self) -> bool:
        """Whether the answer was cut: by the token limit, or because the prompt no longer fitted."""
        return self.finish_reason in ("length", "context_length")

    @property
    def has_tokens(self) -> bool:
        """Whether exact ids were recorded for this call."""
        return self.ids is not None


class TokenRef(msgspec.Struct, frozen=True, gc=False):
    """Where a turn's ids lie: a record of `size` bytes at `at` in the sidecar of the line's own segment."""

    at: int
    size: int


class TurnLine(msgspec.Struct, frozen=True, gc=False):
    """A turn as it stands in a journal line: its ids are in the sidecar."""

    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    seconds: float
    model_version: str | None = None
    tokens: TokenRef | None = None

    def turn(self) -> Turn:
        """The turn without its ids."""
        return Turn(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            finish_reason=self.finish_reason,
            seconds=self.seconds,
            model_version=self.model_version,
        )


def turn_line(turn: Turn, tokens: TokenRef | None) -> TurnLine:
    """The journal's form of a turn, pointing at its ids."""
    return TurnLine(
        turn.prompt_tokens,
        turn.completion_tokens,
        turn.finish_reason,
        turn.seconds,
        turn.model_version,
        tokens,
    )
