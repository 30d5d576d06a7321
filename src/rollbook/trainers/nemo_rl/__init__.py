"""NeMo RL's side: an environment whose tool is a Python session behind the sandbox's walls.

`CodeEnvironment` is the whole of it; `register` makes it known to NeMo RL by name.
"""

from rollbook.trainers.nemo_rl.environment import CodeEnvironment as CodeEnvironment
from rollbook.trainers.nemo_rl.environment import Return as Return
from rollbook.trainers.nemo_rl.registration import register as register
