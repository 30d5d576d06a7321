"""The Environment base class: tasks and a verifier; optionally tools, state, replies and MCP servers.

Also the checks of a class (which of its methods are async, which hooks it has), and `McpServer`, the declaration of a
Model Context Protocol server whose tools are added to those of an environment. Nothing here needs the package `mcp`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias

import msgspec

from rollbook.core import JSON, Message, Rollout, Score, Task
from rollbook.environments.tools import tool as tool  # the source in old run directories may import it from here
from rollbook.environments.tools import tool_methods
from rollbook.errors import UsageError

if TYPE_CHECKING:
    from rollbook.environments.judge import Judge
    from rollbook.models import AskModel


VerifyResult: TypeAlias = bool | int | float | Score
"""What a verifier may return."""

EnvironmentState: TypeAlias = Any
"""Whatever `open` returns; it never leaves the process it was made in, so any type is allowed."""

ReplyMessage: TypeAlias = str | Message | None
"""The reply of an environment; None ends the conversation."""

_ARGUMENTS = "__rollbook_arguments__"

Solution: TypeAlias = str | list[str] | None
"""A known right answer: one text, or one text per turn, with tool calls in the text format."""

STATE_METHODS = ("open", "use", "reply", "play", "outcome", "close")
LIFECYCLE_METHODS = ("start", "stop")


class McpServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server: a `command` that communicates over its standard input and output, or a `url`.

    Environment variables are given by their names, never by their values.
    """

    command: Sequence[str] = ()
    """The command to start, in the folder of the environment's source."""
    url: str = ""
    env: Sequence[str] = ()
    """Names of the variables that the command gets, in addition to HOME, PATH and similar ones."""
    token_env: str = ""
    """The name of the variable with the bearer token for the URL."""
    per_rollout: bool = False
    """Whether each rollout has its own process; otherwise one serves all rollouts of a worker."""

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise UsageError("McpServer: give either command=[...] or url=...")
        if isinstance(self.command, str):
            raise UsageError(f"McpServer: write command={self.command.split()!r}, a list of words")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise UsageError(f"McpServer: url={self.url!r} must begin with http:// or https://")
        if self.url and (self.env or self.per_rollout):
            raise UsageError(f"McpServer: {self.url} is not started here: env and per_rollout are for a command")
        if self.command and self.token_env:
            raise UsageError("McpServer: token_env is for a url; a command gets variables by env=[...]")

    @property
    def display_name(self) -> str:
        """The name of the server in messages."""
        return f"MCP server {self.url or ' '.join(self.command)}"


