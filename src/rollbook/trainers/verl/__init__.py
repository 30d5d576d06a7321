"""verl 0.9: rollouts of Rollbook environments in both of verl's contracts.

`pad_batch` (V0) and `trajectories` (V1) are pure functions; verl is configured with `RollbookAgentLoopManager`;
`GymDataset` reads rows without holding them in memory. The last two need verl and torch.
"""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.trainers.verl.batches import PaddedBatch, Prompt, Trajectory, pad_batch, trajectories
    from rollbook.trainers.verl.dataset import GymDataset
    from rollbook.trainers.verl.manager import RollbookAgentLoopManager
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = [
    "GymDataset",
    "PaddedBatch",
    "Prompt",
    "RollbookAgentLoopManager",
    "Trajectory",
    "pad_batch",
    "trajectories",
]
