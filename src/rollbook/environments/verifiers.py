"""Tasksets of the package `verifiers` (0.4): `verifiers:ID?setting=value`, prompts scored by their own rewards.

The package has the data and the rewards; Rollbook calls the model. So only tasksets with one answer are supported: one
that needs the package's runtime, tool servers or judges is refused, rather than scored in part.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from rollbook.core import JSON, Rollout, Score, Task
from rollbook.environments.environment import Environment
from rollbook.errors import UsageError


class Verifiers(Environment):
    """One taskset by the id of its package; all other arguments are its settings."""

    kind = "adapter"
    description = "tasksets of the package verifiers with one answer a task: verifiers:ID (pip install verifiers)"

    def __init__(self, name: str, **settings: JSON) -> None:
        self._name = name
        try:
            from verifiers.v1.utils.generic import concrete_type
            from verifiers.v1.utils.loaders import load_taskset, taskset_class
        except ImportError as error:
            raise UsageError(f"verifiers:{name} needs a package: pip install 'verifiers>=0.4' ({error})") from None
        try:
            from verifiers.v1 import TasksetConfig

            config = concrete_type(taskset_class(name), TasksetConfig) or TasksetConfig
            self._taskset = load_taskset(config(id=name, **settings))
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise UsageError(f"verifiers:{name}: {' '.join(str(error).split())[:500]}") from None
        self._refuse_unsupported()

    @cached_property
    def _task_type(self) -> Any:
        return type(self._taskset).task_type()

    def _refuse_unsupported(self) -> None:
        """Raise a UsageError that names what this taskset needs and Rollbook does not provide."""
        from verifiers.v1 import Task as Theirs
        from verifiers.v1.envs.single_agent import SingleAgentEnv
        from verifiers.v1.utils.loaders import environment_class

        cls, config = self._task_type, self._taskset.config
        needs = {
            "a container": cls.NEEDS_CONTAINER,
            "setup or finalize": cls.setup is not Theirs.setup or cls.finalize is not Theirs.finalize,
            "tool servers": bool(type(self._taskset).toolsets(config) or cls.toolsets(config.task)),
            "judges": bool(config.task.judges),
            "an environment of its own": environment_class(self._name) is not SingleAgentEnv,
        }
        unsupported = [what for what, needed in needs.items() if needed]
        if unsupported:
            raise UsageError(f"verifiers:{self._name} needs {', '.join(unsupported)}: run it with verifiers itself")

    def tasks(self) -> Iterator[Task]:
        """Yield the tasks of the taskset in order."""
        for task in self._taskset:
            data = task.data
            self._check_rewards(task)
            messages = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
            messages += prompt_messages(data.prompt, f"verifiers:{self._name}: task {data.idx}")
            row = data.model_dump(mode="json", exclude_defaults=True)
            yield Task(data.id or f"{self._name}-{data.idx:05d}", messages=messages, row=row)

    def _check_rewards(self, task: Any) -> None:
        for hook in (*task.hooks("reward"), *task.hooks("metric")):
            runtime = inspect.signature(hook).parameters.get("runtime")
            if runtime is not None and runtime.default is runtime.empty:
                raise UsageError(
                    f"verifiers:{self._name}: {hook.__name__} needs a runtime: run it with verifiers itself"
                )

    def verify(self, task: Task, rollout: Rollout) -> Score:
        """Score the weighted sum of the rewards; each reward and metric is a part."""
        theirs = self._task_type(
            self._task_type.data_type().model_validate(task.fields["row"]), self._taskset.config.task
        )
        trace = make_trace(theirs, rollout)
        asyncio.run(theirs.score(trace))
        if not trace.rewards:
            raise ValueError(f"verifiers:{self._name} gives no reward")
        parts = {name: reward.score for name, reward in trace.rewards.items()} | trace.metrics
        return Score(trace.reward, parts=parts, answer=trace.last_reply)


def prompt_messages(prompt: Any, where: str) -> list[dict[str, JSON]]:
    """Return a prompt as messages; only text is supported."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if not prompt or not all(isinstance(message.content, str) for message in prompt):
        raise UsageError(f"{where}: its prompt is not text: run it with verifiers itself")
    return [{"role": message.role, "content": message.content} for message in prompt]


def make_trace(task: Any, rollout: Rollout) -> Any:
    """Return the rollout as a trace, the form that the package's rewards read."""
    from verifiers.v1.configs.agent import AgentConfig
    from verifiers.v1.graph import MessageNode
    from verifiers.v1.trace import AgentInfo, ModelCall, Trace, TraceTask
    from verifiers.v1.types import AssistantMessage, SystemMessage, UserMessage

    kinds = {"system": SystemMessage, "user": UserMessage, "assistant": AssistantMessage}
    prompt_length = len(rollout.task.messages)
    nodes = [
        MessageNode(parent=at - 1 if at else None, sampled=at >= prompt_length, message=kinds[m.role](content=m.text))
        for at, m in enumerate(rollout.messages)
    ]
    return Trace(
        task=TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        agent=AgentInfo(config=AgentConfig()),
        nodes=nodes,
        calls=[ModelCall(node=len(nodes) - 1, finish_reason="length" if rollout.truncated else "stop")],
        is_completed=True,
        ok=True,
    )
