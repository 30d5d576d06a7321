"""Which agent carries out a rollout: the outside program that was asked for, else the one an environment needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rollbook.agents.agent import Agent
from rollbook.agents.builtin import Dialogue, EnvironmentDriven, SingleAnswer, ToolLoop
from rollbook.agents.program import Program, hash_command_files, resolve_command
from rollbook.agents.tool_formats import get_tool_format
from rollbook.core import AgentSpec, EnvironmentSpec, Limits, ToolFormat
from rollbook.errors import UsageError

PROGRAM_PREFIX = "program:"


def choose_agent(spec: EnvironmentSpec, limits: Limits, tool_format: ToolFormat) -> Agent:
    """Tools make a tool loop, `reply` makes a dialogue, both a dialogue whose answers are tool loops."""
    if spec.plays:
        return EnvironmentDriven(get_tool_format(tool_format))
    loops = spec.tools or spec.offers
    answering: Agent = ToolLoop(get_tool_format(tool_format), limits.stop_repeats) if loops else SingleAnswer()
    return Dialogue(answering) if spec.replies else answering


def resolve_agent(agent: str, environments: Mapping[str, EnvironmentSpec]) -> AgentSpec | None:
    """What a run keeps of `--agent`; UsageError where a program could not play these environments."""
    if not agent:
        return None
    if not agent.startswith(PROGRAM_PREFIX):
        raise UsageError(
            f"--agent {agent}: write {PROGRAM_PREFIX}COMMAND, as in --agent '{PROGRAM_PREFIX}python agent.py'"
        )
    for name, spec in environments.items():
        if has := _explain_no_program(spec):
            raise UsageError(f"--agent {agent}: {name} {has}, which only an agent of ours can meet; leave it out")
    words = resolve_command(agent.removeprefix(PROGRAM_PREFIX))
    return AgentSpec(words, hash_command_files(words))


def _explain_no_program(spec: EnvironmentSpec) -> str:
    if spec.plays:
        return "plays its rollouts itself"
    return "has tools" if spec.tools or spec.offers else "speaks back" if spec.replies else ""


def check_agent_unchanged(spec: AgentSpec | None) -> None:
    """A run goes on with the program that it was planned with."""
    if spec is not None and hash_command_files(spec.command) != spec.digest:
        named = ", ".join(word for word in spec.command if word.startswith("/"))
        raise UsageError(f"--agent: {named} was edited since the run was planned, or is gone: start a new run")


def make_program(spec: AgentSpec | None, hidden: Collection[str]) -> Program | None:
    """The program of a run, which does not see these variables; None where each environment has its own agent."""
    return None if spec is None else Program(spec.command, hidden=hidden)
