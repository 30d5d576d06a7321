"""The environment `harbor:PATH`: an agent works in the container of a task folder, and the task's tests score it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from rollbook.containers import (
    CommandResult,
    Container,
    ContainerHandle,
    ContainerHost,
    clear_test_folders,
    hash_folder,
    repair_user_files,
    restore_pristine_files,
)
from rollbook.core import JSON, Rollout, Score, Task
from rollbook.environments.environment import SERVERS_FIELD, Environment, OpenContainers
from rollbook.environments.harbor.artifacts import ArtifactsRecord, find_recorded, keep_artifacts, record_artifacts
from rollbook.environments.harbor.healthchecks import find_ports, longest_wait_s, wait_for_services, wait_until_healthy
from rollbook.environments.harbor.refusals import find_refusals
from rollbook.environments.harbor.rewards import choose_reward, combine_rewards, misses_reward
from rollbook.environments.harbor.task_files import (
    Collect,
    EnvironmentTable,
    HarborTask,
    TaskStep,
    find_task_folders,
    read_task,
    resolve_variables,
    user_name,
)
from rollbook.environments.harbor.terminal import AgentTerminal
from rollbook.environments.harbor.tool_servers import TaskServers
from rollbook.environments.harbor.verification import (
    LOGS,
    SETUP_S,
    TESTS,
    VERIFIER_LOGS,
    KeptArtifact,
    TestsResult,
    restart_usable,
    run_separate_tests,
    run_shared_tests,
)
from rollbook.environments.tools import ToolOutput, tool, tool_methods
from rollbook.errors import ContainerError, ImageError, LimitReached, RolloutFailed, UsageError

DEFAULT_MEMORY_MB, DEFAULT_CPUS, DEFAULT_STORAGE_MB = 2048, 1.0, 10_240
SOLUTION = "/solution"


class StepOutcome(msgspec.Struct):
    """What became of one step: what its tests decided, and notes about artifacts that could not be kept."""

    name: str
    tests: TestsResult
    notes: list[str] = []
    artifacts: ArtifactsRecord | None = None


class HarborState(msgspec.Struct):
    """One rollout: its task, its container, what its agent does there, and the steps that are over."""

    task: HarborTask
    handle: ContainerHandle
    terminal: AgentTerminal
    servers: TaskServers
    steps: list[TaskStep]
    done: list[StepOutcome] = []
    stopped: bool = False
    """Whether a step missed its reward, so that the later ones are not tried."""
    note: str = ""
    """Why the agent cannot work on the present step."""

    @property
    def step(self) -> TaskStep:
        """The step that the agent works on."""
        return self.steps[len(self.done)]


class Harbor(Environment):
    """`name` is a task folder, a folder of them, or a file that lists them. `reward` names the reward that counts.

    `allow_network`: tasks may have the network that they ask for; without it such tasks are refused.
    """

    description = "task folders in Harbor's form: an agent works in a container, the task's tests score it"
    scoring_version = 1

    def __init__(self, name: str, allow_network: bool = False, reward: str | None = None) -> None:
        if reward == "":
            raise UsageError(f"harbor:{name}?reward=: give the name of a reward")
        self._path, self._allow_network, self._reward = Path(name), allow_network, "" if reward is None else str(reward)
        self._offered: dict[str, list[JSON]] = {}

    def tasks(self) -> Iterator[Task]:
        """Yield a task per folder; if one cannot be run as its files say, the run is refused with the reason."""
        tasks = [read_task(folder) for folder in find_task_folders(self._path)]
        allowed = self._allow_network
        refusals = [(task, line) for task in tasks for line in find_refusals(task, allow_network=allowed)]
        if refusals:
            task, line = refusals[0]
            more = f" (and {len(refusals) - 1} more)" if len(refusals) > 1 else ""
            which = "" if task.folder == self._path.resolve() else f"{task.folder.name}: "
            raise UsageError(f"harbor:{self._path}: {which}{line}{more}")
        for task in tasks:
            config = task.config
            yield Task(
                task.folder.name,
                task.steps[0].instruction,
                folder=str(task.folder),
                digest=hash_folder(task.folder),
                reward=str(config.metadata.get("reward", "")),
                final=config.multi_step_reward_strategy == "final",
                **_describe_servers(config.environment),
            )

    def container_for(self, task: Task) -> Container:
        """Return the container that task.toml describes; a folder that was edited since the plan is another task."""
        folder = Path(task.fields["folder"])
        if not folder.is_dir() or hash_folder(folder) != task.fields["digest"]:
            why = f"{folder} was edited since the run was planned, or is gone: start a new run"
            raise RolloutFailed("image_error", "task", why)
        read = read_task(folder)
        table = read.config.environment
        healthchecks = [table.healthcheck, *(step.healthcheck for step in read.steps)]
        healthchecks += [step.verifier.environment.healthcheck for step in read.steps if step.verifier.environment]
        slowest = max(step.verifier.longest_s for step in read.steps)
        return msgspec.structs.replace(
            make_container(table, table.docker_image or "", "" if table.docker_image else str(read.build_folder)),
            open_timeout_s=SETUP_S * (1 + len(table.mcp_servers)) + sum(map(longest_wait_s, healthchecks)),
            verify_timeout_s=slowest + 4 * SETUP_S + sum(map(longest_wait_s, healthchecks)),
        )

    async def open(self, task: Task, container: ContainerHandle) -> HarborState:
        """Make the usual folders, wait until the container is healthy, and begin the first step."""
        read = read_task(Path(task.fields["folder"]))
        await run_as_root(container, f"mkdir -p {LOGS}/agent {LOGS}/artifacts {VERIFIER_LOGS}")
        await run_as_root(container, f"chmod 777 {LOGS}/agent {LOGS}/artifacts {VERIFIER_LOGS}")
        steps = read.steps
        if not all(step.verifier.is_separate for step in steps):
            await container.require_layers()
        user = user_name(steps[0].agent.user)
        for name in {user_name(each) for step in steps for each in (step.agent.user, step.verifier.user)} - {""}:
            if not await container.remember_user(name) and name == user:
                raise ImageError(f"[agent] user = {name!r}: the image has no such user")
        if read.config.environment.healthcheck:
            await wait_until_healthy(container, read.config.environment.healthcheck, user)
        servers = TaskServers(container, read.config.environment.mcp_servers, list(tool_methods(type(self))))
        state = HarborState(read, container, AgentTerminal(container, user), servers, steps)
        try:
            await begin_step(state)
        except BaseException:
            await servers.stop()
            raise
        self._offered[task.id] = servers.tools
        return state

    def offers(self, task: Task) -> list[dict[str, JSON]]:
        """Return the tools of the task's MCP servers."""
        return self._offered.get(task.id, [])

    async def use(self, name: str, arguments: dict[str, JSON], state: HarborState) -> str | ToolOutput:
        """Call a tool of the task's MCP servers."""
        return await state.servers.call(name, arguments, state.terminal.time_left())

    async def close(self, state: HarborState) -> None:
        """Disconnect from the task's MCP servers."""
        await state.servers.stop()

    @tool
    async def bash(self, command: str, state: HarborState, timeout_s: float = 0.0) -> str:
        """Run a command in a bash shell that stays open: its folder and variables are kept for the next command.

        Args:
            command: The command; it has no standard input.
            timeout_s: End it after so many seconds; 0 for the longest that is allowed.
        """
        return await state.terminal.bash(command, timeout_s)

    @tool
    async def edit_file(self, path: str, old: str, new: str, state: HarborState) -> str:
        """Edit a file: replace a text that occurs in it exactly once. With an empty old text, write the whole file.

        Args:
            path: The absolute path of the file.
            old: The text to replace, word for word; empty to write the whole file.
            new: The text that takes its place.
        """
        return await state.terminal.edit_file(path, old, new)

    async def run_program(
        self, task: Task, state: HarborState, container: ContainerHandle, command: str, env: Mapping[str, str]
    ) -> CommandResult:
        """Run a program as the agent's user, until the agent's deadline."""
        return await state.terminal.run_program(command, env)

    async def reply(self, task: Task, rollout: Rollout, state: HarborState) -> str | None:
        """Return the instruction of the next step, after the tests of this one; None after the last."""
        return await advance(state)

    async def solve(self, task: Task, state: HarborState) -> None:
        """Run the solution of every step, as the agent's user."""
        await run_solution(state)
        while await advance(state) is not None:
            await run_solution(state)

    async def outcome(self, state: HarborState) -> JSON:
        """Run the tests of the step that the agent ended with, and return what all of them decided."""
        if not state.stopped:
            await finish_step(state)
        return {"steps": msgspec.to_builtins(state.done)}

    async def repeat_outcome(
        self, task: Task, rollout: Rollout, open_containers: OpenContainers, artifacts: Path
    ) -> JSON:
        """Run the tests again that have a container of their own, as the task folder has them now."""
        stored = msgspec.convert(rollout.outcome["steps"], list[StepOutcome])
        present = read_task(self._find_folder(task))
        if not any(step.verifier.is_separate for step in present.steps):
            return rollout.outcome
        for line in find_refusals(present, allow_network=self._allow_network):
            raise RolloutFailed("verifier_error", "verify", line)
        digest = await asyncio.to_thread(hash_folder, present.folder)
        steps = await repeat_steps(open_containers, present, stored, artifacts)
        return {"steps": msgspec.to_builtins(steps), "digest": digest}

    def _find_folder(self, task: Task) -> Path:
        """Return the folder of a task in our path; where the plan found it, if a relative path leads nowhere now."""
        stored = Path(task.fields["folder"])
        if not self._path.exists():
            return stored
        for folder in find_task_folders(self._path):
            if folder.name == stored.name:
                return folder
        raise RolloutFailed("verifier_error", "verify", f"harbor:{self._path} has no task {stored.name}")

    async def verify(self, task: Task, rollout: Rollout) -> Score:
        """Score what the tests decided; tests without a reward are a failure, never a zero."""
        steps = msgspec.convert(rollout.outcome["steps"], list[StepOutcome])
        for step in steps:
            if step.tests.failure:
                where = f"step {step.name}: " if step.name else ""
                raise RolloutFailed(step.tests.failure, "tests", f"{where}{step.tests.message}")
        rewards = combine_rewards([step.tests.rewards for step in steps], final=task.fields["final"])
        reward, parts = choose_reward(rewards, self._reward or task.fields["reward"])
        return Score(reward, parts=parts)


