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
    """Check that ids are unique: they name rollouts."""
    counts = Counter(task.id for task in tasks)
    twice = [task_id for task_id, count in counts.items() if count > 1]
    return make_finding(
        "task ids are unique", len(tasks), twice, "unsound", "", f"{len(twice)} ids occur more than once"
    )


def check_prompts(tasks: Sequence[Task]) -> Finding:
    """Check that every prompt has text."""
    empty = [task.id for task in tasks if not any(message.text.strip() for message in task.messages)]
    return make_finding(
        "prompts are not empty", len(tasks), empty, "unsound", "", f"{len(empty)} tasks have an empty prompt"
    )


def check_duplicates(tasks: Sequence[Task]) -> Finding:
    """Count prompts that are the same as an earlier one, or nearly."""
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
    """Return tasks that share nine tenths of their three-word sequences with an earlier one and are not the same."""
    shingled = [(task.id, _fold_prompt(task), _shingles(_fold_prompt(task))) for task in tasks]
    duplicates = {}
    for (_, text, one), (other_id, other_text, other) in combinations(shingled, 2):
        if (
            len(one) * NEAR_DUPLICATE_SHARE > len(other)
            or len(other) * NEAR_DUPLICATE_SHARE > len(one)
            or text == other_text
        ):
            continue
        if len(one & other) >= NEAR_DUPLICATE_SHARE * len(one | other):
            duplicates[other_id] = True
    return list(duplicates)


def _shingles(text: str) -> frozenset[int]:
    words = _WORD.findall(text)
    return frozenset(
        hash(tuple(words[at : at + SHINGLE_WORDS])) for at in range(max(1, len(words) - SHINGLE_WORDS + 1))
    )


def check_tool_schemas(schemas: Sequence[JSON]) -> Finding:
    """Check that each tool's parameters are a JSON schema that servers accept, and that it has a description."""
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
    undescribed = [schema["function"]["name"] for schema in schemas if not schema["function"]["description"]]
    if undescribed:
        return Finding(
            check, "warning", 0, f"{', '.join(undescribed)}: no description, so a model cannot know what it does"
        )
    return Finding(check, "ok", 0, f"{len(schemas)} tools")


LEAK_CHECK = "the answer is not shown"
LONG_SECRET_CHARS = 24
"""A hidden text of this length that is also shown is not a coincidence."""

SHORT_ANSWER_CHARS = 4
"""Nor is an answer of this length in a short system message of its own task."""

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
    """Check that no prompt contains the answer, or a field whose name marks it as the verifier's own."""
    with_secrets = [task for task in tasks if any(secret_texts(task))]
    if not with_secrets:
        return not_checked(LEAK_CHECK, "the tasks have no answer to look for")
    common = shared_system_messages(with_secrets)
    leaks = {task.id: name for task in with_secrets if (name := find_leak(task, common))}
    often = len(leaks) > LEAK_SHARE * len(with_secrets)
    words = f"{len(leaks)} prompts contain what only the verifier may see: {', '.join(sorted(set(leaks.values())))}"
    return make_finding(LEAK_CHECK, len(with_secrets), list(leaks), "unsound" if often else "warning", "", words)


def secret_texts(task: Task) -> Iterator[tuple[str, list[str]]]:
    """Yield what no model may see, by name: the answer, and fields named like one; of a list of texts, its texts."""
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
    """Return system messages that tasks with different answers share: they list the possible answers."""
    answers: dict[str, set[bytes]] = defaultdict(set)
    for task in tasks:
        answers[_system_text(task)].add(encode(task.answer))
    return {text for text, several in answers.items() if len(several) > 1}


def find_leak(task: Task, common: set[str]) -> str | None:
    """Return the name of what is shown: a long text verbatim, a short one after a label, an answer in a system message.

    A short answer elsewhere in a question may be chance, or its subject.
    """
    shown, system = "\n".join(message.text for message in task.messages), _system_text(task)
    for name, texts in secret_texts(task):
        labelled = any(word in name.lower() for word in ANSWER_FIELDS)
        if all(_is_shown(text, shown, labelled=labelled) for text in texts):
            return name
        if (
            name == "answer"
            and system not in common
            and len(system) <= SHORT_SYSTEM_CHARS
            and _in_system_message(texts[0], system)
        ):
            return f"{name} (in the system message)"
    return None


def _system_text(task: Task) -> str:
    return "\n".join(message.text for message in task.messages if message.role == "system")


def _is_shown(secret: str, shown: str, *, labelled: bool) -> bool:
    if len(secret) >= LONG_SECRET_CHARS:
        return secret in shown
    label = re.compile(_LABELLED_ANSWER.format(answer=re.escape(secret)), re.IGNORECASE)
    return labelled and label.search(shown) is not None


def _in_system_message(answer: str, system: str) -> bool:
    return len(answer) >= SHORT_ANSWER_CHARS and re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", system) is not None
