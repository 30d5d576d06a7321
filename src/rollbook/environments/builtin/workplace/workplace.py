"""The workplace environment: office tasks generated from a seed, scored by the final state.

Kinds of tasks take turns, each task in its own office, the same for the same seed. The score compares the changes with
the requested ones: only the final state counts, not how it was reached.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import count
from typing import Any

import msgspec

from rollbook.core import JSON, Rollout, Score, Task, encode
from rollbook.environments.builtin.workplace.office import ME, MY_NAME, Office, OfficeRecord, make_office
from rollbook.environments.builtin.workplace.task_kinds import TASK_KINDS, TaskDraft, UnsuitableOffice, format_date
from rollbook.environments.builtin.workplace.tools import (
    CalendarTools,
    CustomerTools,
    DirectoryTools,
    MailTools,
    TicketTools,
)
from rollbook.environments.tools import Toolbox
from rollbook.errors import UsageError

UNORDERED = ("attendees", "to", "labels")
MAX_SHOWN = 5
SHOWN_CHARS = 200


def find_changes(office: Office) -> dict[str, JSON]:
    """Return every record that was added, removed or altered since the start. New ones are without their ids."""
    changes: dict[str, JSON] = {}
    for table, records in office.tables.items():
        table_changes = _find_table_changes(office.initial_tables[table], records)
        if table_changes:
            changes[table] = table_changes
    return changes


def _find_table_changes(before: dict[str, OfficeRecord], after: dict[str, OfficeRecord]) -> dict[str, JSON]:
    added = [record for name, record in after.items() if name not in before]
    removed = [name for name in before if name not in after]
    altered = {name: _find_altered_fields(before[name], record) for name, record in after.items() if name in before}
    changes = {"added": added, "removed": removed, "altered": {name: what for name, what in altered.items() if what}}
    return {how: what for how, what in changes.items() if what}


def _find_altered_fields(before: OfficeRecord, after: OfficeRecord) -> OfficeRecord:
    return {field: value for field, value in after.items() if value != before[field]}


def list_facts(changes: JSON) -> list[str]:
    """Return changes as lines that can be compared: sorted, with each text in one spelling."""
    lines = []
    for table, kinds in (changes or {}).items():
        lines += [f"{table}: added {_format_record(record)}" for record in kinds.get("added", ())]
        lines += [f"{table}: removed {name}" for name in kinds.get("removed", ())]
        for name, what in kinds.get("altered", {}).items():
            lines += [f"{table}: {name} {field} = {_fold_value(value, field)}" for field, value in what.items()]
    return sorted(lines)


def _format_record(record: OfficeRecord) -> str:
    return ", ".join(f"{field} = {_fold_value(value, field)}" for field, value in sorted(record.items()))


def _fold_value(value: Any, field: str) -> str:
    """Return a value as text without regard to case, spaces, quotes and a full stop at the end."""
    if isinstance(value, list):
        items = [_fold_value(item, field) for item in value]
        return f"[{' | '.join(sorted(items) if field in UNORDERED else items)}]"
    return " ".join(str(value).casefold().split()).strip(" .!'\"")


def compare_changes(wanted: JSON, actual: JSON) -> tuple[list[str], list[str]]:
    """Return the missing and the extra changes; a change that was made twice is once too many."""
    missing, extra = list_facts(wanted), []
    for fact in list_facts(actual):
        if fact in missing:
            missing.remove(fact)
        else:
            extra.append(fact)
    return missing, extra


def shorten(lines: list[str]) -> list[str]:
    """Return the first few lines, shortened, for the record."""
    return [line[:SHOWN_CHARS] for line in lines[:MAX_SHOWN]]


TOOL_CHARS = 1 << 20


def draw_tasks(size: int, seed: int, toolbox: Toolbox) -> Iterator[Task]:
    """Yield `size` tasks, no two with the same text."""
    used_texts: set[str] = set()
    for number in range(size):
        yield _draw_task(number, seed, toolbox, used_texts)


def _draw_task(number: int, seed: int, tools: Toolbox, used_texts: set[str]) -> Task:
    kind, write_request = list(TASK_KINDS.items())[number % len(TASK_KINDS)]
    for attempt in count():
        name = f"{seed}/{number}/{attempt}"
        draft = TaskDraft(make_office(name), random.Random(f"task {name}"))
        try:
            text = write_request(draft)
        except UnsuitableOffice:
            continue
        goal = find_goal(draft, tools)
        if text not in used_texts and len(list_facts(goal)) > 1:
            break
    used_texts.add(text)
    messages = [
        {"role": "system", "content": make_introduction(format_date(draft.office.today))},
        {"role": "user", "content": text},
    ]
    return Task(f"workplace-{number:03d}", messages=messages, world=name, goal=goal, path=draft.calls, kind=kind)


def make_introduction(today: str) -> str:
    """Return the system prompt."""
    return (
        f"You are the assistant of {MY_NAME} ({ME}), the office manager of Brightwater. Today is {today}. "
        "Use the tools to do exactly what she asks and nothing else, with the very texts that she gives; "
        "she cannot answer questions. Looking things up does no harm. When everything is done, say so in one sentence."
    )


def find_goal(draft: TaskDraft, toolbox: Toolbox) -> JSON:
    """Return the changes that the calls of a draft make, found by making them."""
    for call in draft.calls:
        answer = toolbox.use(call["name"], encode(call["arguments"]).decode(), draft.office)
        if answer.startswith("Error"):
            raise AssertionError(f"{call['name']}: {answer}")
    return msgspec.to_builtins(find_changes(draft.office))


class Workplace(DirectoryTools, CalendarTools, MailTools, TicketTools, CustomerTools):
    """Office work in several steps, `size` tasks generated from `seed`. Only the final changes count."""

    kind = "generated"
    description = "office work with 29 tools (calendar, mail, tickets, customers), scored on the state left behind"

    def __init__(self, size: int = 200, seed: int = 0) -> None:
        if size < 1:
            raise UsageError(f"size={size}: give a number of tasks from 1 on")
        self._size, self._seed = size, seed

    def tasks(self) -> Iterator[Task]:
        """Yield the tasks in order; the first ones are the same for every size."""
        return draw_tasks(self._size, self._seed, Toolbox(self, TOOL_CHARS))

    def open(self, task: Task) -> Office:
        """Make a separate office for each rollout."""
        return make_office(task.world)

    def outcome(self, state: Office) -> JSON:
        """Return everything that has changed."""
        return find_changes(state)

    def verify(self, task: Task, rollout: Rollout) -> Score:
        """Score 1 if exactly the requested changes were made, else 0."""
        missing, extra = compare_changes(task.goal, rollout.outcome)
        info: dict[str, JSON] = {"missing": shorten(missing), "extra": shorten(extra)} if missing or extra else {}
        return Score(float(not missing and not extra), info=info)

    def solution(self, task: Task) -> list[str]:
        """Return the known calls, one a turn, then a closing sentence."""
        return [*(json.dumps({"calls": [call]}) for call in task.path), "It is done."]