def _describe_servers(table: EnvironmentTable) -> dict[str, JSON]:
    """Return the field of a task that tells a program inside which MCP servers it may use; none without servers."""
    servers = [
        {"name": each.name, "url": each.url}
        if each.is_http
        else {"name": each.name, "command": [each.command, *each.args]}
        for each in table.mcp_servers
    ]
    return {SERVERS_FIELD: servers} if servers else {}


def make_container(table: EnvironmentTable, image: str, build: str) -> Container:
    """Return the container that a table describes."""
    return Container(
        image=image,
        build=build,
        memory_mb=table.memory_limit_mb or DEFAULT_MEMORY_MB,
        cpus=table.cpus or DEFAULT_CPUS,
        storage_mb=table.storage_limit_mb or DEFAULT_STORAGE_MB,
        network="none" if table.network == "no-network" else "public",
        env=resolve_variables(table.env),
        workdir=table.workdir or "",
        entrypoint=True,
        build_timeout_s=table.build_timeout_sec,
    )


async def run_as_root(handle: ContainerHandle, command: str) -> None:
    """Run a command that must work."""
    result = await handle.run(command, user="0", timeout_s=SETUP_S)
    if result.exit_code:
        raise ContainerError(f"{command}: {result.text.strip()[-300:]}")


async def begin_step(state: HarborState) -> bool:
    """Put the files of a step in place, run its setup, wait until it is healthy, and begin the agent's time.

    Return whether the agent can work on it: the setup of a later step may fail because of what the agent did before.
    Then only the tests of the step run, and judge what is there.
    """
    step, handle = state.step, state.handle
    state.terminal.user = user_name(step.agent.user)
    if note := await _set_up(handle, step, state.terminal.user):
        if not state.done:
            raise ContainerError(note)
        state.note = note
        return False
    if state.done:  # what is not healthy now may be work of the agent
        checks = [state.task.config.environment.healthcheck, step.healthcheck]
        await wait_for_services(handle, checks, set(), state.terminal.user)
    elif step.healthcheck:
        await wait_until_healthy(handle, step.healthcheck, state.terminal.user)
    await state.servers.start(state.terminal.user)
    state.terminal.set_deadline(step.agent.timeout_sec)
    return True


