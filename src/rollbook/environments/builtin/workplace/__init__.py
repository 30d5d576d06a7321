"""A simulated workplace: people, calendar, mail, tickets and customers, with tasks that have one correct final state.

`office` generates a workplace from a seed, `tools` has the tools, `task_kinds` the kinds of tasks, and `workplace` the
environment with its scoring.
"""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.environments.builtin.workplace.workplace import Workplace
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = ["Workplace"]
