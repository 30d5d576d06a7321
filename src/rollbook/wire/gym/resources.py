"""An environment as a resources server of NeMo Gym.

    POST /seed_session       the row  ->  {} and a cookie: the state of one rollout is open
    POST /TOOL               the arguments  ->  what the tool says, as the model is to read it
    POST /verify             the row and the response  ->  both again, with the reward
    POST /aggregate_metrics  verified rows  ->  Gym's statistics over them
    GET  /reverify_mode  /openapi.json  /health  /

and, where it speaks back, /reset, /step and /close: see `gymnasium`.

The task is made from the row that every request brings along; what the server knows of it lies in the state alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aiohttp import web

from rollbook.core.json import JSON
from rollbook.core.manifest import Limits
from rollbook.core.rollout import Rollout, seed_of
from rollbook.core.task import Task
from rollbook.environments.stage import Stage
from rollbook.errors import RolloutFailed, UsageError
from rollbook.wire.gym import gymnasium
from rollbook.wire.gym.answering import SESSION, gym_app, read_object, said
from rollbook.wire.gym.cookie import Cookies, new_session
from rollbook.wire.gym.gymnasium import Gymnasium
from rollbook.wire.gym.leases import LEASE_S, MOST
from rollbook.wire.gym.metrics import aggregate
from rollbook.wire.gym.openapi import openapi
from rollbook.wire.gym.response import read_response
from rollbook.wire.gym.row import sample_of, task_of
from rollbook.wire.gym.sessions import Sessions
from rollbook.wire.gym.verdict import OURS, judge_failed, scored

GETS = {"/": "alive?", "/health": "alive?", "/reverify_mode": "may a response be verified again?"}
POSTS = {
    "/seed_session": "open the state of one rollout",
    "/verify": "what a response to a row is worth",
    "/aggregate_metrics": "statistics over verified rows",
}
RESERVED = frozenset(("mcp", *(path[1:] for path in (*GETS, *POSTS, *gymnasium.POSTS))))


class ResourcesServer:
    """Answers for one environment on its stage. `say` is told, a line at a time, of what has failed."""

    def __init__(
        self,
        name: str,
        stage: Stage,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        *,
        lease_s: float = LEASE_S,
        most: int = MOST,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._name, self._stage, self._say = name, stage, say
        self.sessions = Sessions(stage, lease_s=lease_s, most=most)
        self.gymnasium = Gymnasium(name, stage, limits, lease_s=lease_s, most=most) if stage.spec.replies else None
        if stage.spec.plays:
            raise UsageError(f"{stage.spec.spec} carries out whole rollouts itself: serve it with --as agent")
        taken = [tool["function"]["name"] for tool in stage.spec.tools if tool["function"]["name"] in RESERVED]
        if taken:
            raise UsageError(f"tool {taken[0]}: a route of every resources server has that name; rename the tool")

    def app(self) -> web.Application:
        """The application, for aiohttp to serve."""
        app = gym_app(Cookies(self._name), self._say)
        app.cleanup_ctx.append(self.sessions.kept)
        for path in ("/", "/health"):
            app.router.add_get(path, self._health)
        app.router.add_get("/reverify_mode", self._reverify_mode)
        app.router.add_get("/openapi.json", self._openapi)
        app.router.add_post("/seed_session", self._seed)
        app.router.add_post("/verify", self._verify)
        app.router.add_post("/aggregate_metrics", self._aggregate)
        if self.gymnasium:
            self.gymnasium.add_to(app)
        app.router.add_post("/{tool}", self._use)
        return app

    @property
    def _stateful(self) -> bool:
        return self._stage.spec.state != "none"

    async def _health(self, _: web.Request) -> web.Response:
        return said({"status": "ok"})

    async def _reverify_mode(self, _: web.Request) -> web.Response:
        """A verdict on a state needs the state, and that is gone with its rollout."""
        return said("unsupported" if self._stateful else "stateless")

    async def _openapi(self, _: web.Request) -> web.Response:
        posts = {**POSTS, **(gymnasium.POSTS if self.gymnasium else {})}
        return said(openapi(self._name, posts, GETS, self._stage.spec.tools))

    async def _seed(self, request: web.Request) -> web.Response:
        """Always a new session: whoever seeds again starts again."""
        task = self._task(await read_object(request))
        SESSION.set(new_session())
        if self._stateful:
            await self.sessions.begin(SESSION.get(), task)
        return said({})

    async def _use(self, request: web.Request) -> web.Response:
        name = request.match_info["tool"]
        if not self._stateful:
            raise web.HTTPNotFound
        try:
            asked = await request.text()
        except (UnicodeDecodeError, LookupError) as error:
            raise UsageError(f"the body is no text: {error}") from None
        words = await self.sessions.use(SESSION.get(), name, asked)
        if words is None:
            known = ", ".join(await self.sessions.tools(SESSION.get()))
            return _text(f"Error: there is no tool called {name[:64]!r}; there are {known}", 404)
        return _text(words)

    async def _verify(self, request: web.Request) -> web.Response:
        body = await read_object(request)
        rollout = rollout_of(body, self._task(body))
        if self._stateful:
            rollout.outcome = await self.sessions.conclude(SESSION.get())
        try:
            score = await self._stage.verify(rollout.task, rollout)
        except RolloutFailed as error:
            if error.kind != "judge_error":
                raise
            self._say(f"/verify: {error}")
            return said(judge_failed(body, error))
        return said(scored(body, score, rollout.outcome))

    async def _aggregate(self, request: web.Request) -> web.Response:
        return said(aggregate(verified_rows(await read_object(request))))

    def _task(self, row: Mapping[str, JSON]) -> Task:
        return task_of(row, self._name)


def verified_rows(body: Mapping[str, JSON]) -> list[dict[str, JSON]]:
    """The rows of a request for statistics."""
    rows = body.get("verify_responses")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UsageError("verify_responses is no list of objects")
    return rows


def rollout_of(body: Mapping[str, JSON], task: Task) -> Rollout:
    """The rollout that a request for a verdict is about: a client of ours also tells its seed."""
    heard = read_response(body.get("response"))
    own = body.get(OURS)
    told = own.get("seed") if isinstance(own, dict) else None
    sample = sample_of(body)
    return Rollout(
        task=task,
        sample=sample,
        seed=told if isinstance(told, int) else seed_of(0, task.id, sample),
        messages=[*task.messages, *heard.messages],
        turns=heard.turns,
        ended=heard.ended,
    )


def _text(words: str, status: int = 200) -> web.Response:
    return web.Response(status=status, body=words.encode(), content_type="text/plain", charset="utf-8")
