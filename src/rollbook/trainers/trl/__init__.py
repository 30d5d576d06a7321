"""TRL (1.16): `Rollouts` for `rollout_func`, `Environments` for `environment_factory`.

`to_trl` is the pure function behind the first. TRL itself is never imported: it calls us.
"""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.trainers.formats import to_trl
    from rollbook.trainers.trl.environments import Environments
    from rollbook.trainers.trl.rollouts import Rollouts
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = ["Environments", "Rollouts", "to_trl"]
