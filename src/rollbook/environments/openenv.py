"""Environments of OpenEnv: episodes of a server that resets and steps, `openenv:http://host:8000?episodes=100`.

The model acts by tools: those of the environment if it has some, else one called `step`, whose arguments are an action.
One session of the server is one rollout. The package `openenv` is not imported: this module implements the protocol of
its version 0.10.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Literal

import aiohttp
import msgspec

from rollbook.core import JSON, Rollout, Score, Task, decode, encode
from rollbook.environments.environment import Environment
from rollbook.environments.tools import ToolMisuse, make_tool_schema
from rollbook.errors import UsageError

STEP_TOOL = "step"
INSTRUCTION = "Act by calling tools until the episode is over."
OVER_TEXT = "The episode is over."
REQUEST_TIMEOUT_S = 60.0
RETRY_FULL_S = 0.5
MAX_MESSAGE_BYTES = 64 << 20
SERVER_FAULTS = ("transport_error", "timeout")
_open_url = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


class OpenEnvEpisode(msgspec.Struct):
    """One session with the server, its rewards and steps so far."""

    socket: aiohttp.ClientWebSocketResponse
    rewards: list[float] = []
    steps: int = 0
    done: bool = False

    async def request(self, kind: str, data: JSON) -> dict[str, JSON]:
        """Send a message; return the observation, the reward and whether the episode is done."""
        await self.socket.send_str(encode({"type": kind, "data": data}).decode())
        message = await self.socket.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise ConnectionError("the OpenEnv server closed the connection")
        reply = decode(message.data)
        result: dict[str, JSON] = reply["data"]
        if reply["type"] != "error":
            return result
        if result.get("code") == "VALIDATION_ERROR":
            raise ToolMisuse(f"the action is not valid: {encode(result.get('errors')).decode()}")
        raise OpenEnvError(str(result.get("code")), f"the OpenEnv server: {result.get('message')}")

    def record_step(self, result: dict[str, JSON]) -> None:
        """Count a step and its reward."""
        self.steps += 1
        self.done = bool(result.get("done"))
        if result.get("reward") is not None:
            self.rewards.append(float(result["reward"]))


class OpenEnvError(ConnectionError):
    """The server failed; the request was valid."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class OpenEnv(Environment):
    """Episodes `seed` to `seed + episodes - 1`; `reset` has more arguments of the reset, `prompt` comes first.

    The score of a rollout is the `sum` of the rewards of its steps, or the `last` one. `sessions` is how many the
    server allows at once: its max_concurrent_envs.
    """

    kind = "adapter"
    description = "episodes of an OpenEnv server, acted in by tools: openenv:http://host:8000?episodes=100"

    def __init__(
        self,
        name: str,
        episodes: int = 100,
        seed: int = 0,
        prompt: str = "",
        reset: dict[str, JSON] | None = None,
        reward: Literal["sum", "last"] = "sum",
        sessions: int = 1,
    ) -> None:
        if not name.startswith(("http://", "https://")):
            raise UsageError(f"openenv:{name}: write openenv:http://host:port")
        if reward not in ("sum", "last"):
            raise UsageError(f"reward={reward!r}: sum or last")
        self._url = name.rstrip("/")
        self._episodes, self._seed, self._prompt, self._reset = episodes, seed, prompt, reset or {}
        self._last = reward == "last"
        self.states_at_once = sessions
        self._http: aiohttp.ClientSession | None = None
        self._tools: list[dict[str, JSON]] = []

    def tasks(self) -> Iterator[Task]:
        """Yield one task per seed, with the first observation."""
        introduction = self._prompt or str(self._get("metadata").get("description") or "")
        for seed in range(self._seed, self._seed + self._episodes):
            reset = {**self._reset, "seed": seed}
            shown = render_observation(self._get("reset", reset)["observation"])
            prompt = "\n\n".join(filter(None, [introduction, shown, INSTRUCTION]))
            yield Task(f"episode-{seed:05d}", prompt, reset=reset, shown=shown)

    def _get(self, path: str, data: JSON = None) -> dict[str, JSON]:
        body = None if data is None else encode(data)
        request = urllib.request.Request(f"{self._url}/{path}", body, {"Content-Type": "application/json"})
        try:
            with _open_url(request, timeout=REQUEST_TIMEOUT_S) as reply:
                result: dict[str, JSON] = json.load(reply)
        except (urllib.error.URLError, OSError, ValueError) as error:
            raise UsageError(f"OpenEnv server {self._url}/{path}: {getattr(error, 'reason', error)}") from None
        return result

    async def start(self) -> None:
        """Find out which tools the server takes actions by."""
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, connect=REQUEST_TIMEOUT_S))
        async with self._http.get(f"{self._url}/schema") as reply:
            reply.raise_for_status()
            action = (await reply.json())["action"]
        if "tool_name" in action.get("properties", {}):
            self._tools = await self._list_tools()
        else:
            action["properties"].pop("metadata", None)
            description = action.get("description") or "Act once."
            self._tools = [make_tool_schema(STEP_TOOL, description, action)]

    async def _list_tools(self) -> list[dict[str, JSON]]:
        episode = await self._connect()
        try:
            result = await episode.request("step", {"type": "list_tools"})
        finally:
            await episode.socket.close()
        tools = result["observation"]["tools"]
        return [make_tool_schema(tool["name"], tool["description"], tool["input_schema"]) for tool in tools]

    async def stop(self) -> None:
        """Close all connections."""
        if self._http:
            await self._http.close()

    async def _connect(self) -> OpenEnvEpisode:
        assert self._http
        url = self._url.replace("http", "ws", 1)
        return OpenEnvEpisode(await self._http.ws_connect(f"{url}/ws", max_msg_size=MAX_MESSAGE_BYTES))

    async def open(self, task: Task) -> OpenEnvEpisode:
        """Start the planned episode; wait while the server is full."""
        while True:
            episode = await self._connect()
            try:
                result = await episode.request("reset", task.fields["reset"])
                if render_observation(result["observation"]) != task.fields["shown"]:
                    raise ConnectionError(
                        "its reset differs from the one when the run was planned: its seeds fix nothing"
                    )
            except BaseException as error:
                await episode.socket.close()
                if not isinstance(error, OpenEnvError) or error.code != "CAPACITY_REACHED":
                    raise
                await asyncio.sleep(RETRY_FULL_S)
            else:
                return episode

    def offers(self, task: Task) -> list[dict[str, JSON]]:
        """Return its tools, or the one that takes actions."""
        return self._tools

    async def use(self, name: str, arguments: dict[str, JSON], state: OpenEnvEpisode) -> str:
        """Take an action, and return the observation."""
        if state.done:
            return OVER_TEXT
        call = {"type": "call_tool", "tool_name": name, "arguments": arguments}
        result = await state.request("step", arguments if name == STEP_TOOL else call)
        error = result["observation"].get("error")
        if isinstance(error, dict) and error.get("error_type") in SERVER_FAULTS:
            raise ConnectionError(f"the OpenEnv server: {error.get('message')}")
        state.record_step(result)
        shown = render_observation(result["observation"])
        return f"{shown}\n{OVER_TEXT}" if state.done else shown

    async def outcome(self, state: OpenEnvEpisode) -> JSON:
        """Return the rewards of the steps."""
        return {"rewards": state.rewards, "steps": state.steps, "done": state.done}

    async def close(self, state: OpenEnvEpisode) -> None:
        """End the session."""
        await state.socket.close()

    async def verify(self, task: Task, rollout: Rollout) -> Score:
        """Score the rewards of the steps; an episode that ended without any is an error, not a zero."""
        rewards, done = rollout.outcome["rewards"], rollout.outcome["done"]
        if done and not rewards:
            raise ValueError("the episode is over and the environment gave no reward")
        total = (rewards[-1] if self._last else sum(rewards)) if rewards else 0.0
        return Score(total, parts={"steps": float(rollout.outcome["steps"]), "done": float(done)})


def render_observation(observation: dict[str, JSON]) -> str:
    """Return an observation as text for the model: the result of a tool, or all its fields except metadata."""
    result = observation.get("result")
    if isinstance(result, dict) and isinstance(result.get("content"), list):
        return "\n".join(str(part.get("text", f"[{part.get('type')}]")) for part in result["content"])
    shown = {key: value for key, value in observation.items() if key != "metadata" and value is not None}
    return encode(shown).decode() if shown else ""
