"""The Environment base class: tasks and a verifier; optionally tools, state, replies and MCP servers.

Also the checks of a class (which of its methods are async, which hooks it has), and `McpServer`, the declaration of a
Model Context Protocol server whose tools are added to those of an environment. Nothing here needs the package `mcp`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias

import msgspec

from rollbook.core import JSON, Message, Rollout, Score, Task
from rollbook.environments.roles.role_model import RoleModel
from rollbook.environments.tools import tool as tool  # the source in old run directories may import it from here
from rollbook.environments.tools import tool_methods
from rollbook.errors import UsageError

if TYPE_CHECKING:
    from rollbook.containers import CommandResult, Container, ContainerHandle, ContainerHost
    from rollbook.environments.judge import Judge
    from rollbook.models import AskModel


VerifyResult: TypeAlias = bool | int | float | Score
"""What a verifier may return."""

EnvironmentState: TypeAlias = Any
"""Whatever `open` returns; it never leaves the process it was made in, so any type is allowed."""

ReplyMessage: TypeAlias = str | Message | None
"""The reply of an environment; None ends the conversation."""

OpenContainers: TypeAlias = "Callable[[], Awaitable[ContainerHost]]"
"""Returns what starts containers; the first call finds the runtime of this machine."""

_ARGUMENTS = "__rollbook_arguments__"

Solution: TypeAlias = str | list[str] | None
"""A known right answer: one text, or one text per turn, with tool calls in the text format."""

PROGRAM_S = 7 * 24 * 3600.0
"""How long a program in a container may take if nothing else limits it: the deadline of the rollout does."""

SERVERS_FIELD = "mcp_servers"
"""The field of a task whose container has MCP servers: a program inside may start them, the built-in agent has them."""

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
    name: str = ""
    """What it is called in messages; empty: its url or command."""

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
        return f"MCP server {self.name or self.url or ' '.join(self.command)}"


class Environment:
    """An environment needs two methods, `tasks` and `verify`; everything else has a default.

    Any method except `tasks`, `solution` and `offers` may be `async`; those that share state (`open`, the tools,
    `reply`, `outcome`, `close`) are all async or all not; `use`, `start` and `stop` always are. Arguments of `__init__`
    are JSON, because the instance is made again in other processes.
    """

    description: ClassVar[str] = ""
    """One line for `rollbook envs`."""

    kind: ClassVar[str] = ""
    """What kind of environment it is: `rollbook envs` lists those of a kind together."""

    prompt_template: ClassVar[str] = ""
    """The template of its prompts, which `--prompt-template` replaces; shown by `rollbook envs NAME`."""

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

    container: Container | None = None
    """A container for each rollout; `open`, tools and `verify` that have a parameter `container` get its handle."""

    report_by: ClassVar[str] = ""
    """A field of its tasks, as a dotted path: reports have numbers for each of its values, where there are several."""

    needs_model: ClassVar[bool] = True
    """Whether `play` uses the model of the run; a run of environments that bring their own model needs none."""

    judges_form: ClassVar[bool] = False
    """Whether only the form of answers counts, so that one without content can be right: `check` does not try those."""

    needs_judge: ClassVar[bool] = False
    """Whether it cannot score without a judge (`--judge`); with `appeal` and False here, a judge is optional."""

    roles: ClassVar[tuple[str, ...]] = ()
    """The roles whose models it asks with `self.model(NAME)`, such as ("user",); a run must have all (`--role`)."""

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

    def verify(self, task: Task, rollout: Rollout, *more: Any, **named: Any) -> VerifyResult | Awaitable[VerifyResult]:
        """Score a rollout from the task and the record alone.

        A parameter `container` gets the handle of the rollout's container, in `open` too.
        """
        raise UsageError(
            f"{type(self).__name__} has no verify(task, rollout): define it to return a bool, number or Score"
        )

    async def appeal(self, task: Task, rollout: Rollout, score: Score, judge: Judge) -> VerifyResult:
        """Score a rollout with the help of a judge; called after `verify`, with its score, if the run has a judge."""
        return score

    def model(self, role: str) -> RoleModel:
        """Return the model of a role, to be asked for the rollout at hand."""
        if role not in self.roles:
            name = type(self).__name__
            raise UsageError(f'{name} asks the role {role}, which it does not declare: write roles = ("{role}",)')
        return RoleModel(role)

    def solution(self, task: Task) -> Solution:
        """Return a text that is known to be right, or None; a list has one text per turn."""
        return None

    async def wait_until_ready(self, task: Task, outage_s: float) -> None:
        """Wait for a server that the task needs and that is unreachable; RolloutFailed after `outage_s` (`--outage`).

        Called before `open`, and with `verify_needs_server` before `verify`; their deadlines do not count the waiting.
        """

    async def repeat_outcome(
        self, task: Task, rollout: Rollout, open_containers: OpenContainers, artifacts: Path
    ) -> JSON:
        """Return the outcome that `rollbook reverify` scores: the stored one, unless the environment can repeat it.

        `artifacts` is the folder in which the run keeps what rollouts left.
        """
        return rollout.outcome

    def container_for(self, task: Task) -> Container | None:
        """Return the container of a task's rollouts, where not every task has the same one."""
        return self.container

    def open(self, task: Task, *more: Any, **named: Any) -> EnvironmentState:
        """Make the state of one rollout, before its first turn."""
        return None

    def offers(self, task: Task) -> list[dict[str, JSON]]:
        """Return more tools for one task, as chat completion schemas; called after `open`; `use` executes them."""
        return []

    async def use(self, name: str, arguments: dict[str, JSON], state: EnvironmentState) -> JSON:
        """Execute a call of an offered tool; raise on bad arguments, as any tool."""
        raise UsageError(f"{type(self).__name__} offers {name} and has no use(name, arguments, state)")

    async def run_program(
        self, task: Task, state: EnvironmentState, container: ContainerHandle, command: str, env: Mapping[str, str]
    ) -> CommandResult:
        """Run an agent that is a program inside the rollout's container, with these variables, to its end."""
        return await run_in_shell(container, command, env)

    def solve(self, task: Task, state: EnvironmentState, *more: Any, **named: Any) -> Awaitable[None] | None:
        """Do in the rollout's container what is known to be right; `--agent oracle` and `rollbook check` call it."""
        raise UsageError(f"{type(self).__name__} has no solve(task, state): it knows no solutions")

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


