"""Resources servers of NeMo Gym as environments: their state, tools and verdicts, over HTTP; rows come with `--data`.

`http://host:port` (RemoteServer): a rollout is POST /seed_session, POST /TOOL for every call, POST /verify; the cookies
of the first go along with all the others. Where a row has no tools and the server says that its verdicts need no
session, there is none. Where a row has no tools and the reply to /seed_session names an MCP endpoint, the tools are
those that it lists, and calls go there.
`gym:path/to/config.yaml` (ManagedServer): the same with servers of a NeMo Gym checkout, started for the run and stopped
with it.
`gym+step:` (SteppedServer): rollouts go step by step (Gym's gymnasium protocol), /reset, then /step. The server gets
every answer of the model as it comes, executes the tools called in it, and returns the next observation and the reward
of the step. The reward of a rollout is the sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rollbook.core import JSON, Message, Rollout, Score, Task, Turn, encode, require_finite
from rollbook.environments import Environment
from rollbook.errors import InvalidReward, LimitReached, RolloutFailed
from rollbook.gym.client.fleet import ServerFleet
from rollbook.gym.client.http_client import (
    STEP_PATH,
    VERIFY_PATH,
    ConnectedServer,
    GymClient,
    GymReply,
    McpEndpoint,
    ask_mcp,
    parse_address,
    read_json_reply,
    read_named_failure,
)
from rollbook.gym.dataset import RowDataset, check_tools, read_row_tools
from rollbook.gym.rows import AGENT_FIELD, ROLLBOOK_KEY, ROLLOUT_INDEX, read_failure, read_score
from rollbook.models import CREATE_PARAMS, AskModel, Completion, CreateParams, make_response


class GymServerSession(msgspec.Struct):
    """One rollout's session at a server: its cookies, the server's generation when it was opened, its MCP tools."""

    server: ConnectedServer
    generation: str
    cookies: dict[str, str]
    mcp: McpEndpoint | None = None


class SingleServer:
    """One server at an address; used like the several ones of a ServerFleet."""

    def __init__(self, base: str) -> None:
        self._server = ConnectedServer(GymClient(base))
        self.notes: list[str] = []

    def prepare_row(self, row: dict[str, JSON]) -> dict[str, JSON]:
        """Return the row itself."""
        return row

    def check(self, task: Task) -> None:
        """Accept every task."""

    async def start(self, route: str) -> None:
        """Connect to the server; UsageError if it is missing, or lacks the route."""
        await self._server.client.open()
        await self._server.connect(route)

    async def stop(self) -> None:
        """Disconnect."""
        await self._server.client.close()

    async def wait_until_up(self, task: Task, outage_s: float) -> None:
        """Wait while the server is unreachable, `outage_s` at most: Rollbook did not start it and cannot restart it."""
        await self._server.client.wait_until_reachable(outage_s)

    def server_for(self, task: Task) -> ConnectedServer:
        """Return the only server."""
        return self._server


class ServerEnvironment(Environment):
    """An environment whose tasks are rows and whose verdicts come from servers. `route` is one they must have."""

    kind = "adapter"
    route = VERIFY_PATH

    def _set_up(self, servers: SingleServer | ServerFleet, data: str | None, name: str) -> None:
        """Do the work of `__init__`, once the servers are determined."""
        self._servers = servers
        self._mcp_tools: dict[str, list[JSON]] = {}
        self._mcp_lists: dict[bytes, list[JSON]] = {}
        self._rows = RowDataset(
            data, name, self._check, prompt_optional=self.route == STEP_PATH, prepare=servers.prepare_row
        )

    def _check(self, task: Task, params: CreateParams) -> None:
        check_tools(task, params)
        self._servers.check(task)

    @property
    def notes(self) -> Sequence[str]:  # type: ignore[override]
        """What the rows request and do not get."""
        return [*self._servers.notes, *self._rows.notes]

    def tasks(self) -> Iterable[Task]:
        """Yield one task per row."""
        return self._rows.tasks()

    async def start(self) -> None:
        """Connect to the servers."""
        await self._servers.start(self.route)

    async def stop(self) -> None:
        """Disconnect from the servers."""
        await self._servers.stop()

    async def wait_until_ready(self, task: Task, outage_s: float) -> None:
        """Wait for the server of the task."""
        await self._servers.wait_until_up(task, outage_s)


SEED_PATH = "/seed_session"


class RemoteServer(ServerEnvironment):
    """A resources server at an address. `data` are the rows to ask."""

    description = "A NeMo Gym resources server, http://host:port; its rows with --data."
    verify_at_once = 256

    def __init__(self, url: str, data: str | None = None) -> None:
        self._set_up(SingleServer(parse_address(url)), data, url)

    async def open(self, task: Task) -> GymServerSession:
        """Open a session for a rollout, unless the server is stateless and the row has no tools."""
        server = self._servers.server_for(task)
        session = GymServerSession(server, server.client.generation, {})
        has_tools = bool(task.fields[CREATE_PARAMS].get("tools"))
        if not server.stateless or server.has_mcp or has_tools:
            seeded = await server.post(SEED_PATH, task.fields, session.cookies)
            session.mcp = None if has_tools else read_mcp_endpoint(seeded)
        if session.mcp:
            tools = await list_mcp_tools(server.client, session.mcp)
            self._mcp_tools[task.id] = self._mcp_lists.setdefault(encode(tools), tools)  # most tasks have the same
        return session

    def offers(self, task: Task) -> list[dict[str, JSON]]:
        """Return the tools of the row, or those that the server lists over MCP."""
        return read_row_tools(task) or self._mcp_tools.get(task.id, [])

    async def use(self, name: str, arguments: dict[str, JSON], state: GymServerSession) -> str:
        """Return the server's reply to a call, whatever its status: the model reads it."""
        state.server.check_session(state.generation, f"/{name}")
        if state.mcp:
            return await call_mcp_tool(state.server.client, state.mcp, name, arguments)
        reply = await state.server.client.post(f"/{name}", arguments, state.cookies)
        if failure := read_named_failure(reply):
            raise failure
        return reply.text

    async def outcome(self, state: GymServerSession) -> JSON:
        """Return the session's identity: the verdict depends on what the server stores for it."""
        return {"cookies": state.cookies, "era": state.generation}

    async def verify(self, task: Task, rollout: Rollout) -> Score:
        """Ask the server for a verdict, in the session of the rollout."""
        server, session = self._servers.server_for(task), rollout.outcome or {}
        server.check_session(session.get("era", ""), VERIFY_PATH)
        body, cookies = make_verify_body(task, rollout, server), dict(session.get("cookies", {}))
        verdict = await server.post(VERIFY_PATH, body, cookies, "verifier_error")
        if failure := read_failure(verdict, VERIFY_PATH, "environment_error"):  # what may pass is tried again
            raise failure
        return read_score(verdict, task.fields)


