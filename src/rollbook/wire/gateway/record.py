"""The record of a rollout that the gateway hands out: all that was said, with its tokens, or why it does not count."""

from __future__ import annotations

import msgspec

from rollbook.core.failure import Failure
from rollbook.core.message import Message
from rollbook.core.turn import Turn
from rollbook.errors import ContextFull, LimitReached, RolloutFailed, Stopped
from rollbook.wire.gateway.recorder import Recorder

NO_CALL = RolloutFailed("agent_error", "gateway", "the rollout ended without asking the model once")


class Said(msgspec.Struct, frozen=True):
    """A branch: a conversation, and a turn for each answer in it."""

    messages: list[Message]
    turns: list[Turn]


class Record(msgspec.Struct, frozen=True):
    """One rollout. With a `failure` it must not be scored; `ended` is the limit that ended it, if one did."""

    rollout: str
    name: str
    seed: int
    open: bool
    branches: list[Said]
    ended: str = ""
    failure: Failure | None = None

    @property
    def turns(self) -> list[Turn]:
        """All turns, branch after branch, as `rollbook.tokens.merge` takes them."""
        return [turn for branch in self.branches for turn in branch.turns]


def record_of(rollout: str, name: str, seed: int, recorder: Recorder, late: RolloutFailed | None, over: bool) -> Record:
    """What a recorder holds; `late` is the failure of a rollout that was not ended in time."""
    branches = [Said(branch.messages, branch.turns) for branch in recorder.branches]
    ended, failure = "", late
    try:
        recorder.settle()
    except RolloutFailed as error:
        failure = error
    except Stopped as error:
        failure = RolloutFailed("model_unavailable", "model", str(error))
    except ContextFull:
        ended = "context_length"
    except LimitReached as error:
        ended = error.which
    if over and not (failure or ended or branches):
        failure = NO_CALL
    return Record(rollout, name, seed, not over, branches, ended, Failure.of(failure) if failure else None)
