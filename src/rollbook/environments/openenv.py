"""Environments of OpenEnv: episodes of a server that resets and steps, `openenv:http://host:8000?episodes=100`.

The model acts by tools: an environment's own ones where it has some, else by one called `step`, whose arguments are an
action. One session of the server is one rollout. The package `openenv` is not imported: this speaks its protocol of
0.10.
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
from rollbook.environments.tools import ToolMisuse
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
    """One session, and what has come of it so far."""

    socket: aiohttp.ClientWebSocketResponse
    rewards: list[float] = []
    steps: int = 0
    done: bool = False

    async def request(self, kind: str, data: JSON) -> dict[str, JSON]:
        """Send a message; gives the observation, the reward and whether that was all."""
        await self.socket.send_str(encode({"type": kind, "data": data}).decode())
        reply = await self.socket.receive()
        if reply.type is not aiohttp.WSMsgType.TEXT:
            raise ConnectionError("the OpenEnv server hung up")
        said = decode(reply.data)
        found: dict[str, JSON] = said["data"]
        if said["type"] != "error":
            return found
        if found.get("code") == "VALIDATION_ERROR":
            raise ToolMisuse(f"the action is not valid: {encode(found.get('errors')).decode()}")
        raise OpenEnvError(str(found.get("code")), f"the OpenEnv server: {found.get('message')}")

    def record_step(self, said: dict[str, JSON]) -> None:
        """Count a step."""
        self.steps += 1
        self.done = bool(said.get("done"))
        if said.get("reward") is not None:
            self.rewards.append(float(said["reward"]))


class OpenEnvError(ConnectionError):
    """The server could not do what it was asked, for reasons of its own."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(words)
        self.code = code


class OpenEnv(Environment):
    """Episodes `seed` to `seed + episodes - 1`; `reset` are further arguments of its reset, `prompt` comes first.

    A rollout is worth the `sum` of the rewards of its steps, or the `last` one. `sessions` is how many the server lets
    in at once: what it was started with as max_concurrent_envs.
    """

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
        """One for each seed, with what the environment shows at first."""
        words = self._prompt or str(self._get("metadata").get("description") or "")
        for seed in range(self._seed, self._seed + self._episodes):
            reset = {**self._reset, "seed": seed}
            shown = render_observation(self._get("reset", reset)["observation"])
            prompt = "\n\n".join(filter(None, [words, shown, INSTRUCTION]))
            yield Task(f"episode-{seed:05d}", prompt, reset=reset, shown=shown)

    def _get(self, path: str, data: JSON = None) -> dict[str, JSON]:
        body = None if data is None else encode(data)
        request = urllib.request.Request(f"{self._url}/{path}", body, {"Content-Type": "application/json"})
        try:
            with _open_url(request, timeout=REQUEST_TIMEOUT_S) as reply:
                found: dict[str, JSON] = json.load(reply)
        except (urllib.error.URLError, OSError, ValueError) as error:
            raise UsageError(f"OpenEnv server {self._url}/{path}: {getattr(error, 'reason', error)}") from None
        return found

    async def start(self) -> None:
        """See how it is acted in."""
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, connect=REQUEST_TIMEOUT_S))
        async with self._http.get(f"{self._url}/schema") as reply:
            reply.raise_for_status()
            action = (await reply.json())["action"]
        if "tool_name" in action.get("properties", {}):
            self._tools = await self._list_tools()
        else:
            action["properties"].pop("metadata", None)
            words = action.get("description") or "Act once."
            self._tools = [make_tool_schema(STEP_TOOL, words, action)]

    async def _list_tools(self) -> list[dict[str, JSON]]:
        episode = await self._connect()
        try:
            said = await episode.request("step", {"type": "list_tools"})
        finally:
            await episode.socket.close()
        tools = said["observation"]["tools"]
        return [make_tool_schema(tool["name"], tool["description"], tool["input_schema"]) for tool in tools]

    async def stop(self) -> None:
        """Let go of all connections."""
        if self._http:
            await self._http.close()

    async def _connect(self) -> OpenEnvEpisode:
        assert self._http
        at = self._url.replace("http", "ws", 1)
        return OpenEnvEpisode(await self._http.ws_connect(f"{at}/ws", max_msg_size=MAX_MESSAGE_BYTES))

    async def open(self, task: Task) -> OpenEnvEpisode:
        """Begin the episode that was planned; while the server is full, wait."""
        while True:
            episode = await self._connect()
            try:
                said = await episode.request("reset", task.fields["reset"])
                if render_observation(said["observation"]) != task.fields["shown"]:
                    raise ConnectionError("its reset shows something else than when the run was planned: no seed holds")
            except BaseException as error:
                await episode.socket.close()
                if not isinstance(error, OpenEnvError) or error.code != "CAPACITY_REACHED":
                    raise
                await asyncio.sleep(RETRY_FULL_S)
            else:
                return episode

    def offers(self, task: Task) -> list[dict[str, JSON]]:
        """Its tools, or the one that takes actions."""
        return self._tools

    async def use(self, name: str, arguments: dict[str, JSON], state: OpenEnvEpisode) -> str:
        """Act, and see what comes of it."""
        if state.done:
            return OVER_TEXT
        call = {"type": "call_tool", "tool_name": name, "arguments": arguments}
        said = await state.request("step", arguments if name == STEP_TOOL else call)
        error = said["observation"].get("error")
        if isinstance(error, dict) and error.get("error_type") in SERVER_FAULTS:
            raise ConnectionError(f"the OpenEnv server: {error.get('message')}")
        state.record_step(said)
        shown = render_observation(said["observation"])
        return f"{shown}\n{OVER_TEXT}" if state.done else shown

    async def outcome(self, state: OpenEnvEpisode) -> JSON:
        """What the steps were worth."""
        return {"rewards": state.rewards, "steps": state.steps, "done": state.done}

    async def close(self, state: OpenEnvEpisode) -> None:
        """End the session."""
        await state.socket.close()

    async def verify(self, task: Task, rollout: Rollout) -> Score:
        """The rewards of its steps; an episode that ended without any is no zero."""
        rewards, done = rollout.outcome["rewards"], rollout.outcome["done"]
        if done and not rewards:
            raise ValueError("the episode is over and the environment gave no reward")
        total = (rewards[-1] if self._last else sum(rewards)) if rewards else 0.0
        return Score(total, parts={"steps": float(rollout.outcome["steps"]), "done": float(done)})


def make_tool_schema(name: str, description: str, parameters: dict[str, JSON]) -> dict[str, JSON]:
    """A tool as chat completions takes it."""
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def render_observation(observation: dict[str, JSON]) -> str:
    """An observation as a model reads it: what a tool said, or all that it holds but for what is about it."""
    result = observation.get("result")
    if isinstance(result, dict) and isinstance(result.get("content"), list):
        return "\n".join(str(part.get("text", f"[{part.get('type')}]")) for part in result["content"])
    shown = {key: value for key, value in observation.items() if key != "metadata" and value is not None}
    return encode(shown).decode() if shown else ""
