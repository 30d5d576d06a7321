"""Checks of tasks and tools without a rollout: ids, prompts, duplicates, tool schemas, and answers in prompts.

An answer leak is something only the verifier may see that is in what the model is shown.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations

from rollbook.checks.findings import Finding, make_finding, not_checked
from rollbook.core import JSON, Task, encode

NEAR_DUPLICATE_SHARE = 0.9
MAX_COMPARED = 1000
SHINGLE_WORDS = 3
TOOLS_CHECK = "tool schemas are valid"
_WORD = re.compile(r"\w+")


def check_unique_ids(tasks: Sequence[Task]) -> Finding:
    """Ids name rollouts: two tasks of one id cannot be told apart."""
    counts = Counter(task.id for task in tasks)
    twice = [task_id for task_id, count in counts.items() if count > 1]
    return make_finding(
        "task ids are unique", len(tasks), twice, "unsound", "", f"{len(twice)} ids come more than once"
    )


def check_prompts(tasks: Sequence[Task]) -> Finding:
    """A model that is shown nothing answers nothing."""
    empty = [task.id for task in tasks if not any(message.text.strip() for message in task.messages)]
    return make_finding("prompts are not empty", len(tasks), empty, "unsound", "", f"{len(empty)} tasks show no text")


def check_duplicates(tasks: Sequence[Task]) -> Finding:
    """How many prompts say the same as an earlier one, or nearly."""
    check = "prompts are distinct"
    seen: dict[str, str] = {}
    same = [task.id for task in tasks if seen.setdefault(_fold_prompt(task), task.id) != task.id]
    near = [task_id for task_id in _near_duplicates(tasks[:MAX_COMPARED]) if task_id not in same]
    found = f"{len(same)} duplicates, {len(near)} near duplicates"
    if len(tasks) > MAX_COMPARED:
        found += f" (among the first {MAX_COMPARED})"
    return Finding(check, "warning" if same else "ok", len(tasks), found, next(iter([*same, *near]), None))


def _fold_prompt(task: Task) -> str:
    return " ".join("\n".join(message.text for message in task.messages).casefold().split())


def _near_duplicates(tasks: Sequence[Task]) -> list[str]:
    """The tasks that share nine tenths of their runs of three words with an earlier one, without being the same."""
    shingled = [(task.id, _fold_prompt(task), _shingles(_fold_prompt(task))) for task in tasks]
    found = {}
    for (_, text, one), (other_id, other_text, other) in combinations(shingled, 2):
        if (
            len(one) * NEAR_DUPLICATE_SHARE > len(other)
            or len(other) * NEAR_DUPLICATE_SHARE > len(one)
            or text == other_text
        ):
            continue
        if len(one & other) >= NEAR_DUPLICATE_SHARE * len(one | other):
            found[other_id] = True
    return list(found)


def _shingles(text: str) -> frozenset[int]:
    words = _WORD.findall(text)
    return frozenset(
        hash(tuple(words[at : at + SHINGLE_WORDS])) for at in range(max(1, len(words) - SHINGLE_WORDS + 1))
    )


def check_tool_schemas(schemas: Sequence[JSON]) -> Finding:
    """Whether each tool's parameters are a JSON schema that servers take, and whether each is explained."""
    check = TOOLS_CHECK
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


LEAK_CHECK = "the answer is not shown"
LONG_SECRET_CHARS = 24
"""Characters from which on a hidden text that is also shown is no coincidence."""

SHORT_ANSWER_CHARS = 4
"""Characters from which on an answer in a short system message of its own task is none either."""

SHORT_SYSTEM_CHARS = 500
"""A longer system message may be a text in which the answer is to be found."""

LEAK_SHARE = 0.5
ANSWER_FIELDS = (
    "answer",
    "solution",
    "expected",
    "reference",
    "canonical",
    "rationale",
    "ground_truth",
    "target",
    "label",
)
VERIFIER_FIELDS = ("test", "hidden", "secret", "private", "rubric", "grader", "verif", "checker")
PUBLIC_FIELDS = ("public", "sample", "example", "shown", "visible")
_LABELLED_ANSWER = r"(?:answer|solution|result)\b[^\n]{{0,20}}(?:[:=]|\bis\b)\W{{0,4}}{answer}\b|####\s*{answer}\b"


def check_answer_leaks(tasks: Sequence[Task]) -> Finding:
    """Whether an answer, or a field that is named like what a verifier keeps to itself, is shown."""
    holding = [task for task in tasks if any(secret_texts(task))]
    if not holding:
        return not_checked(LEAK_CHECK, "the tasks hold no answer to look for")
    common = shared_system_messages(holding)
    leaks = {task.id: name for task in holding if (name := find_leak(task, common))}
    often = len(leaks) > LEAK_SHARE * len(holding)
    words = f"{len(leaks)} prompts hold what only the verifier may see: {', '.join(sorted(set(leaks.values())))}"
    return make_finding(LEAK_CHECK, len(holding), list(leaks), "unsound" if often else "warning", "", words)


def secret_texts(task: Task) -> Iterator[tuple[str, list[str]]]:
    """What no model may see, by name: the answer, and fields with such names; of a list of texts, its texts."""
    for name, value in (("answer", task.answer), *task.fields.items()):
        if _is_secret_field(name.lower()) and value is not None and (texts := _as_texts(value)):
            yield name, texts


def _is_secret_field(name: str) -> bool:
    if any(word in name for word in ANSWER_FIELDS):
        return True
    return any(part.startswith(VERIFIER_FIELDS) for part in name.split("_")) and not any(
        word in name for word in PUBLIC_FIELDS
    )


def _as_texts(value: JSON) -> list[str]:
    if (
        isinstance(value, list)
        and value
        and all(isinstance(text, str) and len(text) >= LONG_SECRET_CHARS for text in value)
    ):
        return [text.strip() for text in value]
    text = value.strip() if isinstance(value, str) else encode(value).decode()
    return [text] if text else []


def shared_system_messages(tasks: Sequence[Task]) -> set[str]:
    """System messages that tasks of different answers have in common: they say which answers there are."""
    answers: dict[str, set[bytes]] = defaultdict(set)
    for task in tasks:
        answers[_system_text(task)].add(encode(task.answer))
    return {text for text, several in answers.items() if len(several) > 1}


def find_leak(task: Task, common: set[str]) -> str | None:
    """The name of what is shown: a long text word for word, a short one behind a label, an answer in a system message.

    A short answer somewhere in a question may be chance, or what the question is about.
    """
    shown, system = "\n".join(message.text for message in task.messages), _system_text(task)
    for name, texts in secret_texts(task):
        if all(_is_shown(text, shown, labelled=_is_answer_field(name)) for text in texts):
            return name
        if (
            name == "answer"
            and system not in common
            and len(system) <= SHORT_SYSTEM_CHARS
            and _in_system_message(texts[0], system)
        ):
            return f"{name} (in the system message)"
    return None


def _is_answer_field(name: str) -> bool:
    return any(word in name.lower() for word in ANSWER_FIELDS)


def _system_text(task: Task) -> str:
    return "\n".join(message.text for message in task.messages if message.role == "system")


def _is_shown(secret: str, shown: str, *, labelled: bool) -> bool:
    if len(secret) >= LONG_SECRET_CHARS:
        return secret in shown
    label = re.compile(_LABELLED_ANSWER.format(answer=re.escape(secret)), re.IGNORECASE)
    return labelled and label.search(shown) is not None


def _in_system_message(answer: str, system: str) -> bool:
    return len(answer) >= SHORT_ANSWER_CHARS and re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", system) is not None
