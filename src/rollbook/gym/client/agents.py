"""Agents of NeMo Gym as environments: they run whole rollouts, with a model of their own, over POST /run.

The reply is read into the record: messages, turns with their exact tokens, usage, and the reward. `gym+agent://` is one
agent (RemoteAgent); `gym+head://` (RoutedAgents) is every agent that a head server lists: each row goes to the agent it
names. The head server also sends keys, in clear text: only names and addresses are stored.
"""

from __future__ import annotations

import asyncio
import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException
from urllib.error import URLError
from urllib.parse import unquote, urlsplit
from urllib.request import ProxyHandler, build_opener

import msgspec

from rollbook.core import JSON, JSON_ERRORS, Rollout, Sampling, Score, Task, decode, encode
from rollbook.environments import Environment
from rollbook.errors import InvalidReward, RolloutFailed, UsageError
from rollbook.gym.client.config import ServerBlock, read_blocks, resolve
from rollbook.gym.client.http_client import GymClient, parse_address, read_json_reply
from rollbook.gym.dataset import RowDataset, read_agent_name
from rollbook.gym.responses import read_response
from rollbook.gym.rows import AGENT_FIELD, AGENT_REF, AGENTS, ROLLOUT_INDEX, read_failure, read_score
from rollbook.models import (
    CREATE_PARAMS,
    AskModel,
    CreateParams,
    check_finite_logprobs,
    make_sampling_params,
    read_tokens,
)

RUN_PATH = "/run"
ATTEMPT_INDEX = "_ng_attempt_index"
DEFAULT_AGENT = "agent"
"""An agent's name for itself, where neither the row nor a head server names it."""


class RemoteAgent(Environment):
    """An agent at an address. `data` are its rows."""

    needs_model = verify_needs_server = False
    description = "A NeMo Gym agent that runs whole rollouts, gym+agent://host:port; its rows with --data."

    def __init__(self, url: str, data: str | None = None) -> None:
        self._client = GymClient(parse_address(url, "gym+agent"))
        self._rows = RowDataset(data, url, self._check, prompt_optional=True, forwards_params=True)

    def _check(self, task: Task, params: CreateParams) -> None:
        """Refuse a row with an invalid `agent_ref`."""
        read_agent_name(task)

    @property
    def notes(self) -> Sequence[str]:  # type: ignore[override]
        """What the rows request and do not get."""
        return self._rows.notes

    def tasks(self) -> Iterable[Task]:
        """Yield one task per row."""
        return self._rows.tasks()

    async def start(self) -> None:
        """Check that the agent answers."""
        await self._client.open()
        try:
            await self._client.get("/")
        except RolloutFailed as error:
            raise UsageError(f"{error.message}; is the agent up?") from None

    async def stop(self) -> None:
        """Disconnect."""
        await self._client.close()

    async def wait_until_ready(self, task: Task, outage_s: float) -> None:
        """Wait while the agent is unreachable."""
        await self._client_of(task).wait_until_reachable(outage_s)

    async def open(self, task: Task) -> dict[str, JSON]:
        """Return an empty verdict, which `play` fills."""
        return {}

    async def play(self, task: Task, rollout: Rollout, ask: AskModel, state: dict[str, JSON]) -> None:
        """Let the agent run the rollout, and read its reply."""
        reply = await self._client_of(task).post(
            RUN_PATH, make_run_body(task, rollout, ask.sampling), {}, "environment_error"
        )
        result = read_json_reply(reply, RUN_PATH, "agent_error")
        if failure := read_failure(result, RUN_PATH, "agent_error"):
            with suppress(RolloutFailed):  # partial progress is kept, if it can be read
                read_rollout_into(rollout, result)
            raise failure
        read_rollout_into(rollout, result)
        state.update(read_verdict(result, task.fields))

    def _client_of(self, task: Task) -> GymClient:
        return self._client

    async def outcome(self, state: dict[str, JSON]) -> JSON:
        """Return the score that came with the rollout, or why there is none."""
        return state

    async def verify(self, task: Task, rollout: Rollout) -> Score:
        """Return the score that the agent reported."""
        outcome = rollout.outcome or {}
        if "score" not in outcome:
            raise InvalidReward(str(outcome.get("invalid", "the agent gave no reward")))
        return msgspec.convert(outcome["score"], Score)


_OUR_NAMES = {"max_output_tokens": "max_tokens"}


