"""NeMo RL: a sandboxed Python session as a tool, and whole rollouts of any environment.

`register` makes `CodeEnvironment` known to NeMo RL by name; `RolloutEnvironment` runs whole rollouts.
"""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.trainers.nemo_rl.code_environment import CodeEnvironment, StepReturn, register
    from rollbook.trainers.nemo_rl.rollouts import DataFailure, InfraFailure, RolloutEnvironment, start_rollout_actor
    from rollbook.trainers.rows import RowsMissing
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = [
    "CodeEnvironment",
    "DataFailure",
    "InfraFailure",
    "RolloutEnvironment",
    "RowsMissing",
    "StepReturn",
    "register",
    "start_rollout_actor",
]