async def _set_up(handle: ContainerHandle, step: TaskStep, user: str) -> str:
    """Put the files of a step in the working folder and run its setup.sh; return why that failed."""
    files = step.folder / "workdir"
    if not step.name or not files.is_dir():
        return ""
    place = (await handle.run("pwd")).text.strip()
    await handle.upload(files, place)
    if not (files / "setup.sh").is_file():
        return ""
    setup = await handle.run("bash ./setup.sh", workdir=place, user=user, timeout_s=SETUP_S)
    return f"setup.sh of step {step.name}: exit code {setup.exit_code}: {setup.text[-300:]}" if setup.exit_code else ""


async def advance(state: HarborState) -> str | None:
    """End a step and begin the next one; return its instruction, or None if there is none or it is not reached."""
    if state.stopped or state.note or len(state.done) + 1 >= len(state.steps):
        return None
    step = state.step
    await finish_step(state)
    if _ends_rollout(state.done[-1], step):
        state.stopped = True
        return None
    if not step.verifier.is_separate:
        await remove_tests(state.handle)
    return state.step.instruction if await begin_step(state) else None


async def remove_tests(handle: ContainerHandle) -> None:
    """Start a container again without the tests that ran in it.

    The variables of the tests may be secret, and the memory of a shell still has them. The entrypoint may be one that
    the agent wrote: it must not see the tests, so they are removed in a start without it.
    """
    await handle.kill()
    await clear_test_folders(handle)
    await handle.restart(entrypoint=False)
    await run_as_root(handle, f"rm -rf {TESTS} {VERIFIER_LOGS}")  # a volume of docker is no part of the layer
    if await handle.image_entrypoint():
        await handle.kill()
        await restart_usable(handle)