def read_mcp_endpoint(seeded: Mapping[str, JSON]) -> McpEndpoint | None:
    """Return the MCP endpoint that a reply to /seed_session names, if any; one that cannot be used is a failure."""
    if seeded.get("mcp") is None:
        return None
    try:
        endpoint = msgspec.convert(seeded["mcp"], McpEndpoint)
    except msgspec.ValidationError as error:
        raise RolloutFailed("environment_error", SEED_PATH, f"its MCP endpoint cannot be read: {error}") from None
    if endpoint.transport != "http" or not endpoint.url_path.startswith("/"):
        where = f"{endpoint.transport} at {endpoint.url_path}"
        raise RolloutFailed("environment_error", SEED_PATH, f"its tools come by MCP over {where}, not over HTTP here")
    return endpoint


async def list_mcp_tools(client: GymClient, endpoint: McpEndpoint) -> list[JSON]:
    """Return the tools of an MCP endpoint, in chat completions form."""
    result = _read_mcp_result(await ask_mcp(client, endpoint, "tools/list", {}), endpoint)
    tools = result.get("tools")
    if not isinstance(tools, list) or not tools or not all(isinstance(tool, dict) for tool in tools):
        raise RolloutFailed("environment_error", endpoint.url_path, "its tools come by MCP, and it lists none there")
    return [
        {
            "type": "function",
            "function": {
                "name": tool.get("name"),
                "description": tool.get("description") or "",
                "parameters": tool.get("inputSchema") or {"type": "object", "properties": {}},
            },
        }
        for tool in tools
    ]


