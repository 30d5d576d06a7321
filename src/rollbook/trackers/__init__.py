"""Trackers of experiments that a run can be logged to: Weights & Biases, MLflow and TensorBoard.

What is logged, and how a tracker runs next to the work, is in `rollbook.engine.tracking`; here is how each package is
called. `python -m rollbook.trackers` is the process in which a tracker that was named works.
"""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.engine import TrackedResult, TrackedRun, TrackedTable, Tracker
    from rollbook.trackers.mlflow import MlflowTracker
    from rollbook.trackers.tensorboard import TensorboardTracker
    from rollbook.trackers.wandb import WandbTracker
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = [
    "MlflowTracker",
    "TensorboardTracker",
    "TrackedResult",
    "TrackedRun",
    "TrackedTable",
    "Tracker",
    "WandbTracker",
]
