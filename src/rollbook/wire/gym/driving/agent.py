"""An agent of NeMo Gym as an environment: it plays whole rollouts, with a model of its own, over POST /run.

What it says is read into the record: messages, turns with their exact tokens, usage, and the reward beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec

from rollbook.core.json import JSON, decode, encode
from rollbook.core.manifest import Sampling
from rollbook.core.rollout import Rollout
from rollbook.core.score import Score
from rollbook.core.task import Task
from rollbook.environments.environment import Environment
from rollbook.errors import InvalidReward, RolloutFailed, UsageError
from rollbook.models.ask import Ask
from rollbook.models.exact import finite_logprobs
from rollbook.wire.gym.driving.address import address
from rollbook.wire.gym.driving.client import Client
from rollbook.wire.gym.driving.dataset import Dataset, agent_of
from rollbook.wire.gym.driving.judged import failure_of, score_of, verified
from rollbook.wire.gym.params import KEY, Params
from rollbook.wire.gym.response import read_response
from rollbook.wire.gym.row import AGENT, ROLLOUT_INDEX
from rollbook.wire.gym.tokens import read_tokens

RUN = "/run"
ATTEMPT = "_ng_attempt_index"
UNNAMED = "agent"
"""What an agent is called to itself where neither the row nor a head server names it."""


class RemoteAgent(Environment):
    """An agent at an address. `data` are the rows that it is given."""

    needs_model = False
    description = "A NeMo Gym agent that plays whole rollouts, gym+agent://host:port; its rows with --data."

    def __init__(self, url: str, data: str | None = None) -> None:
        self._client = Client(address(url, "gym+agent"))
        self._rows = Dataset(data, url, self._check, bare=True, forwarded=True)

    def _check(self, task: Task, params: Params) -> None:
        """Refuse a row that names no agent where it should."""
        agent_of(task)

    @property
    def notes(self) -> Sequence[str]:  # type: ignore[override]
        """What rows ask for and do not get."""
        return self._rows.notes

    def tasks(self) -> Iterable[Task]:
        """One a row."""
        return self._rows.tasks()

    async def start(self) -> None:
        """Find somebody who answers."""
        await self._client.open()
        try:
            await self._client.get("/")
        except RolloutFailed as error:
            raise UsageError(f"{error.message}; is the agent up?") from None

    async def stop(self) -> None:
        """Hang up."""
        await self._client.close()

    async def open(self, task: Task) -> dict[str, JSON]:
        """Room for what the agent will say."""
        return {}

    async def play(self, task: Task, rollout: Rollout, ask: Ask, state: dict[str, JSON]) -> None:
        """Let it play, and read what came of it."""
        answer = await self._client_of(task).post(RUN, run_body(task, rollout, ask.sampling), {}, "environment_error")
        said = verified(answer, RUN, "agent_error")
        if failure := failure_of(said, RUN, "agent_error"):
            with suppress(RolloutFailed):  # how far it came is worth keeping, if it can be read
                read_into(rollout, said)
            raise failure
        read_into(rollout, said)
        state.update(verdict_in(said, task.fields))

    def _client_of(self, task: Task) -> Client:
        return self._client

    async def outcome(self, state: dict[str, JSON]) -> JSON:
        """The score that came with the rollout, or why it is none."""
        return state

    async def verify(self, task: Task, rollout: Rollout) -> Score:
        """What the agent said it was worth."""
        said = rollout.outcome or {}
        if "score" not in said:
            raise InvalidReward(str(said.get("invalid", "the agent gave no reward")))
        return msgspec.convert(said["score"], Score)


def run_body(task: Task, rollout: Rollout, sampling: Sampling) -> dict[str, JSON]:
    """The row as Gym's collector sends it: with the indices of the rollout, and the sampling of this run."""
    params = task.fields[KEY]
    metadata = params.get("metadata") or {}
    extra = {**_inner(metadata.get("extra_body")), **sampling.extra, "seed": rollout.seed}
    asked = {
        **params,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_output_tokens": sampling.max_tokens,
        "metadata": {**metadata, "extra_body": encode(extra).decode()},
    }
    named = {AGENT: task.fields.get(AGENT) or {"name": UNNAMED}}
    again = {ATTEMPT: rollout.attempt - 1} if rollout.attempt > 1 else {}
    return {**task.fields, KEY: asked, ROLLOUT_INDEX: rollout.sample, **named, **again}


def _inner(value: JSON) -> Mapping[str, JSON]:
    """What already rides in `metadata.extra_body`; that it is an object was checked when the row was read."""
    found = decode(value) if isinstance(value, str) and value else value
    return found if isinstance(found, dict) else {}


def read_into(rollout: Rollout, said: Mapping[str, JSON]) -> None:
    """Put what was said into the record; tokens that contradict each other are a failure, not a record."""
    response = said.get("response")
    check_tokens(response)
    try:
        heard = read_response(response)
    except UsageError as error:
        raise RolloutFailed("agent_error", RUN, str(error)) from None
    rollout.messages = [*rollout.task.messages, *heard.messages]
    rollout.turns, rollout.ended = heard.turns, heard.ended


def check_tokens(response: JSON) -> None:
    """Refuse ids and logprobs that are no numbers, or not one for each other."""
    output = response.get("output") if isinstance(response, dict) else None
    for number, item in enumerate(output if isinstance(output, list) else []):
        try:
            tokens = read_tokens(item, f"response.output[{number}]") if isinstance(item, dict) else None
        except UsageError as error:
            raise RolloutFailed("token_mismatch", RUN, str(error)) from None
        if tokens is not None:
            finite_logprobs(tokens[2])


def verdict_in(said: Mapping[str, JSON], row: Mapping[str, JSON]) -> dict[str, JSON]:
    """The score of a rollout, or what is wrong with it, as it is kept in the record."""
    try:
        return {"score": msgspec.to_builtins(score_of(said, row))}
    except InvalidReward as error:
        return {"invalid": str(error)}