class Environment:
    """An environment needs two methods, `tasks` and `verify`; everything else has a default.

    Any method except `tasks`, `solution` and `offers` may be `async`; those that share state (`open`, the tools,
    `reply`, `outcome`, `close`) are all async or all not; `use`, `start` and `stop` always are. Arguments of `__init__`
    are JSON, because the instance is made again in other processes.
    """

    description: ClassVar[str] = ""
    """One line for `rollbook envs`."""

    row_fields: ClassVar[Mapping[str, str]] = {}
    """What the fields of a row of `data` mean, by name; shown by `rollbook envs NAME`."""

    example_row: ClassVar[Mapping[str, JSON]] = {}
    """A row of `data`, from which `rollbook envs NAME` makes an example task."""

    scoring_version: ClassVar[int] = 1
    """Increased by a built-in when its verdicts change: a run of another version cannot be resumed with this one."""

    files: ClassVar[tuple[str, ...]] = ()
    """Data files that the verifier reads, as patterns relative to the source file; copied together with the source."""

    verify_at_once: int | None = None
    """Largest number of concurrent async `verify` calls; waiting does not use up the deadline. None: no limit."""

    states_at_once: int | None = None
    """Largest number of rollouts with an async state at the same time; others wait before `open`. None: no limit."""

    notes: Sequence[str] = ()
    """Remarks for the person who plans a run, a line each; read after the tasks."""

    mcp: Sequence[McpServer] = ()
    """MCP servers whose tools are added to its own; a class attribute, or set by `__init__`."""

    report_by: ClassVar[str] = ""
    """A field of its tasks, as a dotted path: reports have numbers for each of its values, where there are several."""

    needs_model: ClassVar[bool] = True
    """Whether `play` uses the model of the run; a run of environments that bring their own model needs none."""

    needs_judge: ClassVar[bool] = False
    """Whether it cannot score without a judge (`--judge`); with `appeal` and False here, a judge is optional."""

    verify_needs_server: ClassVar[bool] = True
    """Whether `wait_until_ready` is called before `verify` too; False where the score comes with the rollout."""

    def __new__(cls, *args: JSON, **kwargs: JSON) -> Self:
        """Store the arguments: another process needs only them and the class."""
        if cls.__init__ is object.__init__ and (args or kwargs):
            raise TypeError(f"{cls.__name__}() takes no arguments")
        self = super().__new__(cls)
        object.__setattr__(self, _ARGUMENTS, (args, kwargs))
        return self

    def tasks(self) -> Iterable[Task]:
        """Yield every task, in a fixed order."""
        raise UsageError(
            f"{type(self).__name__} has no tasks(): define it to yield Task(id=..., prompt=..., answer=...)"
        )

    def verify(self, task: Task, rollout: Rollout) -> VerifyResult | Awaitable[VerifyResult]:
        """Score a rollout: a function of the task and the record alone."""
        raise UsageError(
            f"{type(self).__name__} has no verify(task, rollout): define it to return a bool, number or Score"
        )

    async def appeal(self, task: Task, rollout: Rollout, score: Score, judge: Judge) -> VerifyResult:
        """Score a rollout with the help of a judge; called after `verify`, with its score, if the run has a judge."""
        return score

    def solution(self, task: Task) -> Solution:
        """Return a text that is known to be right, or None; a list has one text per turn."""
        return None

    async def wait_until_ready(self, task: Task, outage_s: float) -> None:
        """Wait for a server that the task needs and that is away; RolloutFailed after `outage_s` (`--outage`).

        Called before `open`, and with `verify_needs_server` before `verify`; their deadlines do not count the waiting.
        """

    def open(self, task: Task) -> EnvironmentState:
        """Make the state of one rollout, before its first turn."""
        return None

    def offers(self, task: Task) -> list[dict[str, JSON]]:
        """Return more tools for one task, as chat completion schemas; called after `open`; `use` executes them."""
        return []

    async def use(self, name: str, arguments: dict[str, JSON], state: EnvironmentState) -> str:
        """Execute a call of an offered tool; raise on bad arguments, as any tool."""
        raise UsageError(f"{type(self).__name__} offers {name} and has no use(name, arguments, state)")

    def reply(self, task: Task, rollout: Rollout, state: EnvironmentState) -> ReplyMessage | Awaitable[ReplyMessage]:
        """Return the reply to the model's message; None ends the conversation."""
        return None

    async def play(self, task: Task, rollout: Rollout, ask: AskModel, state: EnvironmentState) -> None:
        """Run a whole rollout, and add messages and turns to it as they come; `ask` calls the model of the run."""
        raise UsageError(f"{type(self).__name__} has no play(task, rollout, ask, state)")

    def outcome(self, state: EnvironmentState) -> JSON:
        """Return what the verifier needs of the state, as JSON: it becomes part of the record."""
        return None

    def close(self, state: EnvironmentState) -> Awaitable[None] | None:
        """Release what `open` made; called exactly once, also when the rollout failed."""
        return None

    async def start(self) -> None:
        """Prepare what async methods use and all rollouts share: called once in each worker, before anything else.

        If it raises, the run is refused.
        """

    async def stop(self) -> None:
        """Release it at the end, however the run ended: called once for each `start`, also for one that raised."""


def parameters_of(cls: type[Environment]) -> dict[str, inspect.Parameter]:
    """Return the parameters of `__init__` by name."""
    if cls.__init__ is object.__init__:
        return {}
    return dict(list(inspect.signature(cls.__init__).parameters.items())[1:])


def arguments_of(environment: Environment) -> dict[str, JSON]:
    """Return the arguments of an instance by name; arguments that are not JSON are a UsageError."""
    args, kwargs = getattr(environment, _ARGUMENTS)
    named = dict(zip(parameters_of(type(environment)), args, strict=False)) | kwargs
    try:
        return msgspec.json.decode(msgspec.json.encode(named), type=dict[str, JSON])
    except TypeError as error:
        raise UsageError(f"{type(environment).__name__}: its arguments must be JSON: {error}") from None


def source_folder(environment: Environment) -> Path | None:
    """Return the folder of an environment's source; None for a class of a notebook."""
    file = getattr(sys.modules.get(type(environment).__module__), "__file__", None)
    return Path(file).resolve().parent if file else None


