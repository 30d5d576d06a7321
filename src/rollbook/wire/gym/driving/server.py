"""A resources server of NeMo Gym as an environment: its state, its tools and its verdicts, over HTTP.

The rows come with `--data`. A rollout is: POST /seed_session, POST /TOOL for every call, POST /verify; the cookies of
the first go along with all the others. Where a row has no tools and the server says that its verdicts need no session,
there is none.
"""

from __future__ import annotations

import msgspec

from rollbook.core.json import JSON
from rollbook.core.rollout import Rollout
from rollbook.core.score import Score
from rollbook.core.task import Task
from rollbook.core.turn import Turn
from rollbook.wire.gym.driving.address import address
from rollbook.wire.gym.driving.dataset import tools_of
from rollbook.wire.gym.driving.judged import failure_of, score_of, told_failure, verified
from rollbook.wire.gym.driving.served import VERIFY, Alone, Placed, Session
from rollbook.wire.gym.params import KEY
from rollbook.wire.gym.response import response_of
from rollbook.wire.gym.row import ROLLOUT_INDEX
from rollbook.wire.gym.verdict import OURS

SEED = "/seed_session"


class RemoteServer(Placed):
    """A resources server at an address. `data` are the rows to ask."""

    description = "A NeMo Gym resources server, http://host:port; its rows with --data."
    verify_at_once = 256

    def __init__(self, url: str, data: str | None = None) -> None:
        self._be(Alone(address(url)), data, url)

    async def open(self, task: Task) -> Session:
        """A session of its own for a rollout, unless nobody would ever ask for it."""
        await self._place.up(task)
        served = self._place.server_of(task)
        session = Session(served, served.client.era, {})
        if not served.stateless or task.fields[KEY].get("tools"):
            verified(await served.client.post(SEED, task.fields, session.cookies), SEED, "environment_error")
        return session

    def offers(self, task: Task) -> list[dict[str, JSON]]:
        """The tools of its row."""
        return tools_of(task)

    async def use(self, name: str, arguments: dict[str, JSON], state: Session) -> str:
        """What the server says to a call, whatever its status: that is for the model to read."""
        state.served.check_held(state.era, f"/{name}")
        answer = await state.served.client.post(f"/{name}", arguments, state.cookies)
        if failure := told_failure(answer):
            raise failure
        return answer.text

    async def outcome(self, state: Session) -> JSON:
        """Whose session it was: the verdict is on what the server holds for it."""
        return {"cookies": state.cookies, "era": state.era}

    async def verify(self, task: Task, rollout: Rollout) -> Score:
        """Ask the server, in the session that was played."""
        served, held = self._place.server_of(task), rollout.outcome or {}
        served.check_held(held.get("era", ""), VERIFY)
        answer = await served.client.post(VERIFY, verify_body(task, rollout), dict(held.get("cookies", {})))
        said = verified(answer, VERIFY, "verifier_error")
        if failure := failure_of(said, VERIFY, "verifier_error"):
            raise failure
        return score_of(said, task.fields)


def verify_body(task: Task, rollout: Rollout) -> dict[str, JSON]:
    """The row with all that was said, as a resources server takes it."""
    response = response_of(
        rollout.messages[len(task.messages) :],
        [without_tokens(turn) for turn in rollout.turns],
        name=f"{task.id}_{rollout.sample}",
        model="model",
        created=rollout.timing.start,
        ended=rollout.ended,
    )
    return {**task.fields, ROLLOUT_INDEX: rollout.sample, "response": response, OURS: {"seed": rollout.seed}}


def without_tokens(turn: Turn) -> Turn:
    """A turn as a verifier needs it: ids and logprobs would only make the request many times larger."""
    return msgspec.structs.replace(turn, prompt_ids=None, ids=None, logprobs=None) if turn.has_tokens else turn
