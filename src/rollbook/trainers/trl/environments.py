"""`Environments`: TRL's `environment_factory`. TRL generates and calls the tools; state and verdict are ours."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

from rollbook.core import JSON, Limits, Rollout, Task, encode
from rollbook.engine import OnFailure, environment_name, open_environments, roundtrip_task
from rollbook.environments import EnvironmentRuntime, EnvironmentSession, resolve, write_snapshot
from rollbook.errors import RolloutFailed, UsageError
from rollbook.trainers.task_runner import BackgroundLoop
from rollbook.trainers.trl.rollouts import PromptIndex, read_messages

T = TypeVar("T")
JSON_TYPES: Mapping[str, type] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
}


class Environments:
    """`GRPOTrainer(environment_factory=environments, reward_funcs=environments.reward, ...)`, on the rows of `rows()`.

    For environments whose tools are the same for every task; one that replies to the model needs `Rollouts`.
    """

    def __init__(
        self,
        env: str,
        *,
        data: str | None = None,
        limit: int | None = None,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        on_failure: OnFailure = "raise",
    ) -> None:
        loaded = resolve(env, data)
        if loaded.spec.offers or loaded.spec.replies or loaded.spec.plays:
            raise UsageError(
                f"{env}: its tools differ by task, or it replies to the model; use Rollouts as a rollout_func"
            )
        if on_failure not in ("raise", "mask"):
            raise UsageError(f"on_failure={on_failure!r}: TRL generates each rollout once; raise or mask")
        self._loaded, self._limits, self._masks_failures = loaded, limits, on_failure == "mask"
        self.masked = 0
        self._name = environment_name(loaded)
        self._prompts = PromptIndex(loaded.instance.tasks(), limit)
        self._background, self._stack = BackgroundLoop("rollbook-trl"), AsyncExitStack()
        self._runtime = self._background.run(self._open())
        functions = [tool["function"] for tool in loaded.spec.tools]
        methods = {function["name"]: make_tool_method(function) for function in functions}
        self._class = type(self._name, (TrlEnvironment,), methods)

    async def _open(self) -> EnvironmentRuntime:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="rollbook-")))
        spec = write_snapshot(self._loaded, folder / "source")
        instances = {self._name: self._loaded.instance}
        runtimes = open_environments({self._name: spec}, self._limits, run=folder, hosts=None, instances=instances)
        return (await self._stack.enter_async_context(runtimes))[self._name]

    def __call__(self) -> TrlEnvironment:
        """Return a new instance, whose methods are the tools."""
        instance: TrlEnvironment = self._class(self)
        return instance

    def rows(self) -> list[dict[str, JSON]]:
        """Return the rows of the dataset to train on."""
        return self._prompts.rows()

    def close(self) -> None:
        """Close the environment."""
        self._background.run(self._stack.aclose())
        self._background.close()

    def _run(self, work: Coroutine[None, None, T]) -> T:
        return self._background.run(work)

    def _task(self, name: str) -> Task:
        return roundtrip_task(self._prompts.find_by_id(name), self._name)

    def reward(
        self, completions: Sequence[Any], environments: Sequence[TrlEnvironment], **_: Any
    ) -> list[float | None]:
        """Return the reward of each completion; a failure raises, or is None if the policy is to mask."""
        return [
            self._reward(completion, environment)
            for completion, environment in zip(completions, environments, strict=True)
        ]

    def _reward(self, completion: Any, environment: TrlEnvironment) -> float | None:
        try:
            return self._run(environment._score(completion))
        except RolloutFailed:
            if not self._masks_failures:
                raise
            self.masked += 1
            return None


class TrlEnvironment:
    """The environment of one rollout, as TRL uses it; every public method but `reset` is a tool."""

    def __init__(self, factory: Environments) -> None:
        self._factory = factory
        self._session: EnvironmentSession | None = None

    def reset(self, task: str, **_: JSON) -> None:
        """Begin a rollout of a task; the previous one is over."""
        self._factory._run(self._open_session(task))

    async def _open_session(self, name: str) -> None:
        runtime = self._factory._runtime
        if self._session is not None:
            previous, self._session = self._session, None
            await runtime.close_session(previous)
        self._task = self._factory._task(name)
        self._session = await runtime.open_session(self._task, name)

    def _use(self, name: str, arguments: dict[str, JSON]) -> str:
        if self._session is None:
            raise UsageError("a tool was called before reset()")
        return self._factory._run(self._session.use(name, encode(arguments).decode()))

    async def _score(self, completion: Any) -> float:
        assert self._session is not None, "reset() comes first"
        messages = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion
        rollout = Rollout(task=self._task, sample=0, seed=0, messages=[*self._task.messages, *read_messages(messages)])
        rollout.outcome = await self._session.outcome()
        return (await self._factory._runtime.verify(self._task, rollout)).reward


def make_tool_method(function: Mapping[str, JSON]) -> Callable[..., str]:
    """Return a tool as a method from which TRL reads a schema: its types, and a docstring with its arguments."""
    name, parameters = str(function["name"]), function.get("parameters", {})
    properties, required = parameters.get("properties", {}), set(parameters.get("required", ()))

    def method(self: TrlEnvironment, **arguments: JSON) -> str:
        return self._use(name, arguments)

    signature = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for key, schema in properties.items():
        default = inspect.Parameter.empty if key in required else schema.get("default")
        kind = JSON_TYPES.get(schema.get("type", "string"), str)
        signature.append(inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))
    method.__name__ = method.__qualname__ = name
    method.__signature__ = inspect.Signature(signature, return_annotation=str)  # type: ignore[attr-defined]
    method.__annotations__ = {parameter.name: parameter.annotation for parameter in signature[1:]} | {"return": str}
    method.__doc__ = _write_docstring(function, properties)
    return method


def _write_docstring(function: Mapping[str, JSON], properties: Mapping[str, JSON]) -> str:
    lines = [str(function.get("description") or function["name"])]
    if properties:
        lines += ["", "Args:"]
        lines += [f"    {key}: {schema.get('description') or key}" for key, schema in properties.items()]
    return "\n".join([*lines, "", "Returns:", "    What the tool returns."])
