"""The generators of the package `reasoning-gym`, each with its own scorer: `reasoning_gym:chain_sum?max_terms=2`."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import os
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import msgspec

from rollbook.core.json import JSON
from rollbook.core.rollout import Rollout
from rollbook.core.score import Score
from rollbook.core.task import Task
from rollbook.environments.answers import boxed, canonical, extract, plain
from rollbook.environments.entries import pack, unpack
from rollbook.environments.environment import Environment
from rollbook.errors import UsageError

INSTRUCTION = "\n\nPut the final answer in <answer></answer>."
"""Asked of answers that are not numbers. A number is found wherever it stands, and small models do better unasked."""

_TAGGED = re.compile(r"<answer>((?:(?!</?answer>).)*+)</answer>", re.DOTALL | re.IGNORECASE)


class ReasoningGym(Environment):
    """One generator by name, with `size` problems from `seed`; every other argument is the generator's own."""

    description = (
        "procedural puzzles with their own scorers: reasoning_gym:NAME?setting=value (pip install rollbook[gym])"
    )

    def __init__(self, name: str, size: int = 100, seed: int = 42, **config: JSON) -> None:
        self._name = name
        self._config = {"size": size, "seed": seed, **config}
        _settings(name, self._config)

    def tasks(self) -> Iterator[Task]:
        """The generated problems, each with its metadata: some scorers need more than the answer."""
        for index in range(len(self._dataset)):
            entry = _quietly(self._dataset.__getitem__, index)
            question, answer = pack(entry["question"]), pack(entry["answer"])
            prompt = question if _is_number(answer) else question + INSTRUCTION
            rest = pack({key: value for key, value in entry.items() if key not in ("question", "answer")})
            yield Task(f"{self._name}-{index:05d}", prompt, answer=answer, entry=rest)

    def verify(self, task: Task, rollout: Rollout) -> Score:
        """What the generator's own scorer says of the answer that was read."""
        answer = read_answer(rollout.text, task.answer)
        question = task.prompt.removesuffix(INSTRUCTION)
        entry = {"question": question, "answer": task.answer, **unpack(task.fields["entry"])}
        try:
            return Score(self._score(answer, entry), answer=answer)
        except Exception as error:  # noqa: BLE001
            # Some scorers raise on text they cannot parse. It is the policy's doing only if they can score a right one.
            self._score(entry["answer"] or "", entry)
            return Score(0.0, answer=answer, info={"unreadable": f"{type(error).__name__}: {error}"[:200]})

    def solution(self, task: Task) -> str | None:
        """The generator's own answer in tags; None where it only knows how to check one."""
        return None if task.answer is None else f"<answer>{task.answer}</answer>"

    @cached_property
    def _dataset(self) -> Any:
        from reasoning_gym.factory import DATASETS

        settings = _settings(self._name, self._config)
        return _quietly(DATASETS[self._name][0], config=settings)

    def _score(self, answer: str, entry: dict[str, JSON]) -> float:
        return float(_quietly(self._dataset.score_answer, answer=answer, entry=entry))


def read_answer(text: str, expected: str | None) -> str:
    r"""The text handed to the scorer: what is tagged, else boxed, else the final number if one is expected, else all.

    >>> read_answer("3 + 4 = 7", "7"), read_answer("<answer>a b</answer>", "a b"), read_answer(r"\boxed{x}", "x")
    ('7', 'a b', 'x')
    """
    if tagged := _TAGGED.findall(text):
        return _tidy(tagged[-1].strip(), expected)
    if (inside := boxed(text)) is not None:
        return _tidy(inside, expected)
    text = text.rpartition("</think>")[2]
    return (extract(text) if _is_number(expected) else None) or text.strip()


def _tidy(text: str, expected: str | None) -> str:
    """A number without currency, separators and units where a number is expected; anything else as it stands."""
    if not _is_number(expected) or _is_number(text):
        return text
    return canonical(text)


def _is_number(text: str | None) -> bool:
    return text is not None and re.fullmatch(r"-?\d+(\.\d+)?", text) is not None and plain(text) is not None


def _settings(name: str, config: dict[str, JSON]) -> object:
    """The generator's own configuration, checked; each mistake is a UsageError of one line."""
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise UsageError(f"reasoning_gym:{name} needs a package ({error}); pip install 'rollbook[gym]'") from None
    if name not in DATASETS:
        raise UsageError(f"unknown reasoning_gym generator {name!r}{_meant(name, list(DATASETS))}")
    return _configured(name, DATASETS[name][1], config)


def _configured(name: str, kind: type, config: dict[str, JSON]) -> object:
    known = [field.name for field in dataclasses.fields(kind)]
    for key in config:
        if key not in known:
            raise UsageError(f"reasoning_gym:{name} has no setting {key!r}{_meant(key, known)}")
    try:
        settings: Any = msgspec.convert(config, kind)
        if hasattr(settings, "validate"):
            settings.validate()
    except (msgspec.ValidationError, AssertionError, ValueError, TypeError) as error:
        words = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"reasoning_gym:{name}: {words}") from None
    return settings


def _meant(given: str, known: list[str]) -> str:
    close = difflib.get_close_matches(given, known, n=3, cutoff=0.5)
    return f"; did you mean {', '.join(close)}?" if close else f"; known: {', '.join(sorted(known))}"


def _quietly(call: Any, *args: Any, **kwargs: Any) -> Any:
    """Some generators and scorers print; standard output belongs to the results."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        return call(*args, **kwargs)
