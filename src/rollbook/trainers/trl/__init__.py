"""TRL's side (1.16): `Rollouts` for `rollout_func`, `Environments` for `environment_factory`.

`exported` is the pure function under the first. TRL itself is never imported: it calls us.
"""

from rollbook.trainers.trl.environments import Environments as Environments
from rollbook.trainers.trl.export import exported as exported
from rollbook.trainers.trl.rollouts import Rollouts as Rollouts
