"""Harbor's task folders as an environment: `harbor:PATH`, where PATH is one task, a folder of tasks or a list of them.

`task_files` reads task.toml, `refusals` says what of it cannot be honoured, `verification` runs the tests where the
agent cannot reach them, `rewards` reads what they wrote. The package `harbor` is not needed.
"""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.environments.harbor.harbor import Harbor
    from rollbook.environments.harbor.refusals import find_refusals
    from rollbook.environments.harbor.rewards import choose_reward, read_rewards
    from rollbook.environments.harbor.task_files import HarborTask, find_task_folders, read_task
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = [
    "Harbor",
    "HarborTask",
    "choose_reward",
    "find_refusals",
    "find_task_folders",
    "read_rewards",
    "read_task",
]
