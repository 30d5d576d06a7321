"""What can be seen of tasks and tools without playing: ids, prompts, duplicates, schemas."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import combinations

from rollbook.collect.finding import Finding, judged, not_checked
from rollbook.core.json import JSON
from rollbook.core.task import Task

ALIKE = 0.9
MOST_COMPARED = 1000
SHINGLE = 3
TOOLS = "tool schemas are valid"
_WORD = re.compile(r"\w+")


def unique(tasks: Sequence[Task]) -> Finding:
    """Ids name rollouts: two tasks of one id cannot be told apart."""
    counts = Counter(task.id for task in tasks)
    twice = [task_id for task_id, count in counts.items() if count > 1]
    return judged("task ids are unique", len(tasks), twice, "unsound", "", f"{len(twice)} ids come more than once")


def prompts(tasks: Sequence[Task]) -> Finding:
    """A model that is shown nothing answers nothing."""
    empty = [task.id for task in tasks if not any(message.text.strip() for message in task.messages)]
    return judged("prompts are not empty", len(tasks), empty, "unsound", "", f"{len(empty)} tasks show no text")


def duplicates(tasks: Sequence[Task]) -> Finding:
    """How many prompts say the same as an earlier one, or nearly."""
    check = "prompts are distinct"
    seen: dict[str, str] = {}
    same = [task.id for task in tasks if seen.setdefault(_folded(task), task.id) != task.id]
    near = [task_id for task_id in _near(tasks[:MOST_COMPARED]) if task_id not in same]
    found = f"{len(same)} duplicates, {len(near)} near duplicates"
    if len(tasks) > MOST_COMPARED:
        found += f" (among the first {MOST_COMPARED})"
    return Finding(check, "warning" if same else "ok", len(tasks), found, next(iter([*same, *near]), None))


def _folded(task: Task) -> str:
    return " ".join("\n".join(message.text for message in task.messages).casefold().split())


def _near(tasks: Sequence[Task]) -> list[str]:
    """The tasks that share nine tenths of their runs of three words with an earlier one, without being the same."""
    shingled = [(task.id, _folded(task), _shingles(_folded(task))) for task in tasks]
    found = {}
    for (_, text, one), (other_id, other_text, other) in combinations(shingled, 2):
        if len(one) * ALIKE > len(other) or len(other) * ALIKE > len(one) or text == other_text:
            continue
        if len(one & other) >= ALIKE * len(one | other):
            found[other_id] = True
    return list(found)


def _shingles(text: str) -> frozenset[int]:
    words = _WORD.findall(text)
    return frozenset(hash(tuple(words[at : at + SHINGLE])) for at in range(max(1, len(words) - SHINGLE + 1)))


def tools(schemas: Sequence[JSON]) -> Finding:
    """Whether each tool's parameters are a JSON schema that servers take, and whether each is explained."""
    check = TOOLS
    if not schemas:
        return not_checked(check, "it has no tools")
    try:
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import SchemaError
    except ImportError:
        return not_checked(check, "needs a package: pip install 'rollbook[schema]'")
    for schema in schemas:
        try:
            Draft202012Validator.check_schema(schema["function"]["parameters"])
        except SchemaError as error:
            why = f"{schema['function']['name']}: {error.message}"
            return Finding(check, "unsound", 0, why, None)
    silent = [schema["function"]["name"] for schema in schemas if not schema["function"]["description"]]
    if silent:
        return Finding(check, "warning", 0, f"{', '.join(silent)}: no description, so no model knows what it does")
    return Finding(check, "ok", 0, f"{len(schemas)} tools")
