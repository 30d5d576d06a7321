"""How a model works on the tasks of an environment.

`choose_agent` picks the built-in agent that an environment needs (single answer, tool loop, dialogue). `Program` is an
outside command that calls the model over HTTP; the gateway that serves it is found by entry point. An agent drives the
conversation of one rollout and never scores it. It knows nothing of run directories, chunks or retries.
"""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.agents.agent import Agent, EnvironmentAccess, choose_agent
    from rollbook.agents.agent_choice import check_agent_unchanged, make_agent, resolve_agent
    from rollbook.agents.container_program import ContainerProgram
    from rollbook.agents.program import Program
    from rollbook.agents.reference_agents import REFERENCE_AGENTS, Nop, Oracle
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = [
    "REFERENCE_AGENTS",
    "Agent",
    "ContainerProgram",
    "EnvironmentAccess",
    "Nop",
    "Oracle",
    "Program",
    "check_agent_unchanged",
    "choose_agent",
    "make_agent",
    "resolve_agent",
]
