"""`RolloutEnvironment`: whole rollouts for NeMo RL, streamed row by row as they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, TypeAlias

import msgspec

from rollbook.collect.blend import Entry
from rollbook.collect.policy import OnFailure
from rollbook.core.json import JSON
from rollbook.core.manifest import Sampling
from rollbook.core.rollout import Rollout
from rollbook.core.task import Task
from rollbook.errors import RollbookError, Stopped, TokenError, UsageError
from rollbook.trainers.nemo_rl.environment import Remotely
from rollbook.trainers.nemo_rl.failures import Reason, missing
from rollbook.trainers.nemo_rl.message_log import result_of
from rollbook.trainers.players import Players
from rollbook.trainers.rows import GYM
from rollbook.trainers.sample import sample_of

ROW = "_rowidx"
Came: TypeAlias = tuple[int, dict[str, Any], dict[str, float] | None]


class RolloutConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How it is set up."""

    environments: list[Entry]
    base_urls: list[str]
    """The endpoints of all replicas."""
    model_name: str = ""
    on_failure: OnFailure = "raise"
    continue_tokens: bool = False
    concurrency: int = 256
    seed: int = 0
    attempts: dict[str, int] = {}
    """How often each kind of failure is tried; as in a run unless given."""
    max_tokens: int = 1024
    """Of a row that does not say."""

    def __post_init__(self) -> None:
        if self.on_failure in ("drop_group", "mask"):
            why = "NeMo RL takes back every row it gave, and computes their groups itself"
            raise UsageError(f"on_failure={self.on_failure}: {why}; use raise or retry")


class RolloutActor:
    """The environment itself; an instance lives on this event loop or in a Ray actor."""

    def __init__(self, cfg: Mapping[str, object]) -> None:
        try:
            self._config = msgspec.convert(dict(cfg), RolloutConfig)
        except msgspec.ValidationError as error:
            raise UsageError(f"rollout environment: {error}") from None
        config = self._config
        self._players = Players(
            {entry.name or entry.env: entry for entry in config.environments},
            config.base_urls,
            model_name=config.model_name,
            on_failure=config.on_failure,
            continue_tokens=config.continue_tokens,
            seed=config.seed,
            concurrency=config.concurrency,
            attempts=config.attempts,
        )

    async def run_rollouts(self, examples: Sequence[dict[str, JSON]], timer_prefix: str = "") -> AsyncIterator[Came]:
        """(row index, result, timing) of every row as it ends; the timing comes with the last.

        When all have ended and fewer came back than were requested, this is raised before anything else that is wrong.
        """
        rows = indexed(examples)
        lost: dict[int, Reason] = {}
        unusable: dict[int, Reason] = {}
        ended: list[Rollout] = []
        async for index, came in self._ended(rows):
            if isinstance(came, Reason):
                lost[index] = came
                continue
            ended.append(came)
            try:
                result = result_of(sample_of(came), rows[index])
            except TokenError as error:
                unusable[index] = Reason("data", str(error))
                continue
            yield index, result, timing(ended, timer_prefix) if len(ended) == len(rows) else None
        if lost or unusable:
            raise missing(len(rows), lost or unusable)

    async def _ended(self, rows: Mapping[int, dict[str, JSON]]) -> AsyncIterator[tuple[int, Rollout | Reason]]:
        """Every row as it ends: its rollout, or why there is none."""
        asked = self._players.routed([_bare(row) for row in rows.values()])
        waits = [
            asyncio.ensure_future(self._play(index, name, task, self._sampling(rows[index])))
            for index, (name, task) in zip(rows, asked, strict=True)
        ]
        try:
            for wait in asyncio.as_completed(waits):
                yield await wait
        finally:
            for one in waits:
                one.cancel()

    async def _play(self, index: int, name: str, task: Task, sampling: Sampling) -> tuple[int, Rollout | Reason]:
        try:
            rollout = await self._players.play(name, task, sampling)
        except RollbookError as error:  # the endpoint is gone, say: every row that waits is told so
            return index, Reason("infra" if isinstance(error, Stopped) else "data", str(error))
        failure = rollout.failure
        return index, Reason(failure.side, f"{failure.kind}: {failure.message}") if failure else rollout

    def _sampling(self, row: Mapping[str, JSON]) -> Sampling:
        params = row.get(GYM)
        asked = params if isinstance(params, dict) else {}
        tokens = asked.get("max_output_tokens") or self._config.max_tokens
        try:
            return Sampling(_or_1(asked.get("temperature")), _or_1(asked.get("top_p")), int(tokens))
        except (TypeError, ValueError) as error:
            raise UsageError(f"run_rollouts: {GYM} asks for {error}") from None

    async def pause(self) -> None:
        """Before a weight update."""
        await self._players.pause()

    async def resume(self, model_version: str | None = None) -> None:
        """After it."""
        self._players.resume(model_version)

    async def shutdown(self) -> None:
        """End every rollout and every environment."""
        await self._players.__aexit__(None, None, None)


class RolloutEnvironment(RolloutActor):
    """`RolloutEnvironment(cfg)` works on this event loop; `.remote(cfg)` is a Ray actor, whose results stream."""

    @classmethod
    def options(cls, **options: object) -> Remotely:
        """Ray's own: where and how the actor is to run."""
        if find_spec("ray") is None:
            raise UsageError("RolloutEnvironment.remote: Ray is not installed; RolloutEnvironment(cfg) works here")
        import ray

        made: Remotely = ray.remote(**{"max_concurrency": 64, **options})(RolloutActor)
        return made

    @classmethod
    def remote(cls, cfg: Mapping[str, object]) -> Any:
        """A new actor."""
        return cls.options().remote(cfg)


def indexed(examples: Sequence[dict[str, JSON]]) -> dict[int, dict[str, JSON]]:
    """The rows by the index that NeMo RL gave them, else by their place."""
    if not examples:
        raise UsageError("run_rollouts: no examples")
    found: dict[int, dict[str, JSON]] = {}
    for place, row in enumerate(examples):
        if not isinstance(row, dict):
            raise UsageError(f"run_rollouts: example {place} is no row but a {type(row).__name__}")
        index = row.get(ROW, place)
        if index in found:
            raise UsageError(f"run_rollouts: two examples have {ROW} {index}")
        found[index] = row
    return found


def _bare(row: dict[str, JSON]) -> dict[str, JSON]:
    return {name: value for name, value in row.items() if name != ROW}


def _or_1(value: JSON) -> float:
    return 1.0 if value is None else float(value)


def timing(rollouts: Sequence[Rollout], prefix: str) -> dict[str, float]:
    """Where the time of a batch went, in seconds: the mean and the most of each part."""
    told: dict[str, float] = {}
    for part in ("seconds", "model_s", "environment_s", "verify_s"):
        spent = [float(getattr(rollout.timing, part)) for rollout in rollouts]
        name = f"{prefix}/{part}" if prefix else part
        told |= {f"{name}/mean": sum(spent) / len(spent), f"{name}/max": max(spent)}
    return told