def make_run_body(task: Task, rollout: Rollout, sampling: Sampling) -> dict[str, JSON]:
    """Return the row as Gym's collector sends it: with the rollout's indices, and the sampling of this run."""
    params = task.fields[CREATE_PARAMS]
    metadata = params.get("metadata") or {}
    seed = None if sampling.omits("seed") else rollout.seed
    asked = {**_read_extra_body(metadata.get("extra_body")), **sampling.extra, "seed": seed}
    extra = {name: value for name, value in asked.items() if value is not None}
    row_params = {name: value for name, value in params.items() if not sampling.omits(_OUR_NAMES.get(name, name))}
    requested = {
        **row_params,
        **make_sampling_params(sampling),
        "metadata": {**metadata, "extra_body": encode(extra).decode()},
    }
    agent = {AGENT_REF: task.fields.get(AGENT_REF) or {"name": DEFAULT_AGENT}}
    attempt = {ATTEMPT_INDEX: rollout.attempt - 1} if rollout.attempt > 1 else {}
    return {**task.fields, CREATE_PARAMS: requested, ROLLOUT_INDEX: rollout.sample, **agent, **attempt}


def _read_extra_body(value: JSON) -> Mapping[str, JSON]:
    """Return what is already in `metadata.extra_body`; reading the row has checked that it is an object."""
    body = decode(value) if isinstance(value, str) and value else value
    return body if isinstance(body, dict) else {}


def read_rollout_into(rollout: Rollout, reply: Mapping[str, JSON]) -> None:
    """Read a reply into the record; tokens that contradict each other are a failure, not a record."""
    raw = reply.get("response")
    check_tokens(raw)
    try:
        response = read_response(raw)
    except UsageError as error:
        raise RolloutFailed("agent_error", RUN_PATH, str(error)) from None
    rollout.messages = [*rollout.task.messages, *response.messages]
    rollout.turns, rollout.ended = response.turns, response.ended


def check_tokens(response: JSON) -> None:
    """Refuse ids and logprobs that are not numbers, or not equal in number."""
    output = response.get("output") if isinstance(response, dict) else None
    for number, item in enumerate(output if isinstance(output, list) else []):
        try:
            tokens = read_tokens(item, f"response.output[{number}]") if isinstance(item, dict) else None
        except UsageError as error:
            raise RolloutFailed("token_mismatch", RUN_PATH, str(error)) from None
        if tokens is not None:
            check_finite_logprobs(tokens[2])


