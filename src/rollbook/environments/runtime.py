"""EnvironmentRuntime: run one environment for many rollouts, sync methods in processes, async ones on the loop."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from rollbook.book import MediaStore
from rollbook.core import JSON, JUDGE, EnvironmentSpec, Limits, Rollout, Score, Settings, Task, as_score, derive_seed
from rollbook.environments.calls import EnvironmentCall, RolloutRecord
from rollbook.environments.environment import Environment, overrides, source_folder
from rollbook.environments.judge import Judge
from rollbook.environments.pool import EnvironmentProcessPool, SessionLost
from rollbook.environments.roles.caller import RoleCaller
from rollbook.environments.roles.run_roles import RoleClients
from rollbook.environments.session import (
    ContainerSession,
    EnvironmentSession,
    LoopSession,
    ProcessSession,
    StatelessSession,
    await_contained,
    await_with_deadline,
    tool_names,
)
from rollbook.environments.source import explain_error
from rollbook.environments.tools import Toolbox
from rollbook.errors import (
    BookError,
    ContainerError,
    EndpointDown,
    InvalidReward,
    RollbookError,
    RolloutFailed,
    UsageError,
)

if TYPE_CHECKING:
    from rollbook.containers import ContainerHandle, ContainerHost
    from rollbook.environments.mcp import McpServers

REPEATS_AT_ONCE = 8
"""How many stored rollouts are judged again in containers at the same time."""

CLOSING_S = 5.0
"""How long the runtime waits at its end for states that are being closed."""

STARTING_S = 120.0
STOPPING_S = 30.0


class EnvironmentRuntime:
    """One environment, used by many rollouts at once."""

    def __init__(
        self,
        spec: EnvironmentSpec,
        limits: Limits,
        *,
        environment: Callable[[], Environment],
        run: Path | None = None,
        max_processes: int = 2,
        log: Path | None = None,
        roles: RoleClients | None = None,
        runs_rollouts: bool = True,
        outage_s: float = Settings().outage_s,
    ) -> None:
        self.spec, self._outage_s = spec, outage_s
        self._run, self._log, self._runs_rollouts = run, log, runs_rollouts
        self._mcp_servers: McpServers | None = None
        self._containers: ContainerHost | None = None
        self._prefix = spec.terms.prefix if spec.terms else ""
        self._roles, self._media = roles, MediaStore(run) if run else None
        self._judge = roles.judge if roles and spec.appeals else None
        self._limits, self._make = limits, environment
        self._pool = (
            EnvironmentProcessPool(spec, limits, run=run, max_processes=max_processes, log=log)
            if "sync" in (spec.verify, spec.state)
            else None
        )
        self._environment: Environment | None = None
        self._toolbox: Toolbox | None = None
        self._numbers = count()
        self._closing: set[asyncio.Task[None]] = set()
        self._verify_slots = make_semaphore(None)
        self._state_slots = make_semaphore(None)
        self._repeat_slots = asyncio.Semaphore(REPEATS_AT_ONCE)
        self._opening = asyncio.Lock()
        self._started = False

    async def open(self) -> None:
        """Start what the environment needs."""
        if self._judge or "async" in (self.spec.verify, self.spec.state):
            self._environment = environment = self._make()
            self._toolbox = Toolbox(environment, self._limits.tool_chars)
            await self._start_environment(environment)
            if environment.mcp and self._runs_rollouts:
                await self._start_mcp_servers(environment)
        if self._pool:
            await self._pool.open()
        if self.spec.container and self._runs_rollouts:
            await self._open_containers()

    async def _start_environment(self, environment: Environment) -> None:
        """Start it; if it cannot start, the run is refused before any rollout, with an error of one line."""
        self._started = True
        try:
            async with asyncio.timeout(STARTING_S):
                await environment.start()
        except TimeoutError:
            raise UsageError(f"environment {self.spec.spec} did not start in {STARTING_S:g} s") from None
        except RollbookError as error:
            raise UsageError(f"environment {self.spec.spec} cannot start: {' '.join(str(error).split())}") from error
        except (Exception, SystemExit) as error:
            raise UsageError(f"environment {self.spec.spec} cannot start: {explain_error(error)}") from error
        self._verify_slots = make_semaphore(environment.verify_at_once)
        self._state_slots = make_semaphore(environment.states_at_once)

    async def _open_containers(self) -> None:
        """Find the runtime of this machine, and remove what dead owners left: before any rollout."""
        from rollbook.containers import ContainerHost

        try:
            self._containers = ContainerHost(self._run)
            await self._containers.open()
        except (UsageError, ContainerError) as error:
            raise UsageError(f"environment {self.spec.spec} cannot start: {error}") from None

    def stop_waiting(self) -> None:
        """Let rollouts that wait for the image of their container give up at once."""
        if self._containers is not None:
            self._containers.stop_waiting()

    async def repeat_outcome(self, task: Task, rollout: Rollout, artifacts: Path) -> JSON:
        """Return the outcome of a stored rollout, decided again where the environment can do that."""
        if self._environment is None or not overrides(type(self._environment), "repeat_outcome"):
            return rollout.outcome
        async with self._repeat_slots:
            work = self._environment.repeat_outcome(self._own_task(task), rollout, self._find_containers, artifacts)
            return await await_contained(work, "verify", "verifier_error")

    async def _find_containers(self) -> ContainerHost:
        """Return the containers of this process; the first who asks opens them."""
        async with self._opening:
            if self._containers is None:
                try:
                    await self._open_containers()
                except UsageError as error:
                    raise ContainerError(str(error)) from None
        assert self._containers
        return self._containers

    async def _start_mcp_servers(self, environment: Environment) -> None:
        """Start the MCP servers of the environment; their tools must be those of the start of the run."""
        try:
            from rollbook.environments.mcp import McpServers
        except ImportError as error:
            raise UsageError(
                f"environment {self.spec.spec} has MCP servers, which need a package: "
                f"pip install 'rollbook[mcp]' ({error})"
            ) from None
        self._mcp_servers = McpServers(environment.mcp, source_folder(environment), self._log)
        own = {name: f"the @tool method {name}" for name in tool_names(self.spec.tools)}
        try:
            await self._mcp_servers.start(own)
        except UsageError as error:
            raise UsageError(f"environment {self.spec.spec} cannot start: {error}") from None
        if self._run:
            name = self._prefix[:-1] or self.spec.target.rpartition(":")[2]
            self._mcp_servers.record_tools(self._run / "tools" / f"{quote(name, safe='')}.json")

    async def close(self) -> None:
        """Stop what was started, after the states that are being closed."""
        if self._closing:
            _, late = await asyncio.wait(set(self._closing), timeout=CLOSING_S)
            for task in late:
                task.cancel()
        if self._pool:
            await self._pool.close()
        if self._mcp_servers:
            await self._mcp_servers.stop()
        if self._containers:
            await self._containers.close()
        if self._environment and self._started:
            self._started = False
            async with asyncio.timeout(STOPPING_S):
                await self._environment.stop()

    async def open_session(self, task: Task, name: str, rollout: Rollout | None = None) -> EnvironmentSession:
        """Open the session of one rollout; the caller must close it with `close_session`.

        Calls of models of roles are recorded in the `rollout`.
        """
        if self.spec.state == "none":
            return StatelessSession()
        await self._wait_until_ready(task)
        await self._state_slots.acquire()
        try:
            recorded_in = rollout or Rollout(task=task, sample=0, seed=derive_seed(0, name, 0))
            roles = RoleCaller(self._roles, recorded_in, media=self._media)
            session = await self._make_session(f"{name}/{next(self._numbers)}", roles)
        except BaseException:
            self._state_slots.release()
            raise
        try:
            await session.open(self._own_task(task))
        except BaseException:
            await self.close_session(session)  # it may have been opened although the caller stopped waiting
            raise
        return session

    async def _make_session(self, name: str, roles: RoleCaller) -> EnvironmentSession:
        if self.spec.state == "async":
            assert self._environment
            assert self._toolbox
            return LoopSession(
                self._environment,
                self._toolbox,
                self.spec,
                self._limits,
                self._mcp_servers,
                self._containers,
                name,
                roles,
            )
        assert self._pool
        process = await self._pool.acquire_process()
        return ProcessSession(self._pool, process, name, self.spec.tools, self._limits, self._containers, roles)

    async def close_session(self, session: EnvironmentSession) -> None:
        """Close the session of one rollout, even if the caller is cancelled meanwhile."""
        if isinstance(session, StatelessSession):
            return
        closing = asyncio.create_task(self._close_state(session), name="closing")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        await asyncio.shield(closing)

    async def _close_state(self, session: EnvironmentSession) -> None:
        """Close a state; a failure here must not cost a finished rollout its score."""
        try:
            await session.close()
        except (RolloutFailed, SessionLost, ContainerError, EndpointDown, BookError):
            return  # what concerns all rollouts was raised before
        finally:
            self._state_slots.release()

    async def verify(
        self, task: Task, rollout: Rollout, session: EnvironmentSession | None = None, *, spent_s: float = 0.0
    ) -> Score:
        """Score a rollout, or raise the failure of its verifier or judge; the `session` may have its container.

        The limit of verification does not count the calls of roles. What is left of the limit of the rollout, of which
        the conversation took `spent_s`, is the limit for them.
        """
        own_task = self._own_task(task)
        own = rollout if own_task is task else msgspec.structs.replace(rollout, task=own_task)
        if self._environment and self._environment.verify_needs_server:
            await self._wait_until_ready(task)
        allowed_s = self._limits.rollout_s - spent_s
        roles = RoleCaller(self._roles, rollout, in_verification=True, allowed_s=allowed_s, media=self._media)
        score = await self._run_verifier(own_task, own, session, roles)
        if self._judge is None:
            return score
        return await self._ask_judge(self._judge.for_rollout(rollout), own_task, own, score, roles)

    async def _wait_until_ready(self, task: Task) -> None:
        if self._environment:
            await self._environment.wait_until_ready(self._own_task(task), self._outage_s)

    def _own_task(self, task: Task) -> Task:
        """Return the task as the environment made it: in a blend, ids in the book have a prefix for the environment."""
        if not self._prefix:
            return task
        line = task.line()
        return Task.from_line(msgspec.structs.replace(line, id=line.id.removeprefix(self._prefix)))

    async def _run_verifier(
        self, task: Task, rollout: Rollout, session: EnvironmentSession | None, roles: RoleCaller
    ) -> Score:
        if self.spec.container == "verify":
            return await self._verify_in_container(task, rollout, session, roles)
        if self.spec.verify == "async":
            verdict = self._call_verify(task, rollout)
            return await self._verify_on_loop(verdict, self._limits.verify_s, roles)
        assert self._pool
        call = EnvironmentCall("verify", task.line(), RolloutRecord.from_rollout(rollout))
        return _read_score((await self._pool.call(call, self._limits.verify_s, roles)).value)

    def _call_verify(self, task: Task, rollout: Rollout, **injected: ContainerHandle) -> Awaitable[JSON]:
        assert self._environment
        verdict = self._environment.verify(task, rollout, **injected)
        assert inspect.isawaitable(verdict)
        return verdict

    async def _verify_in_container(
        self, task: Task, rollout: Rollout, session: EnvironmentSession | None, roles: RoleCaller
    ) -> Score:
        if not isinstance(session, ContainerSession) or session.container is None:
            why = "verify needs the container of the rollout, which is gone: only a new rollout can be scored"
            raise RolloutFailed("verifier_error", "verify", why)
        if isinstance(session, ProcessSession):
            return _read_score(await session.verify(task, rollout, roles))
        verdict = self._call_verify(task, rollout, container=session.container)
        return await self._verify_on_loop(verdict, session.container.container.verify_timeout_s, roles)

    async def _verify_on_loop(self, verdict: Awaitable[JSON], timeout_s: float, roles: RoleCaller) -> Score:
        async with self._verify_slots:
            value = await await_with_deadline(verdict, timeout_s, "verify", "verifier_error", "verifier_timeout", roles)
        return _as_score(value, "verify")

    async def _ask_judge(self, judge: Judge, task: Task, rollout: Rollout, score: Score, roles: RoleCaller) -> Score:
        """Call `appeal` on the loop, with its own deadline; `verify` has run, perhaps in another process."""
        assert self._environment
        assert self._judge
        work = self._environment.appeal(task, rollout, score, judge)
        timeout_s = self._judge.timeout_s
        deciding = await_with_deadline(work, timeout_s, "judge", "verifier_error", "judge_error", roles)
        try:
            value = await roles.limit_time(JUDGE, deciding)
        except RolloutFailed:
            if judge.outage:
                raise judge.outage from None
            raise
        return _as_score(value, "judge")


def _read_score(value: JSON) -> Score:
    """Convert the score that an environment process sent."""
    try:
        return msgspec.convert(value, Score)
    except (msgspec.ValidationError, InvalidReward) as error:
        raise RolloutFailed("invalid_reward", "verify", str(error)) from None


def _as_score(value: JSON, where: str) -> Score:
    """Convert the result of async code to a score that a journal can store."""
    try:
        score = as_score(value)
        msgspec.json.encode(score)
    except (InvalidReward, TypeError, ValueError, OverflowError) as error:
        raise RolloutFailed("invalid_reward", where, str(error)) from None
    return score


def make_semaphore(limit: int | None) -> asyncio.Semaphore:
    """Return a semaphore in order of arrival; with None as its limit it never blocks."""
    return asyncio.Semaphore(limit or sys.maxsize)