async def run_in_shell(container: ContainerHandle, command: str, env: Mapping[str, str]) -> CommandResult:
    """Run a program in a shell of its own, to its end."""
    shell = await container.open_shell(env=env)
    try:
        return await shell.run(command, PROGRAM_S)
    finally:
        await shell.close()


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


def uses_containers(cls: type[Environment], instance: Environment | None = None) -> bool:
    """Whether the rollouts of an environment have containers."""
    container = (instance or cls).container
    if container is not None:
        require_container(container, f"{cls.__name__}.container")
    return container is not None or overrides(cls, "container_for")


def require_container(value: object, where: str) -> None:
    """Raise a UsageError if a value is no Container."""
    from rollbook.containers import Container

    if not isinstance(value, Container):
        raise UsageError(f"{where} is {value!r:.100}, no Container: write Container(image=...)")


def choose_container(environment: Environment, task: Task) -> Container | None:
    """Return the container of a task; UsageError if the environment returns something else."""
    wanted = environment.container_for(task)
    if wanted is not None:
        require_container(wanted, "what container_for returned")
    return wanted


def takes_container(method: Callable[..., object]) -> bool:
    """Whether a method asks for the handle of the rollout's container."""
    return "container" in inspect.signature(method).parameters


def _container_methods(cls: type[Environment]) -> list[str]:
    """Return the methods that get the handle of the rollout's container."""
    solving = ["solve"] if overrides(cls, "solve") else []
    return [name for name in ("open", "verify", *solving, *tool_methods(cls)) if takes_container(getattr(cls, name))]


def _contained_mode(cls: type[Environment], state: Literal["none", "sync", "async"]) -> Literal["sync", "async"]:
    """Return where methods that share a container run: all on the loop, or all in an environment process."""
    names = _container_methods(cls)
    names += [name for name in ("solve",) if overrides(cls, name) and name not in names]
    asynchronous = [name for name in names if _is_async(cls, name)] + (["its state"] if state == "async" else [])
    synchronous = [name for name in names if not _is_async(cls, name)] + (["its state"] if state == "sync" else [])
    if asynchronous and synchronous:
        raise UsageError(
            f"{cls.__name__}: the methods that use its container must all be async or all sync; "
            f"async: {', '.join(asynchronous)}; sync: {', '.join(synchronous)}"
        )
    if synchronous and overrides(cls, "run_program"):
        raise UsageError(f"{cls.__name__}.run_program would never be called: its other methods are not async")
    return "sync" if synchronous else "async"


def execution_mode(cls: type[Environment], mcp: bool = False, contained: bool = False) -> ExecutionMode:
    """Return where the methods of a class run; an invalid class is a UsageError that names the methods.

    Tools of `mcp` servers are on the loop.
    """
    contained = contained or uses_containers(cls)
    if not contained and (names := _container_methods(cls)):
        raise UsageError(f"{cls.__name__}.{names[0]} takes a container; write container = Container(image=...)")
    for name, how in (("tasks", "tasks()"), ("verify", "verify(task, rollout)")):
        if not overrides(cls, name):
            raise UsageError(f"{cls.__name__} has no {how}: an environment needs tasks() and verify(task, rollout)")
    for name in tool_methods(cls):
        if hasattr(Environment, name):
            raise UsageError(f"tool {cls.__name__}.{name} shadows the method of every environment; rename it")
    if not _is_async(cls, "appeal"):
        raise UsageError(f"{cls.__name__}.appeal must be async def: it waits for a judge")
    _check_role_names(cls)
    _check_offers(cls)
    _check_play(cls)
    state = _state_mode(cls, mcp)
    verify: Literal["sync", "async"] = "async" if _is_async(cls, "verify") else "sync"
    mode = ExecutionMode(verify, _contained_mode(cls, state) if contained else state)
    _check_lifecycle(cls, mode)
    return mode


def _check_role_names(cls: type[Environment]) -> None:
    if isinstance(cls.roles, str) or not all(isinstance(role, str) for role in cls.roles):
        raise UsageError(f'{cls.__name__}: roles = {cls.roles!r}: write names in a tuple, as in roles = ("user",)')


def _check_offers(cls: type[Environment]) -> None:
    """Check that a class which offers tools can execute them, on the loop."""
    name, how = cls.__name__, "async def use(self, name, arguments, state)"
    if overrides(cls, "offers") and not overrides(cls, "use"):
        raise UsageError(f"{name}.offers names tools, but nothing runs them; write {how}")
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
        raise UsageError(f"{cls.__name__}.play runs whole rollouts, so its tools and reply would never be called")


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
