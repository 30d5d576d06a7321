"""Agents of NeMo Gym as environments: they play whole rollouts, with a model of their own, over POST /run.

The reply is read into the record: messages, turns with their exact tokens, usage, and the reward. `gym+agent://` is one
agent (RemoteAgent); `gym+head://` (RoutedAgents) is all agents that a head server knows: each row is played by the
agent it names. The head server sends keys too, in clear text: only names and addresses are stored.
"""

from __future__ import annotations

import asyncio
import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

import msgspec

from rollbook.core import JSON, Rollout, Sampling, Score, Task, decode, encode
from rollbook.environments import Environment
from rollbook.errors import InvalidReward, RolloutFailed, UsageError
from rollbook.gym.client.config import AGENTS, ServerBlock, read_blocks, resolve
from rollbook.gym.client.http_client import GymClient, parse_address, read_json_reply
from rollbook.gym.dataset import RowDataset, read_agent_name
from rollbook.gym.rows import AGENT_REF, ROLLOUT_INDEX, read_failure, read_score
from rollbook.models import CREATE_PARAMS, AskModel, CreateParams, check_finite_logprobs, read_response, read_tokens

RUN_PATH = "/run"
ATTEMPT_INDEX = "_ng_attempt_index"
DEFAULT_AGENT = "agent"
"""What an agent is called to itself where neither the row nor a head server names it."""


class RemoteAgent(Environment):
    """An agent at an address. `data` are the rows that it is given."""

    needs_model = False
    description = "A NeMo Gym agent that plays whole rollouts, gym+agent://host:port; its rows with --data."

    def __init__(self, url: str, data: str | None = None) -> None:
        self._client = GymClient(parse_address(url, "gym+agent"))
        self._rows = RowDataset(data, url, self._check, prompt_optional=True, forwards_params=True)

    def _check(self, task: Task, params: CreateParams) -> None:
        """Refuse a row that names no agent where it should."""
        read_agent_name(task)

    @property
    def notes(self) -> Sequence[str]:  # type: ignore[override]
        """What rows ask for and do not get."""
        return self._rows.notes

    def tasks(self) -> Iterable[Task]:
        """One a row."""
        return self._rows.tasks()

    async def start(self) -> None:
        """Find somebody who answers."""
        await self._client.open()
        try:
            await self._client.get("/")
        except RolloutFailed as error:
            raise UsageError(f"{error.message}; is the agent up?") from None

    async def stop(self) -> None:
        """Hang up."""
        await self._client.close()

    async def open(self, task: Task) -> dict[str, JSON]:
        """Room for what the agent will say."""
        return {}

    async def play(self, task: Task, rollout: Rollout, ask: AskModel, state: dict[str, JSON]) -> None:
        """Let it play, and read what came of it."""
        answer = await self._client_of(task).post(
            RUN_PATH, make_run_body(task, rollout, ask.sampling), {}, "environment_error"
        )
        said = read_json_reply(answer, RUN_PATH, "agent_error")
        if failure := read_failure(said, RUN_PATH, "agent_error"):
            with suppress(RolloutFailed):  # how far it came is worth keeping, if it can be read
                read_rollout_into(rollout, said)
            raise failure
        read_rollout_into(rollout, said)
        state.update(read_verdict(said, task.fields))

    def _client_of(self, task: Task) -> GymClient:
        return self._client

    async def outcome(self, state: dict[str, JSON]) -> JSON:
        """The score that came with the rollout, or why it is none."""
        return state

    async def verify(self, task: Task, rollout: Rollout) -> Score:
        """What the agent said it was worth."""
        said = rollout.outcome or {}
        if "score" not in said:
            raise InvalidReward(str(said.get("invalid", "the agent gave no reward")))
        return msgspec.convert(said["score"], Score)


def make_run_body(task: Task, rollout: Rollout, sampling: Sampling) -> dict[str, JSON]:
    """The row as Gym's collector sends it: with the indices of the rollout, and the sampling of this run."""
    params = task.fields[CREATE_PARAMS]
    metadata = params.get("metadata") or {}
    extra = {**_read_extra_body(metadata.get("extra_body")), **sampling.extra, "seed": rollout.seed}
    asked = {
        **params,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_output_tokens": sampling.max_tokens,
        "metadata": {**metadata, "extra_body": encode(extra).decode()},
    }
    named = {AGENT_REF: task.fields.get(AGENT_REF) or {"name": DEFAULT_AGENT}}
    again = {ATTEMPT_INDEX: rollout.attempt - 1} if rollout.attempt > 1 else {}
    return {**task.fields, CREATE_PARAMS: asked, ROLLOUT_INDEX: rollout.sample, **named, **again}


def _read_extra_body(value: JSON) -> Mapping[str, JSON]:
    """What already rides in `metadata.extra_body`; that it is an object was checked when the row was read."""
    found = decode(value) if isinstance(value, str) and value else value
    return found if isinstance(found, dict) else {}


def read_rollout_into(rollout: Rollout, reply: Mapping[str, JSON]) -> None:
    """Put what was said into the record; tokens that contradict each other are a failure, not a record."""
    response = reply.get("response")
    check_tokens(response)
    try:
        heard = read_response(response)
    except UsageError as error:
        raise RolloutFailed("agent_error", RUN_PATH, str(error)) from None
    rollout.messages = [*rollout.task.messages, *heard.messages]
    rollout.turns, rollout.ended = heard.turns, heard.ended