def as_message(value: object) -> Message | None:
    """Convert what `reply` returned to a message; a TypeError says what it should have been."""
    if value is None:
        return None
    if isinstance(value, str):
        return Message("user", value)
    if isinstance(value, Message) and value.role in ("user", "system"):
        return value
    shown = f"a message of the role {value.role!r}" if isinstance(value, Message) else f"a {type(value).__name__}"
    raise TypeError(f"reply returned {shown}; it must be text, a Message of the role user or system, or None")


class ExecutionMode(msgspec.Struct, frozen=True):
    """Where an environment's methods run: sync ones in environment processes, async ones on the loop."""

    verify: Literal["sync", "async"]
    state: Literal["none", "sync", "async"]


def execution_mode(cls: type[Environment], mcp: bool = False) -> ExecutionMode:
    """Return where the methods of a class run; an invalid class is a UsageError that names the methods.

    Tools of `mcp` servers run on the loop.
    """
    for name, how in (("tasks", "tasks()"), ("verify", "verify(task, rollout)")):
        if not overrides(cls, name):
            raise UsageError(f"{cls.__name__} has no {how}: an environment needs tasks() and verify(task, rollout)")
    for name in tool_methods(cls):
        if hasattr(Environment, name):
            raise UsageError(f"tool {cls.__name__}.{name} shadows the method of every environment; rename it")
    if not _is_async(cls, "appeal"):
        raise UsageError(f"{cls.__name__}.appeal must be async def: it waits for a judge")
    _check_offers(cls)
    _check_play(cls)
    mode = ExecutionMode("async" if _is_async(cls, "verify") else "sync", _state_mode(cls, mcp))
    _check_lifecycle(cls, mode)
    return mode


def _check_offers(cls: type[Environment]) -> None:
    """Check that a class which offers tools can execute them, on the loop."""
    name, how = cls.__name__, "async def use(self, name, arguments, state)"
    if overrides(cls, "offers") and not overrides(cls, "use"):
        raise UsageError(f"{name}.offers names tools that nobody carries out; write {how}")
    if overrides(cls, "use") and not overrides(cls, "offers"):
        raise UsageError(f"{name}.use would never be called: nothing is offered; write def offers(self, task)")
    if not _is_async(cls, "use"):
        raise UsageError(f"{name}.use must be async: it runs on the loop; write {how}")
    if _is_async(cls, "offers"):
        raise UsageError(f"{name}.offers must not be async; ask in start() for what it needs")


def _check_play(cls: type[Environment]) -> None:
    """Check that a class which runs rollouts itself has no tools or replies: they would never be used."""
    if not overrides(cls, "play"):
        return
    if not _is_async(cls, "play"):
        how = "async def play(self, task, rollout, ask, state)"
        raise UsageError(f"{cls.__name__}.play must be async: it runs on the loop; write {how}")
    if overrides(cls, "offers") or overrides(cls, "reply") or tool_methods(cls):
        raise UsageError(f"{cls.__name__}.play carries rollouts out, so its tools and reply would never be asked")


def _check_lifecycle(cls: type[Environment], mode: ExecutionMode) -> None:
    """Check that `start` and `stop` are async, and that another async method needs them."""
    for name in LIFECYCLE_METHODS:
        if overrides(cls, name) and not _is_async(cls, name):
            raise UsageError(f"{cls.__name__}.{name} must be async: it runs on the loop; write async def {name}(self)")
        if overrides(cls, name) and "async" not in (mode.verify, mode.state):
            raise UsageError(
                f"{cls.__name__}.{name} would never be called: none of its other methods is async; make verify async"
            )


def _state_mode(cls: type[Environment], mcp: bool) -> Literal["none", "sync", "async"]:
    names = [*(n for n in STATE_METHODS if overrides(cls, n)), *tool_methods(cls)]
    asynchronous = [n for n in names if _is_async(cls, n)] + (["the tools of MCP servers"] if mcp else [])
    synchronous = [n for n in names if n not in asynchronous]
    if asynchronous and synchronous:
        raise UsageError(
            f"{cls.__name__}: the methods that share state must all be async or all sync; "
            f"async: {', '.join(asynchronous)}; sync: {', '.join(synchronous)}"
        )
    return "async" if asynchronous else "sync" if synchronous else "none"


def overrides(cls: type[Environment], name: str) -> bool:
    """Whether a class has a method of its own instead of the default."""
    return getattr(cls, name) is not getattr(Environment, name)


def _is_async(cls: type[Environment], name: str) -> bool:
    return inspect.iscoroutinefunction(getattr(cls, name))
