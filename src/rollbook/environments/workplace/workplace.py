"""The workplace: tools over an office of one's own, scored on the state that they leave behind."""

from __future__ import annotations

import json
from collections.abc import Iterator

from rollbook.core.json import JSON
from rollbook.core.rollout import Rollout
from rollbook.core.score import Score
from rollbook.core.task import Task
from rollbook.environments.toolbox import Toolbox
from rollbook.environments.workplace.calendar import Calendar
from rollbook.environments.workplace.customers import Customers
from rollbook.environments.workplace.mail import Mail
from rollbook.environments.workplace.people import People
from rollbook.environments.workplace.scoring import brief, changes, compared
from rollbook.environments.workplace.tasks import CHARS, drawn
from rollbook.environments.workplace.tickets import Tickets
from rollbook.environments.workplace.world import World, make_world
from rollbook.errors import UsageError


class Workplace(People, Calendar, Mail, Tickets, Customers):
    """Office work in several steps, `size` tasks drawn by `seed`. Only what has changed in the end counts."""

    description = "office work with 29 tools (calendar, mail, tickets, customers), scored on the state left behind"

    def __init__(self, size: int = 200, seed: int = 0) -> None:
        if size < 1:
            raise UsageError(f"size={size}: give a number of tasks from 1 on")
        self._size, self._seed = size, seed

    def tasks(self) -> Iterator[Task]:
        """The tasks in their order; the first ones are the same whatever the size."""
        return drawn(self._size, self._seed, Toolbox(self, CHARS))

    def open(self, task: Task) -> World:
        """An office of its own for each rollout."""
        return make_world(task.world)

    def outcome(self, state: World) -> JSON:
        """Everything that is no longer as it was."""
        return changes(state)

    def verify(self, task: Task, rollout: Rollout) -> Score:
        """1 if exactly what was asked for has changed, else 0."""
        missing, extra = compared(task.goal, rollout.outcome)
        info: dict[str, JSON] = {"missing": brief(missing), "extra": brief(extra)} if missing or extra else {}
        return Score(float(not missing and not extra), info=info)

    def solution(self, task: Task) -> list[str]:
        """The known calls, one a turn, then a word."""
        return [*(json.dumps({"calls": [call]}) for call in task.path), "It is done."]
