"""Run a model many times on every task, score each attempt, account for every one.

These are the public names; each is imported when it is first used.
"""

from rollbook._exports import export_lazily, find_moved_modules

TYPE_CHECKING = False  # type checkers take it for True; importing typing would double the time of `import rollbook`
if TYPE_CHECKING:
    from rollbook.agents import Program
    from rollbook.clusters import submit
    from rollbook.core import Message, Rollout, Score, Task
    from rollbook.engine import Collector, run, run_async, score
    from rollbook.environments import Environment, McpServer, tool
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
    from rollbook.gym import Harness, ResourceServerProcess, generate_gym_config, write_gym_config
    from rollbook.reports import Run, load
else:
    __getattr__, __dir__ = export_lazily(__name__)

__version__ = "0.1.0"

find_moved_modules()

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
    "Run",
    "Score",
    "Shortfall",
    "Stopped",
    "Task",
    "TokenError",
    "UsageError",
    "__version__",
    "generate_gym_config",
    "load",
    "run",
    "run_async",
    "score",
    "submit",
    "tool",
    "write_gym_config",
]
