"""Model servers on cluster nodes: start, wait until ready, watch, restart within a bound.

`launch` has the command line of each kind of server and finds a port, `model_servers` runs all servers of one node and
publishes their endpoints. `rank` and `exec_child` are run with `python -m`.
"""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.clusters.servers.model_servers import ModelServer, ServerEndpoint, ServerGroup
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = ["ModelServer", "ServerEndpoint", "ServerGroup"]