def check_tokens(response: JSON) -> None:
    """Refuse ids and logprobs that are no numbers, or not one for each other."""
    output = response.get("output") if isinstance(response, dict) else None
    for number, item in enumerate(output if isinstance(output, list) else []):
        try:
            tokens = read_tokens(item, f"response.output[{number}]") if isinstance(item, dict) else None
        except UsageError as error:
            raise RolloutFailed("token_mismatch", RUN_PATH, str(error)) from None
        if tokens is not None:
            check_finite_logprobs(tokens[2])


def read_verdict(reply: Mapping[str, JSON], row: Mapping[str, JSON]) -> dict[str, JSON]:
    """The score of a rollout, or what is wrong with it, as it is kept in the record."""
    try:
        return {"score": msgspec.to_builtins(read_score(reply, row))}
    except InvalidReward as error:
        return {"invalid": str(error)}


CONFIG_PATH, INSTANCES_PATH = "/global_config_dict_yaml", "/server_instances"
HEAD_TIMEOUT_S = 10.0
MAX_CONFIG_BYTES = 64 << 20
_WILDCARD_HOSTS = ("0.0.0.0", "::", "")


def find_agents(head: str) -> dict[str, str]:
    """The agents that a head server knows, by name: their addresses. UsageError says why there are none."""
    config = read_head_config(_fetch(head, CONFIG_PATH), f"{head}{CONFIG_PATH}")
    check_instances(decode(_fetch(head, INSTANCES_PATH)), head)
    found = {block.name: _agent_address(block, config, head) for block in read_blocks(config) if block.kind == AGENTS}
    if not found:
        raise UsageError(f"{head}: the head server knows no agents ({AGENTS})")
    return found


def read_head_config(raw: bytes, where: str) -> Mapping[str, JSON]:
    """The configuration that a head server hands out: YAML, as a string in JSON."""
    import yaml

    try:
        text = decode(raw)
        value = yaml.safe_load(text) if isinstance(text, str) else text
    except (msgspec.DecodeError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"{where}: not a head server's configuration: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{where}: not a head server's configuration, but {type(value).__name__}")
    return value


def check_instances(value: JSON, head: str) -> None:
    """Refuse two servers of one name: a row could mean either."""
    listed = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
    names = Counter(str(item.get("process_name") or item.get("name")) for item in listed)
    twice = next((name for name, count in names.items() if count > 1), None)
    if twice is not None:
        raise UsageError(f"{head}{INSTANCES_PATH}: two servers are called {twice}; give them names of their own")


def _agent_address(block: ServerBlock, config: Mapping[str, JSON], head: str) -> str:
    host, port = (resolve(block.settings.get(name), config) for name in ("host", "port"))
    if not isinstance(port, int | str) or not str(port).isdigit():
        raise UsageError(f"{head}: the agent {block.name} has no port; is it up?")
    own = urlsplit(head).hostname
    return f"http://{own if str(host or '') in _WILDCARD_HOSTS else host}:{port}"


def _fetch(head: str, path: str) -> bytes:
    try:
        with build_opener(ProxyHandler({})).open(f"{head}{path}", timeout=HEAD_TIMEOUT_S) as reply:
            raw: bytes = reply.read(MAX_CONFIG_BYTES)
            return raw
    except (URLError, HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        words = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        raise UsageError(f"{head}{path}: {words}; is a head server there?") from None


class RoutedAgents(RemoteAgent):
    """The agents of one head server. `data` are rows that name theirs in `agent_ref`; a lone agent plays all."""

    description = "The agents that a NeMo Gym head server knows, gym+head://host:port; rows with --data name theirs."

    def __init__(self, url: str, data: str | None = None) -> None:
        self._head = parse_address(url, "gym+head")
        self._clients: dict[str, GymClient] = {}
        self._addresses: dict[str, str] = {}
        self._rows = RowDataset(data, url, self._check, prompt_optional=True)

    def tasks(self) -> Iterable[Task]:
        """One a row; the head server is asked first, so that a row for nobody is refused with its line."""
        self._addresses = find_agents(self._head)
        return self._rows.tasks()

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
        """Ask the head server where its agents are."""
        await self._refresh_agents()

    async def _refresh_agents(self) -> None:
        """Learn the agents' addresses, again after one of them may have moved."""
        for name, base in (await asyncio.to_thread(find_agents, self._head)).items():
            known = self._clients.get(name)
            if known is None:
                self._clients[name] = GymClient(base)
                await self._clients[name].open()
            elif known.base != base:
                known.replace_server(base)

    async def stop(self) -> None:
        """Hang up."""
        for client in self._clients.values():
            await client.close()

    async def play(self, task: Task, rollout: Rollout, ask: AskModel, state: dict[str, JSON]) -> None:
        """Let the agent that the row names play; one that cannot be reached is looked for again."""
        client = self._client_of(task)
        try:
            await super().play(task, rollout, ask, state)
        except RolloutFailed:
            if client.unreachable:
                await self._try_refresh_agents()
            raise

    async def _try_refresh_agents(self) -> None:
        try:
            await self._refresh_agents()
        except UsageError:  # nor can the head server be reached: the failure at hand says enough
            return

    def _client_of(self, task: Task) -> GymClient:
        name = str(read_agent_name(task))
        if name not in self._clients:
            raise RolloutFailed("agent_error", AGENT_REF, f"the head server no longer knows an agent called {name}")
        return self._clients[name]
