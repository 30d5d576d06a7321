"""Adapters for trainers: `verl`, `trl`, `nemo_rl`, and formats for others.

`formats` turns a rollout into what each trainer takes, `task_runner` keeps environments open for tasks that a trainer
brings. torch, ray and the trainers are imported only by the code that uses them.
"""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.trainers.formats import (
        Sample,
        message_log,
        sample_of,
        to_openrlhf,
        to_prime_rl,
        to_skyrl,
        to_slime,
        to_trl,
    )
    from rollbook.trainers.task_runner import TaskRunner
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = [
    "Sample",
    "TaskRunner",
    "message_log",
    "sample_of",
    "to_openrlhf",
    "to_prime_rl",
    "to_skyrl",
    "to_slime",
    "to_trl",
]
