"""Use NeMo Gym's resources servers and agents, and whole checkouts of it, as environments.

The environments here reach the registry by entry point: `http`, `https`, `gym`, `gym+agent`, `gym+head`, `gym+step`.
`export_run` and `import_run` write and read the files of Gym's own collector.
"""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.gym.client.agents import RemoteAgent, RoutedAgents
    from rollbook.gym.client.export_run import export_gym
    from rollbook.gym.client.import_run import import_gym
    from rollbook.gym.client.server_env import ManagedServer, RemoteServer, SteppedServer
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = [
    "ManagedServer",
    "RemoteAgent",
    "RemoteServer",
    "RoutedAgents",
    "SteppedServer",
    "export_gym",
    "import_gym",
]
