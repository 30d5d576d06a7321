"""Drawing tasks: kinds in turn, each in a world of its own, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count

import msgspec

from rollbook.core.json import JSON, encode
from rollbook.core.task import Task
from rollbook.environments.toolbox import Toolbox
from rollbook.environments.workplace.draft import Draft, Unsuited, long_date
from rollbook.environments.workplace.jobs import JOBS
from rollbook.environments.workplace.names import ME, MY_NAME
from rollbook.environments.workplace.scoring import changes, facts
from rollbook.environments.workplace.world import make_world

CHARS = 1 << 20


def drawn(size: int, seed: int, tools: Toolbox) -> Iterator[Task]:
    """So many tasks; no two of them say the same."""
    said: set[str] = set()
    for number in range(size):
        yield _task(number, seed, tools, said)


def _task(number: int, seed: int, tools: Toolbox, said: set[str]) -> Task:
    job = JOBS[number % len(JOBS)]
    for attempt in count():
        name = f"{seed}/{number}/{attempt}"
        draft = Draft(make_world(name), random.Random(f"task {name}"))
        try:
            text = job(draft)
        except Unsuited:
            continue
        goal = reached(draft, tools)
        if text not in said and len(facts(goal)) > 1:
            break
    said.add(text)
    messages = [
        {"role": "system", "content": introduction(long_date(draft.world.today))},
        {"role": "user", "content": text},
    ]
    kind = job.__name__
    return Task(f"workplace-{number:03d}", messages=messages, world=name, goal=goal, path=draft.calls, kind=kind)


def introduction(today: str) -> str:
    """What the model is told before it is asked."""
    return (
        f"You are the assistant of {MY_NAME} ({ME}), the office manager of Brightwater. Today is {today}. "
        "Use the tools to do exactly what she asks and nothing else, with the very texts that she gives; "
        "she cannot answer questions. Looking things up does no harm. When everything is done, say so in one sentence."
    )


def reached(draft: Draft, tools: Toolbox) -> JSON:
    """What the noted calls change, found by making them."""
    for call in draft.calls:
        answer = tools.use(call["name"], encode(call["arguments"]).decode(), draft.world)
        if answer.startswith("Error"):
            raise AssertionError(f"{call['name']}: {answer}")
    return msgspec.to_builtins(changes(draft.world))
