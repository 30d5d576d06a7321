"""An environment as a resources server of NeMo Gym.

    POST /seed_session       the row  ->  {} and a cookie: the state of one rollout is open
    POST /TOOL               the arguments  ->  the tool's result, as the model is to read it
    POST /verify             the row and the response  ->  both again, with the reward
    POST /aggregate_metrics  verified rows  ->  Gym's statistics over them
    GET  /reverify_mode  /openapi.json  /health  /

and, where the environment replies to the model, /reset, /step and /close: see `gymnasium`.

The task is made from the row that every request contains; the server stores only the state. The outcome of a state is
remembered when it is closed, so that a repeated request to verify gets the same answer.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from aiohttp import web

from rollbook.core import JSON, Limits, Rollout, Task, derive_seed
from rollbook.environments import EnvironmentRuntime, EnvironmentSession, SessionLost
from rollbook.errors import EndpointDown, RolloutFailed, UsageError
from rollbook.gym.responses import read_response
from rollbook.gym.rows import ROLLBOOK_KEY, make_judge_failed_row, make_scored_row, read_sample_index, read_task
from rollbook.gym.server import gymnasium
from rollbook.gym.server.gymnasium import GymnasiumRoutes, process_lost
from rollbook.gym.server.http_app import (
    ANSWERED_ROW,
    COMMON_OPERATIONS,
    CURRENT_SESSION,
    ERRORS,
    ROW,
    describe_no_session,
    make_gym_app,
    make_post,
    make_session_id,
)
from rollbook.processes import (
    DESCRIPTION_PATH,
    IDLE_TIMEOUT_S,
    MAX_SESSIONS,
    OBJECT,
    TEXT,
    ExpiringSessions,
    NoSession,
    Operation,
    Schema,
    json_response,
    read_json_object,
)

T = TypeVar("T")


class GymSession:
    """The state of one rollout; after `failure` is set, every use of the state raises it."""

    def __init__(self, session: EnvironmentSession) -> None:
        self.session = session
        self.tools = [str(tool["function"]["name"]) for tool in session.tools]
        self.failure: RolloutFailed | None = None

    async def run_guarded(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` on the state; its first failure is raised again by every later call."""
        if self.failure is None:
            try:
                return await work()
            except SessionLost:
                self.failure = process_lost()
            except RolloutFailed as error:
                self.failure = error
        raise self.failure


class GymSessions:
    """The open states by session name. At most `max_sessions` are open, and as many outcomes are remembered."""

    def __init__(self, runtime: EnvironmentRuntime, *, idle_timeout_s: float, max_sessions: int) -> None:
        self._runtime, self._max_sessions = runtime, max_sessions
        self._sessions = ExpiringSessions[GymSession](
            lambda state: runtime.close_session(state.session),
            not_found=describe_no_session(idle_timeout_s),
            idle_timeout_s=idle_timeout_s,
            max_sessions=max_sessions,
        )
        self.cleanup_context = self._sessions.cleanup_context
        self._outcomes: dict[str, JSON | RolloutFailed] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def remembered(self) -> int:
        """The number of remembered outcomes."""
        return len(self._outcomes)

    async def open(self, name: str, task: Task) -> None:
        """Open a state under a session name."""

        async def open_session() -> GymSession:
            try:
                return GymSession(await self._runtime.open_session(task, name))
            except SessionLost:
                raise process_lost() from None

        await self._sessions.open(name, open_session)

    async def call_tool(self, name: str, tool: str, arguments: str) -> str | None:
        """Return the result of a tool call; None if there is no such tool."""
        if name in self._outcomes:
            raise NoSession("this session has been verified: seed a new one")
        async with self._sessions.use(name) as state:
            if tool not in state.tools:
                return None
            return await state.run_guarded(lambda: state.session.use(tool, arguments))

    async def tool_names(self, name: str) -> list[str]:
        """Return the names of a rollout's tools."""
        async with self._sessions.use(name) as state:
            return state.tools

    async def conclude(self, name: str) -> JSON:
        """Close the state and return its outcome, or raise the failure that broke it."""
        try:
            async with self._sessions.use(name) as state:
                self._remember(name, await self._read_outcome(state))
                await self._sessions.end(name)
        except NoSession:
            if name not in self._outcomes:
                raise
        outcome = self._outcomes[name]
        if isinstance(outcome, RolloutFailed):
            raise outcome
        return outcome

    async def _read_outcome(self, state: GymSession) -> JSON | RolloutFailed:
        try:
            return await state.run_guarded(state.session.outcome)
        except RolloutFailed as error:
            return error

    def _remember(self, name: str, outcome: JSON | RolloutFailed) -> None:
        self._outcomes[name] = outcome
        while len(self._outcomes) > self._max_sessions:
            del self._outcomes[next(iter(self._outcomes))]


TOOL_ERRORS: dict[int, Schema] = {**ERRORS, 404: TEXT}


MODE: dict[str, JSON] = {"enum": ["stateless", "unsupported"]}
VERIFIED_ROW: dict[str, JSON] = {
    "type": "object",
    "properties": {"reward": {"type": "number"}},
    "required": ["reward"],
}


