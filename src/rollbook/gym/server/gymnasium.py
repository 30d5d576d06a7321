"""An environment that replies to the model, in the protocol of Gym's gymnasium agent.

    POST /reset   the row  ->  {"observation", "info"} and a cookie
    POST /step    the row and the model's response  ->  {"observation", "reward", "terminated", "truncated", "info"}
    POST /close   ends an episode early

The client has the model and sends its completions turn by turn; everything else is as in a run: the same agent, limits,
state and verifier. The reward comes with the last step, because there it is verified; before, it is zero.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Unpack

import msgspec
from aiohttp import web

from rollbook.book import KeyHistory
from rollbook.core import JSON, Limits, Message, ModelSpec, Rollout, Sampling, Task, Turn
from rollbook.engine import RolloutJob, RolloutRunner
from rollbook.environments import EnvironmentRuntime
from rollbook.errors import RolloutFailed
from rollbook.gym.responses import read_response
from rollbook.gym.rows import make_scored_row, read_sample_index, read_task
from rollbook.gym.server.http_app import (
    CURRENT_SESSION,
    RESPONSE,
    ROW,
    describe_no_session,
    make_post,
    make_session_id,
)
from rollbook.models import Completion, Model, ModelCall
from rollbook.processes import OBJECT, ExpiringSessions, NoSession, Operation, json_response, read_json_object


class StepResult(msgspec.Struct, frozen=True):
    """What the environment does after a step: its new messages, and the rollout once it is over."""

    messages: list[Message]
    rollout: Rollout | None = None


class GymnasiumEpisode(Model):
    """One rollout. It acts as the model of its RolloutRunner, which waits here for the client's next completion."""

    def __init__(self, runtime: EnvironmentRuntime, limits: Limits, task: Task, sample: int) -> None:
        self.spec = ModelSpec("remote", "remote")
        self.version: str | None = None
        self._prompt: list[Message] = []
        self._completions: asyncio.Queue[Completion] = asyncio.Queue()
        self._completion_wanted = asyncio.Event()
        runner = RolloutRunner(self, {task.env: runtime}, None, Sampling(), limits, 0)
        self._rollout_task = asyncio.create_task(
            runner.run_attempt(RolloutJob(task, sample, KeyHistory()), 1), name="episode"
        )

    async def close(self) -> None:
        """Cancel what is left of the rollout; this closes its state."""
        self._rollout_task.cancel()
        await asyncio.gather(self._rollout_task, return_exceptions=True)

    async def complete(self, messages: Sequence[Message], sampling: Sampling, **call: Unpack[ModelCall]) -> Completion:
        """Return the next completion that the client hands in."""
        if len(messages) <= len(self._prompt):  # run again from the prompt, where the client's model cannot follow
            raise process_lost()
        self._prompt = list(messages)
        self._completion_wanted.set()
        return await self._completions.get()

    async def step(self, completion: Completion) -> StepResult:
        """Hand in the model's completion and return what the environment does next."""
        if self._rollout_task.done():
            raise NoSession("this episode is over: reset for a new one")
        known = len(self._prompt) + 1
        self._completion_wanted.clear()
        self._completions.put_nowait(completion)
        rollout = await self.wait_for_prompt()
        return StepResult((rollout.messages if rollout else self._prompt)[known:], rollout)

    async def wait_for_prompt(self) -> Rollout | None:
        """Wait until the next completion is needed, or return the finished rollout; raise its failure if it failed."""
        wanted = asyncio.create_task(self._completion_wanted.wait())
        try:
            await asyncio.wait({wanted, self._rollout_task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            wanted.cancel()
        if not self._rollout_task.done():
            return None
        if self._rollout_task.cancelled():
            raise NoSession("this episode was closed meanwhile: reset for a new one")
        rollout, error = self._rollout_task.result()
        if error is not None:
            raise error
        return rollout


def process_lost() -> RolloutFailed:
    """Return the failure of a rollout whose environment process died."""
    return RolloutFailed("environment_error", "environment", "the process of this state was lost")


PATHS = ("/reset", "/step", "/close")
STEP_REQUEST: dict[str, JSON] = {"type": "object", "properties": {"response": RESPONSE}, "required": ["response"]}
RESET_REPLY: dict[str, JSON] = {"type": "object", "required": ["observation", "info"]}
STEP_REPLY: dict[str, JSON] = {
    "type": "object",
    "properties": {"reward": {"type": "number"}, "terminated": {"type": "boolean"}, "truncated": {"type": "boolean"}},
    "required": ["observation", "reward", "terminated", "truncated", "info"],
}


class GymnasiumRoutes:
    """The episodes of one environment."""

    def __init__(
        self, name: str, runtime: EnvironmentRuntime, limits: Limits, *, idle_timeout_s: float, max_sessions: int
    ) -> None:
        self._name, self._runtime, self._limits = name, runtime, limits
        self.episodes = ExpiringSessions[GymnasiumEpisode](
            lambda episode: episode.close(),
            not_found=describe_no_session(idle_timeout_s),
            idle_timeout_s=idle_timeout_s,
            max_sessions=max_sessions,
        )

    def list_operations(self) -> list[Operation]:
        """Return the routes."""
        reset, step, close = PATHS
        return [
            make_post(reset, "begin an episode", self._reset, ROW, RESET_REPLY),
            make_post(step, "submit the model's answer", self._step, STEP_REQUEST, STEP_REPLY),
            Operation("POST", close, "end an episode", self._close, OBJECT, name=close[1:]),
        ]

    async def _reset(self, request: web.Request) -> web.Response:
        body = await read_json_object(request)
        task, sample = read_task(body, self._name), read_sample_index(body)
        CURRENT_SESSION.set(make_session_id())

        async def made() -> GymnasiumEpisode:
            episode = GymnasiumEpisode(self._runtime, self._limits, task, sample)
            try:
                await episode.wait_for_prompt()
            except BaseException:
                await episode.close()
                raise
            return episode

        await self.episodes.open(CURRENT_SESSION.get(), made)
        return json_response({"observation": None, "info": {"supports_explicit_close": True}})

    async def _step(self, request: web.Request) -> web.Response:
        body = await read_json_object(request)
        completion = read_completion(body.get("response"))
        async with self.episodes.use(CURRENT_SESSION.get()) as episode:
            observed = await episode.step(completion)
        return json_response(make_step_reply(observed))

    async def _close(self, _: web.Request) -> web.Response:
        await self.episodes.end(CURRENT_SESSION.get())
        return json_response({})


def read_completion(value: JSON) -> Completion:
    """Return the model's message in one response; no message is an empty answer."""
    response = read_response(value)
    answers = [message for message in response.messages if message.role == "assistant"]
    message = answers[-1] if answers else Message("assistant", "")
    return Completion(message, response.turns[-1] if response.turns else Turn())


def make_step_reply(result: StepResult) -> dict[str, JSON]:
    """Return a step's result in the form of Gym's gymnasium agent."""
    rollout = result.rollout
    results = [
        {"call_id": m.tool_call_id, "output": m.content if isinstance(m.content, str) else m.text}
        for m in result.messages
        if m.role == "tool"
    ]
    text = "\n\n".join(m.text for m in result.messages if m.role != "tool")
    info: dict[str, JSON] = {"tool_outputs": results} if results else {}
    step: dict[str, JSON] = {"observation": text or None, "reward": 0.0, "terminated": False, "truncated": False}
    if rollout is None:
        return {**step, "info": info}
    assert rollout.score
    verdict = make_scored_row({}, rollout.score, rollout.outcome)
    ended = {"reward": verdict.pop("reward"), "terminated": not rollout.ended, "truncated": bool(rollout.ended)}
    return {**step, **ended, "info": {**info, **verdict}}