async def call_mcp_tool(client: GymClient, endpoint: McpEndpoint, name: str, arguments: dict[str, JSON]) -> str:
    """Return the result of a tool as text for the model: its texts, else its JSON, or what is wrong with the call."""
    reply = await ask_mcp(client, endpoint, "tools/call", {"name": name, "arguments": arguments})
    if mistake := _read_invalid_params(reply):
        return f"Error: {mistake}"
    result = _read_mcp_result(reply, endpoint)
    parts = [part for part in result.get("content") or [] if isinstance(part, dict)]
    text = "\n".join(str(part["text"]) if "text" in part else f"[{part.get('type')}]" for part in parts)
    text = text if parts else _output_text(result.get("structuredContent"))
    return f"Error: {text}" if result.get("isError") else text


INVALID_PARAMS = -32602
"""The code of JSON-RPC with which a server refuses the arguments of a call: a mistake of the model."""


def _read_invalid_params(reply: GymReply) -> str:
    """Return what a server says about arguments that it refuses; empty if it does not refuse them."""
    value = reply.json()
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict) or error.get("code") != INVALID_PARAMS:
        return ""
    return str(error.get("message") or "invalid arguments")


def _read_mcp_result(reply: GymReply, endpoint: McpEndpoint) -> Mapping[str, JSON]:
    """Return the result of an MCP request; an error of the protocol is a failure of the environment."""
    value = read_json_reply(reply, endpoint.url_path, "environment_error")
    result = value.get("result")
    if not isinstance(result, dict):
        raise RolloutFailed("environment_error", endpoint.url_path, f"MCP: {value.get('error') or value!r:.200}")
    return result


def make_verify_body(task: Task, rollout: Rollout, server: ConnectedServer) -> dict[str, JSON]:
    """Return the row with the response of the rollout, as this server expects it."""
    response = make_response(
        rollout.messages[len(task.messages) :],
        [drop_tokens(turn) for turn in rollout.turns],
        name=f"{task.id}_{rollout.sample}",
        model="model",
        created=rollout.timing.start,
        ended=rollout.ended,
    )
    return _add_response(task, rollout, server.adapt_response(response))


def _add_response(task: Task, rollout: Rollout, response: JSON) -> dict[str, JSON]:
    return {**task.fields, ROLLOUT_INDEX: rollout.sample, "response": response, ROLLBOOK_KEY: {"seed": rollout.seed}}


def drop_tokens(turn: Turn) -> Turn:
    """Return a turn without ids and logprobs: verifiers do not need them, and they make requests much larger."""
    return msgspec.structs.replace(turn, prompt_ids=None, ids=None, logprobs=None) if turn.has_tokens else turn


class ManagedServer(RemoteServer):
    """The servers of a configuration. `data` are the rows; further arguments override the configuration."""

    report_by = AGENT_FIELD
    description = "Servers of a NeMo Gym checkout, started for the run, gym:path/to/config.yaml; rows with --data."

    def __init__(self, name: str = "", data: str | None = None, **overrides: JSON) -> None:
        self._set_up(ServerFleet(name, overrides), data, f"gym:{name}")


RESET_PATH, CLOSE_PATH = "/reset", "/close"


class SteppedSession(GymServerSession):
    """A rollout at a server: its reward so far, and whether it must be closed."""

    observation: str | None = None
    needs_close: bool = False
    reward: float = 0.0
    last: dict[str, JSON] = msgspec.field(default_factory=dict)


