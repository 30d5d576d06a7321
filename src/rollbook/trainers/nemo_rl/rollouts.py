"""`RolloutEnvironment`: whole rollouts for NeMo RL, streamed row by row as they end.

Missing rows are an exception: the infrastructure's fault, which may be retried, or the data's. These exceptions can be
pickled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, TypeAlias

import msgspec

from rollbook.core import JSON, Rollout, Sampling, Task
from rollbook.engine import Entry, OnFailure
from rollbook.errors import InvalidReward, TokenError, UsageError
from rollbook.trainers.formats import sample_of, to_nemo_rl
from rollbook.trainers.nemo_rl.code_environment import RayRemoteClass
from rollbook.trainers.rows import PARAMS_KEY, MissingReason, RowsMissing, find_side, get_reason
from rollbook.trainers.task_runner import TaskRunner


def _find_failure_bases() -> tuple[type[Exception], type[Exception]]:
    """Return the classes by which NeMo RL tells failures apart, where it is installed: infra is dispatched again."""
    try:
        from nemo_rl.experience.failures import RolloutDataFailure, RolloutInfraFailure
    except ImportError:
        return Exception, Exception
    return RolloutInfraFailure, RolloutDataFailure


_InfraBase, _DataBase = _find_failure_bases()


class DataFailure(RowsMissing, _DataBase):  # type: ignore[misc, valid-type]
    """At least one of them would fail again."""


class InfraFailure(RowsMissing, _InfraBase):  # type: ignore[misc, valid-type]
    """All of them failed for reasons unrelated to the rows: requesting them again may help."""


def make_rows_missing(requested: int, lost: Mapping[int, MissingReason]) -> RowsMissing:
    """Return the exception for rows that did not come back."""
    kind = InfraFailure if find_side(lost.values()) == "infra" else DataFailure
    return kind(requested, {row: lost[row] for row in sorted(lost)})


ROW_INDEX_KEY = "_rowidx"
RowResult: TypeAlias = tuple[int, dict[str, Any], dict[str, float] | None]


class RolloutConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of the environment."""

    environments: list[Entry]
    base_urls: list[str]
    """The endpoints of all replicas."""
    model_name: str = ""
    on_failure: OnFailure = "raise"
    continue_tokens: bool = False
    concurrency: int = 256
    seed: int = 0
    attempts: dict[str, int] = {}
    """How often each kind of failure is tried; by default as in a run."""
    outage_s: float = 300.0
    """How long all rows together wait for endpoints that do not answer."""
    reward_components: bool = False
    """Whether the parts of scores are rewards of their own, as GDPO needs them; they must sum to the reward."""
    max_tokens: int = 1024
    """For a row that does not set it."""

    def __post_init__(self) -> None:
        if self.on_failure in ("drop_group", "mask"):
            why = "NeMo RL expects a result for every row, and computes the groups itself"
            raise UsageError(f"on_failure={self.on_failure}: {why}; use raise or retry")