def read_verdict(reply: Mapping[str, JSON], row: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return the score of a rollout, or what is wrong with it, in the form the record stores."""
    try:
        return {"score": msgspec.to_builtins(read_score(reply, row))}
    except InvalidReward as error:
        return {"invalid": str(error)}


CONFIG_PATH, INSTANCES_PATH = "/global_config_dict_yaml", "/server_instances"
HEAD_TIMEOUT_S = 10.0
MAX_CONFIG_BYTES = 64 << 20
_WILDCARD_HOSTS = ("0.0.0.0", "::", "")


def find_agents(head: str) -> dict[str, str]:
    """Return the addresses of a head server's agents by name; UsageError explains why there are none."""
    config = read_head_config(_fetch(head, CONFIG_PATH), f"{head}{CONFIG_PATH}")
    check_instances(_read_instances(_fetch(head, INSTANCES_PATH), head), head)
    agents = {block.name: _agent_address(block, config, head) for block in read_blocks(config) if block.kind == AGENTS}
    if not agents:
        raise UsageError(f"{head}: the head server lists no agents ({AGENTS})")
    return agents


def read_head_config(raw: bytes, where: str) -> Mapping[str, JSON]:
    """Return the configuration that a head server sends: YAML, as a string in JSON."""
    import yaml

    try:
        text = decode(raw)
        value = yaml.safe_load(text) if isinstance(text, str) else text
    except (yaml.YAMLError, *JSON_ERRORS) as error:
        raise UsageError(f"{where}: not a head server's configuration: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{where}: not a head server's configuration, but {type(value).__name__}")
    return value


def _read_instances(raw: bytes, head: str) -> JSON:
    try:
        return decode(raw)
    except JSON_ERRORS as error:
        raise UsageError(f"{head}{INSTANCES_PATH}: not a list of servers: {error}") from None


def check_instances(value: JSON, head: str) -> None:
    """Refuse two servers of one name: a row could mean either."""
    listed = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
    names = Counter(str(item.get("process_name") or item.get("name")) for item in listed)
    repeated = next((name for name, count in names.items() if count > 1), None)
    if repeated is not None:
        raise UsageError(f"{head}{INSTANCES_PATH}: two servers are called {repeated}; give them names of their own")


def _agent_address(block: ServerBlock, config: Mapping[str, JSON], head: str) -> str:
    host, port = (resolve(block.settings.get(name), config) for name in ("host", "port"))
    if not isinstance(port, int | str) or not str(port).isdigit():
        raise UsageError(f"{head}: the agent {block.name} has no port; is it up?")
    head_host = urlsplit(head).hostname
    return f"http://{head_host if str(host or '') in _WILDCARD_HOSTS else host}:{port}"


def _fetch(head: str, path: str) -> bytes:
    try:
        with build_opener(ProxyHandler({})).open(f"{head}{path}", timeout=HEAD_TIMEOUT_S) as reply:
            raw: bytes = reply.read(MAX_CONFIG_BYTES)
            return raw
    except (URLError, HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        message = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        raise UsageError(f"{head}{path}: {message}; is a head server there?") from None


class RoutedAgents(RemoteAgent):
    """The agents of one head server. Rows in `data` name theirs in `agent_ref`; a single agent gets all rows.

    Numbers are reported by agent. With `?agent=NAME`, only the rows of that agent are tasks.
    """

    report_by = AGENT_FIELD
    description = "The agents that a NeMo Gym head server lists, gym+head://host:port; rows with --data name theirs."

    def __init__(self, url: str, data: str | None = None) -> None:
        address, _, only = url.partition("?agent=")
        self._head, self._only = parse_address(address, "gym+head"), unquote(only)
        self._clients: dict[str, GymClient] = {}
        self._addresses: dict[str, str] = {}
        self._rows = RowDataset(data, url, self._check, prompt_optional=True)

    def tasks(self) -> Iterable[Task]:
        """Yield one task per row. The head server is asked first, so that a row without an agent is refused here."""
        self._addresses = find_agents(self._head)
        if self._only and self._only not in self._addresses:
            raise UsageError(f"agent={self._only}: the head server lists {', '.join(self._addresses)}")
        for task in self._rows.tasks():
            if self._only in ("", read_agent_name(task)):
                yield task

    def _check(self, task: Task, params: CreateParams) -> None:
        name = read_agent_name(task)
        if name is None and len(self._addresses) == 1:
            task.fields = {**task.fields, AGENT_REF: {"name": next(iter(self._addresses))}}
        elif name is None:
            raise UsageError(
                f"no {AGENT_REF}, and there are {len(self._addresses)} agents: {', '.join(self._addresses)}"
            )
        elif name not in self._addresses:
            close = difflib.get_close_matches(name, self._addresses, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(self._addresses)}"
            raise UsageError(f"{AGENT_REF}: no agent is called {name}; {hint}")

    async def start(self) -> None:
        """Ask the head server for its agents' addresses; called again when one may have moved."""
        for name, base in (await asyncio.to_thread(find_agents, self._head)).items():
            client = self._clients.get(name)
            if client is None:
                self._clients[name] = GymClient(base)
                await self._clients[name].open()
            elif client.base != base:
                client.replace_server(base)

    async def stop(self) -> None:
        """Disconnect from all agents."""
        for client in self._clients.values():
            await client.close()

    async def play(self, task: Task, rollout: Rollout, ask: AskModel, state: dict[str, JSON]) -> None:
        """Let the agent that the row names run it; look up again one that cannot be reached."""
        client = self._client_of(task)
        try:
            await super().play(task, rollout, ask, state)
        except RolloutFailed:
            if client.unreachable:
                await self._find_agents_again()
            raise

    async def wait_until_ready(self, task: Task, outage_s: float) -> None:
        """Wait while the agent of the row is unreachable, at whatever address it returns."""
        await self._client_of(task).wait_until_reachable(outage_s, self._find_agents_again)

    async def _find_agents_again(self) -> None:
        with suppress(UsageError):  # the head server is unreachable too
            await self.start()

    def _client_of(self, task: Task) -> GymClient:
        name = str(read_agent_name(task))
        if name not in self._clients:
            raise RolloutFailed("agent_error", AGENT_REF, f"the head server no longer lists an agent called {name}")
        return self._clients[name]