async def finish_step(state: HarborState) -> None:
    """Collect what a step leaves, end every process of the agent, and run the tests."""
    step, handle = state.step, state.handle
    assert handle.host is not None
    await state.terminal.close()
    await state.servers.stop()
    await handle.allow_storage_again()
    notes = await run_collects(handle, step.verifier.collect) if step.verifier.collect else []
    checks = [state.task.config.environment.healthcheck, step.healthcheck]
    ports = set() if step.verifier.is_separate else await find_ports(handle, checks)
    await handle.kill()
    await repair_user_files(handle)
    kept = handle.artifacts / "steps" / step.name if handle.artifacts and step.name else handle.artifacts
    async with keep_artifacts(handle, step.artifacts, kept) as artifacts:
        if step.verifier.is_separate:
            tests = await judge_separately(handle.host, state.task, step, kept, artifacts.found)
            if step is not state.steps[-1]:
                await restart_usable(handle)
        else:
            tests = await run_shared_tests(handle, step, kept, checks, ports, state.task.config.kept_changes)
    outcome = StepOutcome(step.name, tests, [*filter(None, [state.note, *notes]), *artifacts.notes])
    if handle.artifacts and kept:
        outcome.artifacts = await asyncio.to_thread(record_artifacts, artifacts, handle.artifacts.parent, kept)
    state.done.append(outcome)


