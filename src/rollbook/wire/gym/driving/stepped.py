"""A resources server whose rollouts go step by step (Gym's gymnasium flavour) as an environment: /reset, then /step.

It is shown every answer of the model as it comes, carries out the tools that were called in it, says what is to be seen
now, and what the step is worth. The reward of a rollout is the sum.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rollbook.core.json import JSON
from rollbook.core.message import Message
from rollbook.core.rollout import Rollout
from rollbook.core.score import Score, finite
from rollbook.core.task import Task
from rollbook.errors import InvalidReward, LimitReached, RolloutFailed
from rollbook.models.ask import Ask
from rollbook.models.model import Completion
from rollbook.wire.gym.driving.address import address
from rollbook.wire.gym.driving.dataset import tools_of
from rollbook.wire.gym.driving.fleet import Fleet
from rollbook.wire.gym.driving.judged import score_of, verified
from rollbook.wire.gym.driving.served import STEP, Alone, Placed, Session
from rollbook.wire.gym.driving.server import without_tokens
from rollbook.wire.gym.response import response_of
from rollbook.wire.gym.row import ROLLOUT_INDEX
from rollbook.wire.gym.verdict import OURS

RESET, CLOSE = "/reset", "/close"


class Episode(Session):
    """A rollout at a server: what it was worth so far, and whether it must be closed."""

    seen: str | None = None
    closes: bool = False
    reward: float = 0.0
    last: dict[str, JSON] = msgspec.field(default_factory=dict)


class SteppedServer(Placed):
    """A server at an address (`url`), or those of a configuration (`name`). `data` are the rows to play."""

    description = "A NeMo Gym server that is played by /reset and /step, gym+step://host:port or gym+step:config.yaml."
    route = STEP

    def __init__(self, name: str = "", url: str = "", data: str | None = None, **overrides: JSON) -> None:
        place = Alone(address(url, "gym+step")) if url else Fleet(name, overrides)
        self._be(place, data, url or f"gym+step:{name}")

    async def open(self, task: Task) -> Episode:
        """Reset it: a new episode."""
        await self._place.up(task)
        served = self._place.server_of(task)
        episode = Episode(served, served.client.era, {})
        said = verified(await served.client.post(RESET, task.fields, episode.cookies), RESET, "environment_error")
        episode.seen = _observation(said, RESET)
        episode.closes = _info(said).get("supports_explicit_close") is True
        return episode

    async def play(self, task: Task, rollout: Rollout, ask: Ask, state: Episode) -> None:
        """Until the server says that it is over, or cuts it short, or a limit of the run does."""
        tools = tools_of(task)
        _show(rollout, [], state.seen)
        over = False
        while not over:
            completion = await ask(rollout.messages, tools=tools)
            rollout.messages = [*rollout.messages, completion.message]
            rollout.turns.append(completion.turn)
            said = await self._step(task, rollout, completion, state)
            over = state.last["terminated"] is True
            if not over:
                _show(rollout, _results(completion, said), _observation(said, STEP))
            if not over and state.last["truncated"]:
                raise LimitReached("truncated")

    async def _step(self, task: Task, rollout: Rollout, completion: Completion, state: Episode) -> Mapping[str, JSON]:
        state.served.check_held(state.era, STEP)
        name = f"{task.id}_{rollout.sample}_{len(rollout.turns)}"
        response = response_of([completion.message], [without_tokens(completion.turn)], name=name, model="model")
        body = {**task.fields, ROLLOUT_INDEX: rollout.sample, "response": response, OURS: {"seed": rollout.seed}}
        said = verified(await state.served.client.post(STEP, body, state.cookies), STEP, "environment_error")
        state.reward += _worth(said)
        state.last = {"terminated": bool(said.get("terminated")), "truncated": bool(said.get("truncated"))}
        state.last |= {name: value for name, value in _info(said).items() if name != "tool_outputs"}
        return said

    async def outcome(self, state: Episode) -> JSON:
        """What it was worth, and what the last step told."""
        return {"reward": state.reward, "last": state.last}

    async def close(self, state: Episode) -> None:
        """End the episode at a server that wants to be told."""
        if state.closes:
            await state.served.client.post(CLOSE, {}, state.cookies)

    async def verify(self, task: Task, rollout: Rollout) -> Score:
        """The sum of the steps; a server of ours tells the whole score with the last."""
        held = rollout.outcome or {}
        last = held.get("last", {})
        return score_of({**last, "reward": held.get("reward")}, task.fields)


def _show(rollout: Rollout, results: list[Message], seen: str | None) -> None:
    """What the model is to read next."""
    rollout.messages = [*rollout.messages, *results, *([Message("user", seen)] if seen else [])]


def _observation(said: Mapping[str, JSON], where: str) -> str | None:
    seen = said.get("observation")
    if seen is not None and not isinstance(seen, str):
        raise RolloutFailed("environment_error", where, f"the observation is no text but {seen!r:.80}")
    return seen


def _info(said: Mapping[str, JSON]) -> Mapping[str, JSON]:
    info = said.get("info")
    return info if isinstance(info, dict) else {}


def _worth(said: Mapping[str, JSON]) -> float:
    try:
        return finite(said.get("reward", 0.0), "the reward")
    except InvalidReward as error:
        raise RolloutFailed("invalid_reward", STEP, str(error)) from None


def _results(completion: Completion, said: Mapping[str, JSON]) -> list[Message]:
    """What the server's tools say to the calls of an answer; every call needs a result, or no model goes on."""
    listed = _info(said).get("tool_outputs") or []
    outputs = {str(one.get("call_id")): one.get("output") for one in listed if isinstance(one, dict)}
    calls = completion.message.tool_calls or []
    return [Message("tool", _text(outputs.get(call.id)), tool_call_id=call.id) for call in calls]


def _text(output: JSON) -> str:
    if isinstance(output, str):
        return output
    return "" if output is None else msgspec.json.encode(output).decode()