class RolloutActor:
    """The environment itself; an instance runs on this event loop or in a Ray actor."""

    def __init__(self, cfg: Mapping[str, object]) -> None:
        try:
            self._config = msgspec.convert(dict(cfg), RolloutConfig)
        except msgspec.ValidationError as error:
            raise UsageError(f"rollout environment: {error}") from None
        config = self._config
        self._runner = TaskRunner(
            {entry.name or entry.env: entry for entry in config.environments},
            config.base_urls,
            model_name=config.model_name,
            on_failure=config.on_failure,
            continue_tokens=config.continue_tokens,
            seed=config.seed,
            concurrency=config.concurrency,
            attempts=config.attempts,
            outage_s=config.outage_s,
        )

    async def run_rollouts(
        self,
        examples: Sequence[dict[str, JSON]],
        timer_prefix: str = "",
        deduplicate_multimodal_data: bool = False,
    ) -> AsyncIterator[RowResult]:
        """Yield (row index, result, timing) of every row as it ends; the timing comes with the last.

        If fewer rows came back than were requested, that is raised at the end, before any other error. NeMo RL passes
        `deduplicate_multimodal_data` by position; it changes nothing here, because no media are returned.
        """
        rows = index_rows(examples)
        missing: dict[int, MissingReason] = {}
        ended: list[Rollout] = []
        async for index, rollout in self._run_rows(rows):
            if isinstance(rollout, MissingReason):
                missing[index] = rollout
                continue
            ended.append(rollout)
            try:
                result = to_nemo_rl(sample_of(rollout), rows[index], components=self._config.reward_components)
            except (TokenError, InvalidReward) as error:
                missing[index] = MissingReason("data", str(error))
                continue
            yield index, result, summarize_timing(ended, timer_prefix) if len(ended) == len(rows) else None
        if missing:
            raise make_rows_missing(len(rows), dict(sorted(missing.items())))

    async def _run_rows(
        self, rows: Mapping[int, dict[str, JSON]]
    ) -> AsyncIterator[tuple[int, Rollout | MissingReason]]:
        """Yield every row as it ends: its rollout, or why there is none."""
        unindexed = [{name: row[name] for name in row if name != ROW_INDEX_KEY} for row in rows.values()]
        routed = self._runner.route_rows(unindexed)
        tasks = [
            asyncio.ensure_future(self._run_row(index, name, task, self._read_sampling(rows[index])))
            for index, (name, task) in zip(rows, routed, strict=True)
        ]
        try:
            for wait in asyncio.as_completed(tasks):
                yield await wait
        finally:
            for pending in tasks:
                pending.cancel()

    async def _run_row(
        self, index: int, name: str, task: Task, sampling: Sampling
    ) -> tuple[int, Rollout | MissingReason]:
        outcome = await self._runner.try_task(name, task, sampling)
        return index, get_reason(outcome) or outcome

    def _read_sampling(self, row: Mapping[str, JSON]) -> Sampling:
        params = row.get(PARAMS_KEY)
        requested = params if isinstance(params, dict) else {}
        tokens = requested.get("max_output_tokens") or self._config.max_tokens
        try:
            return Sampling(
                _default_to_1(requested.get("temperature")), _default_to_1(requested.get("top_p")), int(tokens)
            )
        except (TypeError, ValueError) as error:
            raise UsageError(f"run_rollouts: {PARAMS_KEY} asks for {error}") from None

    async def pause(self) -> None:
        """Pause model calls before a weight update."""
        await self._runner.pause()

    async def resume(self, model_version: str | None = None) -> None:
        """Resume them after it."""
        self._runner.resume(model_version)

    async def shutdown(self) -> None:
        """End every rollout and every environment."""
        await self._runner.__aexit__(None, None, None)


class RolloutEnvironment(RolloutActor):
    """`RolloutEnvironment(cfg)` runs on this event loop; `.remote(cfg)` is a Ray actor, whose results stream."""

    @classmethod
    def options(cls, **options: object) -> RayRemoteClass:
        """Ray's own options: where and how the actor runs."""
        if find_spec("ray") is None:
            raise UsageError("RolloutEnvironment.remote: Ray is not installed; RolloutEnvironment(cfg) works here")
        import ray

        remote_class: RayRemoteClass = ray.remote(**{"max_concurrency": 64, **options})(RolloutActor)
        return remote_class

    @classmethod
    def remote(cls, cfg: Mapping[str, object]) -> Any:
        """Start a new actor."""
        return cls.options().remote(cfg)


def start_rollout_actor(
    env_configs: Mapping[str, Any], base_urls: Sequence[str | None], model_name: str, **_: object
) -> Any:
    """Start the actor with what NeMo RL's set-up passes to `spinup_nemo_gym_actor`, for which it is a replacement.

    The settings are in `env.nemo_gym.rollbook`; endpoints and model are those of NeMo RL's own servers.
    """
    block = env_configs.get("nemo_gym", {}).get("rollbook")
    if not isinstance(block, Mapping):
        raise UsageError("env.nemo_gym has no `rollbook:` block; write it, and beneath it `environments:`")
    servers = {"base_urls": [url for url in base_urls if url], "model_name": model_name}
    return RolloutEnvironment.remote({**servers, **block})


def index_rows(examples: Sequence[dict[str, JSON]]) -> dict[int, dict[str, JSON]]:
    """Return the rows by the index that NeMo RL gave them, else by their place."""
    if not examples:
        raise UsageError("run_rollouts: no examples")
    by_index: dict[int, dict[str, JSON]] = {}
    for place, row in enumerate(examples):
        if not isinstance(row, dict):
            raise UsageError(f"run_rollouts: example {place} is not a row but a {type(row).__name__}")
        index = row.get(ROW_INDEX_KEY, place)
        if index in by_index:
            raise UsageError(f"run_rollouts: two examples have {ROW_INDEX_KEY} {index}")
        by_index[index] = row
    return by_index


def _default_to_1(value: JSON) -> float:
    return 1.0 if value is None else float(value)


def summarize_timing(rollouts: Sequence[Rollout], prefix: str) -> dict[str, float]:
    """Return the times of a batch in seconds: the mean and the maximum of each part."""
    timing: dict[str, float] = {}
    for part in ("seconds", "model_s", "environment_s", "verify_s"):
        seconds = [float(getattr(rollout.timing, part)) for rollout in rollouts]
        name = f"{prefix}/{part}" if prefix else part
        timing |= {f"{name}/mean": sum(seconds) / len(seconds), f"{name}/max": max(seconds)}
    return timing
