"""Resources servers of NeMo Gym as environments: their state, tools and verdicts, over HTTP; rows come with `--data`.

`http://host:port` (RemoteServer): a rollout is POST /seed_session, POST /TOOL for every call, POST /verify; the cookies
of the first go along with all the others. Where a row has no tools and the server says that its verdicts need no
session, there is none.
`gym:path/to/config.yaml` (ManagedServer): the same with servers of a NeMo Gym checkout, started for the run and stopped
with it.
`gym+step:` (SteppedServer): rollouts go step by step (Gym's gymnasium protocol), /reset, then /step. The server gets
every answer of the model as it comes, executes the tools called in it, and returns the next observation and the reward
of the step. The reward of a rollout is the sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from rollbook.core import JSON, Message, Rollout, Score, Task, Turn, require_finite
from rollbook.environments import Environment
from rollbook.errors import InvalidReward, LimitReached, RolloutFailed
from rollbook.gym.client.fleet import ServerFleet
from rollbook.gym.client.http_client import (
    STEP_PATH,
    VERIFY_PATH,
    ConnectedServer,
    GymClient,
    parse_address,
    read_json_reply,
    read_named_failure,
)
from rollbook.gym.dataset import RowDataset, check_tools, read_row_tools
from rollbook.gym.rows import ROLLBOOK_KEY, ROLLOUT_INDEX, read_failure, read_score
from rollbook.models import CREATE_PARAMS, AskModel, Completion, CreateParams, make_response


class GymServerSession(msgspec.Struct):
    """What one rollout has at a server: its cookies, and since when the server has been in reach."""

    server: ConnectedServer
    generation: str
    cookies: dict[str, str]


class ServerSource(Protocol):
    """Where the servers of an environment are. `notes`: what is not as whoever set them up may think."""

    notes: list[str]

    def check(self, task: Task) -> None:
        """Refuse a task that there is no server for."""

    async def start(self, route: str) -> None:
        """Meet all servers; UsageError if one is not there, or lacks the route."""

    async def stop(self) -> None:
        """Let go of them."""

    async def wait_until_up(self, task: Task) -> None:
        """Wait until the server of a task is there; RolloutFailed when it will not be."""

    def server_for(self, task: Task) -> ConnectedServer:
        """The server of a task."""
        ...


class SingleServer:
    """One server at an address."""

    def __init__(self, base: str) -> None:
        self._server = ConnectedServer(GymClient(base))
        self.notes: list[str] = []

    def check(self, task: Task) -> None:
        """It takes every task."""

    async def start(self, route: str) -> None:
        """Meet it."""
        await self._server.client.open()
        await self._server.connect(route)

    async def stop(self) -> None:
        """Hang up."""
        await self._server.client.close()

    async def wait_until_up(self, task: Task) -> None:
        """It is there, or whoever asks it will hear so."""

    def server_for(self, task: Task) -> ConnectedServer:
        """It."""
        return self._server


class ServerEnvironment(Environment):
    """An environment whose tasks are rows and whose servers are somewhere. `route` is what they must have."""

    route = VERIFY_PATH

    def _set_up(self, servers: ServerSource, data: str | None, name: str) -> None:
        """What `__init__` does, once it is clear where the servers are."""
        self._servers = servers
        self._rows = RowDataset(data, name, self._check, prompt_optional=self.route == STEP_PATH)

    def _check(self, task: Task, params: CreateParams) -> None:
        check_tools(task, params)
        self._servers.check(task)

    @property
    def notes(self) -> Sequence[str]:  # type: ignore[override]
        """What rows ask for and do not get."""
        return [*self._servers.notes, *self._rows.notes]

    def tasks(self) -> Iterable[Task]:
        """One a row."""
        return self._rows.tasks()

    async def start(self) -> None:
        """Meet the servers."""
        await self._servers.start(self.route)

    async def stop(self) -> None:
        """Let go of them."""
        await self._servers.stop()


SEED_PATH = "/seed_session"


class RemoteServer(ServerEnvironment):
    """A resources server at an address. `data` are the rows to ask."""

    description = "A NeMo Gym resources server, http://host:port; its rows with --data."
    verify_at_once = 256

    def __init__(self, url: str, data: str | None = None) -> None:
        self._set_up(SingleServer(parse_address(url)), data, url)

    async def open(self, task: Task) -> GymServerSession:
        """A session of its own for a rollout, unless nobody would ever ask for it."""
        await self._servers.wait_until_up(task)
        served = self._servers.server_for(task)
        session = GymServerSession(served, served.client.generation, {})
        if not served.stateless or task.fields[CREATE_PARAMS].get("tools"):
            read_json_reply(
                await served.client.post(SEED_PATH, task.fields, session.cookies), SEED_PATH, "environment_error"
            )
        return session

    def offers(self, task: Task) -> list[dict[str, JSON]]:
        """The tools of its row."""
        return read_row_tools(task)

    async def use(self, name: str, arguments: dict[str, JSON], state: GymServerSession) -> str:
        """What the server says to a call, whatever its status: that is for the model to read."""
        state.server.check_session(state.generation, f"/{name}")
        answer = await state.server.client.post(f"/{name}", arguments, state.cookies)
        if failure := read_named_failure(answer):
            raise failure
        return answer.text

    async def outcome(self, state: GymServerSession) -> JSON:
        """Whose session it was: the verdict is on what the server holds for it."""
        return {"cookies": state.cookies, "era": state.generation}

    async def verify(self, task: Task, rollout: Rollout) -> Score:
        """Ask the server, in the session that was played."""
        served, held = self._servers.server_for(task), rollout.outcome or {}
        served.check_session(held.get("era", ""), VERIFY_PATH)
        answer = await served.client.post(VERIFY_PATH, make_verify_body(task, rollout), dict(held.get("cookies", {})))
        said = read_json_reply(answer, VERIFY_PATH, "verifier_error")
        if failure := read_failure(said, VERIFY_PATH, "verifier_error"):
            raise failure
        return read_score(said, task.fields)


def make_verify_body(task: Task, rollout: Rollout) -> dict[str, JSON]:
    """The row with all that was said, as a resources server takes it."""
    response = make_response(
        rollout.messages[len(task.messages) :],
        [drop_tokens(turn) for turn in rollout.turns],
        name=f"{task.id}_{rollout.sample}",
        model="model",
        created=rollout.timing.start,
        ended=rollout.ended,
    )
    return {**task.fields, ROLLOUT_INDEX: rollout.sample, "response": response, ROLLBOOK_KEY: {"seed": rollout.seed}}


def drop_tokens(turn: Turn) -> Turn:
    """A turn as a verifier needs it: ids and logprobs would only make the request many times larger."""
    return msgspec.structs.replace(turn, prompt_ids=None, ids=None, logprobs=None) if turn.has_tokens else turn


class ManagedServer(RemoteServer):
    """The servers of a configuration. `data` are the rows; further arguments override the configuration."""

    description = "Servers of a NeMo Gym checkout, started for the run, gym:path/to/config.yaml; rows with --data."

    def __init__(self, name: str = "", data: str | None = None, **overrides: JSON) -> None:
        self._set_up(ServerFleet(name, overrides), data, f"gym:{name}")


RESET_PATH, CLOSE_PATH = "/reset", "/close"


class SteppedSession(GymServerSession):
    """A rollout at a server: what it was worth so far, and whether it must be closed."""

    observation: str | None = None
    needs_close: bool = False
    reward: float = 0.0
    last: dict[str, JSON] = msgspec.field(default_factory=dict)


class SteppedServer(ServerEnvironment):
    """A server at an address (`url`), or those of a configuration (`name`). `data` are the rows to play."""

    description = "A NeMo Gym server that is played by /reset and /step, gym+step://host:port or gym+step:config.yaml."
    route = STEP_PATH

    def __init__(self, name: str = "", url: str = "", data: str | None = None, **overrides: JSON) -> None:
        place = SingleServer(parse_address(url, "gym+step")) if url else ServerFleet(name, overrides)
        self._set_up(place, data, url or f"gym+step:{name}")

    async def open(self, task: Task) -> SteppedSession:
        """Reset it: a new episode."""
        await self._servers.wait_until_up(task)
        served = self._servers.server_for(task)
        episode = SteppedSession(served, served.client.generation, {})
        said = read_json_reply(
            await served.client.post(RESET_PATH, task.fields, episode.cookies), RESET_PATH, "environment_error"
        )
        episode.observation = _read_observation(said, RESET_PATH)
        episode.needs_close = _read_info(said).get("supports_explicit_close") is True
        return episode

    async def play(self, task: Task, rollout: Rollout, ask: AskModel, state: SteppedSession) -> None:
        """Until the server says that it is over, or cuts it short, or a limit of the run does."""
        tools = read_row_tools(task)
        _append_messages(rollout, [], state.observation)
        over = False
        while not over:
            completion = await ask(rollout.messages, tools=tools)
            rollout.messages = [*rollout.messages, completion.message]
            rollout.turns.append(completion.turn)
            said = await self._step(task, rollout, completion, state)
            over = state.last["terminated"] is True
            if not over:
                _append_messages(rollout, _read_tool_results(completion, said), _read_observation(said, STEP_PATH))
            if not over and state.last["truncated"]:
                raise LimitReached("truncated")

    async def _step(
        self, task: Task, rollout: Rollout, completion: Completion, state: SteppedSession
    ) -> Mapping[str, JSON]:
        state.server.check_session(state.generation, STEP_PATH)
        name = f"{task.id}_{rollout.sample}_{len(rollout.turns)}"
        response = make_response([completion.message], [drop_tokens(completion.turn)], name=name, model="model")
        body = {
            **task.fields,
            ROLLOUT_INDEX: rollout.sample,
            "response": response,
            ROLLBOOK_KEY: {"seed": rollout.seed},
        }
        said = read_json_reply(
            await state.server.client.post(STEP_PATH, body, state.cookies), STEP_PATH, "environment_error"
        )
        state.reward += _read_step_reward(said)
        state.last = {"terminated": bool(said.get("terminated")), "truncated": bool(said.get("truncated"))}
        state.last |= {name: value for name, value in _read_info(said).items() if name != "tool_outputs"}
        return said

    async def outcome(self, state: SteppedSession) -> JSON:
        """What it was worth, and what the last step told."""
        return {"reward": state.reward, "last": state.last}

    async def close(self, state: SteppedSession) -> None:
        """End the episode at a server that wants to be told."""
        if state.needs_close:
            await state.server.client.post(CLOSE_PATH, {}, state.cookies)

    async def verify(self, task: Task, rollout: Rollout) -> Score:
        """The sum of the steps; a server of ours tells the whole score with the last."""
        held = rollout.outcome or {}
        last = held.get("last", {})
        return read_score({**last, "reward": held.get("reward")}, task.fields)


def _append_messages(rollout: Rollout, results: list[Message], observation: str | None) -> None:
    """What the model is to read next."""
    rollout.messages = [*rollout.messages, *results, *([Message("user", observation)] if observation else [])]


def _read_observation(reply: Mapping[str, JSON], where: str) -> str | None:
    seen = reply.get("observation")
    if seen is not None and not isinstance(seen, str):
        raise RolloutFailed("environment_error", where, f"the observation is no text but {seen!r:.80}")
    return seen


def _read_info(reply: Mapping[str, JSON]) -> Mapping[str, JSON]:
    info = reply.get("info")
    return info if isinstance(info, dict) else {}


def _read_step_reward(reply: Mapping[str, JSON]) -> float:
    try:
        return require_finite(reply.get("reward", 0.0), "the reward")
    except InvalidReward as error:
        raise RolloutFailed("invalid_reward", STEP_PATH, str(error)) from None


def _read_tool_results(completion: Completion, reply: Mapping[str, JSON]) -> list[Message]:
    """What the server's tools say to the calls of an answer; every call needs a result, or no model goes on."""
    listed = _read_info(reply).get("tool_outputs") or []
    outputs = {str(one.get("call_id")): one.get("output") for one in listed if isinstance(one, dict)}
    calls = completion.message.tool_calls or []
    return [Message("tool", _output_text(outputs.get(call.id)), tool_call_id=call.id) for call in calls]


def _output_text(output: JSON) -> str:
    if isinstance(output, str):
        return output
    return "" if output is None else msgspec.json.encode(output).decode()
