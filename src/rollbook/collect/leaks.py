"""Leaks: what only the verifier may see, standing in what the model is shown."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from rollbook.collect.finding import Finding, judged, not_checked
from rollbook.core.json import JSON, encode
from rollbook.core.task import Task

CHECK = "the answer is not shown"
LONG = 24
"""Characters from which on a hidden text that is also shown is no coincidence."""

TELLING = 4
"""Characters from which on an answer in a short system message of its own task is none either."""

BRIEF = 500
"""A longer system message may be a text in which the answer is to be found."""

LEAK_SHARE = 0.5
ANSWERS = ("answer", "solution", "expected", "reference", "canonical", "rationale", "ground_truth", "target", "label")
CHECKS = ("test", "hidden", "secret", "private", "rubric", "grader", "verif", "checker")
PUBLIC = ("public", "sample", "example", "shown", "visible")
_LABEL = r"(?:answer|solution|result)\b[^\n]{{0,20}}(?:[:=]|\bis\b)\W{{0,4}}{answer}\b|####\s*{answer}\b"


def hidden(tasks: Sequence[Task]) -> Finding:
    """Whether an answer, or a field that is named like what a verifier keeps to itself, is shown."""
    holding = [task for task in tasks if any(secrets(task))]
    if not holding:
        return not_checked(CHECK, "the tasks hold no answer to look for")
    common = shared(holding)
    leaks = {task.id: name for task in holding if (name := leak(task, common))}
    often = len(leaks) > LEAK_SHARE * len(holding)
    words = f"{len(leaks)} prompts hold what only the verifier may see: {', '.join(sorted(set(leaks.values())))}"
    return judged(CHECK, len(holding), list(leaks), "unsound" if often else "warning", "", words)


def secrets(task: Task) -> Iterator[tuple[str, list[str]]]:
    """What no model may see, by name: the answer, and fields with such names; of a list of texts, its texts."""
    for name, value in (("answer", task.answer), *task.fields.items()):
        if _secret(name.lower()) and value is not None and (texts := _texts(value)):
            yield name, texts


def _secret(name: str) -> bool:
    if any(word in name for word in ANSWERS):
        return True
    return any(part.startswith(CHECKS) for part in name.split("_")) and not any(word in name for word in PUBLIC)


def _texts(value: JSON) -> list[str]:
    if isinstance(value, list) and value and all(isinstance(text, str) and len(text) >= LONG for text in value):
        return [text.strip() for text in value]
    text = value.strip() if isinstance(value, str) else encode(value).decode()
    return [text] if text else []


def shared(tasks: Sequence[Task]) -> set[str]:
    """System messages that tasks of different answers have in common: they say which answers there are."""
    answers: dict[str, set[bytes]] = defaultdict(set)
    for task in tasks:
        answers[_system(task)].add(encode(task.answer))
    return {text for text, several in answers.items() if len(several) > 1}


def leak(task: Task, common: set[str]) -> str | None:
    """The name of what is shown: a long text word for word, a short one behind a label, an answer in a system message.

    A short answer somewhere in a question may be chance, or what the question is about.
    """
    shown, system = "\n".join(message.text for message in task.messages), _system(task)
    for name, texts in secrets(task):
        if all(_shown(text, shown, labelled=_is_answer(name)) for text in texts):
            return name
        if name == "answer" and system not in common and len(system) <= BRIEF and _told(texts[0], system):
            return f"{name} (in the system message)"
    return None


def _is_answer(name: str) -> bool:
    return any(word in name.lower() for word in ANSWERS)


def _system(task: Task) -> str:
    return "\n".join(message.text for message in task.messages if message.role == "system")


def _shown(secret: str, shown: str, *, labelled: bool) -> bool:
    if len(secret) >= LONG:
        return secret in shown
    label = re.compile(_LABEL.format(answer=re.escape(secret)), re.IGNORECASE)
    return labelled and label.search(shown) is not None


def _told(answer: str, system: str) -> bool:
    return len(answer) >= TELLING and re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", system) is not None
