"""Which agent an environment needs: it says so itself, by what it has."""

from __future__ import annotations

from rollbook.agents.agent import Agent
from rollbook.agents.dialogue import Dialogue
from rollbook.agents.elsewhere import Elsewhere
from rollbook.agents.format import format_of
from rollbook.agents.loop import ToolLoop
from rollbook.agents.single import SingleAnswer
from rollbook.core.manifest import EnvironmentSpec, Limits, ToolFormat


def agent_for(spec: EnvironmentSpec, limits: Limits, tool_format: ToolFormat) -> Agent:
    """Tools make a tool loop, `reply` makes a dialogue, both a dialogue whose answers are tool loops."""
    if spec.plays:
        return Elsewhere(format_of(tool_format))
    loops = spec.tools or spec.offers
    answering: Agent = ToolLoop(format_of(tool_format), limits.stop_repeats) if loops else SingleAnswer()
    return Dialogue(answering) if spec.replies else answering
