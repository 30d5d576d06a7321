"""Run a model many times on every task, score each attempt, account for every one.

These are the public names; each is imported when it is first used.
"""

from rollbook._exports import export_lazily, find_moved_modules

TYPE_CHECKING = False  # type checkers take it for True; importing typing would double the time of `import rollbook`
if TYPE_CHECKING:
    from rollbook.agents import Program
    from rollbook.book import Book
    from rollbook.checks import Soundness, check
    from rollbook.clusters import Submission, submit
    from rollbook.commands import (
        CuratedFile,
        ExportResult,
        compare,
        curate,
        export,
        extend,
        plan,
        profile,
        report,
        resume,
        reverify,
        work,
    )
    from rollbook.containers import Container, ContainerHandle
    from rollbook.core import Failure, Group, Limits, Message, RoleCall, Rollout, Sampling, Score, Task, Turn
    from rollbook.engine import Collector, Progress, ReverifyResult, RunResult, Tracker, run, run_async, run_each, score
    from rollbook.environments import (
        Environment,
        Judge,
        McpServer,
        RoleModel,
        SyncContainerHandle,
        UserSimulator,
        tool,
    )
    from rollbook.errors import (
        BookError,
        EndpointDown,
        LeaderboardIncomplete,
        RollbookError,
        RolloutFailed,
        Shortfall,
        Stopped,
        TokenError,
        Unsound,
        UsageError,
    )
    from rollbook.gym import Harness, ResourceServerProcess, generate_gym_config, write_gym_config
    from rollbook.reports import Leaderboard, ProfileFile, Report, Run, RunComparison, load
    from rollbook.sandbox import Grader, Sandbox
else:
    __getattr__, __dir__ = export_lazily(__name__)

__version__ = "0.2.0"

find_moved_modules()

__all__ = [
    "Book",
    "BookError",
    "Collector",
    "Container",
    "ContainerHandle",
    "CuratedFile",
    "EndpointDown",
    "Environment",
    "ExportResult",
    "Failure",
    "Grader",
    "Group",
    "Harness",
    "Judge",
    "Leaderboard",
    "LeaderboardIncomplete",
    "Limits",
    "McpServer",
    "Message",
    "ProfileFile",
    "Program",
    "Progress",
    "Report",
    "ResourceServerProcess",
    "ReverifyResult",
    "RoleCall",
    "RoleModel",
    "RollbookError",
    "Rollout",
    "RolloutFailed",
    "Run",
    "RunComparison",
    "RunResult",
    "Sampling",
    "Sandbox",
    "Score",
    "Shortfall",
    "Soundness",
    "Stopped",
    "Submission",
    "SyncContainerHandle",
    "Task",
    "TokenError",
    "Tracker",
    "Turn",
    "Unsound",
    "UsageError",
    "UserSimulator",
    "__version__",
    "check",
    "compare",
    "curate",
    "export",
    "extend",
    "generate_gym_config",
    "load",
    "plan",
    "profile",
    "report",
    "resume",
    "reverify",
    "run",
    "run_async",
    "run_each",
    "score",
    "submit",
    "tool",
    "work",
    "write_gym_config",
]
