"""An environment that speaks back, in the flavour that Gym's gymnasium agent plays.

    POST /reset   the row  ->  {"observation", "info"} and a cookie
    POST /step    the row and what the model says  ->  {"observation", "reward", "terminated", "truncated", "info"}
    POST /close   ends an episode before its time

The reward comes with the last step, for there it is verified; before, it is nought.
"""

from __future__ import annotations

from aiohttp import web

from rollbook.core.json import JSON
from rollbook.core.manifest import Limits
from rollbook.core.message import Message
from rollbook.core.turn import Turn
from rollbook.environments.stage import Stage
from rollbook.models.model import Completion
from rollbook.wire.gym.answering import SESSION, read_object, said
from rollbook.wire.gym.cookie import new_session
from rollbook.wire.gym.episode import Episode, Observed
from rollbook.wire.gym.leases import LEASE_S, MOST, Leases
from rollbook.wire.gym.response import read_response
from rollbook.wire.gym.row import sample_of, task_of
from rollbook.wire.gym.verdict import scored

POSTS = {"/reset": "begin an episode", "/step": "hand in what the model says", "/close": "end an episode"}


class Gymnasium:
    """The episodes of one environment."""

    def __init__(self, name: str, stage: Stage, limits: Limits, *, lease_s: float = LEASE_S, most: int = MOST) -> None:
        self._name, self._stage, self._limits = name, stage, limits
        self.episodes = Leases[Episode](lambda episode: episode.close(), lease_s=lease_s, most=most)

    def add_to(self, app: web.Application) -> None:
        """Answer on this application too."""
        app.cleanup_ctx.append(self.episodes.kept)
        app.router.add_post("/reset", self._reset)
        app.router.add_post("/step", self._step)
        app.router.add_post("/close", self._close)

    async def _reset(self, request: web.Request) -> web.Response:
        body = await read_object(request)
        task, sample = task_of(body, self._name), sample_of(body)
        SESSION.set(new_session())

        async def made() -> Episode:
            episode = Episode(self._stage, self._limits, task, sample)
            try:
                await episode.begin()
            except BaseException:
                await episode.close()
                raise
            return episode

        await self.episodes.begin(SESSION.get(), made)
        return said({"observation": None, "info": {"supports_explicit_close": True}})

    async def _step(self, request: web.Request) -> web.Response:
        body = await read_object(request)
        completion = completion_of(body.get("response"))
        async with self.episodes.used(SESSION.get()) as episode:
            observed = await episode.step(completion)
        return said(stepped(observed))

    async def _close(self, _: web.Request) -> web.Response:
        await self.episodes.end(SESSION.get())
        return said({})


def completion_of(value: JSON) -> Completion:
    """What the model says in one response; nothing at all is an empty answer."""
    heard = read_response(value)
    answers = [message for message in heard.messages if message.role == "assistant"]
    message = answers[-1] if answers else Message("assistant", "")
    return Completion(message, heard.turns[-1] if heard.turns else Turn())


def stepped(observed: Observed) -> dict[str, JSON]:
    """What the environment did, in the words of the gymnasium agent."""
    rollout = observed.rollout
    results = [
        {"call_id": m.tool_call_id, "output": m.content if isinstance(m.content, str) else m.text}
        for m in observed.messages
        if m.role == "tool"
    ]
    spoken = "\n\n".join(m.text for m in observed.messages if m.role != "tool")
    info: dict[str, JSON] = {"tool_outputs": results} if results else {}
    step: dict[str, JSON] = {"observation": spoken or None, "reward": 0.0, "terminated": False, "truncated": False}
    if rollout is None:
        return {**step, "info": info}
    assert rollout.score
    verdict = scored({}, rollout.score, rollout.outcome)
    ended = {"reward": verdict.pop("reward"), "terminated": not rollout.ended, "truncated": bool(rollout.ended)}
    return {**step, **ended, "info": {**info, **verdict}}
