"""What can be seen of tasks and tools without playing: ids, prompts, hidden fields, duplicates, schemas."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

from rollbook.collect.finding import Finding, judged, not_checked
from rollbook.core.json import JSON, encode
from rollbook.core.task import Task

LONG = 24
"""Characters from which on a hidden text that is also shown is no coincidence."""

LEAK_SHARE = 0.5
ALIKE = 0.9
MOST_COMPARED = 1000
SHINGLE = 3
TOOLS = "tool schemas are valid"
SECRET = ("answer", "solution", "expected", "reference", "canonical", "rationale", "ground_truth", "target", "label")
_LABEL = r"(?:answer|solution|result)\b[^\n]{{0,20}}(?:[:=]|\bis\b)\W{{0,4}}{answer}\b|####\s*{answer}\b"
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


def hidden(tasks: Sequence[Task]) -> Finding:
    """Whether what only the verifier may see stands in what the model is shown."""
    check = "the answer is not shown"
    with_answer = [task for task in tasks if any(secrets(task))]
    if not with_answer:
        return not_checked(check, "the tasks hold no answer to look for")
    shown = [task.id for task in with_answer if leaks(task)]
    often = len(shown) > LEAK_SHARE * len(with_answer)
    words = f"{len(shown)} prompts hold what only the verifier may see"
    return judged(check, len(with_answer), shown, "unsound" if often else "warning", "", words)


def secrets(task: Task) -> Iterator[str]:
    """The texts of a task that no model may see: its answer, and fields with such names."""
    named = {key: value for key, value in task.fields.items() if any(word in key.lower() for word in SECRET)}
    for value in (task.answer, *named.values()):
        if value is not None and (text := _text(value)):
            yield text


def leaks(task: Task) -> bool:
    """A long secret word for word, or a short one behind a label ("Answer: 42"); a number by itself may be chance."""
    shown = "\n".join(message.text for message in task.messages)
    return any(_shown(secret, shown) for secret in secrets(task))


def _shown(secret: str, shown: str) -> bool:
    if len(secret) >= LONG:
        return secret in shown
    label = re.compile(_LABEL.format(answer=re.escape(secret)), re.IGNORECASE)
    return label.search(shown) is not None


def _text(value: JSON) -> str:
    return value.strip() if isinstance(value, str) else encode(value).decode()


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
