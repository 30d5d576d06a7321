"""NeMo RL's side: a Python session behind the sandbox's walls as a tool, and whole rollouts of any environment.

`CodeEnvironment` is the first, which `register` makes known to NeMo RL by name; `RolloutEnvironment` the second.
"""

from rollbook.trainers.nemo_rl.environment import CodeEnvironment as CodeEnvironment
from rollbook.trainers.nemo_rl.environment import Return as Return
from rollbook.trainers.nemo_rl.failures import DataFailure as DataFailure
from rollbook.trainers.nemo_rl.failures import InfraFailure as InfraFailure
from rollbook.trainers.nemo_rl.failures import RowsMissing as RowsMissing
from rollbook.trainers.nemo_rl.registration import register as register
from rollbook.trainers.nemo_rl.rollouts import RolloutEnvironment as RolloutEnvironment
