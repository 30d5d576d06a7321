"""Servers that speak NeMo Gym's protocol as Gym's own do, made to misbehave on demand: resources, agent, head.

The resources server counts: `/seed_session` starts at `initial_count`, `/increment_counter` adds, `/verify` rewards the
row's `expected_count`. Its cookie is sent with every answer but those of a tool that raised, as Gym has it.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

COOKIE = "CounterServer___counter"


class Listening:
    """A server on a free port, which it keeps while it is away."""

    def __init__(self) -> None:
        self.port = 0
        self.paths: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self._site: web.TCPSite | None = None

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    def app(self) -> web.Application:
        raise NotImplementedError

    async def __aenter__(self) -> Any:
        self._runner = web.AppRunner(self.app())
        await self._runner.setup()
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def listen(self) -> None:
        self._site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await self._site.start()
        self.port = self._runner.addresses[0][1]

    async def go_away(self) -> None:
        """As one that was killed: nobody listens, and every connection is gone."""
        assert self._site
        await self._site.stop()
        for connection in list(self._runner.server.connections):
            if connection.transport:
                connection.transport.abort()


def make_details_schemas(count: dict[str, Any]) -> dict[str, Any]:
    """The part of FastAPI's document that says which detailed counts of a usage are taken."""
    return {
        "NeMoGymResponseInputTokensDetails": {"properties": {"cached_tokens": count}, "required": ["cached_tokens"]},
        "NeMoGymResponseOutputTokensDetails": {"properties": {"reasoning_tokens": count}},
    }


COUNTED_DETAILS = make_details_schemas({"type": "integer"})
"""NeMo Gym 0.4.0 and 0.5.1: a usage needs counts."""

OPTIONAL_DETAILS = make_details_schemas({"anyOf": [{"type": "integer"}, {"type": "null"}]})
"""NeMo Gym after 0.5.1: null where nobody counted."""


