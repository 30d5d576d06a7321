"""verl's side: rollouts of Rollbook environments as verl 0.9 takes them, in both of its contracts.

`padded` (V0) and `trajectories` (V1) are pure; `RollbookAgentLoopManager` is what verl is configured with, `GymDataset`
reads rows without holding them. The last two need verl and torch, and are imported when they are asked for.
"""

from typing import TYPE_CHECKING

from rollbook.trainers.verl.padded import Padded, padded
from rollbook.trainers.verl.trajectories import Prompt, Trajectory, trajectories

if TYPE_CHECKING:
    from rollbook.trainers.verl.dataset import GymDataset
    from rollbook.trainers.verl.manager import RollbookAgentLoopManager

__all__ = ["GymDataset", "Padded", "Prompt", "RollbookAgentLoopManager", "Trajectory", "padded", "trajectories"]

_HOMES = {"GymDataset": "dataset", "RollbookAgentLoopManager": "manager"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
