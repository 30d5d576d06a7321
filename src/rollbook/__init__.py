"""Every rollout is accounted for. The public names, each imported when it is first used; nothing else."""

from __future__ import annotations

TYPE_CHECKING = False  # what type checkers take for True; importing typing would double the cost of importing us
if TYPE_CHECKING:
    from rollbook.agents.program import Program
    from rollbook.clusters.call import submit
    from rollbook.collect.collector import Collector
    from rollbook.collect.run import run
    from rollbook.collect.score import score
    from rollbook.core.message import Message
    from rollbook.core.rollout import Rollout
    from rollbook.core.score import Score
    from rollbook.core.task import Task
    from rollbook.environments.environment import Environment
    from rollbook.environments.mcp.server import McpServer
    from rollbook.environments.tool import tool
    from rollbook.errors import (
        BookError,
        EndpointDown,
        RollbookError,
        RolloutFailed,
        Shortfall,
        Stopped,
        TokenError,
        UsageError,
    )
    from rollbook.wire.gym.config import generate_gym_config, write_gym_config
    from rollbook.wire.gym.harness import Harness
    from rollbook.wire.gym.process import ResourceServerProcess

__version__ = "0.1.0"

__all__ = [
    "BookError",
    "Collector",
    "EndpointDown",
    "Environment",
    "Harness",
    "McpServer",
    "Message",
    "Program",
    "ResourceServerProcess",
    "RollbookError",
    "Rollout",
    "RolloutFailed",
    "Score",
    "Shortfall",
    "Stopped",
    "Task",
    "TokenError",
    "UsageError",
    "__version__",
    "generate_gym_config",
    "run",
    "score",
    "submit",
    "tool",
    "write_gym_config",
]

_HOMES = {
    "Collector": "rollbook.collect.collector",
    "Program": "rollbook.agents.program",
    "run": "rollbook.collect.run",
    "score": "rollbook.collect.score",
    "submit": "rollbook.clusters.call",
    "Message": "rollbook.core.message",
    "Rollout": "rollbook.core.rollout",
    "Score": "rollbook.core.score",
    "Task": "rollbook.core.task",
    "Environment": "rollbook.environments.environment",
    "McpServer": "rollbook.environments.mcp.server",
    "tool": "rollbook.environments.tool",
    "Harness": "rollbook.wire.gym.harness",
    "ResourceServerProcess": "rollbook.wire.gym.process",
    "generate_gym_config": "rollbook.wire.gym.config",
    "write_gym_config": "rollbook.wire.gym.config",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(_HOMES.get(name, "rollbook.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