class Counter(Listening):
    """The resources server; `mode` says what becomes of /verify."""

    def __init__(self, mode: str = "ok", *, reverify: str = "unknown", says: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.mode, self.reverify, self.says = mode, reverify, says or {}
        self.counts: dict[str, int] = {}
        self.cookies: list[str | None] = []
        self.on_verify: Callable[[], Awaitable[None]] | None = None
        self.routes: dict[str, Any] | None = None
        self.schemas: dict[str, Any] = {}
        self.mcp: dict[str, Any] | None = None

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/", self._alive)
        app.router.add_get("/reverify_mode", self._mode)
        app.router.add_get("/openapi.json", self._openapi)
        app.router.add_post("/seed_session", self._seed)
        app.router.add_post("/verify", self._verify)
        app.router.add_post("/{tool}", self._use)
        return app

    async def _alive(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _openapi(self, _: web.Request) -> web.Response:
        paths = {} if self.routes is None else {"paths": self.routes}
        return web.json_response({**paths, "components": {"schemas": self.schemas}})

    async def _mode(self, _: web.Request) -> web.Response:
        return web.json_response(self.reverify)

    async def _body(self, request: web.Request) -> tuple[str, dict[str, Any]]:
        body = await request.json()
        self.paths.append(request.path)
        self.bodies.append(body)
        self.cookies.append(request.cookies.get(COOKIE))
        return request.cookies.get(COOKIE) or f"session-{len(self.bodies)}", body

    def _reply(self, session: str, value: Any, status: int = 200) -> web.Response:
        text = value if isinstance(value, str) else json.dumps(value)
        response = web.Response(text=text, status=status, content_type="application/json")
        response.set_cookie(COOKIE, session, path="/", httponly=True)
        return response

    async def _seed(self, request: web.Request) -> web.Response:
        session, body = await self._body(request)
        if self.mode == "no_seed":
            return web.json_response("RuntimeError('no seed')", status=500)
        self.counts[session] = body.get("initial_count", 0)
        return self._reply(session, {} if self.mcp is None else {"mcp": {"headers": {"X-Token": session}, **self.mcp}})

    async def _ask_mcp(self, request: web.Request) -> web.Response:
        """MCP as Gym's servers speak it: JSON, and the session of a rollout by a header."""
        body = await request.json()
        self.paths.append(f"/mcp {body['method']}")
        if body["method"] == "tools/list":
            schema = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
            result: dict[str, Any] = {"tools": [{"name": "increment_counter", "inputSchema": schema}]}
        else:
            session, arguments = request.headers["X-Token"], body["params"]["arguments"]
            if arguments["count"] < 0:
                error = {"code": -32602, "message": "count: less than 0"}
                return web.json_response({"jsonrpc": "2.0", "id": body["id"], "error": error})
            self.counts[session] += arguments["count"]
            content = [{"type": "text", "text": f"it is {self.counts[session]}"}]
            result = {"content": content, "isError": arguments["count"] > 9}
        return web.json_response({"jsonrpc": "2.0", "id": body["id"], "result": result})

    async def _use(self, request: web.Request) -> web.Response:
        if request.path == "/mcp" and self.mcp is not None:
            return await self._ask_mcp(request)
        session, body = await self._body(request)
        if request.path == "/increment_counter":
            self.counts[session] = self.counts.get(session, 0) + body["count"]
            return self._reply(session, {"success": True})
        if request.path == "/get_counter_value":
            return self._reply(session, {"count": self.counts.get(session, 0)})
        if request.path == "/breaks":
            return web.json_response("environment_error in tool breaks: the world is gone", status=500)
        return web.json_response("RuntimeError('boom')", status=500)

    async def _verify(self, request: web.Request) -> web.Response:
        session, body = await self._body(request)
        if self.on_verify:
            await self.on_verify()
        usage = body["response"]["usage"]
        if self.schemas == COUNTED_DETAILS and usage and usage["input_tokens_details"]["cached_tokens"] is None:
            return SPOILT["422"]()
        if self.mode == "slow":
            await asyncio.sleep(1)
        if self.mode in SPOILT:
            return SPOILT[self.mode]()
        reward = float(self.counts.get(session) == body.get("expected_count"))
        echoed = {key: body[key] for key in ("responses_create_params", "response")}
        return self._reply(session, {**echoed, "reward": reward, **self.says})


def _json(**value: Any) -> Callable[[], web.Response]:
    return lambda: web.json_response(value)


SPOILT: dict[str, Callable[[], web.Response]] = {
    "500": lambda: web.json_response("RuntimeError('boom')", status=500),
    "503": lambda: web.Response(text="no healthy upstream", status=503),
    "422": lambda: web.json_response({"detail": [{"msg": "Field required"}]}, status=422),
    "not_json": lambda: web.Response(text="<h1>hello</h1>"),
    "list": lambda: web.json_response([1]),
    "no_reward": _json(response={}),
    "null": _json(reward=None),
    "string": _json(reward="1.0"),
    "nan": lambda: web.Response(text='{"reward": NaN}', content_type="application/json"),
    "infinite": lambda: web.Response(text='{"reward": Infinity}', content_type="application/json"),
    "bad_part": _json(reward=1.0, reward_components={"form": "good"}),
    "judge": _json(reward=0.0, _ng_failure_class="judge_failed", _ng_failure_judge_error="the judge is away"),
    "transient": _json(reward=0.0, _ng_failure_class="transient", _ng_failure_message="busy"),
    "ours": lambda: web.json_response("sandbox_error in verify: no room", status=500),
}


class Steps(Listening):
    """A server played by /reset and /step: a number is to be guessed, 0.25 for each guess, 1 for the right one."""

    def __init__(self, mode: str = "ok") -> None:
        super().__init__()
        self.mode = mode
        self.cookies: list[str | None] = []

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/", _alive)
        app.router.add_get("/openapi.json", self._routes)
        for path, handler in (("/reset", self._reset), ("/step", self._step), ("/close", self._close)):
            app.router.add_post(path, handler)
        return app

    async def _routes(self, _: web.Request) -> web.Response:
        return web.json_response({"paths": {"/reset": {}, "/step": {}}})

    async def _take(self, request: web.Request) -> dict[str, Any]:
        self.paths.append(request.path)
        self.cookies.append(request.cookies.get(COOKIE))
        self.bodies.append(await request.json())
        return self.bodies[-1]

    async def _reset(self, request: web.Request) -> web.Response:
        await self._take(request)
        reply = web.json_response({"observation": "guess", "info": {"supports_explicit_close": True}})
        reply.set_cookie(COOKIE, f"episode-{len(self.bodies)}")
        return reply

    async def _step(self, request: web.Request) -> web.Response:
        body = await self._take(request)
        if self.mode == "500":
            return web.json_response("RuntimeError('boom')", status=500)
        reward = {"nan": "NaN", "string": '"1"'}.get(self.mode)
        if reward:
            return web.Response(text=f'{{"reward": {reward}, "terminated": true}}', content_type="application/json")
        output = body["response"]["output"]
        calls = [{"call_id": item["call_id"], "output": "cold"} for item in output if item["type"] == "function_call"]
        said = "".join(part["text"] for item in output if item["type"] == "message" for part in item["content"])
        if said == body["number"]:
            return web.json_response({"reward": 1.0, "terminated": True, "info": {"guesses": len(self.bodies) - 1}})
        seen = {"observation": None if calls else "again", "info": {"tool_outputs": calls}}
        return web.json_response({"reward": 0.25, "terminated": False, "truncated": False, **seen})

    async def _close(self, request: web.Request) -> web.Response:
        await self._take(request)
        return web.json_response({})


class Agent(Listening):
    """The agent: says `answer` to every row, or what `mode` asks for, for the tasks in `only`."""

    def __init__(self, mode: str = "ok", *, answer: str = "42", only: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.mode, self.answer, self.only = mode, answer, only
        self.tokens: dict[str, Any] = {}

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/", _alive)
        app.router.add_post("/run", self._run)
        return app

    async def _run(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        if self.mode != "ok" and (self.only is None or body["_ng_task_index"] in self.only):
            return await self._spoilt(body)
        return web.json_response(self.says(body))

    def says(self, body: dict[str, Any]) -> dict[str, Any]:
        """What it says to a row."""
        return {**body, "response": response(self.answer, **self.tokens), "reward": 1.0, "steps": 1}

    async def _spoilt(self, body: dict[str, Any]) -> web.Response:
        if self.mode == "500":
            return web.json_response("RuntimeError('boom')", status=500)
        if self.mode == "hang":
            await asyncio.sleep(1)
        said = self.says(body)
        if self.mode in ("timeout_exceeded", "sandbox_error"):
            said = {**said, "_ng_failure_class": self.mode, "_ng_failure_message": "too late"}
        elif self.mode == "no_reward":
            del said["reward"]
        elif self.mode == "no_response":
            del said["response"]
        elif self.mode == "half_tokens":
            said["response"] = response(self.answer, generation_token_ids=[1])
        return web.json_response(said)


async def _alive(_: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


def response(text: str, **tokens: Any) -> dict[str, Any]:
    """A response that thinks, calls a tool, hears of it and answers."""
    call = {"type": "function_call", "id": "c1", "call_id": "c1", "name": "look", "arguments": "{}"}
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {
        "id": "resp_1",
        "created_at": 1700000000.0,
        "model": "theirs",
        "object": "response",
        "output": [
            {"type": "reasoning", "id": "r1", "summary": [{"type": "summary_text", "text": "hm"}]},
            call,
            {"type": "function_call_output", "call_id": "c1", "output": "a book"},
            {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": content, **tokens},
        ],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {"input_tokens": 30, "output_tokens": 7, "total_tokens": 37},
    }


class Head(Listening):
    """The head server of some agents: their addresses by name."""

    def __init__(self, agents: dict[str, str], instances: list[str] | None = None) -> None:
        super().__init__()
        self.agents, self.instances = agents, instances
        self.text = ""

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/global_config_dict_yaml", self._config)
        app.router.add_get("/server_instances", self._instances)
        return app

    async def _config(self, _: web.Request) -> web.Response:
        lines = ["where: 127.0.0.1", "policy_api_key: sk-very-secret", "policy_model: {responses_api_models: {m: {}}}"]
        for name, host in self.agents.items():
            port = host.rpartition(":")[2]
            block = f"{{entrypoint: app.py, host: '${{where}}', port: {port}}}"
            lines.append(f"{name}: {{responses_api_agents: {{simple_agent: {block}}}}}")
        return web.json_response("\n".join(lines))

    async def _instances(self, _: web.Request) -> web.Response:
        if self.text:
            return web.Response(text=self.text)
        return web.json_response([{"process_name": name} for name in self.instances or self.agents])


def tool(name: str, **properties: str) -> dict[str, Any]:
    """A tool as a row has it."""
    shape = {key: {"type": kind} for key, kind in properties.items()}
    parameters = {"type": "object", "properties": shape, "required": list(shape)}
    return {"type": "function", "name": name, "description": name, "parameters": parameters, "strict": True}


COUNTING = [tool("increment_counter", count="integer"), tool("get_counter_value"), tool("raises"), tool("breaks")]


def row(text: str, tools: list[dict[str, Any]] | None = None, **fields: Any) -> dict[str, Any]:
    """A row that asks something."""
    params = {"input": [{"role": "user", "content": text}], **({"tools": tools} if tools else {})}
    return {"responses_create_params": params, **fields}


def write_rows(path: Path, *rows: dict[str, Any]) -> str:
    """Rows in a file; gives its path."""
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return str(path)


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """A line of a script that calls a tool."""
    return {"tool_calls": [{"id": "c", "function": {"name": name, "arguments": json.dumps(arguments)}}]}


def write_said(path: Path, **said: list[dict[str, Any]]) -> str:
    """A script: what is said in each task, turn by turn; gives its target."""
    lines = [{**line, "task": task, "sample": 0} for task, turns in said.items() for line in turns]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"scripted:{path}"
