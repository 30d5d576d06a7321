"""Which agent runs the rollouts of a run: what `--agent` says, stored in its manifest and made from there."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rollbook.agents.agent import Agent
from rollbook.agents.container_program import COPIED, ContainerProgram, resolve_container_command
from rollbook.agents.program import PROGRAM_PREFIX, Program, hash_command_files, resolve_command
from rollbook.agents.reference_agents import REFERENCE_AGENTS
from rollbook.core import AgentSpec, EnvironmentSpec
from rollbook.errors import UsageError


def resolve_agent(agent: str, environments: Mapping[str, EnvironmentSpec]) -> AgentSpec | None:
    """Return what a run stores of `--agent`; UsageError if a program cannot run these environments."""
    if not agent:
        return None
    if agent in REFERENCE_AGENTS:
        return _resolve_reference(agent, environments)
    if not agent.startswith(PROGRAM_PREFIX):
        raise UsageError(
            f"--agent {agent}: write {PROGRAM_PREFIX}COMMAND, as in --agent '{PROGRAM_PREFIX}python agent.py', "
            f"or {' or '.join(REFERENCE_AGENTS)} for tasks in containers"
        )
    command = agent.removeprefix(PROGRAM_PREFIX)
    inside = bool(environments) and all(spec.container for spec in environments.values())
    if inside:
        words = resolve_container_command(command)
        return AgentSpec(words, hash_command_files(_list_files(words)), inside=True)
    for name, spec in environments.items():
        if reason := _explain_no_program(spec):
            raise UsageError(
                f"--agent {agent}: {name} {reason}, which only the built-in agent supports; leave --agent out"
            )
    words = resolve_command(command)
    return AgentSpec(words, hash_command_files(words))


def _list_files(words: list[str]) -> list[str]:
    """Return the files of this machine that a command for containers names."""
    return [word.removeprefix(COPIED) for word in words if word.startswith(COPIED)]


def _resolve_reference(agent: str, environments: Mapping[str, EnvironmentSpec]) -> AgentSpec:
    for name, spec in environments.items():
        if not spec.container:
            raise UsageError(f"--agent {agent}: {name} has no containers, and only their tasks have solutions to run")
    return AgentSpec(name=agent)


def _explain_no_program(spec: EnvironmentSpec) -> str:
    if spec.plays:
        return "runs its rollouts itself"
    return "has tools" if spec.tools or spec.offers else "replies to the model" if spec.replies else ""


def check_agent_unchanged(spec: AgentSpec | None) -> None:
    """Refuse to continue a run with another program than it was planned with."""
    if spec is None or spec.name:
        return
    words = _list_files(spec.command) if spec.inside else spec.command
    if hash_command_files(words) != spec.digest:
        files = ", ".join(word for word in words if word.startswith("/"))
        raise UsageError(f"--agent: {files} was edited since the run was planned, or no longer exists: start a new run")


def make_agent(spec: AgentSpec | None, hidden: Collection[str]) -> Agent | None:
    """Return the agent of a run, with these variables hidden from a program; None if environments use their own."""
    if spec is None:
        return None
    if spec.name:
        return REFERENCE_AGENTS[spec.name]()
    return ContainerProgram(spec.command) if spec.inside else Program(spec.command, hidden=hidden)
