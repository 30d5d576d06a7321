"""Making the environment known to NeMo RL."""

from __future__ import annotations

from importlib.util import find_spec

from rollbook.errors import UsageError

NAME = "rollbook.trainers.nemo_rl.CodeEnvironment"


def register(env_name: str = "rollbook_code") -> str:
    """Let NeMo RL's `create_env` find `CodeEnvironment` under this name, and start it with its own Python."""
    if find_spec("nemo_rl") is None:
        raise UsageError("register: NeMo RL is not installed here; CodeEnvironment works without it")
    from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY
    from nemo_rl.distributed.virtual_cluster import PY_EXECUTABLES
    from nemo_rl.environments.utils import register_env

    ACTOR_ENVIRONMENT_REGISTRY[NAME] = PY_EXECUTABLES.SYSTEM
    register_env(env_name, NAME)
    return env_name