class SteppedServer(ServerEnvironment):
    """A server at an address (`url`), or those of a configuration (`name`). `data` are the rows."""

    report_by = AGENT_FIELD
    description = "A NeMo Gym server with /reset and /step, gym+step://host:port or gym+step:config.yaml."
    route = STEP_PATH
    verify_needs_server = False

    def __init__(self, name: str = "", url: str = "", data: str | None = None, **overrides: JSON) -> None:
        servers = SingleServer(parse_address(url, "gym+step")) if url else ServerFleet(name, overrides)
        self._set_up(servers, data, url or f"gym+step:{name}")

    async def open(self, task: Task) -> SteppedSession:
        """Reset the server: a new episode."""
        server = self._servers.server_for(task)
        episode = SteppedSession(server, server.client.generation, {})
        reply = await server.post(RESET_PATH, task.fields, episode.cookies)
        episode.observation = _read_observation(reply, RESET_PATH)
        episode.needs_close = _read_info(reply).get("supports_explicit_close") is True
        return episode

    async def play(self, task: Task, rollout: Rollout, ask: AskModel, state: SteppedSession) -> None:
        """Step until the server ends or truncates the episode, or a limit of the run is reached."""
        tools = read_row_tools(task)
        _append_messages(rollout, [], state.observation)
        over = False
        while not over:
            completion = await ask(rollout.messages, tools=tools)
            rollout.messages = [*rollout.messages, completion.message]
            rollout.turns.append(completion.turn)
            reply = await self._step(task, rollout, completion, state)
            over = state.last["terminated"] is True
            if not over:
                _append_messages(rollout, _read_tool_results(completion, reply), _read_observation(reply, STEP_PATH))
            if not over and state.last["truncated"]:
                raise LimitReached("truncated")

    async def _step(
        self, task: Task, rollout: Rollout, completion: Completion, state: SteppedSession
    ) -> Mapping[str, JSON]:
        state.server.check_session(state.generation, STEP_PATH)
        name = f"{task.id}_{rollout.sample}_{len(rollout.turns)}"
        response = make_response([completion.message], [drop_tokens(completion.turn)], name=name, model="model")
        body = _add_response(task, rollout, state.server.adapt_response(response))
        reply = await state.server.post(STEP_PATH, body, state.cookies)
        state.reward += _read_step_reward(reply)
        state.last = {"terminated": bool(reply.get("terminated")), "truncated": bool(reply.get("truncated"))}
        state.last |= {name: value for name, value in _read_info(reply).items() if name != "tool_outputs"}
        return reply

    async def outcome(self, state: SteppedSession) -> JSON:
        """Return the total reward, and the fields of the last step."""
        return {"reward": state.reward, "last": state.last}

    async def close(self, state: SteppedSession) -> None:
        """Close the episode at a server that requires it."""
        if state.needs_close:
            await state.server.client.post(CLOSE_PATH, {}, state.cookies)

    async def verify(self, task: Task, rollout: Rollout) -> Score:
        """Return the sum of the step rewards; our own servers send the whole score with the last step."""
        outcome = rollout.outcome or {}
        last = outcome.get("last", {})
        return read_score({**last, "reward": outcome.get("reward")}, task.fields)


def _append_messages(rollout: Rollout, results: list[Message], observation: str | None) -> None:
    """Append the tool results and the observation to the conversation."""
    rollout.messages = [*rollout.messages, *results, *([Message("user", observation)] if observation else [])]


def _read_observation(reply: Mapping[str, JSON], where: str) -> str | None:
    observation = reply.get("observation")
    if observation is not None and not isinstance(observation, str):
        raise RolloutFailed("environment_error", where, f"the observation is not text but {observation!r:.80}")
    return observation


def _read_info(reply: Mapping[str, JSON]) -> Mapping[str, JSON]:
    info = reply.get("info")
    return info if isinstance(info, dict) else {}


def _read_step_reward(reply: Mapping[str, JSON]) -> float:
    try:
        return require_finite(reply.get("reward", 0.0), "the reward")
    except InvalidReward as error:
        raise RolloutFailed("invalid_reward", STEP_PATH, str(error)) from None


def _read_tool_results(completion: Completion, reply: Mapping[str, JSON]) -> list[Message]:
    """Return the server's result for every call of an answer; without one per call, no model can continue."""
    listed = _read_info(reply).get("tool_outputs") or []
    outputs = {str(item.get("call_id")): item.get("output") for item in listed if isinstance(item, dict)}
    calls = completion.message.tool_calls or []
    return [Message("tool", _output_text(outputs.get(call.id)), tool_call_id=call.id) for call in calls]


def _output_text(output: JSON) -> str:
    if isinstance(output, str):
        return output
    return "" if output is None else msgspec.json.encode(output).decode()