class ResourcesServer:
    """Serve one environment from its runtime. `say` gets one line for each failure."""

    def __init__(
        self,
        name: str,
        runtime: EnvironmentRuntime,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        *,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
        max_sessions: int = MAX_SESSIONS,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._name, self._runtime, self._say = name, runtime, say
        self.sessions = GymSessions(runtime, idle_timeout_s=idle_timeout_s, max_sessions=max_sessions)
        self.gymnasium = (
            GymnasiumRoutes(name, runtime, limits, idle_timeout_s=idle_timeout_s, max_sessions=max_sessions)
            if runtime.spec.replies
            else None
        )
        if runtime.spec.plays:
            raise UsageError(f"{runtime.spec.spec} runs whole rollouts itself: serve it with --as agent")
        reserved = {*gymnasium.PATHS, "/mcp", *(each.path for each in (*COMMON_OPERATIONS, *self._list_operations()))}
        names = [tool["function"]["name"] for tool in runtime.spec.tools]
        taken = [name for name in names if f"/{name}" in reserved]
        if taken:
            raise UsageError(f"tool {taken[0]}: a route of every resources server has that name; rename the tool")

    def make_app(self, extra: Sequence[Operation] = ()) -> web.Application:
        """Return the aiohttp application, with `extra` routes."""
        operations = [*self._list_operations(), *extra]
        tools = self._list_tools((*COMMON_OPERATIONS, *operations)) if self._stateful else []
        app = make_gym_app(self._name, self._say, [*operations, *tools])
        app.cleanup_ctx.append(self.sessions.cleanup_context)
        if self.gymnasium:
            app.cleanup_ctx.append(self.gymnasium.episodes.cleanup_context)
        return app

    def _list_operations(self) -> list[Operation]:
        return [
            Operation("GET", "/reverify_mode", "whether a response may be verified again", self._reverify_mode, MODE),
            make_post("/seed_session", "open the state of one rollout", self._seed_session, ROW),
            make_post("/verify", "score a response to a row", self._verify, ANSWERED_ROW, VERIFIED_ROW),
            *(self.gymnasium.list_operations() if self.gymnasium else ()),
        ]

    def _list_tools(self, others: Iterable[Operation]) -> list[Operation]:
        """Return a route for each tool of the environment, and one for those that only some rollouts have.

        The latter is no route at the paths of others: a POST to one of those is a wrong method, not a tool.
        """
        functions = [tool["function"] for tool in self._runtime.spec.tools]
        every = [(f"/{f['name']}", f.get("description", ""), f.get("parameters") or OBJECT) for f in functions]
        taken = "|".join(re.escape(path[1:]) for path in (*(each.path for each in others), DESCRIPTION_PATH))
        every.append((f"/{{tool:(?!(?:{taken})$)[^/]+}}", "call a tool of this rollout", OBJECT))
        return [
            replace(make_post(path, summary, self._call_tool, body), errors=TOOL_ERRORS, media=("text/plain",))
            for path, summary, body in every
        ]

    @property
    def _stateful(self) -> bool:
        return self._runtime.spec.state != "none"

    async def _reverify_mode(self, _: web.Request) -> web.Response:
        """Only stateless verdicts can be repeated: a state is gone with its rollout."""
        return json_response("unsupported" if self._stateful else "stateless")

    async def _seed_session(self, request: web.Request) -> web.Response:
        """Always open a new session: seeding again starts again."""
        task = read_task(await read_json_object(request), self._name)
        CURRENT_SESSION.set(make_session_id())
        if self._stateful:
            await self.sessions.open(CURRENT_SESSION.get(), task)
        return json_response({})

    async def _call_tool(self, request: web.Request) -> web.Response:
        name = request.match_info.get("tool") or request.path[1:]
        try:
            arguments = await request.text()
        except (UnicodeDecodeError, LookupError) as error:
            raise UsageError(f"the body is not text: {error}") from None
        result = await self.sessions.call_tool(CURRENT_SESSION.get(), name, arguments)
        if result is None:
            known = ", ".join(await self.sessions.tool_names(CURRENT_SESSION.get()))
            return _text_response(f"Error: there is no tool called {name[:64]!r}; there are {known}", 404)
        return _text_response(result)

    async def _verify(self, request: web.Request) -> web.Response:
        body = await read_json_object(request)
        rollout = read_rollout(body, read_task(body, self._name))
        if self._stateful:
            rollout.outcome = await self.sessions.conclude(CURRENT_SESSION.get())
        try:
            score = await self._runtime.verify(rollout.task, rollout)
        except (RolloutFailed, EndpointDown) as error:
            failed = error if isinstance(error, RolloutFailed) else RolloutFailed("judge_error", "judge", str(error))
            if failed.kind != "judge_error":
                raise
            self._say(f"/verify: {failed}")
            return json_response(make_judge_failed_row(body, failed))
        return json_response(make_scored_row(body, score, rollout.outcome))


def read_rollout(body: Mapping[str, JSON], task: Task) -> Rollout:
    """Return the rollout that a request to verify is about; our own client also sends its seed."""
    response = read_response(body.get("response"))
    own = body.get(ROLLBOOK_KEY)
    seed = own.get("seed") if isinstance(own, dict) else None
    sample = read_sample_index(body)
    return Rollout(
        task=task,
        sample=sample,
        seed=seed if isinstance(seed, int) else derive_seed(0, task.id, sample),
        messages=[*task.messages, *response.messages],
        turns=response.turns,
        ended=response.ended,
    )


def _text_response(text: str, status: int = 200) -> web.Response:
    return web.Response(status=status, body=text.encode(), content_type="text/plain", charset="utf-8")
