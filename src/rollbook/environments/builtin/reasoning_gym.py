"""The generators of the package `reasoning-gym`, each with its own scorer: `reasoning_gym:chain_sum?max_terms=2`.

Entries are stored as JSON without loss: what JSON would change (tuples, sets, keys that are not text) gets a tag.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cached_property
from typing import Any

import msgspec

from rollbook.core import JSON, Rollout, Score, Task
from rollbook.environments.answers.comparison import canonicalize, parse_number
from rollbook.environments.answers.extraction import extract_answer, find_boxed, find_tagged, strip_thinking
from rollbook.environments.environment import Environment
from rollbook.environments.registry import suggest_names
from rollbook.errors import UsageError

TYPE_TAG = "$python"

_TYPES: dict[str, Callable[[list[JSON]], object]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": dict,
    "float": lambda items: float(items[0]),
    "Fraction": lambda items: Fraction(*items),
}


def pack(value: object) -> JSON:
    """Return the value as JSON that `unpack` turns back into an equal value of the same types.

    >>> pack({"grid": [(1, 2)]})
    {'grid': [{'$python': 'tuple', 'of': [1, 2]}]}
    """
    if isinstance(value, dict):
        return _pack_dict(value)
    if isinstance(value, list):
        return [pack(v) for v in value]
    if isinstance(value, tuple):
        return {TYPE_TAG: "tuple", "of": [pack(v) for v in value]}
    if isinstance(value, set | frozenset):
        return {TYPE_TAG: type(value).__name__, "of": [pack(v) for v in sorted(value, key=repr)]}
    return _pack_scalar(value)


def _pack_scalar(value: object) -> JSON:
    """Convert text, numbers and None, also those of NumPy."""
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {TYPE_TAG: "float", "of": [repr(value)]}
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Fraction):
        return {TYPE_TAG: "Fraction", "of": [value.numerator, value.denominator]}
    if value is None:
        return None
    raise TypeError(f"{type(value).__name__} cannot be kept as JSON")


def _pack_dict(value: dict[object, object]) -> JSON:
    if all(type(k) is str for k in value) and TYPE_TAG not in value:
        return {k: pack(v) for k, v in value.items()}
    return {TYPE_TAG: "dict", "of": [[pack(k), pack(v)] for k, v in value.items()]}


def unpack(value: JSON) -> JSON:
    """Return the value that `pack` converted."""
    if isinstance(value, list):
        return [unpack(v) for v in value]
    if not isinstance(value, dict):
        return value
    if TYPE_TAG not in value:
        return {k: unpack(v) for k, v in value.items()}
    items = [unpack(v) for v in value["of"]]
    return _TYPES[value[TYPE_TAG]](items)


INSTRUCTION = "\n\nPut the final answer in <answer></answer>."
"""Only for answers that are not numbers: a number is found anywhere, and small models do better without this."""


class ReasoningGym(Environment):
    """One generator by name, with `size` problems from `seed`; all other arguments are settings of the generator."""

    kind = "generated"
    description = (
        "procedural puzzles with their own scorers: reasoning_gym:NAME?setting=value (pip install rollbook[gym])"
    )

    def __init__(self, name: str, size: int = 100, seed: int = 42, **config: JSON) -> None:
        self._name = name
        self._config = {"size": size, "seed": seed, **config}
        _check_settings(name, self._config)

    def tasks(self) -> Iterator[Task]:
        """Yield the generated problems, each with its metadata: some scorers need more than the answer."""
        for index in range(len(self._dataset)):
            entry = _call_quietly(self._dataset.__getitem__, index)
            question, answer = pack(entry["question"]), pack(entry["answer"])
            prompt = question if _is_number(answer) else question + INSTRUCTION
            rest = pack({key: value for key, value in entry.items() if key not in ("question", "answer")})
            yield Task(f"{self._name}-{index:05d}", prompt, answer=answer, entry=rest)

    def verify(self, task: Task, rollout: Rollout) -> Score:
        """Score the answer with the generator's own scorer."""
        answer = read_answer(rollout.text, task.answer)
        question = task.prompt.removesuffix(INSTRUCTION)
        entry = {"question": question, "answer": task.answer, **unpack(task.fields["entry"])}
        try:
            return Score(self._score(answer, entry), answer=answer)
        except Exception as error:  # noqa: BLE001
            # Some scorers raise on text they cannot parse. It is the policy's fault only if they can score a right one.
            self._score(entry["answer"] or "", entry)
            return Score(0.0, answer=answer, info={"unreadable": f"{type(error).__name__}: {error}"[:200]})

    def solution(self, task: Task) -> str | None:
        """Return the generator's answer in tags; None where the generator can only check answers."""
        return None if task.answer is None else f"<answer>{task.answer}</answer>"

    @cached_property
    def _dataset(self) -> Any:
        from reasoning_gym.factory import DATASETS

        settings = _check_settings(self._name, self._config)
        return _call_quietly(DATASETS[self._name][0], config=settings)

    def _score(self, answer: str, entry: dict[str, JSON]) -> float:
        return float(_call_quietly(self._dataset.score_answer, answer=answer, entry=entry))


def read_answer(text: str, expected: str | None) -> str:
    r"""Return the text for the scorer: what is tagged, else boxed, else the final number if one is expected, else all.

    >>> read_answer("3 + 4 = 7", "7"), read_answer("<answer>a b</answer>", "a b"), read_answer(r"\boxed{x}", "x")
    ('7', 'a b', 'x')
    """
    if tagged := find_tagged(text):
        return _normalize_number(tagged[-1].strip(), expected)
    if (inside := find_boxed(text)) is not None:
        return _normalize_number(inside, expected)
    text = strip_thinking(text)
    return (extract_answer(text) if _is_number(expected) else None) or text.strip()


def _normalize_number(text: str, expected: str | None) -> str:
    """Remove currency, separators and units where a number is expected; return anything else unchanged."""
    if not _is_number(expected) or _is_number(text):
        return text
    return canonicalize(text)


def _is_number(text: str | None) -> bool:
    return text is not None and re.fullmatch(r"-?\d+(\.\d+)?", text) is not None and parse_number(text) is not None


def _check_settings(name: str, config: dict[str, JSON]) -> object:
    """Return the checked configuration of a generator; each mistake is a UsageError of one line."""
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise UsageError(f"reasoning_gym:{name} needs a package ({error}); pip install 'rollbook[gym]'") from None
    if name not in DATASETS:
        raise UsageError(f"unknown reasoning_gym generator {name!r}{suggest_names(name, DATASETS, guesses=3)}")
    return _make_settings(name, DATASETS[name][1], config)


def _make_settings(name: str, cls: type, config: dict[str, JSON]) -> object:
    known = [field.name for field in dataclasses.fields(cls)]
    for key in config:
        if key not in known:
            raise UsageError(f"reasoning_gym:{name} has no setting {key!r}{suggest_names(key, known, guesses=3)}")
    try:
        settings: Any = msgspec.convert(config, cls)
        if hasattr(settings, "validate"):
            settings.validate()
    except (msgspec.ValidationError, AssertionError, ValueError, TypeError) as error:
        words = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"reasoning_gym:{name}: {words}") from None
    return settings


def _call_quietly(call: Any, *args: Any, **kwargs: Any) -> Any:
    """Call without standard output: some generators and scorers print, and it is reserved for results."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        return call(*args, **kwargs)
