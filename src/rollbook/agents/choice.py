"""Which agent plays: the outside program that was asked for, else the one that an environment needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rollbook.agents.agent import Agent
from rollbook.agents.dialogue import Dialogue
from rollbook.agents.elsewhere import Elsewhere
from rollbook.agents.format import format_of
from rollbook.agents.loop import ToolLoop
from rollbook.agents.program import Program, digest_of, resolved
from rollbook.agents.single import SingleAnswer
from rollbook.core.manifest import AgentSpec, EnvironmentSpec, Limits, ToolFormat
from rollbook.errors import UsageError

PROGRAM = "program:"


def agent_for(spec: EnvironmentSpec, limits: Limits, tool_format: ToolFormat) -> Agent:
    """Tools make a tool loop, `reply` makes a dialogue, both a dialogue whose answers are tool loops."""
    if spec.plays:
        return Elsewhere(format_of(tool_format))
    loops = spec.tools or spec.offers
    answering: Agent = ToolLoop(format_of(tool_format), limits.stop_repeats) if loops else SingleAnswer()
    return Dialogue(answering) if spec.replies else answering


def spec_of(agent: str, environments: Mapping[str, EnvironmentSpec]) -> AgentSpec | None:
    """What a run keeps of `--agent`; UsageError where a program could not play these environments."""
    if not agent:
        return None
    if not agent.startswith(PROGRAM):
        raise UsageError(f"--agent {agent}: write {PROGRAM}COMMAND, as in --agent '{PROGRAM}python agent.py'")
    for name, spec in environments.items():
        if has := _needs_ours(spec):
            raise UsageError(f"--agent {agent}: {name} {has}, which only an agent of ours can meet; leave it out")
    words = resolved(agent.removeprefix(PROGRAM))
    return AgentSpec(words, digest_of(words))


def _needs_ours(spec: EnvironmentSpec) -> str:
    if spec.plays:
        return "plays its rollouts itself"
    return "has tools" if spec.tools or spec.offers else "speaks back" if spec.replies else ""


def check_agent(spec: AgentSpec | None) -> None:
    """A run goes on with the program that it was planned with."""
    if spec is not None and digest_of(spec.command) != spec.digest:
        named = ", ".join(word for word in spec.command if word.startswith("/"))
        raise UsageError(f"--agent: {named} was edited since the run was planned, or is gone: start a new run")


def outside(spec: AgentSpec | None, hidden: Collection[str]) -> Program | None:
    """The program of a run, which does not see these variables; None where each environment has its own agent."""
    return None if spec is None else Program(spec.command, hidden=hidden)
