"""Serve an environment to NeMo Gym: resources server, agent server, head server, gymnasium endpoints."""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.gym.server.serve import ServeOptions, serve_gym
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = ["ServeOptions", "serve_gym"]