async def judge_separately(
    host: ContainerHost, task: HarborTask, step: TaskStep, kept: Path | None, artifacts: list[KeptArtifact]
) -> TestsResult:
    """Run the tests of a step in the container that the task has for them."""
    image = task.verifier_image(step)
    container = make_container(image.table, image.image, image.build)
    return await run_separate_tests(host, container, image.bundled, step, kept, artifacts)


async def repeat_steps(
    open_containers: OpenContainers, task: HarborTask, stored: list[StepOutcome], everything: Path
) -> list[StepOutcome]:
    """Run the separate tests of a stored rollout again; a step whose tests share its container is as stored.

    RolloutFailed if a step now passes that ended the rollout, because nothing is known of the later ones.
    """
    done: list[StepOutcome] = []
    for outcome in stored:
        step = next((each for each in task.steps if each.name == outcome.name), None)
        if step is None:
            raise RolloutFailed("verifier_error", "verify", f"{task.folder} has no step {outcome.name!r} any more")
        if step.verifier.is_separate:
            artifacts = await asyncio.to_thread(find_recorded, outcome.artifacts, step.artifacts, everything)
            tests = await judge_separately(await open_containers(), task, step, None, artifacts)
            done.append(msgspec.structs.replace(outcome, tests=tests))
        else:
            done.append(outcome)
        if _ends_rollout(done[-1], step):
            break
        if _ends_rollout(outcome, step) and step is not task.steps[-1]:
            why = f"step {step.name} now gets its reward, but the agent did not play the next one: start a new run"
            raise RolloutFailed("verifier_error", "verify", why)
    return done


def _ends_rollout(outcome: StepOutcome, step: TaskStep) -> bool:
    return bool(outcome.tests.failure) or misses_reward(outcome.tests.rewards, step.min_reward)


async def run_collects(handle: ContainerHandle, collects: Sequence[Collect]) -> list[str]:
    """Run the commands that collect; return notes of those that fail.

    They run among the processes of the agent, which may have broken the shell: then the one that could not run and
    those after it run once more, as the image has the shell.
    """
    notes: list[str] = []
    try:
        if not await handle.is_running():
            await restart_usable(handle)  # the agent exceeded a limit, which ended its container
        for each in collects:
            notes.append(await run_collect(handle, each))
    except ContainerError:
        await handle.kill()
        await restore_pristine_files(handle)
        await handle.restart(entrypoint=False)
        notes += [await run_collect(handle, each) for each in collects[len(notes) :]]
    return notes


async def run_collect(handle: ContainerHandle, collect: Collect) -> str:
    """Run a command that writes what artifacts need; return a note if it fails."""
    result = await handle.run(collect.command, timeout_s=collect.timeout_sec, user=user_name(collect.user))
    late = " (too late)" if result.timed_out else ""
    return f"collect {collect.command!r}: exit code {result.exit_code}{late}" if result.exit_code or late else ""


async def run_solution(state: HarborState) -> None:
    """Run the solution of a step, as the agent's user."""
    step, handle = state.step, state.handle
    folder = step.folder / "solution"
    if not (folder / "solve.sh").is_file():
        folder = state.task.folder / "solution"
    if not (folder / "solve.sh").is_file():
        raise RolloutFailed("agent_error", "oracle", f"{folder}/solve.sh is missing")
    await run_as_root(handle, f"rm -rf {SOLUTION}")
    await handle.upload(folder, SOLUTION)
    await run_as_root(handle, f"chmod +x {SOLUTION}/solve.sh")
    env = resolve_variables(state.task.config.solution.env)
    allowed = state.terminal.program_time_left()
    result = await handle.run(f"{SOLUTION}/solve.sh", timeout_s=allowed, user=state.terminal.user, env=env)
    if result.timed_out:  # like any agent, and as in Harbor: the tests judge what there is
        raise LimitReached("agent_timeout")
